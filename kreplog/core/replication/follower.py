"""FollowerRole: what a partition does as a follower: reconciles its log with the leader's, appends what it fetches.

Which partitions are fetched when is the fetcher's part (replica_fetcher.py); where logs diverge is computed in
epochs.py.
"""

from __future__ import annotations

from kreplog.core.effects import (
    AppendAsFollower,
    EndOfRecords,
    StateChange,
    Steps,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from kreplog.core.messages import FetchedPartition, FetchPartition
from kreplog.core.replication import epochs
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.partition_change import PartitionChange
from kreplog.core.replication.replica_fetcher import FetchOutcome, FetchPosition
from kreplog.core.replication.role import Role
from kreplog.errors import (
    CorruptBatchError,
    ErrorCode,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    StorageError,
)
from kreplog.types import EpochEndOffset

RETRIABLE_FETCH_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
"""Errors of a leader that has not yet applied the LeaderAndIsr of this epoch or of a new topic, or the UpdateMetadata
with this broker's registration."""


class FollowerRole(LocalReplica):
    """The part of a Partition that follows; a fetcher's FollowerPartition."""

    def _become_follower(self) -> Steps[None]:
        """With every new epoch, of the same leader too, fetching starts over and reconciles first (F5)."""
        self._set_role(Role.FOLLOWER)
        if self._must_truncate_to_watermark():
            yield from self._truncate(self.high_watermark)
        elif self._has_empty_epoch():
            self.log = yield TruncateTo(self.topic_partition, self.log.leo)
        yield from self._flush_tail()

    def _has_empty_epoch(self) -> bool:
        """Whether the latest leader epoch has no records: older ones of the next leader must fit behind the log end."""
        return bool(self.log.epochs) and self.log.epochs[-1][1] >= self.log.leo

    def _must_truncate_to_watermark(self) -> bool:
        """Only without any epoch in the log: then the point of divergence cannot be found (KIP-101)."""
        return not self.log.epochs and self.log.leo > self.high_watermark

    # Fetching

    def fetch_position(self) -> FetchPosition:
        """Where the next fetch starts, and the epoch of the record before it, by which the leader sees divergence."""
        return FetchPosition(self.log.leo, epochs.epoch_at(self.log.epochs, self.log.leo - 1), self.log.log_start)

    def pipelined_fetch_position(self, request: FetchPartition, data: FetchedPartition) -> Steps[FetchPosition | None]:
        """fetch_position as of the end of `data`; None where the records must be appended before the next fetch: see
        _may_pipeline, and with flush.messages=1 a fetch says that everything below it is on disk."""
        if self.role is not Role.FOLLOWER or self._is_late(request) or self.flush_every_record:
            return None
        end: EpochEndOffset | None = yield EndOfRecords(self.topic_partition, data.records)
        if (
            end is None
            or end.end_offset <= self.log.leo  # records that end before they begin are damaged
            or not self._may_pipeline(end.end_offset, data.high_watermark)
        ):
            return None
        return FetchPosition(end.end_offset, end.leader_epoch, self.log.log_start)

    def _may_pipeline(self, offset: int, leaders_watermark: int) -> bool:
        """Whether this replica may fetch from `offset`, by which its leader counts all below as replicated, before its
        append.

        Below the high watermark that the leader sent in this epoch it does no harm if the append then fails. It commits
        nothing, since every member of the ISR has those records; and it does not bring this replica into the ISR, which
        takes an offset at the high watermark or beyond."""
        return offset < leaders_watermark

    def take_fetched(self, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        """Apply the leader's response to `request`; late responses are dropped (F7)."""
        if self.role is not Role.FOLLOWER:
            return FetchOutcome.REMOVE
        if self._is_late(request):
            return FetchOutcome.IDLE
        if data.error in RETRIABLE_FETCH_ERRORS:
            return FetchOutcome.LEADER_NOT_READY
        if data.error not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            return FetchOutcome.BACK_OFF
        try:
            if data.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                return (yield from self._leave_leaders_range(data))
            if data.diverging is not None:
                return (yield from self._reconcile(data.diverging, data.log_start_offset))
            return (yield from self._take_records(data))
        except StorageError as error:
            yield StateChange("error", f"{self.topic_partition}: {error}")
            return FetchOutcome.BACK_OFF if self.storage_failed(error) else FetchOutcome.REMOVE

    def _is_late(self, request: FetchPartition) -> bool:
        """Whether the partition has moved on, in epoch or offset, since it sent `request`."""
        return request.current_leader_epoch != self.leader_epoch or request.fetch_offset != self.log.leo

    # Truncation

    def _reconcile(self, diverging: EpochEndOffset, leaders_start: int) -> Steps[FetchOutcome]:
        """Truncate to where the logs diverge; the response's other fields do not count, least of all its high watermark
        (F8).

        Where they diverge at the leader's log start or before it, the leader can no longer confirm what is left here:
        that is removed too."""
        offset = epochs.truncation_offset(self.log.epochs, self.log.leo, diverging)
        if leaders_start > 0 and max(offset, self.high_watermark) <= leaders_start:
            yield from self._start_at(leaders_start)
        else:
            yield from self._truncate(offset)
        yield from self._flush_tail()
        return FetchOutcome.AWAIT_FLUSH if self.awaits_flush else FetchOutcome.TRUNCATED

    def _truncate(self, offset: int) -> Steps[None]:
        if offset < self.log.log_start:
            self.log = yield TruncateFullyAndStartAt(self.topic_partition, offset)
        elif offset < self.log.leo:
            self.log = yield TruncateTo(self.topic_partition, offset)
        if self.high_watermark > self.log.leo:
            yield StateChange(
                "warning",
                f"{self.topic_partition}: truncated to {self.log.leo}, below the high watermark {self.high_watermark}: "
                "committed records are lost, as after an unclean election",
            )
            self.high_watermark = self.log.leo
        self.flushed = min(self.flushed, self.log.leo)
        self._mark_changed(PartitionChange.APPENDED)

    def _leave_leaders_range(self, data: FetchedPartition) -> Steps[FetchOutcome]:
        """Below the leader's log start: start over there, high watermark included (F9). Past its end, with no epoch to
        compare by: truncate what is not known to be committed, then everything (F10)."""
        if data.log_start_offset > self.log.leo:
            yield from self._start_at(data.log_start_offset)
        elif self.log.leo > self.high_watermark:
            yield from self._truncate(self.high_watermark)
        else:
            yield from self._truncate_fully(max(0, data.log_start_offset))
        return FetchOutcome.TRUNCATED

    def _truncate_fully(self, start: int) -> Steps[None]:
        self.log = yield TruncateFullyAndStartAt(self.topic_partition, start)
        self.flushed = self.high_watermark = self.log.leo
        self._mark_changed(PartitionChange.APPENDED)

    def _start_at(self, leaders_start: int) -> Steps[None]:
        """Drop everything and begin where the leader's log begins: all below is committed."""
        self.log = yield TruncateFullyAndStartAt(self.topic_partition, leaders_start)
        self.flushed = self.log.leo
        yield from self._set_high_watermark(self.log.leo)

    # Appending

    def _take_records(self, data: FetchedPartition) -> Steps[FetchOutcome]:
        progress = bool(len(data.records))
        if progress:
            try:
                yield from self._append_fetched(data.records)
            except (CorruptBatchError, OffsetOutOfRangeError, FencedLeaderEpochError) as error:
                yield StateChange(
                    "warning", f"{self.topic_partition}: refused records of leader {self.leader}: {error}"
                )
                return FetchOutcome.BACK_OFF
        yield from self._flush_tail()  # before what may fail: the next fetch says that the records are on disk
        yield from self._follow_high_watermark(data.high_watermark)
        yield from self._follow_log_start(data.log_start_offset)
        if self.awaits_flush:
            return FetchOutcome.AWAIT_FLUSH
        return FetchOutcome.PROGRESS if progress else FetchOutcome.IDLE

    def _append_fetched(self, records: object) -> Steps[None]:
        """A log start may lie inside a batch, which is sent whole: an empty log then begins where the batch does."""
        try:
            self.log = yield AppendAsFollower(self.topic_partition, records)
        except OffsetOutOfRangeError as error:
            empty = self.log.leo == self.log.log_start
            if not empty or error.offset is None or error.offset >= self.log.leo:
                raise
            yield from self._truncate_fully(error.offset)
            self.log = yield AppendAsFollower(self.topic_partition, records)

    def _follow_high_watermark(self, leaders: int) -> Steps[None]:
        """min(the leader's, own LEO); it does not move back when a new leader's is lower."""
        watermark = min(leaders, self.log.leo)
        if watermark > self.high_watermark:
            yield from self._set_high_watermark(watermark)

    def _follow_log_start(self, leaders: int) -> Steps[None]:
        """Delete what the leader has deleted; the own log start, by retention, may already be further on."""
        if self.log.log_start < leaders <= self.high_watermark:
            yield from self._delete_before(leaders)
