"""Mutations of consumer groups: loading, commits, generations.

The leader epoch of a coordinator's append (CoordinatorProduce) has none: in a broker an append reaches the replication
core before any later request of the controller, so that it matters only where a slow disk holds those up together, and
then only for a commit without response. tests/core/groups/test_coordinator_appends.py has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from kreplog.core.broker import coordinator_log
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.effects import AppendGroupRecords, Deliver, Effect, Steps
from kreplog.core.events import GroupRecordsAppended, GroupRecordsRead
from kreplog.core.group_messages import LogRecord, OffsetRecord, TxnOffsetCommitRequest
from kreplog.core.groups.committed_offsets import CommittedOffsets
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.groups.group import Group
from kreplog.core.groups.log_writer import Committed, GroupLogWriter
from kreplog.core.groups.membership import Membership
from kreplog.core.groups.shard import GroupShard
from kreplog.core.messages import ProduceResponse
from kreplog.core.replication.deletions import Deletions
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import ErrorCode
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("groups-served-before-loaded")
def _groups_served_before_loaded() -> list[Patch]:
    """A coordinator answers before it has loaded its groups: without offsets, and without members."""
    return [(GroupCoordinator, "_may_answer", lambda self, shard: True)]


@MUTATIONS.add("groups-loaded-partly")
def _groups_loaded_partly() -> list[Patch]:
    """A coordinator has loaded its groups once it has read anything."""
    return [(GroupShard, "is_loaded", property(lambda self: self.next_offset >= 0))]


@MUTATIONS.add("groups-loaded-up-to-high-watermark")
def _groups_loaded_up_to_high_watermark() -> list[Patch]:
    """A new coordinator does not wait until its high watermark is where its epoch begins: its predecessor has answered
    for what lies between."""
    leadership = GroupCoordinator._leadership

    def ends_at_once(self: GroupCoordinator, partition: Any, leader_epoch: Any, end: int, now_ms: int) -> Any:
        return leadership(self, partition, leader_epoch, 0, now_ms)

    return [(GroupCoordinator, "_leadership", ends_at_once)]


@MUTATIONS.add("groups-survive-resignation")
def _groups_survive_resignation() -> list[Patch]:
    """A coordinator that no longer leads keeps its groups, and has them still when it leads again."""

    def begun(self: BrokerCores) -> Sequence[Effect]:
        changes, self.replicas.coordinator_events = self.replicas.coordinator_events, []
        return [Deliver(self.groups, event) for event in changes if getattr(event, "leader_epoch", 0) is not None]

    return [(BrokerCores, "_coordinator_effects", begun)]


@MUTATIONS.add("leadership-not-reported")
def _leadership_not_reported() -> list[Patch]:
    """The coordinator learns of no change of leadership at all."""

    def none(self: BrokerCores) -> Sequence[Effect]:
        self.replicas.coordinator_events = []
        return []

    return [(BrokerCores, "_coordinator_effects", none)]


@MUTATIONS.add("commits-answered-at-once")
def _commits_answered_at_once() -> list[Patch]:
    """A commit is answered once its record is appended, before other replicas have it."""
    append = GroupLogWriter.append
    counts = itertools.count(1)

    def at_once(
        self: GroupLogWriter,
        shard: GroupShard,
        group: Group,
        records: tuple[LogRecord, ...],
        then: Committed,
        transaction: TxnOffsetCommitRequest | None = None,
    ) -> Steps[None]:
        if not isinstance(records[0], OffsetRecord):
            yield from append(self, shard, group, records, then, transaction)
            return
        yield from append(self, shard, group, records, _ignore)
        yield from then(ErrorCode.NONE, next(counts), 0)

    return [(GroupLogWriter, "append", at_once)]


@MUTATIONS.add("failed-commit-counts")
def _failed_commit_counts() -> list[Patch]:
    """An append that failed counts as committed."""
    appended = GroupLogWriter.appended

    def succeeds(self: GroupLogWriter, event: GroupRecordsAppended, *others: Any) -> Steps[None]:
        return appended(self, GroupRecordsAppended(event.tag, ErrorCode.NONE, event.base_offset), *others)

    return [(GroupLogWriter, "appended", succeeds)]


@MUTATIONS.add("stale-generation-commits")
def _stale_generation_commits() -> list[Patch]:
    """A member of an earlier generation may commit."""
    return [(CommittedOffsets, "_is_other_generation", lambda self, group, generation_id: False)]


@MUTATIONS.add("stale-generation-synchronizes")
def _stale_generation_synchronizes() -> list[Patch]:
    """A member of an earlier generation gets the assignment of the present one."""
    return [(Membership, "_is_other_generation", lambda self, group, generation_id: False)]


@MUTATIONS.add("assignment-before-it-is-stored")
def _assignment_before_it_is_stored() -> list[Patch]:
    """Members get their assignment before it is committed: the next coordinator may have another in that generation."""
    store = Membership._store

    def at_once(
        self: Membership, shard: GroupShard, group: Group, assignments: dict[str, bytes], then: Committed
    ) -> Any:
        yield from store(self, shard, group, assignments, _ignore)
        yield from then(ErrorCode.NONE, -1, 0)

    return [(Membership, "_store", at_once)]


@MUTATIONS.add("members-not-loaded")
def _members_not_loaded() -> list[Patch]:
    """A new coordinator forgets the generation of its groups, and counts from the first again."""
    return [(Group, "restore", lambda self, metadata: None)]


@MUTATIONS.add("join-waits-for-all")
def _join_waits_for_all() -> list[Patch]:
    """A generation waits for members that do not rejoin, without end."""

    def never(self: Membership, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        return
        yield

    return [(Membership, "_join_expired", never)]


@MUTATIONS.add("group-memory-not-released")
def _group_memory_not_released() -> list[Patch]:
    """The memory of a shard stays charged when the broker resigns."""
    return [(GroupShard, "close", lambda self: self.groups.clear())]


@MUTATIONS.add("fenced-static-member-acts")
def _fenced_static_member_acts() -> list[Patch]:
    """A static member that another process has replaced is answered as if it were that (KIP-345)."""

    def by_instance(self: Group, member_id: str, instance_id: str | None) -> Any:
        current = self.static.get(instance_id or "", member_id)
        return self.members.get(current, ErrorCode.UNKNOWN_MEMBER_ID)

    return [(Group, "identified", by_instance)]


@MUTATIONS.add("deletion-forgets-other-topics")
def _deletion_forgets_other_topics() -> list[Patch]:
    """The deletion of a topic removes the groups' offsets of all topics."""
    forget = CommittedOffsets.forget

    def everything(self: CommittedOffsets, shard: GroupShard, group: Group, partitions: object) -> Steps[None]:
        return forget(self, shard, group, set(group.offsets))

    return [(CommittedOffsets, "forget", everything)]


@MUTATIONS.add("records-of-groups-deleted")
def _records_of_groups_deleted() -> list[Patch]:
    """DeleteRecords deletes committed offsets, which the next coordinator then lacks."""
    return [(Deletions, "_is_internal", lambda self, partition: False)]


@MUTATIONS.add("coordinator-read-skips-records")
def _coordinator_read_skips_records() -> list[Patch]:
    """A coordinator goes on at the high watermark after its first slice, and lacks what lies between."""
    return [(coordinator_log, "_committed", lambda records, next_offset, end: (records, end))]


@MUTATIONS.add("coordinator-reads-uncommitted")
def _coordinator_reads_uncommitted() -> list[Patch]:
    """A coordinator takes what its replica has above the high watermark, which the next leader may not have."""
    return [(coordinator_log, "_committed", lambda records, next_offset, end: (records, next_offset))]


@MUTATIONS.add("failed-coordinator-read-given-up")
def _failed_coordinator_read_given_up() -> list[Patch]:
    """A coordinator that cannot read its records, for want of descriptors or memory, does not try again."""

    def giving_up(right: Callable[[Any, GroupRecordsRead, int], Steps[None]]) -> Callable[..., Steps[None]]:
        def read(self: object, event: GroupRecordsRead, now_ms: int) -> Steps[None]:
            if not event.failure:
                yield from right(self, event, now_ms)

        return read

    return [(core, "_read", giving_up(core._read)) for core in (GroupCoordinator, TransactionCoordinator)]


@MUTATIONS.add("failed-coordinator-append-counts")
def _failed_coordinator_append_counts() -> list[Patch]:
    """A coordinator does not see the error in the response to its append."""

    def succeeded(effect: AppendGroupRecords, response: ProduceResponse) -> GroupRecordsAppended:
        (produced,) = response.partitions
        return GroupRecordsAppended(effect.tag, ErrorCode.NONE, produced.base_offset)

    return [(coordinator_log, "appended", succeeded)]


def _ignore(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
    return
    yield
