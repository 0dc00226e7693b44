"""Deletions: DeleteRecords requests for partitions that this broker leads (KIP-107)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from kreplog.core.effects import Reply, Steps
from kreplog.core.messages import DeletedRecords, DeleteRecordsPartition, DeleteRecordsRequest, FetchPartition
from kreplog.core.replication.delayed import DelayedDeletion, DelayedDeletions
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import ErrorCode, OffsetOutOfRangeError, StorageError
from kreplog.types import NO_EPOCH, TopicPartition

MAX_DELETION_MS = 3_600_000
"""Maximum time-out of a DeleteRecords: it waits even after its client has disconnected."""


class Deletions:
    """The DeleteRecords requests of one broker. partitions: the open replicas, which the manager adds and removes."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition], metadata: MetadataCache) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._waiting = DelayedDeletions()

    def begin(self, reply_to: Hashable, request: DeleteRecordsRequest, now_ms: int) -> Steps[DelayedDeletion | None]:
        """Delete on the leader, and reply if every live replica has deleted too; else the request that waits is
        returned."""
        deletion = DelayedDeletion(reply_to, now_ms + min(max(0, request.timeout_ms), MAX_DELETION_MS), [])
        for index, deleted in enumerate(request.partitions):
            response, required = yield from self._delete_before(deleted)
            deletion.responses.append(response)
            if response.error is ErrorCode.NONE and response.low_watermark < required:
                deletion.waiting[index] = required
        if deletion.waiting:
            self._waiting.add(deletion)
            return deletion
        yield Reply(reply_to, deletion.response)
        return None

    def _delete_before(self, deleted: DeleteRecordsPartition) -> Steps[tuple[DeletedRecords, int]]:
        """The current response, and the offset that the low watermark must reach to complete it."""
        if self._is_internal(deleted.partition):
            text = f"{deleted.partition}: records of an internal topic are deleted by its coordinators alone"
            return DeletedRecords(deleted.partition, ErrorCode.INVALID_TOPIC_EXCEPTION, message=text), 0
        partition = self._partitions.get(deleted.partition)
        if partition is None:
            return DeletedRecords(deleted.partition, self._metadata.replica_error(deleted.partition)), 0
        if (error := partition.refusal(NO_EPOCH)) is not ErrorCode.NONE:
            return DeletedRecords(deleted.partition, error), 0
        try:
            required = yield from partition.delete_records(deleted.offset)
        except OffsetOutOfRangeError as refusal:
            return DeletedRecords(deleted.partition, ErrorCode.OFFSET_OUT_OF_RANGE, message=str(refusal)), 0
        except StorageError as failure:
            partition.storage_failed(failure)
            return DeletedRecords(deleted.partition, ErrorCode.KAFKA_STORAGE_ERROR, message=str(failure)), 0
        return DeletedRecords(deleted.partition, ErrorCode.NONE, partition.low_watermark()), required

    def _is_internal(self, partition: TopicPartition) -> bool:
        """Whether the topic is internal: its records are the only copy of committed offsets. Source: Kafka,
        ReplicaManager.deleteRecords."""
        return partition.topic in INTERNAL_TOPICS

    def settle(self, topic_partition: TopicPartition) -> Steps[None]:
        """Complete what waits for this partition if all its live replicas have deleted, or it is no longer led here."""
        if topic_partition not in self._waiting:
            return
        partition = self._partitions.get(topic_partition)
        error = self._metadata.replica_error(topic_partition) if partition is None else partition.refusal(NO_EPOCH)
        low = -1 if partition is None or error is not ErrorCode.NONE else partition.low_watermark()
        for deletion in self._waiting.at(topic_partition):
            for index, required in list(deletion.waiting.items()):
                if deletion.responses[index].partition == topic_partition and (
                    error is not ErrorCode.NONE or low >= required
                ):
                    deletion.settle(index, DeletedRecords(topic_partition, error, low))
            if not deletion.waiting:
                self._waiting.remove(deletion)
                yield Reply(deletion.reply_to, deletion.response)

    def settle_all(self) -> Steps[None]:
        """Evaluate all deletions after a change of the live brokers: dead ones are not waited for."""
        for topic_partition in self._waiting.partitions:
            yield from self.settle(topic_partition)

    def expire(self, deletion: DelayedDeletion) -> Steps[None]:
        """The deadline of a deletion has passed."""
        if deletion.waiting:
            deletion.expire()
            self._waiting.remove(deletion)
            yield Reply(deletion.reply_to, deletion.response)

    def awaits(self, request: FetchPartition) -> bool:
        """Whether a DeleteRecords waits for the follower that sent `request` to delete what its leader has deleted."""
        partition = self._partitions.get(request.partition)
        return (
            request.partition in self._waiting
            and partition is not None
            and request.log_start_offset < partition.log.log_start <= request.fetch_offset
        )
