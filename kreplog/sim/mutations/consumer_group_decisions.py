"""Mutations of groups whose coordinator assigns the partitions: revocation, sessions, epochs, what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplog.core.consumer_group_messages import ConsumerGroupHeartbeatResponse
from kreplog.core.effects import Reply, Steps
from kreplog.core.groups import consumer_identity, migration, reconciliation
from kreplog.core.groups.classic_members import ClassicMembers
from kreplog.core.groups.consumer_group import ConsumerGroup
from kreplog.core.groups.consumer_heartbeats import is_full
from kreplog.core.groups.consumer_membership import ConsumerMembership
from kreplog.core.groups.group import Group
from kreplog.core.groups.group_writes import GroupWrites
from kreplog.core.groups.membership import Membership
from kreplog.core.groups.shard import GroupShard
from kreplog.errors import ErrorCode
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("assignment-sent-once")
def _assignment_sent_once() -> list[Patch]:
    """A member whose response was lost, and that sends no full request, never learns of its assignment, as in Kafka."""
    return [
        (
            ConsumerMembership,
            "_includes_assignment",
            lambda self, consumer, member_id, request, before, current: (
                is_full(request) or current.assigned != before.assigned
            ),
        )
    ]


@MUTATIONS.add("assigned-before-revoked")
def _assigned_before_revoked() -> list[Patch]:
    """A partition is assigned although another member owns it, or has yet to revoke it."""
    return [(ConsumerMembership, "_is_free", lambda self, consumer, member_id, partition: True)]


@MUTATIONS.add("revocation-not-acknowledged")
def _revocation_not_acknowledged() -> list[Patch]:
    """A member counts as having revoked its partitions at its next heartbeat, whatever it owns."""
    return [(reconciliation, "has_revoked", lambda current, owned: True)]


@MUTATIONS.add("silent-consumers-stay")
def _silent_consumers_stay() -> list[Patch]:
    """The session of a member does not end: what a member owned that has failed stays its own."""

    def never(self: ConsumerMembership, shard: Any, group: Any, member_id: str, now_ms: int) -> Steps[None]:
        return
        yield

    return [(ConsumerMembership, "_session_expired", never)]


@MUTATIONS.add("stale-member-epoch-commits")
def _stale_member_epoch_commits() -> list[Patch]:
    """A member commits offsets in any earlier epoch than its own, of any partition."""
    return [(ConsumerGroup, "_has_had", lambda self, assignment_epoch, member_epoch: True)]


@MUTATIONS.add("revoked-partition-commits")
def _revoked_partition_commits() -> list[Patch]:
    """A member commits offsets of a partition that was revoked since; one that it has must be its own since then."""
    has_had = ConsumerGroup._has_had

    def has_had_or_lost(self: ConsumerGroup, assignment_epoch: int | None, member_epoch: int) -> bool:
        return assignment_epoch is None or has_had(self, assignment_epoch, member_epoch)

    return [(ConsumerGroup, "_has_had", has_had_or_lost)]


@MUTATIONS.add("heartbeats-answered-before-stored")
def _heartbeats_answered_before_stored() -> list[Patch]:
    """A member gets its epoch and assignment before they are committed: the next coordinator may not have them."""
    flush = GroupWrites.flush

    def at_once(self: GroupWrites, *others: Any) -> Steps[None]:
        waiting, self._waiting = self._waiting, []
        for reply_to, response in waiting:
            yield Reply(reply_to, response(ErrorCode.NONE))
        yield from flush(self, *others)

    return [(GroupWrites, "flush", at_once)]


@MUTATIONS.add("changes-of-topics-ignored")
def _changes_of_topics_ignored() -> list[Patch]:
    """New partitions, and topics that are created, are assigned to nobody until a member joins or leaves."""
    return [(ConsumerMembership, "_topics_have_changed", lambda self, consumer, now_ms: False)]


@MUTATIONS.add("loaded-consumers-stay")
def _loaded_consumers_stay() -> list[Patch]:
    """A new coordinator does not begin the sessions of the members that it has loaded."""
    return [(ConsumerMembership, "loaded", lambda self, shard, now_ms: None)]


@MUTATIONS.add("live-static-member-replaced")
def _live_static_member_replaced() -> list[Patch]:
    """A static member takes over from one of its instance id that has not left."""
    return [(ConsumerGroup, "has_left", lambda self, member_id: True)]


@MUTATIONS.add("rejoining-member-refused")
def _rejoining_member_refused() -> list[Patch]:
    """A member that joins again has to wait until its former session ends, as in Kafka before KAFKA-19233."""
    return [(consumer_identity, "joins_again", lambda current, request: False)]


@MUTATIONS.add("failed-group-write-forgotten")
def _failed_group_write_forgotten() -> list[Patch]:
    """The records of a failed append are not written again, and count as stored."""
    return [(GroupWrites, "_keep", lambda self, records: None)]


@MUTATIONS.add("consumers-refused")
def _consumers_refused() -> list[Patch]:
    """There is room for no member, whatever memory is left: nobody reads."""
    full = ConsumerGroupHeartbeatResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    return [(ConsumerMembership, "room_refusal", lambda *_: full)]


@MUTATIONS.add("upgrade-forgets-owners")
def _upgrade_forgets_owners() -> list[Patch]:
    """A classic group becomes one whose coordinator assigns, and what its members own counts as free."""
    return [(migration, "read_assignment", lambda octets: frozenset())]


@MUTATIONS.add("commits-of-consumer-groups-forgotten")
def _commits_of_consumer_groups_forgotten() -> list[Patch]:
    """An offset that a member of such a group commits is acknowledged, and not kept."""
    take = GroupShard.take_offset

    def forget(self: GroupShard, group: Group, *others: Any) -> None:
        if group.consumer is None:
            take(self, group, *others)

    return [(GroupShard, "take_offset", forget)]


@MUTATIONS.add("conversion-drops-committed-offsets")
def _conversion_drops_committed_offsets() -> list[Patch]:
    """A group that is converted from one protocol to the other has no committed offsets any more."""

    def dropping(right: Callable[..., Steps[None]]) -> Callable[..., Steps[None]]:
        def convert(self: Membership, shard: GroupShard, group: Group, *others: Any) -> Steps[None]:
            for partition, stored in list(group.offsets.items()):
                shard.take_offset(group, partition, None, stored.at)
            yield from right(self, shard, group, *others)

        return convert

    return [(Membership, name, dropping(getattr(Membership, name))) for name in ("begin", "end")]


@MUTATIONS.add("classic-members-not-to-rejoin")
def _classic_members_not_to_rejoin() -> list[Patch]:
    """Members of the classic protocol in such a group do not learn that their assignment has changed."""
    return [(ClassicMembers, "_has_to_rejoin", lambda self, consumer, member_id: False)]
