"""Membership: how members join a group, are synchronized, stay and leave, and when a generation begins.

A generation begins in two rounds. Members join until all have, or until the longest rebalance time-out is over; then
each learns its generation and the leader learns the members. The leader sends the assignment with its SyncGroup, which
is stored in the group's log before anyone gets it. Source: Kafka, GroupCoordinator; KIP-345, KIP-394, KIP-814.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from kreplog.config import GroupConfig
from kreplog.core.effects import Reply, Steps, WallClock
from kreplog.core.group_messages import (
    GroupMetadata,
    GroupRecord,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kreplog.core.groups.group import Group, group_size, pending_size
from kreplog.core.groups.log_writer import GroupLogWriter
from kreplog.core.groups.member import Member
from kreplog.core.groups.shard import GroupShard
from kreplog.core.groups.states import GroupState
from kreplog.core.groups.subscription import subscribed_topics
from kreplog.core.groups.totals import GroupTotals
from kreplog.core.timers import Deadline, Timers
from kreplog.errors import ErrorCode

NEW_MEMBER_JOIN_MS = 300_000
"""How long a new member waits for the first generation that it is in; clients give up earlier."""

MAX_PENDING = 1000
"""Maximum of new members of a group that have an id and have not joined with it."""

MAX_PROTOCOL_TYPE = 255
"""Maximum length of a protocol type; those in use have up to 8 letters."""

MAX_PREFIX = 32_000
"""Bytes of a client id or instance id that begin a member id: a record has no room for 32,768."""

_CAN_REBALANCE = (GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE)


class Membership:
    """Joins, synchronizes and removes the members of groups. unique: returns a text that no process has returned
    before, for a member id."""

    def __init__(
        self, config: GroupConfig, timers: Timers, log: GroupLogWriter, unique: Callable[[], str], totals: GroupTotals
    ) -> None:
        self._config = config
        self._totals = totals
        self._timers = timers
        self._log = log
        self._unique = unique

    # JoinGroup

    def join(self, shard: GroupShard, reply_to: Hashable, request: JoinGroupRequest, now_ms: int) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        error = ErrorCode.NONE
        if not self.has_valid_session(request):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        elif (group is None or group.consumer is not None) and request.member_id:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif not self._has_protocol(request):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif group is not None and group.consumer is not None:  # the end of its last members is being written
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        elif group is not None and not self._has_room(group, request.member_id):
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        elif group is None:
            group = Group(request.group_id)
            if not shard.reserve(group, group_size(group.group_id)):
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not ErrorCode.NONE or group is None:
            yield Reply(reply_to, JoinGroupResponse(error, request.member_id))
            return
        shard.groups[group.group_id] = group
        if request.member_id:
            yield from self._rejoin(shard, group, reply_to, request, now_ms)
        else:
            yield from self._join_new(shard, group, reply_to, request, now_ms)
        self._remove_if_gone(shard, group)

    def may_join(self, request: JoinGroupRequest) -> bool:
        """Whether a group without members admits the request, as far as that depends on the request."""
        return not request.member_id and self.has_valid_session(request) and self._has_protocol(request)

    def has_valid_session(self, request: JoinGroupRequest) -> bool:
        config = self._config
        return config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms

    def _has_protocol(self, request: JoinGroupRequest) -> bool:
        """Whether the request names protocols."""
        return bool(request.protocols) and 0 < len(request.protocol_type) <= MAX_PROTOCOL_TYPE

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Beyond group.max.size nobody joins; members that a lower limit has made too many are refused as they rejoin.
        Source: KIP-389."""
        maximum = self._config.group_max_size
        member = group.members.get(member_id)
        match group.state:
            case GroupState.EMPTY:
                return True
            case GroupState.PREPARING_REBALANCE:
                return (member is not None and member.awaiting_join is not None) or group.joining < maximum
            case _:
                return member is not None or len(group.members) < maximum

    def _join_new(
        self, shard: GroupShard, group: Group, reply_to: Hashable, request: JoinGroupRequest, now_ms: int
    ) -> Steps[None]:
        """A member without an id joins: a new one, or a static one that has restarted."""
        if not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        prefix = (request.instance_id or request.client_id).encode()[:MAX_PREFIX].decode(errors="ignore")
        member_id = f"{prefix}-{self._unique()}"
        if request.instance_id is not None:
            known = group.static.get(request.instance_id)
            if known is None:
                yield from self._add(shard, group, member_id, reply_to, request, now_ms)
            else:
                yield from self._replace(shard, group, group.members[known], member_id, reply_to, request, now_ms)
        elif request.requires_member_id:
            yield from self._name(shard, group, member_id, reply_to, request, now_ms)
        else:
            yield from self._add(shard, group, member_id, reply_to, request, now_ms)

    def _name(
        self,
        shard: GroupShard,
        group: Group,
        member_id: str,
        reply_to: Hashable,
        request: JoinGroupRequest,
        now_ms: int,
    ) -> Steps[None]:
        """Give a new member its id, with which it is to join within its session time-out (KIP-394)."""
        if len(group.pending) >= MAX_PENDING:
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        if not shard.reserve(group, pending_size(member_id)):
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        group.pending[member_id] = deadline = Deadline(partial(self._pending_expired, shard, group, member_id))
        self._timers.set(deadline, now_ms + request.session_timeout_ms)
        yield Reply(reply_to, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _end_pending(self, shard: GroupShard, group: Group, member_id: str) -> bool:
        """Remove a pending member id. Returns whether it was pending."""
        pending = group.pending.pop(member_id, None)
        if pending is None:
            return False
        pending.cancel()
        shard.release(group, pending_size(member_id))
        return True

    def _rejoin(
        self, shard: GroupShard, group: Group, reply_to: Hashable, request: JoinGroupRequest, now_ms: int
    ) -> Steps[None]:
        member_id = request.member_id
        names = [name for name, _ in request.protocols]
        if member_id in group.pending and request.instance_id is None:
            if group.supports(request.protocol_type, names):
                yield from self._add(shard, group, member_id, reply_to, request, now_ms)
            else:
                yield Reply(reply_to, JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return
        member = group.identified(member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            yield Reply(reply_to, JoinGroupResponse(member, member_id))
        elif not group.supports(request.protocol_type, names):
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not self._has_memory(shard, group, member, request):
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))
        elif self._needs_rebalance(group, member, request):
            yield from self._update(shard, group, member, reply_to, request, now_ms)
            yield from self._rebalance(shard, group, now_ms)
        else:  # its JoinGroup was answered, and the response lost, or it has nothing new to say
            self._renew(member, now_ms)
            members = group.joined_members() if group.leader == member_id else ()
            yield Reply(reply_to, self._joined(group, member, members))

    def _needs_rebalance(self, group: Group, member: Member, request: JoinGroupRequest) -> bool:
        """A leader rejoins to have a generation begun, as when the topics of the group have changed; others need one
        only if they have new metadata."""
        match group.state:
            case GroupState.PREPARING_REBALANCE | GroupState.EMPTY:
                return True
            case GroupState.STABLE if group.leader == member.member_id:
                return True
            case _:
                return member.protocols != request.protocols

    def _add(
        self,
        shard: GroupShard,
        group: Group,
        member_id: str,
        reply_to: Hashable,
        request: JoinGroupRequest,
        now_ms: int,
    ) -> Steps[None]:
        member = Member.of(member_id, request)
        growth = member.size - (pending_size(member_id) if member_id in group.pending else 0)
        if not shard.reserve(group, growth):
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id))
            return
        if self._end_pending(shard, group, member_id):
            shard.reserve(group, member.size - growth)
        member.awaiting_join, member.is_new, member.joined_ms = reply_to, True, now_ms
        member.session.action = partial(self._session_expired, shard, group, member)
        group.protocol_type = request.protocol_type
        group.add(member)
        group.has_new_member = group.has_new_member or group.state is GroupState.PREPARING_REBALANCE
        self._renew(member, now_ms)
        yield from self._rebalance(shard, group, now_ms)

    def _has_memory(self, shard: GroupShard, group: Group, member: Member, request: JoinGroupRequest) -> bool:
        """Whether there is memory for what a member has more of than before, such as metadata."""
        growth = Member.of(member.member_id, request).size + len(member.assignment) - member.size
        if growth <= 0:
            return True
        if not shard.reserve(group, growth):
            return False
        shard.release(group, growth)  # charged as it is taken
        return True

    def _update(
        self,
        shard: GroupShard,
        group: Group,
        member: Member,
        reply_to: Hashable | None,
        request: JoinGroupRequest,
        now_ms: int,
    ) -> Steps[None]:
        """Take the member's new metadata and time-outs. reply_to: of its request, to answer when the generation
        begins."""
        before = member.size
        group.update(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        shard.reserve(group, member.size - before, force=True)
        self._renew(member, now_ms)
        if reply_to is not None:
            earlier = group.await_join(member, reply_to)
            if earlier is not None:
                yield Reply(earlier, JoinGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    # Static members

    def _replace(
        self,
        shard: GroupShard,
        group: Group,
        member: Member,
        member_id: str,
        reply_to: Hashable,
        request: JoinGroupRequest,
        now_ms: int,
    ) -> Steps[None]:
        """A static member has restarted: it takes over from its former process, which is fenced from now on. In a
        stable group it takes over the assignment too, without a rebalance (KIP-345)."""
        if not self._has_memory(shard, group, member, request):
            yield Reply(reply_to, JoinGroupResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        former_id, former_leader = member.member_id, group.leader
        yield from self._refuse(group, member, ErrorCode.FENCED_INSTANCE_ID)
        same_topics = subscribed_topics(member.metadata(group.protocol)) == subscribed_topics(
            dict(request.protocols).get(group.protocol or "", b"")
        )
        self._rename(shard, group, member, member_id)
        yield from self._update(shard, group, member, None, request, now_ms)
        if group.state is GroupState.STABLE and same_topics and group.select_protocol() == group.protocol:
            yield from self._store_replaced(shard, group, member, former_id, former_leader, reply_to, request)
            return
        group.await_join(member, reply_to)
        yield from self._rebalance(shard, group, now_ms)

    def _rename(self, shard: GroupShard, group: Group, member: Member, member_id: str) -> None:
        before = member.size
        group.rename(member, member_id)
        shard.reserve(group, member.size - before, force=True)

    def _store_replaced(
        self,
        shard: GroupShard,
        group: Group,
        member: Member,
        former_id: str,
        former_leader: str | None,
        reply_to: Hashable,
        request: JoinGroupRequest,
    ) -> Steps[None]:
        member_id = member.member_id

        def stored(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            if error is not ErrorCode.NONE and group.members.get(member_id) is member:
                self._rename(shard, group, member, former_id)
            elif error is ErrorCode.NONE and group.consumer is not None:  # it has to join what the group is now
                error = ErrorCode.REBALANCE_IN_PROGRESS
            if error is not ErrorCode.NONE:
                yield Reply(reply_to, JoinGroupResponse(error))
                return
            leads = group.leader == member_id
            skips = leads and request.can_skip_assignment
            # A leader that cannot skip the assignment must not know that it leads: it would assign again.
            leader = group.leader if skips or not leads else former_leader
            members = group.joined_members() if skips else ()
            yield Reply(
                reply_to,
                JoinGroupResponse(
                    ErrorCode.NONE,
                    member_id,
                    group.generation,
                    group.protocol_type,
                    group.protocol,
                    leader or "",
                    members,
                    skips,
                ),
            )

        yield from self._store(shard, group, {name: other.assignment for name, other in group.members.items()}, stored)

    # Generations

    def _rebalance(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        """Have all members rejoin for a new generation."""
        if group.state in _CAN_REBALANCE:
            yield from self._prepare(shard, group, now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            yield from self._complete_if_joined(shard, group, now_ms)

    def _prepare(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        if group.state is GroupState.COMPLETING_REBALANCE:
            yield from self._fail_synchronization(group, ErrorCode.REBALANCE_IN_PROGRESS)
        delay_ms = group.rebalance_timeout_ms
        group.initial_ms = None
        if group.state is GroupState.EMPTY:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.initial_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_new_member = False
        group.synchronization.cancel()
        group.pending_sync.clear()
        group.enter(GroupState.PREPARING_REBALANCE)
        group.rebalance.action = partial(self._join_expired, shard, group)
        self._timers.set(group.rebalance, now_ms + delay_ms)

    def _complete_if_joined(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        if group.initial_ms is None and group.has_all_joined:
            yield from self._complete_join(shard, group, now_ms)

    def _join_expired(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        """The time to join is over: a first generation waits on while members still arrive, up to the rebalance
        time-out; any other begins without those that have not joined."""
        if group.initial_ms and group.has_new_member:
            group.has_new_member = False
            more_ms = min(self._config.group_initial_rebalance_delay_ms, group.initial_ms)
            group.initial_ms -= more_ms
            self._timers.set(group.rebalance, now_ms + more_ms)
            return
        group.initial_ms = None
        yield from self._complete_join(shard, group, now_ms)

    def _complete_join(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.instance_id is None:
                self._remove(shard, group, member)
        leader = None if group.leader is None else group.members[group.leader]
        if leader is not None and leader.awaiting_join is None:
            joined = next((member for member in group.members.values() if member.awaiting_join is not None), None)
            if joined is None:  # only static members are left, and none has come back: wait until they expire or do
                self._timers.set(group.rebalance, now_ms + group.rebalance_timeout_ms)
                return
            group.leader = joined.member_id
        group.rebalance.cancel()
        group.generation += 1
        if not group.members:
            yield from self._become_empty(shard, group)
            return
        group.protocol = group.select_protocol()
        group.enter(GroupState.COMPLETING_REBALANCE)
        group.pending_sync = set(group.members)
        members = group.joined_members()
        for member in list(group.members.values()):
            reply_to = group.await_join(member, None)
            member.is_new = False
            self._renew(member, now_ms)
            if reply_to is not None:
                listed = members if member.member_id == group.leader else ()
                yield Reply(reply_to, self._joined(group, member, listed))
        group.synchronization.action = partial(self._sync_expired, shard, group)
        self._timers.set(group.synchronization, now_ms + group.rebalance_timeout_ms)

    def _joined(self, group: Group, member: Member, members: tuple[JoinedMember, ...]) -> JoinGroupResponse:
        return JoinGroupResponse(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader or "",
            members,
        )

    def _become_empty(self, shard: GroupShard, group: Group) -> Steps[None]:
        """The last member has left. A coordinator that does not store this finds members that expire."""
        group.protocol = group.leader = None
        group.enter(GroupState.EMPTY)
        if group.is_stored or group.in_flight or group.offsets:
            yield from self._store(shard, group, {}, self._ignore)
        self._remove_if_gone(shard, group)

    def _ignore(self, error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
        return
        yield

    # SyncGroup

    def sync(self, shard: GroupShard, reply_to: Hashable, request: SyncGroupRequest, now_ms: int) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        member = (
            ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.identified(request.member_id, request.instance_id)
        )
        if group is None or isinstance(member, ErrorCode):
            error = member if isinstance(member, ErrorCode) else ErrorCode.UNKNOWN_MEMBER_ID
            yield Reply(reply_to, SyncGroupResponse(error))
            return
        error = ErrorCode.NONE
        if self._is_other_generation(group, request.generation_id):
            error = ErrorCode.ILLEGAL_GENERATION
        elif request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif group.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        elif group.state is GroupState.EMPTY:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            yield Reply(reply_to, SyncGroupResponse(error))
            return
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            group.synchronization.cancel()
        self._renew(member, now_ms)
        if group.state is GroupState.STABLE:
            yield Reply(reply_to, self._assigned(group, member))
            return
        earlier, member.awaiting_sync = member.awaiting_sync, reply_to
        if earlier is not None:
            yield Reply(earlier, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.leader == member.member_id:
            yield from self._store_assignment(shard, group, request, now_ms)

    def _store_assignment(self, shard: GroupShard, group: Group, request: SyncGroupRequest, now_ms: int) -> Steps[None]:
        """Store what the leader assigns; members get it once it is committed."""
        given = {name: assignment for name, assignment in request.assignments if name in group.members}
        generation, size = group.generation, sum(map(len, given.values()))
        if not shard.reserve(group, size):
            yield from self._fail_synchronization(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            yield from self._rebalance(shard, group, now_ms)
            return

        def stored(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            if shard.groups.get(group.group_id) is group:
                shard.release(group, size)  # each assignment is charged as its member gets it
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return  # another rebalance has begun, which has answered the members
            if error is not ErrorCode.NONE:
                yield from self._fail_synchronization(group, error)
                yield from self._rebalance(shard, group, now_ms)
                return
            group.enter(GroupState.STABLE)
            self._totals.rebalances += 1
            for member in list(group.members.values()):
                before = len(member.assignment)
                member.assignment = given.get(member.member_id, b"")
                shard.reserve(group, len(member.assignment) - before, force=True)
                reply_to, member.awaiting_sync = member.awaiting_sync, None
                if reply_to is not None:
                    self._renew(member, now_ms)
                    yield Reply(reply_to, self._assigned(group, member))

        yield from self._store(shard, group, given, stored)

    def _assigned(self, group: Group, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)

    def _fail_synchronization(self, group: Group, error: ErrorCode) -> Steps[None]:
        """Answer all waiting SyncGroup requests with `error`."""
        for member in group.members.values():
            reply_to, member.awaiting_sync = member.awaiting_sync, None
            if reply_to is not None:
                yield Reply(reply_to, SyncGroupResponse(error))

    def _sync_expired(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        """Members that joined and never requested their assignments are removed (KAFKA-10101)."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            self._remove(shard, group, group.members[member_id])
        yield from self._rebalance(shard, group, now_ms)

    def _store(
        self,
        shard: GroupShard,
        group: Group,
        assignments: dict[str, bytes],
        then: Callable[[ErrorCode, int, int], Steps[None]],
    ) -> Steps[None]:
        """Store this generation of the group."""
        wall_ms: int = yield WallClock()

        def stored(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            if error is ErrorCode.NONE:
                group.is_stored = True
            yield from then(error, base_offset, now_ms)
            self._remove_if_gone(shard, group)

        record = GroupRecord(group.group_id, group.metadata(wall_ms, assignments))
        yield from self._log.append(shard, group, (record,), stored)

    # Heartbeat, LeaveGroup, expiry

    def heartbeat(self, shard: GroupShard, reply_to: Hashable, request: HeartbeatRequest, now_ms: int) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            member = group.identified(request.member_id, request.instance_id)
            if isinstance(member, ErrorCode):
                error = member
            elif self._is_other_generation(group, request.generation_id):
                error = ErrorCode.ILLEGAL_GENERATION
            else:
                self._renew(member, now_ms)
                preparing = group.state is GroupState.PREPARING_REBALANCE
                error = ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE
        yield Reply(reply_to, HeartbeatResponse(error))

    def _is_other_generation(self, group: Group, generation_id: int) -> bool:
        return generation_id != group.generation

    def leave(self, shard: GroupShard, reply_to: Hashable, request: LeaveGroupRequest, now_ms: int) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        if group is None:
            unknown = tuple((identity, ErrorCode.UNKNOWN_MEMBER_ID) for identity in request.members)
            yield Reply(reply_to, LeaveGroupResponse(ErrorCode.NONE, unknown))
            return
        errors: dict[MemberIdentity, ErrorCode] = {}
        for identity in dict.fromkeys(request.members):
            errors[identity] = yield from self._leave(shard, group, identity)
        yield Reply(reply_to, LeaveGroupResponse(ErrorCode.NONE, tuple(errors.items())))
        if ErrorCode.NONE in errors.values():
            yield from self._members_left(shard, group, now_ms)

    def _leave(self, shard: GroupShard, group: Group, identity: MemberIdentity) -> Steps[ErrorCode]:
        if self._end_pending(shard, group, identity.member_id):
            return ErrorCode.NONE
        member_id = identity.member_id
        if not member_id and identity.instance_id is not None:  # an administrator removes a static member (KIP-571)
            member_id = group.static.get(identity.instance_id, "")
        member = group.identified(member_id, identity.instance_id)
        if isinstance(member, ErrorCode):
            return member
        yield from self._refuse(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._remove(shard, group, member)
        return ErrorCode.NONE

    def _members_left(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        yield from self._rebalance_after_loss(shard, group, now_ms)
        self._remove_if_gone(shard, group)

    def _rebalance_after_loss(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            yield from self._prepare(shard, group, now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            if not group.members and not group.pending:
                group.initial_ms = None
            yield from self._complete_if_joined(shard, group, now_ms)

    def renew_session(self, shard: GroupShard, group_id: str, member_id: str, now_ms: int) -> None:
        """Extend the session of a member that has sent a request other than a heartbeat."""
        group = shard.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if member is not None:
            self._renew(member, now_ms)

    def _renew(self, member: Member, now_ms: int) -> None:
        self._timers.set(member.session, now_ms + member.session_timeout_ms)

    def _session_expired(self, shard: GroupShard, group: Group, member: Member, now_ms: int) -> Steps[None]:
        """Nothing was heard of a member for its session time-out. One that waits for a response is alive; a new one
        only for so long, since it may have sent its request again on another connection, as another member."""
        if group.members.get(member.member_id) is not member:
            return
        waits = member.awaiting_join is not None and (
            not member.is_new or now_ms < member.joined_ms + NEW_MEMBER_JOIN_MS
        )
        if waits or member.awaiting_sync is not None:
            self._renew(member, now_ms)
            return
        yield from self._refuse(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._remove(shard, group, member)
        yield from self._members_left(shard, group, now_ms)

    def _pending_expired(self, shard: GroupShard, group: Group, member_id: str, now_ms: int) -> Steps[None]:
        if self._end_pending(shard, group, member_id):
            yield from self._members_left(shard, group, now_ms)

    def _refuse(self, group: Group, member: Member, error: ErrorCode) -> Steps[None]:
        """Answer the requests of a member that waits."""
        reply_to = group.await_join(member, None)
        if reply_to is not None:
            yield Reply(reply_to, JoinGroupResponse(error, member.member_id))
        waits, member.awaiting_sync = member.awaiting_sync, None
        if waits is not None:
            yield Reply(waits, SyncGroupResponse(error))

    def _remove(self, shard: GroupShard, group: Group, member: Member) -> None:
        group.remove(member)
        shard.release(group, member.size)

    def _remove_if_gone(self, shard: GroupShard, group: Group) -> None:
        """A group of which nothing was stored lasts no longer than its members: its name is anybody's choice."""
        if group.is_gone and shard.groups.get(group.group_id) is group and group.state is GroupState.EMPTY:
            shard.remove(group)

    # Groups that change their protocol

    def end(self, shard: GroupShard, group: Group) -> Steps[None]:
        """The group becomes one whose coordinator assigns: the members of pending JoinGroup and SyncGroup requests have
        to join that."""
        group.rebalance.cancel()
        group.synchronization.cancel()
        group.pending_sync.clear()
        for member_id in list(group.pending):
            self._end_pending(shard, group, member_id)
        for member in group.members.values():
            member.session.cancel()
            yield from self._refuse(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        shard.release(group, group.members_size)
        group.forget()

    def begin(
        self, shard: GroupShard, group: Group, members: Iterable[Member], metadata: GroupMetadata, now_ms: int
    ) -> Steps[None]:
        """The group has become a classic one, with these members, which have to rejoin."""
        group.begin(metadata, members)
        shard.reserve(group, group.members_size, force=True)
        self._begin_sessions(shard, group, now_ms)
        yield from self._prepare(shard, group, now_ms)

    def _begin_sessions(self, shard: GroupShard, group: Group, now_ms: int) -> None:
        for member in group.members.values():
            member.session.action = partial(self._session_expired, shard, group, member)
            self._renew(member, now_ms)

    # Shards

    def loaded(self, shard: GroupShard, now_ms: int) -> Steps[None]:
        """The members of a loaded shard have their session time-outs to show that they are alive. Those of a group that
        has just become a classic one have to rejoin still."""
        for group in shard.groups.values():
            self._begin_sessions(shard, group, now_ms)
            if group.members and group.has_no_leader:
                yield from self._prepare(shard, group, now_ms)

    def unloaded(self, groups: Iterable[Group]) -> Steps[None]:
        """This broker no longer coordinates these groups: the members of pending JoinGroup and SyncGroup requests have
        to find the new coordinator."""
        for group in groups:
            group.rebalance.cancel()
            group.synchronization.cancel()
            for deadline in group.pending.values():
                deadline.cancel()
            for member in group.members.values():
                member.session.cancel()
                yield from self._refuse(group, member, ErrorCode.NOT_COORDINATOR)
            group.enter(GroupState.DEAD)
