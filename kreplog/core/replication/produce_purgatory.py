"""ProducePurgatory: the leader's side of Produce: appends batches, holds acks=all requests until they are committed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from kreplog.core.effects import Reply, StateChange, Steps
from kreplog.core.messages import (
    CoordinatorProduce,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    TransactionalProduce,
    TransactionMarker,
    refusal_of_produce,
)
from kreplog.core.replication.delayed import CommitQueue, DelayedProduce
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.transaction_verification import TransactionVerification, UnverifiedBatch
from kreplog.errors import (
    ErrorCode,
    KreplogError,
    LogFailedError,
    OutOfOrderSequenceError,
    ResourceExhaustedError,
    UnverifiedTransactionError,
)
from kreplog.types import NO_EPOCH, TopicPartition

EXHAUSTION_LOG_INTERVAL_MS = 1000
"""At most one log line in this time about appends that failed for want of descriptors or memory: clients retry soon."""


class ProducePurgatory:
    """The Produce requests of one broker. partitions: the open replicas, which the manager adds and removes."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition], metadata: MetadataCache) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self.verification = TransactionVerification(metadata, self._append_verified, self._refuse, self._begin_grace)
        self._commit_queues: dict[TopicPartition, CommitQueue] = {}
        self._next_exhaustion_log_ms = 0

    def begin(self, reply_to: Hashable, request: ProduceRequest, now_ms: int) -> Steps[DelayedProduce | None]:
        """Append, and reply at once unless acks=all has to wait; the request that waits is returned."""
        if request.acks not in (-1, 0, 1):
            yield Reply(reply_to, refusal_of_produce(request, ErrorCode.INVALID_REQUIRED_ACKS))
            return None
        by_coordinator = isinstance(request, CoordinatorProduce)
        epoch = request.current_leader_epoch if isinstance(request, CoordinatorProduce) else NO_EPOCH
        produce = DelayedProduce(reply_to, now_ms + request.timeout_ms, [])
        if isinstance(request, TransactionalProduce | CoordinatorProduce) and request.transactional_id:
            transaction = request.transactional_id, request.adds_partitions
            for index, produced in enumerate(request.partitions):
                produce.responses.append(ProducedPartition(produced.partition, ErrorCode.NONE))
                produce.unverified[index] = produced
                batch = UnverifiedBatch(produce, index, *transaction, epoch, not by_coordinator)
                if not self.verification.queues_behind(batch):
                    yield from self._append_transactional(batch, self._needed_verification(), now_ms)
        else:
            for index, produced in enumerate(request.partitions):
                response, next_offset = yield from self._append(
                    produced, request.acks, epoch, now_ms, not by_coordinator
                )
                produce.responses.append(response)
                if response.error is ErrorCode.NONE and request.acks == -1:
                    self._await_commit(produce, index, next_offset)
        if produce.waiting:
            return produce
        if request.acks != 0:
            yield Reply(reply_to, produce.response)
        return None

    def _await_commit(self, produce: DelayedProduce, index: int, next_offset: int) -> None:
        name = produce.responses[index].partition
        if not self._partitions[name].is_committed(next_offset):
            self._commit_queues.setdefault(name, CommitQueue()).push(next_offset, produce, index)

    # Batches of transactions

    def _needed_verification(self) -> int:
        """A batch that begins a transaction in a partition is not confirmed yet (KIP-890)."""
        return -1

    def _append_transactional(self, batch: UnverifiedBatch, verified_by: int, now_ms: int) -> Steps[None]:
        """Append it, or let it wait for its coordinator; its response is set."""
        produce, index = batch.produce, batch.index
        try:
            response, next_offset = yield from self._append(
                batch.produced, -1, batch.leader_epoch, now_ms, batch.sequenced, True, verified_by
            )
        except UnverifiedTransactionError as unverified:
            yield from self.verification.hold(batch, unverified.producer_id, unverified.producer_epoch, now_ms)
            return
        del produce.unverified[index]
        produce.responses[index] = response
        if response.error is ErrorCode.NONE:
            self._await_commit(produce, index, next_offset)

    def _append_verified(self, batch: UnverifiedBatch, verified_by: int, now_ms: int) -> Steps[None]:
        """Append a batch that has waited."""
        batch.produce.waiting.remove(batch.index)
        yield from self._append_transactional(batch, verified_by, now_ms)
        if not batch.produce.waiting:
            yield Reply(batch.produce.reply_to, batch.produce.response)

    def _begin_grace(self, name: TopicPartition, now_ms: int) -> None:
        """A batch has expired before it was appended, and its producer sends it again."""
        self._partitions[name].sequence_gap_grace.begin(now_ms)

    def _refuse(self, batch: UnverifiedBatch, error: ErrorCode) -> Steps[None]:
        if batch.produce.settle(batch.index, error):
            yield Reply(batch.produce.reply_to, batch.produce.response)

    def _append(
        self,
        produced: ProducePartition,
        acks: int,
        epoch: int,
        now_ms: int,
        sequenced: bool,
        transactional: bool = False,
        verified_by: int = -1,
    ) -> Steps[tuple[ProducedPartition, int]]:
        """The response once it is committed, and the offset that the high watermark must reach for that. epoch: of the
        leader, NO_EPOCH for any. Raises UnverifiedTransactionError."""
        partition = self._partitions.get(produced.partition)
        if partition is None:
            return ProducedPartition(produced.partition, self._metadata.replica_error(produced.partition)), 0
        if (error := partition.refuses_produce(acks, epoch)) is not ErrorCode.NONE:
            partition.sequence_gap_grace.begin(now_ms)
            return ProducedPartition(produced.partition, error), 0
        try:
            info = yield from partition.append(produced.records, now_ms, transactional, sequenced, verified_by)
        except (LogFailedError, ResourceExhaustedError) as failure:
            partition.storage_failed(failure)
            partition.sequence_gap_grace.begin(now_ms)
            if now_ms >= self._next_exhaustion_log_ms:
                self._next_exhaustion_log_ms = now_ms + EXHAUSTION_LOG_INTERVAL_MS
                yield StateChange("error", f"{produced.partition}: cannot append: {failure}")
            return ProducedPartition(produced.partition, ErrorCode.KAFKA_STORAGE_ERROR, message=str(failure)), 0
        except UnverifiedTransactionError:
            raise
        except KreplogError as refusal:
            error = refusal.kafka_code
            if isinstance(refusal, OutOfOrderSequenceError) and partition.sequence_gap_grace.applies(now_ms):
                error = ErrorCode.NOT_ENOUGH_REPLICAS
            return ProducedPartition(produced.partition, error, message=str(refusal)), 0
        response = ProducedPartition(
            produced.partition, ErrorCode.NONE, info.first_offset, info.log_append_time_ms, partition.log.log_start
        )
        if isinstance(produced.records, TransactionMarker) and produced.partition in self.verification:
            yield from self.verification.marker_written(produced.partition, produced.records.producer_id, now_ms)
        return response, info.last_offset + 1

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Whether requests may wait for this partition."""
        return topic_partition in self._commit_queues

    def committed(self, topic_partition: TopicPartition, high_watermark: int) -> Steps[None]:
        """Complete the requests that waited for nothing more than this high watermark."""
        yield from self._complete(self._commit_queues[topic_partition].committed(high_watermark))

    def fail(self, topic_partition: TopicPartition, error: ErrorCode) -> Steps[None]:
        """Complete with `error` whatever waits for this partition."""
        queue = self._commit_queues.pop(topic_partition, None)
        if queue is not None:
            yield from self._complete(queue.drain(), error)

    def expire(self, produce: DelayedProduce) -> Steps[None]:
        """The deadline of a produce has passed: what is not committed is answered with REQUEST_TIMED_OUT."""
        if produce.waiting:
            produce.expire()
            yield Reply(produce.reply_to, produce.response)

    def _complete(
        self, settled: Iterable[tuple[DelayedProduce, int]], error: ErrorCode = ErrorCode.NONE
    ) -> Steps[None]:
        for produce, index in settled:
            if produce.settle(index, error):
                yield Reply(produce.reply_to, produce.response)
