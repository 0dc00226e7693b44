"""ClassicMembers: members of consumer groups that use the classic protocol, while a group changes its protocol.

To such a member each epoch of its own is a generation, in which it leads nobody. Its heartbeats are refused with
REBALANCE_IN_PROGRESS while its target assignment differs from what it may own; its JoinGroup states what it owns, as a
heartbeat of the consumer protocol does, and its SyncGroup gets what it may own. Source: KIP-848 on migration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from kreplog.config import GroupConfig
from kreplog.core.consumer_group_messages import (
    ClassicMemberMetadata,
    ConsumerMemberMetadata,
    CurrentAssignment,
    CurrentAssignmentRecord,
    MemberState,
)
from kreplog.core.effects import Reply, Steps, WallClock
from kreplog.core.group_messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kreplog.core.groups.consumer_group import ConsumerGroup
from kreplog.core.groups.consumer_membership import ConsumerMembership, consumer_of
from kreplog.core.groups.group import Group
from kreplog.core.groups.membership import Membership
from kreplog.core.groups.migration import classic_metadata, encoded_assignment, owned_assignment
from kreplog.core.groups.reconciliation import has_revoked
from kreplog.core.groups.shard import GroupShard
from kreplog.core.groups.subscribed_topics import ClusterTopics
from kreplog.core.groups.subscription import CONSUMER_PROTOCOL, Subscription, read_subscription
from kreplog.core.timers import Deadline, Timers
from kreplog.errors import ErrorCode


class ClassicMembers:
    """Requests of the classic protocol for groups whose coordinator assigns. unique: returns a text that no process has
    returned before, for a member id. The arguments else are those of ConsumerMembership."""

    def __init__(
        self,
        config: GroupConfig,
        timers: Timers,
        unique: Callable[[], str],
        cluster: ClusterTopics,
        classic: Membership,
        consumers: ConsumerMembership,
    ) -> None:
        self._config = config
        self._timers = timers
        self._unique = unique
        self._cluster = cluster
        self._classic = classic
        self._consumers = consumers

    # JoinGroup

    def join(self, shard: GroupShard, reply_to: Hashable, request: JoinGroupRequest, now_ms: int) -> Steps[None]:
        group = shard.groups[request.group_id]
        consumer, subscription = consumer_of(group), self._subscription(request)
        former_id = self._replaced(consumer, request)
        if not self._classic.has_valid_session(request):
            response = JoinGroupResponse(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        elif subscription is None or not self._supports(consumer, request, former_id):
            response = JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        elif (error := self._identity_error(consumer, request)) is not ErrorCode.NONE:
            response = JoinGroupResponse(error, request.member_id)
        elif not request.member_id and request.instance_id is None and request.requires_member_id:
            response = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, self._unique())
        else:
            member_id = request.member_id or self._unique()
            member = classic_metadata(
                subscription,
                request.instance_id,
                (request.client_id, request.client_host),
                request.rebalance_timeout_ms,
                ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
            )
            refusal = self._consumers.room_refusal(shard, group, former_id or member_id, member)
            if refusal is None:
                yield from self._admit(shard, group, reply_to, member_id, former_id, member, subscription, now_ms)
                return
            response = JoinGroupResponse(refusal.error, request.member_id)
        yield Reply(reply_to, response)

    def _subscription(self, request: JoinGroupRequest) -> Subscription | None:
        """The topics and partitions that a member reads and owns, by the first of its protocols; None if it is no
        consumer."""
        if not self._config.mixes_protocols or request.protocol_type != CONSUMER_PROTOCOL or not request.protocols:
            return None
        return read_subscription(request.protocols[0][1])

    def _supports(self, consumer: ConsumerGroup, request: JoinGroupRequest, former_id: str | None) -> bool:
        """Whether the other members of the classic protocol support one of the member's."""
        own = consumer.members.get(former_id or request.member_id)
        if own is not None and own.classic is not None and consumer.classic == 1:
            return True  # there are no others
        return consumer.supports(name for name, _ in request.protocols)

    def _replaced(self, consumer: ConsumerGroup, request: JoinGroupRequest) -> str | None:
        """The static member that has restarted without its id."""
        known = request.instance_id is not None and not request.member_id
        return consumer.static.get(request.instance_id or "") if known else None

    def _identity_error(self, consumer: ConsumerGroup, request: JoinGroupRequest) -> ErrorCode:
        if request.instance_id is None or not request.member_id:
            return ErrorCode.NONE
        return _holder(consumer, request.member_id, request.instance_id)[1]

    def _admit(
        self,
        shard: GroupShard,
        group: Group,
        reply_to: Hashable,
        member_id: str,
        former_id: str | None,
        member: ConsumerMemberMetadata,
        subscription: Subscription,
        now_ms: int,
    ) -> Steps[None]:
        consumer, wall_ms = consumer_of(group), (yield WallClock())
        is_new = member_id not in consumer.members
        self._consumers.admit(consumer, member_id, member, former_id, now_ms, wall_ms)
        before = consumer.assignment_of(member_id)
        current = self._reconciled(consumer, member_id, subscription)
        if current != before or is_new:
            self._consumers.change(consumer, CurrentAssignmentRecord(group.group_id, member_id, current))
        self._consumers.renew(shard, group, member_id, now_ms)
        if current != before:
            self._consumers.limit_revocation(shard, group, member_id, now_ms)
        self._expect(shard, group, member_id, now_ms + member.rebalance_timeout_ms)
        protocol = member.classic.protocols[0][0] if member.classic else None
        joined = JoinGroupResponse(ErrorCode.NONE, member_id, current.member_epoch, CONSUMER_PROTOCOL, protocol)
        consumer.writes.answer(
            reply_to, lambda error: JoinGroupResponse(error, member_id) if error is not ErrorCode.NONE else joined
        )
        yield from self._consumers.settle(shard, group)

    def _reconciled(self, consumer: ConsumerGroup, member_id: str, subscription: Subscription) -> CurrentAssignment:
        """The assignment of a member that owns what it says: partitions that it had to revoke, and does not own, are
        revoked."""
        owned = owned_assignment(subscription, self._cluster)
        current = self._consumers.next_assignment(consumer, member_id, owned)
        if current.state is MemberState.UNREVOKED_PARTITIONS and has_revoked(current, owned):
            self._consumers.change(consumer, CurrentAssignmentRecord(consumer.group_id, member_id, current))
            current = self._consumers.next_assignment(consumer, member_id, owned)
        return current

    # SyncGroup, Heartbeat

    def sync(self, shard: GroupShard, reply_to: Hashable, request: SyncGroupRequest, now_ms: int) -> Steps[None]:
        group = shard.groups[request.group_id]
        consumer = consumer_of(group)
        error = self._error(consumer, request)
        if error is ErrorCode.NONE:
            error = self._sync_error(consumer, request, now_ms)
        if error is not ErrorCode.NONE:
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                self._expect_rejoin(shard, group, request.member_id, now_ms)
            yield Reply(reply_to, SyncGroupResponse(error))
            return
        current = consumer.assignment_of(request.member_id)
        names = {topic.topic_id: name for name, topic in consumer.topics.known.items()}
        assignment = encoded_assignment(consumer, request.member_id, current.assigned, names)
        if request.member_id in consumer.rejoins:
            consumer.rejoins[request.member_id].cancel()
        self._consumers.renew(shard, group, request.member_id, now_ms)
        synced = SyncGroupResponse(ErrorCode.NONE, request.protocol_type, request.protocol, assignment)
        consumer.writes.answer(
            reply_to, lambda error: SyncGroupResponse(error) if error is not ErrorCode.NONE else synced
        )
        yield from self._consumers.settle(shard, group)

    def _sync_error(self, consumer: ConsumerGroup, request: SyncGroupRequest, now_ms: int) -> ErrorCode:
        """Why a member that is in its generation has to join again."""
        classic = consumer.members[request.member_id].classic
        protocols = {name for name, _ in classic.protocols} if classic else set()
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol not in (None, *protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        current = consumer.assignment_of(request.member_id)
        self._consumers.refresh(consumer, now_ms)
        known = {topic.topic_id for topic in consumer.topics.known.values()}
        is_named = consumer.topics.is_certain(now_ms) or all(topic.topic_id in known for topic in current.assigned)
        is_behind = current.member_epoch < consumer.target_epoch
        if not is_named or (is_behind and current.state is not MemberState.UNREVOKED_PARTITIONS):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def heartbeat(self, shard: GroupShard, reply_to: Hashable, request: HeartbeatRequest, now_ms: int) -> Steps[None]:
        group = shard.groups[request.group_id]
        consumer, member_id = consumer_of(group), request.member_id
        error = self._error(consumer, request)
        if error is not ErrorCode.NONE:
            yield Reply(reply_to, HeartbeatResponse(error))
            return
        wall_ms: int = yield WallClock()
        self._consumers.renew(shard, group, member_id, now_ms)
        self._consumers.retarget(consumer, now_ms, wall_ms)
        if self._has_to_rejoin(consumer, member_id):
            error = ErrorCode.REBALANCE_IN_PROGRESS
            self._expect_rejoin(shard, group, member_id, now_ms)
        consumer.writes.answer(reply_to, lambda failed: HeartbeatResponse(failed or error))
        yield from self._consumers.settle(shard, group)

    def _has_to_rejoin(self, consumer: ConsumerGroup, member_id: str) -> bool:
        current = consumer.assignment_of(member_id)
        if current.member_epoch < consumer.target_epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        return current.state is MemberState.UNRELEASED_PARTITIONS and not self._consumers.waits(consumer, member_id)

    def _error(self, consumer: ConsumerGroup, request: HeartbeatRequest | SyncGroupRequest) -> ErrorCode:
        """Why the request is none of a member of the classic protocol in its generation."""
        holder, error = _holder(consumer, request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if not consumer.is_classic(holder):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.generation_id != consumer.assignment_of(holder).member_epoch:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    # Time-outs

    def _expect(self, shard: GroupShard, group: Group, member_id: str, until_ms: int) -> None:
        """The member has to send its next JoinGroup or SyncGroup until then."""
        rejoins = consumer_of(group).rejoins
        if member_id not in rejoins:
            rejoins[member_id] = Deadline(partial(self._consumers.expire, rejoins, shard, group, member_id))
        self._timers.set(rejoins[member_id], until_ms)

    def _expect_rejoin(self, shard: GroupShard, group: Group, member_id: str, now_ms: int) -> None:
        """The member has its rebalance time-out to rejoin, from when it has to."""
        consumer = consumer_of(group)
        pending = consumer.rejoins.get(member_id)
        if pending is None or pending.at_ms is None:
            self._expect(shard, group, member_id, now_ms + consumer.members[member_id].rebalance_timeout_ms)

    # LeaveGroup

    def leave(self, shard: GroupShard, reply_to: Hashable, request: LeaveGroupRequest, now_ms: int) -> Steps[None]:
        """Members of the classic protocol leave. An administrator removes static members of either, by their instance
        ids; others of the consumer protocol leave by a heartbeat of their own."""
        group = shard.groups[request.group_id]
        consumer = consumer_of(group)
        errors: dict[MemberIdentity, ErrorCode] = {}
        for identity in dict.fromkeys(request.members):
            member_id = identity.member_id or consumer.static.get(identity.instance_id or "", "")
            holder, error = _holder(consumer, member_id, identity.instance_id)
            if error is ErrorCode.NONE and identity.member_id and not consumer.is_classic(holder):
                error = ErrorCode.UNKNOWN_MEMBER_ID
            errors[identity] = error
            if error is ErrorCode.NONE:
                self._consumers.remove(consumer, holder, now_ms)
        removed = tuple(errors.items())
        consumer.writes.answer(reply_to, lambda error: LeaveGroupResponse(error, () if error else removed))
        yield from self._consumers.settle(shard, group)


def _holder(consumer: ConsumerGroup, member_id: str, instance_id: str | None) -> tuple[str, ErrorCode]:
    """The member that a request names, and the error if there is none, or another process has replaced it."""
    holder = member_id if instance_id is None else consumer.static.get(instance_id, "")
    if holder not in consumer.members:
        return holder, ErrorCode.UNKNOWN_MEMBER_ID
    return holder, ErrorCode.NONE if member_id == holder else ErrorCode.FENCED_INSTANCE_ID
