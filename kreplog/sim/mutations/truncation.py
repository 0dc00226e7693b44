"""Mutations of truncation, leader epochs, fetches and sequence checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kreplog.core.broker import future_replicas
from kreplog.core.effects import LogState, ReplaceLog, Steps
from kreplog.core.messages import FetchedPartition, FetchPartition, PartitionState
from kreplog.core.replication import epochs
from kreplog.core.replication.control_fencing import ControlFencing
from kreplog.core.replication.follower import FollowerRole
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.replica_fetcher import FetchOutcome, FetchPosition, FetchState, ReplicaFetcher
from kreplog.core.replication.role import Role
from kreplog.core.replication.sequence_grace import SequenceGapGrace
from kreplog.errors import ErrorCode
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import NO_EPOCH, EpochEndOffset, TopicPartition

MUTATIONS = MutationGroup()


@MUTATIONS.add("unknown-producer-gap-accepted")
def _unknown_producer_gap_accepted() -> list[Patch]:
    """A new leader accepts any first sequence of an unknown producer (KIP-360), while an earlier batch of it is still
    on
    its way to the previous leader."""
    return [(SequenceGapGrace, "applies", lambda self, now_ms: False)]


@MUTATIONS.add("truncate-to-watermark")
def _truncate_to_watermark() -> list[Patch]:
    """A new follower truncates to its high watermark, not to where its log diverges from the leader's (F1)."""
    return [(FollowerRole, "_must_truncate_to_watermark", lambda self: self.log.leo > self.high_watermark)]


@MUTATIONS.add("one-round-truncation")
def _one_round_truncation() -> list[Patch]:
    """A leader that does not know the follower's last epoch reports no divergence (F3)."""

    def diverging(self: Partition, request: FetchPartition) -> EpochEndOffset | None:
        if request.last_fetched_epoch not in dict(self.log.epochs) and request.fetch_offset <= self.log.leo:
            return None
        return epochs.diverging(self.log.epochs, self.log.leo, request.fetch_offset, request.last_fetched_epoch)

    return [(LeaderRole, "_diverging", diverging)]


@MUTATIONS.add("epoch-start-forgotten")
def _epoch_start_forgotten() -> list[Patch]:
    """A leader's epochs lack the start of its own epoch, so that the previous epoch seems to continue (F4)."""

    def diverging(self: Partition, request: FetchPartition) -> EpochEndOffset | None:
        known = tuple(entry for entry in self.log.epochs if entry[0] < self.leader_epoch)
        if request.last_fetched_epoch >= self.leader_epoch:
            return None
        return epochs.diverging(known, self.log.leo, request.fetch_offset, request.last_fetched_epoch)

    return [(LeaderRole, "_diverging", diverging)]


@MUTATIONS.add("same-leader-skips-truncation")
def _same_leader_skips_truncation() -> list[Patch]:
    """A follower that gets its present leader again continues to fetch, whatever the leader epoch (F5)."""
    apply, position = Partition.apply, FollowerRole.fetch_position

    def apply_unchecked(self: Partition, partition_state: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        before = (self.role, self.leader, self.leader_epoch)
        error = yield from apply(self, partition_state, now_ms)
        if self.leader_epoch != before[2]:
            same = before[:2] == (Role.FOLLOWER, self.leader)
            vars(self)["unchecked"] = self.leader_epoch if same else NO_EPOCH
        return error

    def fetch_position(self: Partition) -> FetchPosition:
        found = position(self)
        if vars(self).get("unchecked") == self.leader_epoch:
            return replace(found, last_fetched_epoch=NO_EPOCH)
        return found

    return [(Partition, "apply", apply_unchecked), (FollowerRole, "fetch_position", fetch_position)]


@MUTATIONS.add("zombie-fetch-counts")
def _zombie_fetch_counts() -> list[Patch]:
    """A leader counts fetches of an older leader epoch of its own as progress (F6)."""
    right = LeaderRole._diverging

    def diverging(self: Partition, request: FetchPartition) -> EpochEndOffset | None:
        return None if request.current_leader_epoch < self.leader_epoch else right(self, request)

    return [
        (LocalReplica, "_is_fenced", lambda self, current_leader_epoch: False),
        (LeaderRole, "_diverging", diverging),
    ]


@MUTATIONS.add("late-response-accepted")
def _late_response_accepted() -> list[Patch]:
    """A follower appends the response to a fetch of an older epoch, if its offset fits (F7)."""

    remove = ReplicaFetcher.remove

    def removed(self: ReplicaFetcher, topic_partition: TopicPartition) -> None:
        entry = self._entries.get(topic_partition)
        if entry is not None:
            vars(self).setdefault("former", {})[topic_partition] = entry
        remove(self, topic_partition)

    def listed(self: ReplicaFetcher, topic_partition: TopicPartition) -> Any:
        entry = self._entries.get(topic_partition) or vars(self).get("former", {}).get(topic_partition)
        held = self._held.get(topic_partition)
        return None if entry is None or held is None else (entry, held)

    return [
        (FollowerRole, "_is_late", lambda self, request: False),
        (ReplicaFetcher, "_listed", listed),
        (ReplicaFetcher, "remove", removed),
    ]


@MUTATIONS.add("pipelined-fetch-in-sync")
def _pipelined_fetch_in_sync() -> list[Patch]:
    """An in-sync follower pipelines its next fetch, so that records not appended yet count for the high watermark."""
    return [(FollowerRole, "_may_pipeline", lambda self, offset, leaders_watermark: True)]


@MUTATIONS.add("joins-by-pipelined-fetch")
def _joins_by_pipelined_fetch() -> list[Patch]:
    """A follower pipelines a fetch at the high watermark itself, and so joins the ISR before it has appended."""
    return [(FollowerRole, "_may_pipeline", lambda self, offset, leaders_watermark: offset <= leaders_watermark)]


@MUTATIONS.add("watermark-before-truncation")
def _watermark_before_truncation() -> list[Patch]:
    """A follower whose log diverges applies the high watermark of that response before it truncates (F8)."""
    record_fetch, reconcile = LeaderRole.record_fetch, FollowerRole._reconcile

    def recorded(self: Partition, *arguments: Any) -> Steps[FetchedPartition | None]:
        response = yield from record_fetch(self, *arguments)
        if response is not None and response.diverging is not None:
            response = replace(response, high_watermark=self.high_watermark)
        return response

    take = FollowerRole.take_fetched

    def taken(self: Partition, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        if data.diverging is not None and self.role is Role.FOLLOWER and not self._is_late(request):
            yield from self._follow_high_watermark(data.high_watermark)
            return (yield from reconcile(self, data.diverging, data.log_start_offset))
        return (yield from take(self, request, data, now_ms))

    return [(LeaderRole, "record_fetch", recorded), (FollowerRole, "take_fetched", taken)]


@MUTATIONS.add("old-leader-epoch-accepted")
def _old_leader_epoch_accepted() -> list[Patch]:
    """A broker applies a LeaderAndIsr of an older leader epoch, such as the late copy of a resent one (F26, F30)."""
    return [
        (Partition, "_is_stale", lambda self, leader_epoch: False),
        (ControlFencing, "is_late_copy", lambda self, request: False),
    ]


@MUTATIONS.add("late-copy-accepted")
def _late_copy_accepted() -> list[Patch]:
    """A broker applies the late copy of a resent control request, after requests that followed it (F30)."""
    return [(ControlFencing, "is_late_copy", lambda self, request: False)]


@MUTATIONS.add("refused-deletion-skips-fsync")
def _refused_deletion_skips_fsync() -> list[Patch]:
    """With flush.messages=1, records after which a deletion is refused for want of descriptors are never fsynced, and
    the next fetch says that they are."""

    def take_records(self: Partition, data: FetchedPartition) -> Steps[FetchOutcome]:
        if len(data.records):
            yield from self._append_fetched(data.records)
        yield from self._follow_high_watermark(data.high_watermark)
        yield from self._follow_log_start(data.log_start_offset)
        yield from self._flush_tail()
        return FetchOutcome.AWAIT_FLUSH if self.awaits_flush else FetchOutcome.PROGRESS

    def begin(self: ReplicaFetcher, topic_partition: TopicPartition, entry: Any) -> None:
        entry.state = FetchState.TRUNCATING
        self._activate(topic_partition, entry)

    return [(FollowerRole, "_take_records", take_records), (ReplicaFetcher, "_begin", begin)]


@MUTATIONS.add("copies-keep-what-was-truncated")
def _copies_keep_what_was_truncated() -> list[Patch]:
    """A copy in another log directory goes by the log's end alone, and keeps records that the replica has truncated."""

    def by_its_end(current: LogState, copy: LogState) -> future_replicas.CopyStep | None:
        return right(current, replace(copy, epochs=current.epochs))

    right = future_replicas.next_copy_step
    return [(future_replicas, "next_copy_step", by_its_end)]


@MUTATIONS.add("moves-not-synced")
def _moves_not_synced() -> list[Patch]:
    """A replica is written to in its new log directory before a loss of power would find it there."""

    def unsynced(self: LocalReplica) -> Steps[None]:
        state: LogState | None = None if self.interrupted else (yield ReplaceLog(self.topic_partition))
        self.log = state or self.log

    return [(LocalReplica, "replace_log", unsynced)]
