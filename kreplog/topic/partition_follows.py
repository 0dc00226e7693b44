"""PartitionFollows: the iterators that follow partitions of a topic, read in turn and waited for together."""

from __future__ import annotations

from typing import Any

from kreplog._native.following import END, FollowIterator
from kreplog._native.waiting import HighWatermarkWait, Outcome

TURN = 256
"""Items that are taken from a partition before the others have their turn."""


class PartitionFollows:
    """Iterators by partition, for one thread at a time. They are to wait across writers: who uses this looks whether
    the topic has a writer."""

    def __init__(self) -> None:
        self.follows: dict[int, FollowIterator] = {}
        self._taken = 0

    def add(self, number: int, follow: FollowIterator) -> None:
        self.follows[number] = follow

    def drop(self, number: int) -> None:
        self.follows.pop(number, None)

    def take(self) -> tuple[int, Any] | None:
        """A partition and its next item; None if no partition has one. Raises as the iterators do."""
        for _ in range(len(self.follows)):
            number, follow = next(iter(self.follows.items()))
            item = END if follow.ended else follow.take()
            self._taken += 1
            if item is END or self._taken >= TURN:
                self._taken = 0
                del self.follows[number]
                self.follows[number] = follow  # the last to have its next turn
            if item is not END:
                return number, item
        return None

    def poll(self) -> list[HighWatermarkWait] | None:
        """The wait of each partition, whose wake-up is registered; None where there is more by now.

        A partition whose log is closed in this process leaves. Raises LogTruncatedError, PartitionDeletedError."""
        waits: list[HighWatermarkWait] | None = []
        for number, follow in list(self.follows.items()):
            outcome = follow.poll()
            if outcome != Outcome.WAITING:
                waits = None
                if not follow.go_on(outcome):
                    del self.follows[number]
            elif waits is not None:
                waits.append(follow.wait)
        return waits
