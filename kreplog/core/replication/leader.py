"""LeaderRole: what a partition does as its leader: appends, counts its followers' fetches, deletes records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Self

from kreplog.config import RACK_AWARE_SELECTOR, ReplicationConfig
from kreplog.core.effects import AppendAsLeader, AppendMarker, AssignLeaderEpoch, Steps
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.messages import UP_TO_HIGH_WATERMARK, FetchedPartition, FetchPartition, TransactionMarker
from kreplog.core.replication import epochs, isr, replica_selectors
from kreplog.core.replication.isr import RemoteReplica
from kreplog.core.replication.isr_proposer import IsrProposer, LiveBrokers
from kreplog.core.replication.partition_change import PartitionChange
from kreplog.core.replication.role import Role
from kreplog.core.replication.sequence_grace import SequenceGapGrace
from kreplog.errors import ErrorCode, OffsetOutOfRangeError
from kreplog.types import NO_EPOCH, AppendInfo, EpochEndOffset, TopicPartition


class LeaderRole(IsrProposer):
    """The part of a Partition that leads. sequence_gap_grace: begun with each epoch that it leads. _markers: those that
    it has appended, each with its offset, and whose commit the coordinator of groups has to learn of."""

    def __init__(
        self,
        broker_id: int,
        topic_partition: TopicPartition,
        topic_id: str,
        config: ReplicationConfig,
        brokers: LiveBrokers,
        changed: deque[Self],
    ) -> None:
        super().__init__(broker_id, topic_partition, topic_id, config, brokers, changed)
        self.sequence_gap_grace = SequenceGapGrace()
        self._markers: deque[tuple[int, TransactionMarker]] = deque()

    def _become_leader(self, now_ms: int) -> Steps[None]:
        """The epoch and its start are on disk before anything is served (KIP-101, F4); the high watermark stays what
        it was, since others may hold less than this log (F20)."""
        self._set_role(Role.LEADER)
        self.sequence_gap_grace.begin(now_ms)
        self.log = yield AssignLeaderEpoch(self.topic_partition, self.leader_epoch)
        self.epoch_start = self.log.leo
        self.replicas = {
            replica: RemoteReplica(replica, last_caught_up_ms=now_ms if replica in self.isr else 0)
            for replica in self.assigned_replicas
            if replica != self.broker_id
        }
        yield from self._flush_tail()
        yield from self._advance_high_watermark()

    def _set_role(self, role: Role) -> None:
        super()._set_role(role)
        if role is not Role.LEADER:  # they may be truncated; a later leader's coordinator loads those that are not
            self._markers.clear()

    # Produce

    def refuses_produce(self, acks: int, current_leader_epoch: int = NO_EPOCH) -> ErrorCode:
        """The error for a produce with `acks` (F18); NONE if it may be appended."""
        if (error := self.refusal(current_leader_epoch)) is not ErrorCode.NONE:
            return error
        if acks == -1 and not self.has_min_isr():
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def append(
        self,
        records: object,
        now_ms: int,
        transactional: bool = False,
        sequenced: bool = True,
        verified_by: int = -1,
    ) -> Steps[AppendInfo]:
        """Append a producer's batches, or the marker of a transaction; for a duplicate batch returns its first offset
        (KIP-98). transactional: a batch may be of a transaction. sequenced,
        verified_by: as for AppendAsLeader.

        Raises what AppendAsLeader throws; OutOfOrderSequenceError is retriable while sequence_gap_grace applies."""
        end_before = self.log.leo
        info: AppendInfo
        info, self.log = (
            yield AppendMarker(self.topic_partition, records, self.leader_epoch)
            if isinstance(records, TransactionMarker)
            else AppendAsLeader(
                self.topic_partition,
                records,
                self.leader_epoch,
                strict=self.sequence_gap_grace.applies(now_ms),
                transactional=transactional,
                sequenced=sequenced,
                verified_by=verified_by,
            )
        )
        if isinstance(records, TransactionMarker) and self.topic_partition.topic == OFFSETS_TOPIC:
            self._markers.append((info.last_offset, records))
        if self.log.leo > end_before:
            isr.leader_appended(self.replicas.values(), end_before, now_ms)
            self._mark_changed(PartitionChange.APPENDED)
            yield from self._flush_tail()
            yield from self._shrink_by_bytes()
        yield from self._advance_high_watermark()
        return info

    def is_committed(self, next_offset: int) -> bool:
        """Whether everything below `next_offset` may be acknowledged to an acks=all producer."""
        return self.high_watermark >= next_offset

    def committed_markers(self) -> Iterator[tuple[int, TransactionMarker]]:
        """Take out the markers that are committed by now, each with its offset, in order."""
        while self._markers and self.is_committed(self._markers[0][0] + 1):
            yield self._markers.popleft()

    # Fetches of followers

    def record_fetch(
        self, request: FetchPartition, replica_id: int, broker_epoch: int, now_ms: int
    ) -> Steps[FetchedPartition | None]:
        """Record what a follower's fetch says about its log. Returns the response if it has no records, else None."""
        if (error := self.refusal(request.current_leader_epoch, request.topic_id)) is not ErrorCode.NONE:
            return self._refused(error, request)
        replica = self.replicas.get(replica_id)
        if replica is None:
            return self._refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, request)
        if self._is_old_registration(replica, broker_epoch) or self._is_future_registration(replica, broker_epoch):
            return self._refused(ErrorCode.STALE_BROKER_EPOCH, request)
        diverging = self._diverging(request)
        if diverging is not None:
            start = self.log.log_start
            return FetchedPartition(
                self.topic_partition,
                ErrorCode.NONE,
                log_start_offset=start,
                diverging=diverging,
                topic_id=request.topic_id,
            )
        if not self.log.log_start <= request.fetch_offset <= self.log.leo:
            return self._out_of_range(request)
        replica.broker_epoch = broker_epoch
        replica.log_start = request.log_start_offset
        isr.record_fetch(replica, request.fetch_offset, self.log.leo, now_ms)
        yield from self._advance_high_watermark()
        if replica_id in self.isr:
            yield from self._shrink_by_bytes()
        else:
            yield from self._maybe_expand(now_ms)
            if self.needs_tick():
                self._mark_changed(PartitionChange.UNSETTLED)
        return None

    def redirect(self, request: FetchPartition, rack: str, now_ms: int) -> FetchedPartition | None:
        """The response that names the replica from which a consumer in `rack` is to fetch (KIP-392); None: from this
        one. That replica is in the ISR, alive and reached at the same listeners, and holds the offset."""
        if not rack or self.role is not Role.LEADER or self._settings.replica_selector_class != RACK_AWARE_SELECTOR:
            return None
        followers = [
            replica_selectors.ReplicaView(
                replica.broker_id,
                self._brokers.rack_of(replica.broker_id),
                replica.leo,
                now_ms - replica.last_caught_up_ms,
            )
            for replica in self.replicas.values()
            if replica_selectors.can_serve(replica, self.isr, request.fetch_offset)
            and self._brokers.has_listeners_of(replica.broker_id, self.broker_id)
        ]
        leader = replica_selectors.ReplicaView(self.broker_id, self._brokers.rack_of(self.broker_id), self.log.leo, 0)
        preferred = replica_selectors.rack_aware(rack, leader, followers)
        if preferred == self.broker_id:
            return None
        return FetchedPartition(
            self.topic_partition,
            ErrorCode.NONE,
            self.visible_high_watermark(),
            self.log.log_start,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            topic_id=request.topic_id,
            preferred_read_replica=preferred,
            last_stable_offset=self._visible_last_stable(),
        )

    def _is_old_registration(self, replica: RemoteReplica, broker_epoch: int) -> bool:
        """A request of an earlier process of the follower says nothing about what it holds now (KIP-903)."""
        return broker_epoch < replica.broker_epoch

    def _is_future_registration(self, replica: RemoteReplica, broker_epoch: int) -> bool:
        """A broker epoch above that of the metadata: once recorded, the registered follower would be refused."""
        return broker_epoch > self._brokers.epoch_of(replica.broker_id)

    def _diverging(self, request: FetchPartition) -> EpochEndOffset | None:
        return epochs.diverging(
            self.log.epochs, self.log.leo, request.fetch_offset, request.last_fetched_epoch, self.log.log_start
        )

    # DeleteRecords

    def delete_records(self, offset: int) -> Steps[int]:
        """Delete the records below `offset`, UP_TO_HIGH_WATERMARK for all committed ones. Returns the offset that every
        replica has to reach. Raises OffsetOutOfRangeError beyond the high watermark, and StorageError."""
        target = self.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
        if not 0 <= target <= self._deletable_end():
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: records are deleted up to the high watermark {self.high_watermark} at most, "
                f"not up to {offset}",
                partition=str(self.topic_partition),
                offset=offset,
            )
        if target > self.log.log_start:
            yield from self._delete_before(target)
        return target

    def _deletable_end(self) -> int:
        """Any replica may still need what is not committed (F39)."""
        return self.high_watermark

    def low_watermark(self) -> int:
        """The smallest log start of all live replicas, by their last fetches; -1 until all have fetched (KIP-107)."""
        starts = [replica.log_start for replica in self.replicas.values() if self._brokers.is_alive(replica.broker_id)]
        return min([self.log.log_start, *starts])
