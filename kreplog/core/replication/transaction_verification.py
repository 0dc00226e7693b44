"""TransactionVerification: batches that would begin a transaction in a partition, until their coordinator confirms it.

A batch that arrives after its transaction has ended would open one that nobody ends: a hanging transaction, which no
reader of committed records gets past. So a leader has the coordinator confirm that the partition is part of an ongoing
transaction of the producer, or has it added, before it appends such a batch (KIP-890). The batches of a transactional
id wait in order, for a partition each on its own; the first is verified, and the rest follow. An answer from before a
marker of the producer may be of the transaction that this has ended: it is void, and the batch is verified again. A
batch that has expired leaves a gap, which its producer's retry fills: later ones may not go before it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kreplog.core.effects import SendAddPartitions, Steps
from kreplog.core.events import AddPartitionsReplied
from kreplog.core.messages import ProducePartition
from kreplog.core.replication.delayed import DelayedProduce
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.timers import Deadline, Timers
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC, AddPartitionsToTxnRequest, partition_of_transaction
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER, TopicPartition

RETRY_MS = 20
"""Pause before a request is repeated to a coordinator that moves, loads, or still ends the producer's former
transaction. Source: Kafka, add.partitions.to.txn.retry.backoff.ms."""

MAX_RETRIED_PER_STEP = 200
"""Verifications that one step sends again."""

_RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a coordinator that pass; the last where its metadata is behind that of this leader."""

_AS_PRODUCED = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
"""Error of a coordinator -> of the produce. Source: Kafka, AddPartitionsToTxnManager."""


@dataclass(slots=True, eq=False)
class UnverifiedBatch:
    """A batch that is appended when its transaction is confirmed. index: in `produce`. leader_epoch: as in a
    CoordinatorProduce."""

    produce: DelayedProduce
    index: int
    transactional_id: str
    adds_partitions: bool
    leader_epoch: int
    sequenced: bool

    @property
    def produced(self) -> ProducePartition:
        return self.produce.unverified[self.index]

    @property
    def is_expired(self) -> bool:
        """Whether the produce has been answered in the meantime; its records are gone then."""
        return self.index not in self.produce.unverified


@dataclass(slots=True, eq=False)
class _Queue:
    """The batches of a transactional id for one partition. producer: id and epoch of the first, which is being
    verified. tag: of the request in flight, 0 for none. retry: when it is sent again."""

    partition: TopicPartition
    transactional_id: str
    retry: Deadline
    batches: deque[UnverifiedBatch] = field(default_factory=deque)
    producer: tuple[int, int] = (-1, -1)
    tag: int = 0


Release = Callable[[UnverifiedBatch, int, int], Steps[None]]
"""Appends a batch: called with it, the epoch of the coordinator that has confirmed it or -1, and the time."""

Refuse = Callable[[UnverifiedBatch, ErrorCode], Steps[None]]
"""Answers a batch with an error."""

Expired = Callable[[TopicPartition, int], None]
"""Called where a batch has expired, before those behind it are released, with its partition and the time."""


class TransactionVerification:
    """Holds batches back until the coordinator confirms their transaction. release: calls `hold` if a batch still has
    to be verified."""

    def __init__(self, metadata: MetadataCache, release: Release, refuse: Refuse, expired: Expired) -> None:
        self._metadata = metadata
        self._release = release
        self._refuse = refuse
        self._expired = expired
        self._timers = Timers()
        self._tags = itertools.count(1)
        self._in_flight: dict[int, _Queue] = {}
        self._queues: dict[TopicPartition, dict[str, _Queue]] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        """Whether batches wait for this partition."""
        return partition in self._queues

    def queues_behind(self, batch: UnverifiedBatch) -> bool:
        """Let a batch wait behind those of its transactional id that came before it; False if there are none."""
        queue = self._queues.get(batch.produced.partition, {}).get(batch.transactional_id)
        if queue is None:
            return False
        batch.produce.waiting.add(batch.index)
        queue.batches.append(batch)
        return True

    def hold(self, batch: UnverifiedBatch, producer_id: int, producer_epoch: int, now_ms: int) -> Steps[None]:
        """Let a batch wait until it is verified, before all others of its transactional id."""
        partition, name = batch.produced.partition, batch.transactional_id
        queues = self._queues.setdefault(partition, {})
        queue = queues.get(name)
        if queue is None:
            queue = queues[name] = self._new(partition, name)
        batch.produce.waiting.add(batch.index)
        queue.batches.appendleft(batch)
        queue.producer = producer_id, producer_epoch
        yield from self._send(queue, now_ms)

    def _new(self, partition: TopicPartition, transactional_id: str) -> _Queue:
        queue = _Queue(partition, transactional_id, Deadline(lambda now_ms: self._send(queue, now_ms)))
        return queue

    def _send(self, queue: _Queue, now_ms: int) -> Steps[None]:
        """Send the first batch's request to the coordinator; batches that were answered meanwhile are dropped."""
        if queue.batches[0].is_expired:
            yield from self._next(queue, now_ms)
            return
        coordinator = self._coordinator_of(queue.transactional_id)
        if coordinator == NO_LEADER:
            self._timers.set(queue.retry, now_ms + RETRY_MS)
            return
        queue.tag = next(self._tags)
        self._in_flight[queue.tag] = queue
        verify_only = not queue.batches[0].adds_partitions
        request = AddPartitionsToTxnRequest(
            queue.transactional_id, *queue.producer, (queue.partition,), from_leader=True, verify_only=verify_only
        )
        yield SendAddPartitions(queue.tag, coordinator, request)

    def _coordinator_of(self, transactional_id: str) -> int:
        count = self._metadata.partition_count(TRANSACTIONS_TOPIC)
        if not count:
            return NO_LEADER
        home = TopicPartition(TRANSACTIONS_TOPIC, partition_of_transaction(transactional_id, count))
        known = self._metadata.partitions.get(home)
        return NO_LEADER if known is None else known.state.leader

    def replied(self, event: AddPartitionsReplied, now_ms: int) -> Steps[None]:
        """The coordinator has answered, or its answer is lost."""
        queue = self._in_flight.pop(event.tag, None)
        if queue is None or queue.tag != event.tag:
            return  # the partition is no longer led here, or a marker has come in between
        queue.tag = 0
        if event.error is None or event.error in _RETRIED:
            self._timers.set(queue.retry, now_ms + RETRY_MS)
            return
        yield from self._next(queue, now_ms, event.error, event.coordinator_epoch)

    def _next(
        self, queue: _Queue, now_ms: int, error: ErrorCode = ErrorCode.NONE, verified_by: int = -1
    ) -> Steps[None]:
        """The first batch has expired, or is refused, or appended if it is verified; the others follow unless one of
        them has to be verified in its turn."""
        waiting, queue.batches = queue.batches, deque()
        self._remove(queue)
        first = waiting.popleft()
        if first.is_expired:
            self._expired(queue.partition, now_ms)
        elif error is not ErrorCode.NONE:
            yield from self._refuse(first, _AS_PRODUCED.get(error, error))
        else:
            yield from self._release(first, verified_by, now_ms)
        for batch in waiting:
            if batch.is_expired:
                self._expired(queue.partition, now_ms)
            elif not self.queues_behind(batch):
                yield from self._release(batch, -1, now_ms)

    def _remove(self, queue: _Queue) -> None:
        queues = self._queues[queue.partition]
        del queues[queue.transactional_id]
        if not queues:
            del self._queues[queue.partition]
        self._in_flight.pop(queue.tag, None)
        queue.retry.cancel()

    def marker_written(self, partition: TopicPartition, producer_id: int, now_ms: int) -> Steps[None]:
        """A transaction of the producer has ended in a partition."""
        for queue in list(self._queues.get(partition, {}).values()):
            if queue.producer[0] == producer_id and queue.tag:
                del self._in_flight[queue.tag]
                queue.tag = 0
                yield from self._send(queue, now_ms)

    def fail(self, partition: TopicPartition, error: ErrorCode) -> Steps[None]:
        """The partition is no longer led here: nothing of what waits has been appended."""
        for queue in list(self._queues.get(partition, {}).values()):
            self._remove(queue)
            for batch in queue.batches:
                if not batch.is_expired:
                    yield from self._refuse(batch, error)

    def tick(self, now_ms: int) -> Steps[None]:
        for deadline in itertools.islice(self._timers.due(now_ms), MAX_RETRIED_PER_STEP):
            yield from deadline.action(now_ms)

    def next_wakeup(self) -> int | None:
        return self._timers.next_ms()
