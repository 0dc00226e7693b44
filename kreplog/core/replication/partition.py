"""Partition: one broker's replica of a partition, and how it moves between the roles of role.py.

LeaderAndIsr, ticks, flushes and the reopening of a log concern every role and are here; leader.py and follower.py have
what each role does, isr_proposer.py the leader's ISR, local_replica.py the replica that all of them share. These are
bases of one object, not objects that it holds: a follower has no state of its own, and of a leader's all but the
progress of its followers, the sequence grace and the markers outlives the role. Delayed requests, fetchers and the
other partitions are the replica manager's.
"""

from __future__ import annotations

from collections import deque

from kreplog.config import ReplicationConfig
from kreplog.core.effects import ConfigureLog, OpenedLog, OpenLog, StateChange, Steps
from kreplog.core.messages import PartitionState
from kreplog.core.replication import isr
from kreplog.core.replication.follower import FollowerRole
from kreplog.core.replication.isr_proposer import LiveBrokers
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.partition_change import PartitionChange
from kreplog.core.replication.role import Role
from kreplog.errors import ErrorCode, LogFailedError, StorageError
from kreplog.types import NO_LEADER, LeaderAndIsr, TopicPartition


class Partition(LeaderRole, FollowerRole):
    """One replica. reassigned_replicas: the assigned replicas without those that a reassignment removes."""

    def __init__(
        self,
        broker_id: int,
        topic_partition: TopicPartition,
        topic_id: str,
        config: ReplicationConfig,
        brokers: LiveBrokers,
        changed: deque[Partition],
    ) -> None:
        super().__init__(broker_id, topic_partition, topic_id, config, brokers, changed)
        self.reassigned_replicas: tuple[int, ...] = ()

    # LeaderAndIsr

    def apply(self, partition_state: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        """Apply one partition of a LeaderAndIsr. FENCED_LEADER_EPOCH: it is older than the state here, or this replica
        has led in that epoch before. Raises StorageError; after an exhaustion it can be applied again."""
        state = partition_state.state
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._is_stale(state.leader_epoch):
            return ErrorCode.FENCED_LEADER_EPOCH
        role = self._role_in(state)
        if role is Role.LEADER and self._has_led(state.leader_epoch):
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition_state.config is not self.config and partition_state.config != self.config:
            self.config = partition_state.config
            yield ConfigureLog(self.topic_partition, partition_state.config)
        self.assigned_replicas = partition_state.replicas
        self.reassigned_replicas = tuple(
            [replica for replica in partition_state.replicas if replica not in partition_state.removing]
        )
        if state.leader_epoch == self.leader_epoch and self.role is role:
            if state.partition_epoch > self.partition_epoch:
                self._adopt(state)
            yield from self._recheck()
            return ErrorCode.NONE
        if self.interrupted:
            yield from self._reopen(now_ms)
        self._adopt(state)
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        if role is Role.LEADER:
            yield from self._become_leader(now_ms)
        elif role is Role.FOLLOWER:
            yield from self._become_follower()
        else:
            self.step_down()
        return ErrorCode.NONE

    def _is_stale(self, leader_epoch: int) -> bool:
        return leader_epoch < self.leader_epoch

    def _has_led(self, leader_epoch: int) -> bool:
        """Whether it led in this epoch, and then stepped down or died. It must not lead in it again, since what it
        wrote or proposed then may be lost, or still in flight: the controller has to bump the epoch."""
        return self.role is not Role.LEADER and bool(self.log.epochs) and self.log.epochs[-1][0] >= leader_epoch

    def _role_in(self, state: LeaderAndIsr) -> Role:
        if state.leader == self.broker_id:
            return Role.LEADER
        return Role.IDLE if state.leader == NO_LEADER else Role.FOLLOWER

    # Time and disk

    def tick(self, now_ms: int) -> Steps[None]:
        """Reopen an interrupted log; as leader, retry ISR writes without outcome, expand and shrink the ISR."""
        if self.interrupted and self.role is not Role.OFFLINE:
            try:
                yield from self._reopen(now_ms)
            except StorageError as error:
                yield StateChange("error", f"{self.topic_partition}: cannot be reopened: {error}")
                self.storage_failed(error)
                return
        yield from self._check_isr(now_ms)

    def flushed_to(self, recovery_point: int) -> Steps[None]:
        """Everything below `recovery_point` has been fsynced; what was truncated since does not count."""
        self.flushed = min(max(self.flushed, recovery_point), self.log.leo)
        if self.role is Role.LEADER:
            yield from self._advance_high_watermark()

    def _reopen(self, now_ms: int) -> Steps[None]:
        """Recovery completes the interrupted change: it removes no records but those of an unfinished truncation, and
        retains those of an unfinished append. A follower fetches again only after it, since its fetch offset says what
        it holds. Raises StorageError."""
        opened: OpenedLog = yield OpenLog(self.topic_partition, self.topic_id, self.config)
        end_before = self.log.leo
        if self.role is Role.LEADER and opened.state.leo < end_before:
            raise LogFailedError(
                f"{self.topic_partition}: the reopened log ends at {opened.state.leo}, and ended at {end_before}"
            )
        self.interrupted = False
        self.log = opened.state
        if self.role is Role.LEADER and self.log.leo > end_before:
            isr.leader_appended(self.replicas.values(), end_before, now_ms)
            self._mark_changed(PartitionChange.APPENDED)
        watermark = max(opened.high_watermark, self.log.log_start, min(self.high_watermark, self.log.leo))
        self.high_watermark = opened.high_watermark
        if watermark > self.high_watermark:
            yield from self._set_high_watermark(watermark)
        self.flushed = min(self.flushed, self.log.leo)
        yield from self._flush_tail()
        if self.role is Role.FOLLOWER:
            self._mark_changed(PartitionChange.ROLE)
