"""Timers: deadlines of a coordinator, of which thousands move at every heartbeat and few are ever reached."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from kreplog.core.effects import Steps

MIN_QUEUED = 1000
"""Queued deadlines below which cancelled ones are not looked for."""


class Deadline:
    """A deadline that may move or be cancelled. action: the step to take when it is reached, called with the time."""

    __slots__ = ("action", "at_ms", "queued_ms")

    def __init__(self, action: Callable[[int], Steps[None]]) -> None:
        self.action = action
        self.at_ms: int | None = None
        self.queued_ms: int | None = None

    def cancel(self) -> None:
        self.at_ms = None


class Timers:
    """The deadlines of one coordinator. A deadline that is moved back stays queued for its former time, and is queued
    again only then, so that a heartbeat costs one assignment. One that is cancelled stays queued too; those are dropped
    once they may be the most."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._count = 0
        self._drop_at = MIN_QUEUED

    def set(self, deadline: Deadline, at_ms: int) -> None:
        """Set or move a deadline."""
        deadline.at_ms = at_ms
        if deadline.queued_ms is None or at_ms < deadline.queued_ms:
            deadline.queued_ms = at_ms
            self._count += 1
            if len(self._heap) >= self._drop_at:
                self._drop_cancelled()
            heapq.heappush(self._heap, (at_ms, self._count, deadline))

    def _drop_cancelled(self) -> None:
        """Build the heap without cancelled entries. Amortized O(1): as many were queued since, or the limit doubles."""
        queued = [entry for entry in self._heap if entry[2].at_ms is not None and entry[0] == entry[2].queued_ms]
        for _, _, deadline in self._heap:
            if deadline.at_ms is None:
                deadline.queued_ms = None
        heapq.heapify(queued)
        self._heap = queued
        self._drop_at = max(MIN_QUEUED, 2 * len(queued))

    def __len__(self) -> int:
        """Deadlines that are queued, some of them cancelled."""
        return len(self._heap)

    def next_ms(self) -> int | None:
        """When the next deadline may be reached, None for never."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Deadline]:
        """Take out the deadlines that are reached; they are no longer set."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, deadline = heapq.heappop(self._heap)
            if queued_ms != deadline.queued_ms:
                continue  # it was moved forward, and was queued once more for that
            deadline.queued_ms = None
            if deadline.at_ms is None:
                continue
            if deadline.at_ms > now_ms:
                self.set(deadline, deadline.at_ms)
                continue
            deadline.at_ms = None
            yield deadline
