"""One account of the memory that a broker holds on behalf of its clients, with one limit.

Connections' buffers may take all of it: whoever holds some for longest is closed for others. What is remembered between
requests (fetch sessions, parked requests) may take half, so that it never closes connections: beyond that it is
refused, each in its own way.
"""

from __future__ import annotations

from collections import Counter

NO_LIMIT = 1 << 62


class MemoryAccount:
    """limit: in bytes. held: bytes by what holds them."""

    def __init__(self, limit: int = NO_LIMIT) -> None:
        self.limit = limit
        self.held: Counter[str] = Counter()
        self._remembered = 0

    @property
    def exceeded(self) -> bool:
        return self.held.total() > self.limit

    def remember(self, kind: str, size: int, *, force: bool = False) -> bool:
        """Charge `size` bytes that stay between requests; False, with nothing charged, where there is no room.

        force: charge it all the same, for what a broker owes its cluster."""
        if self._remembered + size > self.limit // 2 and not force:
            return False
        self._remembered += size
        self.held[kind] += size
        return True

    def forget(self, kind: str, size: int) -> None:
        """They are free again."""
        self._remembered -= size
        self.held[kind] -= size
