"""MemoryAccount: the memory that a broker uses for its clients, by purpose, under one limit.

Connection buffers may use the whole limit: beyond it the connection that has held memory for longest is closed. State
that remains between requests (fetch sessions, delayed fetches) may use half of it: beyond that a reservation fails, and
the caller refuses the session or completes the fetch at once. Idempotent producers that logs remember may use a quarter
before there are no new ones; those in a log are charged in any case, since they are needed to detect duplicates.
"""

from __future__ import annotations

from collections import Counter

NO_LIMIT = 1 << 62

WIDE_CHARACTER = 4
"""Bytes of each character of a text that is not ASCII alone: its widest character decides."""

PRODUCERS = "producer_ids"
"""The kind of what logs remember of idempotent producers."""


class MemoryAccount:
    """An account of memory with a limit. limit: in bytes. held: bytes by kind of holder, for metrics; connections and
    logs have entries of their own."""

    def __init__(self, limit: int = NO_LIMIT) -> None:
        self.limit = limit
        self.held: Counter[str] = Counter()
        self._reserved = 0

    @property
    def exceeded(self) -> bool:
        return self.held.total() > self.limit

    @property
    def has_room_for_producers(self) -> bool:
        """Whether a client may begin to use a new producer id. The simulator does not run this rule:
        its logs charge no account."""
        return self.held[PRODUCERS] < self.limit // 4

    def reserve(self, kind: str, size: int, *, force: bool = False) -> bool:
        """Reserve `size` bytes that remain between requests; False, with nothing reserved, if the limit forbids it.

        force: reserve them beyond the limit, for followers, which must be able to fetch."""
        if self._reserved + size > self.limit // 2 and not force:
            return False
        self._reserved += size
        self.held[kind] += size
        return True

    def release(self, kind: str, size: int) -> None:
        """Release bytes of a reservation."""
        self._reserved -= size
        self.held[kind] -= size


def text_size(text: str) -> int:
    """The memory of a text's characters, at most."""
    return len(text) if text.isascii() else WIDE_CHARACTER * len(text)
