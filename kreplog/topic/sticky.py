"""StickyPartitioner: the partition of records without a key, as Kafka's producer chooses it (KIP-480, KIP-794)."""

from __future__ import annotations

import random

STICKY_BYTES = 16384
"""Kafka's batch.size: after so many bytes another partition is drawn."""


class StickyPartitioner:
    """One partition until it got STICKY_BYTES, then another, drawn uniformly: long batches, and an even load.

    Threads that share it may move on a little early or late, which harms nothing.
    """

    def __init__(self, generator: random.Random | None = None) -> None:
        self._random = generator or random.Random()
        self._current = -1
        self._left = 0

    def choose(self, size: int, partitions: int) -> int:
        """The partition of a record of `size` bytes."""
        current = self._current
        if self._left <= 0 or current >= partitions:
            current = self._current = self._random.randrange(partitions)
            self._left = STICKY_BYTES
        self._left -= size
        return current

    def draw(self, partitions: int) -> int:
        """The partition of the first of many records."""
        return self._random.randrange(partitions)
