"""Requests that wait: produces for the high watermark, fetches for something to read, both no longer than they may.

What waits is held as values; who wakes it, and what is then answered, is the manager's business.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from kreplog.core.messages import FetchedPartition, FetchRequest, ProducedPartition, ProduceResponse
from kreplog.core.replication.sessions import FetchContext
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition


@dataclass(slots=True, eq=False)
class DelayedProduce:
    """An acks=all produce. answers: one for each partition of the request, in its order; those in `waiting` stand
    until the partition's high watermark has passed them."""

    reply_to: Hashable
    deadline_ms: int
    answers: list[ProducedPartition]
    waiting: set[int] = field(default_factory=set)

    def settle(self, index: int, error: ErrorCode = ErrorCode.NONE) -> bool:
        """Fix the answer at `index`; True when it was the last that stood."""
        if index not in self.waiting:
            return False
        self.waiting.remove(index)
        if error is not ErrorCode.NONE:
            self.answers[index] = ProducedPartition(self.answers[index].partition, error)
        return not self.waiting

    def expire(self) -> None:
        for index in sorted(self.waiting):
            self.answers[index] = replace(
                ProducedPartition(self.answers[index].partition, ErrorCode.REQUEST_TIMED_OUT),
                message="appended, but not replicated in time; it may still be",
            )
        self.waiting.clear()

    @property
    def response(self) -> ProduceResponse:
        return ProduceResponse(tuple(self.answers))


class CommitQueue:
    """The produces of one partition that wait for its high watermark (the sources' commitQ), by the offset needed."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, DelayedProduce, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, required_offset: int, produce: DelayedProduce, index: int) -> None:
        """`produce.answers[index]` stands until the high watermark is at least `required_offset`."""
        produce.waiting.add(index)
        self._count += 1
        heapq.heappush(self._heap, (required_offset, self._count, produce, index))

    def committed(self, high_watermark: int) -> Iterator[tuple[DelayedProduce, int]]:
        """Take out those that wait no more."""
        while self._heap and self._heap[0][0] <= high_watermark:
            _, _, produce, index = heapq.heappop(self._heap)
            yield produce, index

    def drain(self) -> list[tuple[DelayedProduce, int]]:
        """Take out all, in the order of their offsets."""
        drained = [(produce, index) for _, _, produce, index in sorted(self._heap, key=lambda entry: entry[:2])]
        self._heap.clear()
        return drained


@dataclass(slots=True, eq=False)
class DelayedFetch:
    """A fetch that waits for min_bytes. context: of its session, or of the one request. refused: answers that were
    found when it came in and do not change by waiting."""

    number: int
    reply_to: Hashable
    deadline_ms: int
    request: FetchRequest
    context: FetchContext
    refused: dict[TopicPartition, FetchedPartition] = field(default_factory=dict)


Waiting = TypeVar("Waiting")


class Deadlines(Generic[Waiting]):
    """What is due when. Entries that were answered in time are dropped when their time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiting]] = []
        self._count = 0

    def push(self, deadline_ms: int, waiting: Waiting) -> None:
        self._count += 1
        heapq.heappush(self._heap, (deadline_ms, self._count, waiting))

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Waiting]:
        while self._heap and self._heap[0][0] <= now_ms:
            yield heapq.heappop(self._heap)[2]
