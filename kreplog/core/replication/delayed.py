"""Delayed requests: produces that await the high watermark, fetches that await min_bytes, DeleteRecords that await
every replica; each until its deadline.

They are held here as values; the purgatories and Deletions decide when to complete them, and how.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kreplog.core.messages import (
    DeletedRecords,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchRequest,
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
)
from kreplog.core.replication.sessions import FetchContext
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition


@dataclass(slots=True, eq=False)
class DelayedProduce:
    """An acks=all produce. responses: of each partition of the request, in its order. waiting: indices of those whose
    high watermark has not passed the batch yet. unverified: by index, the batches that are not appended before their
    coordinator has confirmed the transaction."""

    reply_to: Hashable
    deadline_ms: int
    responses: list[ProducedPartition]
    waiting: set[int] = field(default_factory=set)
    unverified: dict[int, ProducePartition] = field(default_factory=dict)

    def settle(self, index: int, error: ErrorCode = ErrorCode.NONE) -> bool:
        """Complete the response at `index`; True when none waits any more."""
        if index not in self.waiting:
            return False
        self.waiting.remove(index)
        self.unverified.pop(index, None)
        if error is not ErrorCode.NONE:
            appended = self.responses[index]
            self.responses[index] = ProducedPartition(appended.partition, error, appended.base_offset)
        return not self.waiting

    def expire(self) -> None:
        """Complete the responses that still wait with REQUEST_TIMED_OUT."""
        for index in sorted(self.waiting):
            appended = self.responses[index]
            message = (
                "not appended: the transaction coordinator has not confirmed the transaction in time"
                if index in self.unverified
                else "appended, but not replicated in time; it may still be"
            )
            self.responses[index] = ProducedPartition(
                appended.partition, ErrorCode.REQUEST_TIMED_OUT, appended.base_offset, message=message
            )
        self.waiting.clear()
        self.unverified.clear()

    @property
    def response(self) -> ProduceResponse:
        return ProduceResponse(tuple(self.responses))


class CommitQueue:
    """The produces of one partition that await its high watermark, by the offset required."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, DelayedProduce, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, required_offset: int, produce: DelayedProduce, index: int) -> None:
        """`produce.responses[index]` waits until the high watermark is at least `required_offset`."""
        produce.waiting.add(index)
        self._count += 1
        heapq.heappush(self._heap, (required_offset, self._count, produce, index))

    def committed(self, high_watermark: int) -> Iterator[tuple[DelayedProduce, int]]:
        """Take out those that this high watermark completes."""
        while self._heap and self._heap[0][0] <= high_watermark:
            _, _, produce, index = heapq.heappop(self._heap)
            yield produce, index

    def drain(self) -> list[tuple[DelayedProduce, int]]:
        """Take out all, in the order of their offsets."""
        drained = [(produce, index) for _, _, produce, index in sorted(self._heap, key=lambda entry: entry[:2])]
        self._heap.clear()
        return drained


@dataclass(slots=True, eq=False)
class DelayedDeletion:
    """A DeleteRecords. responses: of each partition of the request, in its order. waiting: by index, the offset that
    the low watermark has yet to reach."""

    reply_to: Hashable
    deadline_ms: int
    responses: list[DeletedRecords]
    waiting: dict[int, int] = field(default_factory=dict)

    def settle(self, index: int, response: DeletedRecords) -> None:
        """Complete the response at `index`."""
        del self.waiting[index]
        self.responses[index] = response

    def expire(self) -> None:
        """Complete the responses that still wait with REQUEST_TIMED_OUT."""
        for index in self.waiting:
            self.responses[index] = DeletedRecords(
                self.responses[index].partition,
                ErrorCode.REQUEST_TIMED_OUT,
                message="deleted on the leader, but not on every replica in time; they will follow",
            )
        self.waiting.clear()

    @property
    def response(self) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(tuple(self.responses))


class DelayedDeletions:
    """The deletions that wait, by partition."""

    def __init__(self) -> None:
        self._at: dict[TopicPartition, dict[DelayedDeletion, None]] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._at

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._at)

    def add(self, deletion: DelayedDeletion) -> None:
        for index in deletion.waiting:
            self._at.setdefault(deletion.responses[index].partition, {})[deletion] = None

    def at(self, partition: TopicPartition) -> list[DelayedDeletion]:
        """The deletions that wait for `partition`, in order of arrival."""
        return list(self._at.get(partition, ()))

    def remove(self, deletion: DelayedDeletion) -> None:
        """Remove one that has been completed, or is about to be."""
        for partition in {response.partition for response in deletion.responses}:
            waiting = self._at.get(partition, {})
            waiting.pop(deletion, None)
            if not waiting:
                self._at.pop(partition, None)


@dataclass(slots=True, eq=False)
class DelayedFetch:
    """A fetch that awaits min_bytes. context: of its session, or of this request alone. refused: errors found on
    arrival, which waiting does not change."""

    reply_to: Hashable
    deadline_ms: int
    request: FetchRequest
    context: FetchContext
    refused: dict[TopicPartition, FetchedPartition] = field(default_factory=dict)


class ParkedFetches:
    """The fetches that wait, by what wakes them: their session if they have one, else each partition requested."""

    def __init__(self) -> None:
        self._fetches: dict[DelayedFetch, None] = {}
        self._in_session: dict[int, DelayedFetch] = {}
        self._at: dict[TopicPartition, dict[DelayedFetch, None]] = {}

    def __contains__(self, fetch: DelayedFetch) -> bool:
        return fetch in self._fetches

    def __iter__(self) -> Iterator[DelayedFetch]:
        return iter(self._fetches)

    def add(self, fetch: DelayedFetch) -> None:
        self._fetches[fetch] = None
        if fetch.context.session_id:
            self._in_session[fetch.context.session_id] = fetch
        else:
            for requested in fetch.request.partitions:
                self._at.setdefault(requested.partition, {})[fetch] = None

    def remove(self, fetch: DelayedFetch) -> None:
        """Remove one that has been completed, or is about to be."""
        del self._fetches[fetch]
        session_id = fetch.context.session_id
        if session_id:
            if self._in_session.get(session_id) is fetch:  # else a later request of the session waits
                del self._in_session[session_id]
            return
        for partition in {requested.partition for requested in fetch.request.partitions}:
            waiting = self._at[partition]
            del waiting[fetch]
            if not waiting:
                del self._at[partition]

    def in_session(self, session_id: int) -> DelayedFetch | None:
        """The fetch that waits in a session, the last one if several do; None if none does."""
        return self._in_session.get(session_id)

    def waiting_for(self, partition: TopicPartition, sessions: Iterable[int]) -> list[DelayedFetch]:
        """The fetches that wait for the partition: those of `sessions`, which hold it, and those without a session."""
        in_session = [self._in_session[session_id] for session_id in sessions if session_id in self._in_session]
        return [*in_session, *self._at.get(partition, ())]

    def of(self, replica_ids: Collection[int]) -> list[DelayedFetch]:
        """The fetches of these followers."""
        return [fetch for fetch in self._fetches if fetch.request.replica_id in replica_ids]


Waiting = TypeVar("Waiting")

MIN_COMPLETED = 1000
"""Entries of completed requests that may remain in the heap, or as many as still wait if those are more."""


class Deadlines(Generic[Waiting]):
    """Deadlines of delayed requests. is_waiting: whether a request has not been completed yet. Completed ones are
    dropped at their deadline, or when many more have been pushed since: clients choose deadlines that may be weeks
    away."""

    def __init__(self, is_waiting: Callable[[Waiting], bool]) -> None:
        self._is_waiting = is_waiting
        self._heap: list[tuple[int, int, Waiting]] = []
        self._count = 0
        self._room = MIN_COMPLETED

    def push(self, deadline_ms: int, waiting: Waiting, size: int = 1) -> None:
        """Requests with the same deadline are due in the order pushed. size: of the request."""
        self._count += 1
        heapq.heappush(self._heap, (deadline_ms, self._count, waiting))
        self._room -= size
        if self._room < 0:
            self._heap = [entry for entry in self._heap if self._is_waiting(entry[2])]
            heapq.heapify(self._heap)
            self._room = max(MIN_COMPLETED, len(self._heap))

    def __len__(self) -> int:
        return len(self._heap)

    def next_ms(self) -> int | None:
        """The next deadline; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Waiting]:
        """Take out the requests whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heapq.heappop(self._heap)[2]
