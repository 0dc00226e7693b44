"""Deletion from the start of partitions that this broker leads: DeleteRecords (KIP-107)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from kreplog.core.effects import Reply, Steps
from kreplog.core.messages import DeletedRecords, DeleteRecordsPartition, DeleteRecordsRequest, FetchPartition
from kreplog.core.replication.delayed import DelayedDeletion, DelayedDeletions
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.errors import ErrorCode, OffsetOutOfRangeError, StorageError
from kreplog.types import NO_EPOCH, TopicPartition


class Deletions:
    """The DeleteRecords requests of one broker. partitions: the open replicas, which the manager adds and removes."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition], metadata: MetadataCache) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._waiting = DelayedDeletions()

    def begin(self, reply_to: Hashable, request: DeleteRecordsRequest, now_ms: int) -> Steps[DelayedDeletion | None]:
        """Delete here. Answered at once, or once every replica that lives has deleted: then what waits is returned."""
        deletion = DelayedDeletion(reply_to, now_ms + max(0, request.timeout_ms), [])
        for index, one in enumerate(request.partitions):
            answer, required = yield from self._delete_before(one)
            deletion.answers.append(answer)
            if answer.error is ErrorCode.NONE and answer.low_watermark < required:
                deletion.waiting[index] = required
        if deletion.waiting:
            self._waiting.add(deletion)
            return deletion
        yield Reply(reply_to, deletion.response)
        return None

    def _delete_before(self, one: DeleteRecordsPartition) -> Steps[tuple[DeletedRecords, int]]:
        """The answer as of now, and the offset that the low watermark must reach for it."""
        partition = self._partitions.get(one.partition)
        if partition is None:
            return DeletedRecords(one.partition, self._metadata.replica_error(one.partition)), 0
        if (error := partition.refusal(NO_EPOCH)) is not ErrorCode.NONE:
            return DeletedRecords(one.partition, error), 0
        try:
            required = yield from partition.delete_records(one.offset)
        except OffsetOutOfRangeError as refusal:
            return DeletedRecords(one.partition, ErrorCode.OFFSET_OUT_OF_RANGE, message=str(refusal)), 0
        except StorageError as failure:
            partition.storage_failed(failure)
            return DeletedRecords(one.partition, ErrorCode.KAFKA_STORAGE_ERROR, message=str(failure)), 0
        return DeletedRecords(one.partition, ErrorCode.NONE, partition.low_watermark()), required

    def settle(self, topic_partition: TopicPartition) -> Steps[None]:
        """Answer those that need wait for this partition no more: it has deleted everywhere, or leads no more."""
        if topic_partition not in self._waiting:
            return
        partition = self._partitions.get(topic_partition)
        error = self._metadata.replica_error(topic_partition) if partition is None else partition.refusal(NO_EPOCH)
        low = -1 if partition is None or error is not ErrorCode.NONE else partition.low_watermark()
        for deletion in self._waiting.at(topic_partition):
            for index, required in list(deletion.waiting.items()):
                if deletion.answers[index].partition == topic_partition and (
                    error is not ErrorCode.NONE or low >= required
                ):
                    deletion.settle(index, DeletedRecords(topic_partition, error, low))
            if not deletion.waiting:
                self._waiting.remove(deletion)
                yield Reply(deletion.reply_to, deletion.response)

    def settle_all(self) -> Steps[None]:
        """Who is dead is waited for no more."""
        for topic_partition in self._waiting.partitions:
            yield from self.settle(topic_partition)

    def expire(self, deletion: DelayedDeletion) -> Steps[None]:
        """Its time is over."""
        if deletion.waiting:
            deletion.expire()
            self._waiting.remove(deletion)
            yield Reply(deletion.reply_to, deletion.response)

    def awaits(self, asked: FetchPartition) -> bool:
        """Whether somebody waits for the follower that asks to delete what the leader has deleted."""
        partition = self._partitions.get(asked.partition)
        return (
            asked.partition in self._waiting
            and partition is not None
            and asked.log_start_offset < partition.log.log_start <= asked.fetch_offset
        )
