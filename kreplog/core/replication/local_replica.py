"""LocalReplica: this broker's replica of a partition, whatever its role: its log, high watermark and reads.

Every generator here and in the roles is part of a step: its log effects complete before anything else happens to the
partition. A replica that has `changes`, to which the replica manager must react, appends itself to the manager's queue.

An operation that fails because the process ran out of descriptors or memory is refused and may be retried: no log has
failed. A log that such an operation left half changed is `interrupted`, and reopened at the next tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Self

from kreplog.config import TopicConfig
from kreplog.core.effects import (
    AdvanceHighWatermark,
    DeleteRecordsBefore,
    EnforceRetention,
    Flush,
    LogState,
    OpenedLog,
    OpenLog,
    ReadLog,
    ReadStable,
    ReplaceLog,
    Steps,
    SyncReplacement,
)
from kreplog.core.messages import FetchedPartition, FetchPartition
from kreplog.core.replication import epochs
from kreplog.core.replication.partition_change import PartitionChange
from kreplog.core.replication.role import LEADER_ALONE, Role
from kreplog.errors import ErrorCode, LogFailedError, OffsetOutOfRangeError, StorageError, is_exhaustion
from kreplog.types import NO_EPOCH, NO_LEADER, EpochEndOffset, TopicPartition

UNREADABLE = (StorageError, OffsetOutOfRangeError)
"""Errors of a read at an offset that was checked. An interrupted deletion may have moved the start of the log, which is
known once the log is reopened."""


class LocalReplica:
    """The replica itself, as part of a Partition.

    topic_id: of the topic it belongs to; messages for another topic of the same name do not concern it (KIP-516).
    changed: the manager's queue of replicas that have `changes`. flushed: everything below has been fsynced.
    flush_every_record: flush.messages is 1 in the present leader epoch. The setting itself may have changed since; then
    the controller begins another epoch, in which all replicas count alike.
    epoch_start: where the epoch begins that this replica led last.
    """

    def __init__(self, broker_id: int, topic_partition: TopicPartition, topic_id: str, changed: deque[Self]) -> None:
        self.broker_id = broker_id
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.role = Role.IDLE
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.config = TopicConfig()
        self.log = LogState()
        self.high_watermark = 0
        self.epoch_start = 0
        self.flushed = 0
        self.flush_every_record = False
        self.interrupted = False
        self.changes: set[PartitionChange] = set()
        self._changed = changed

    def open(self, topic_config: TopicConfig) -> Steps[None]:
        """Recover the local log. Raises StorageError."""
        opened: OpenedLog = yield OpenLog(self.topic_partition, self.topic_id, topic_config)
        self.config = topic_config
        self.log = opened.state
        self.high_watermark = self._recovered_high_watermark(opened)
        self.flushed = opened.state.log_start  # the page cache may hold writes of an earlier process, not yet on disk

    def _recovered_high_watermark(self, opened: OpenedLog) -> int:
        """min(checkpointed high watermark, LEO), and not below the log start."""
        return max(opened.state.log_start, min(opened.high_watermark, opened.state.leo))

    # Roles

    def step_down(self) -> None:
        """Neither lead nor follow until the next LeaderAndIsr."""
        self.leader = NO_LEADER
        self._set_role(Role.IDLE)

    def go_offline(self) -> None:
        """The log has failed: its content counts for nothing until the broker is restarted."""
        if self.role is not Role.OFFLINE:
            self._set_role(Role.OFFLINE)

    def storage_failed(self, error: StorageError) -> bool:
        """An operation on the log has failed, and the log with it unless the process merely ran out of a resource.
        Returns whether the operation may be retried on an unchanged log."""
        if not is_exhaustion(error):
            self.go_offline()
            return False
        if isinstance(error, LogFailedError):
            self.interrupted = True
            self._mark_changed(PartitionChange.UNSETTLED)
        return not self.interrupted

    def _set_role(self, role: Role) -> None:
        self.role = role
        self._mark_changed(PartitionChange.ROLE)

    def _mark_changed(self: Self, change: PartitionChange) -> None:
        if not self.changes:
            self._changed.append(self)
        self.changes.add(change)

    # Requests that it serves or refuses

    def refusal(
        self, current_leader_epoch: int, topic_id: str = "", roles: Collection[Role] = LEADER_ALONE
    ) -> ErrorCode:
        """The error for a request made in `current_leader_epoch` (KIP-320); NONE if this replica can serve it.

        roles: in which the request can be served."""
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if topic_id and topic_id != self.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if current_leader_epoch != NO_EPOCH:
            if self._is_fenced(current_leader_epoch):
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.role in roles else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _is_fenced(self, current_leader_epoch: int) -> bool:
        return current_leader_epoch < self.leader_epoch

    def check_readable(
        self, request: FetchPartition, roles: Collection[Role] = LEADER_ALONE
    ) -> FetchedPartition | None:
        """The response to a fetch that cannot read records here now; else None. roles: as for refusal."""
        if (error := self.refusal(request.current_leader_epoch, request.topic_id, roles)) is not ErrorCode.NONE:
            return self._refused(error, request)
        if not self.log.log_start <= request.fetch_offset <= self.log.leo:
            return self._out_of_range(request)
        return None

    @property
    def last_stable(self) -> int:
        """Below it all transactions are decided, by markers that are committed (KIP-98)."""
        unstable = self.log.first_unstable
        if unstable is None:
            return self.high_watermark
        return max(min(self.high_watermark, unstable), self.log.log_start)

    def limit(self, consumer: bool, stable: bool = False) -> int:
        """The end of what may be read: consumers see committed records alone. stable: a consumer reads committed
        transactions."""
        if not consumer:
            return self.log.leo
        return self.last_stable if stable else self.high_watermark

    def read(
        self, request: FetchPartition, consumer: bool, max_bytes: int, stable: bool = False
    ) -> Steps[FetchedPartition]:
        """Records from request.fetch_offset on, up to `limit` and max_bytes; none where max_bytes is 0 or below."""
        limit = self.limit(consumer, stable)
        records: object = b""
        aborted: tuple[tuple[int, int], ...] = ()
        if max_bytes > 0 and self.log.log_start <= request.fetch_offset < limit:
            kind = ReadStable if stable else ReadLog
            records = yield kind(self.topic_partition, request.fetch_offset, limit, min(max_bytes, request.max_bytes))
            if stable:
                records, aborted = records  # type: ignore[misc]
        return FetchedPartition(
            self.topic_partition,
            ErrorCode.NONE,
            self.visible_high_watermark() if consumer else self.high_watermark,
            self.log.log_start,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            records=records,
            topic_id=request.topic_id,
            aborted=aborted,
            last_stable_offset=self._visible_last_stable() if consumer else -1,
        )

    def _visible_last_stable(self) -> int:
        if self.log.first_unstable is None or self.visible_high_watermark() < 0:
            return -1
        return self.last_stable

    def visible_high_watermark(self) -> int:
        """The high watermark for clients: -1 while a new leader's may be below one that its predecessor has sent
        (KIP-207)."""
        hidden = self.role is Role.LEADER and self.high_watermark < self.epoch_start
        return -1 if hidden else self.high_watermark

    def end_offset_for(self, epoch: int) -> EpochEndOffset:
        """The response to OffsetsForLeaderEpoch; as epochs.end_offset_for."""
        return epochs.end_offset_for(self.log.epochs, self.log.leo, epoch)

    def _refused(self, error: ErrorCode, request: FetchPartition) -> FetchedPartition:
        return FetchedPartition(
            self.topic_partition,
            error,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            topic_id=request.topic_id,
        )

    def _out_of_range(self, request: FetchPartition) -> FetchedPartition:
        return FetchedPartition(
            self.topic_partition,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            self.high_watermark,
            self.log.log_start,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            topic_id=request.topic_id,
        )

    # Log start, high watermark, fsync

    def enforce_retention(self) -> Steps[None]:
        """Delete segments past the retention limits, in any role: each replica by its own size and clock. Raises
        StorageError."""
        start = self.log.log_start
        self.log = yield EnforceRetention(self.topic_partition)
        if self.log.log_start > start:
            self._mark_changed(PartitionChange.DELETED)

    def replace_log(self) -> Steps[None]:
        """Let the copy in another log directory take over, in any role. Raises StorageError."""
        if self.interrupted:
            return
        state: LogState | None = yield ReplaceLog(self.topic_partition)
        if state is not None:
            self.log = state
            yield SyncReplacement(self.topic_partition)

    def _delete_before(self, offset: int) -> Steps[None]:
        self.log = yield DeleteRecordsBefore(self.topic_partition, offset)
        self._mark_changed(PartitionChange.DELETED)

    def _set_high_watermark(self, offset: int) -> Steps[None]:
        self.high_watermark = offset
        self._mark_changed(PartitionChange.COMMITTED)
        unstable: int | None = yield AdvanceHighWatermark(self.topic_partition, offset)
        if unstable != self.log.first_unstable:
            self.log = replace(self.log, first_unstable=unstable)

    def _flush_tail(self) -> Steps[None]:
        if self.log.leo - self.flushed >= self.config.flush_messages or self.awaits_flush:
            yield Flush(self.topic_partition)

    @property
    def awaits_flush(self) -> bool:
        """With flush.messages=1 a fetch offset promises that everything below it is on disk."""
        return self.flush_every_record and self.flushed < self.log.leo

    def _local_end(self) -> int:
        """The end of what counts as held here: with flush.messages=1 only what has been fsynced."""
        return self.flushed if self.flush_every_record else self.log.leo
