"""ConsumerMembership: heartbeats of members whose coordinator assigns the partitions (KIP-848).

Each heartbeat states what a member reads and owns, and takes it one step towards its target assignment. A new member,
another subscription, and topics that change begin a new epoch of the group, with a target assignment of its own; after
a member that is gone, the next heartbeat of another computes it. What has changed is in the group's log before the
response is sent. The first such member upgrades a classic group, and the group is downgraded after the last
(migration.py).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from functools import partial

from kreplog.config import GroupConfig
from kreplog.core.consumer_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupLogRecord,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    DescribableTopics,
    DescribedConsumerGroup,
    MemberState,
    ResolvedRegex,
    ResolvedRegexRecord,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from kreplog.core.effects import Reply, StateChange, Steps, WallClock
from kreplog.core.group_messages import GroupMetadata, GroupRecord, MemberRequest
from kreplog.core.groups.assignments import NOTHING, retained, to_assignment, to_partitions
from kreplog.core.groups.assignors import ASSIGNORS, Partition, most_preferred
from kreplog.core.groups.consumer_group import (
    MAX_SUBSCRIPTION_BYTES,
    MAX_UNWRITTEN_BYTES,
    ConsumerGroup,
    member_size,
    record_key,
    subscription_bytes,
    unwritten_bytes,
)
from kreplog.core.groups.consumer_heartbeats import invalid, is_full, refused, stated
from kreplog.core.groups.consumer_identity import identified, replaced_member
from kreplog.core.groups.described_consumers import described
from kreplog.core.groups.error_responses import error_response
from kreplog.core.groups.group import Group, group_size
from kreplog.core.groups.group_configs import GroupConfigs
from kreplog.core.groups.group_writes import Outcome
from kreplog.core.groups.log_writer import GroupLogWriter
from kreplog.core.groups.member import Member
from kreplog.core.groups.membership import Membership
from kreplog.core.groups.migration import Refusal, downgrade, upgrade
from kreplog.core.groups.rack_locality import Racks, localized
from kreplog.core.groups.reconciliation import reconcile
from kreplog.core.groups.shard import GroupShard
from kreplog.core.groups.subscribed_topics import ClusterTopics
from kreplog.core.groups.totals import GroupTotals
from kreplog.core.patterns import matching
from kreplog.core.timers import Deadline, Timers
from kreplog.errors import ErrorCode, check

LARGE = 2000
"""Members and partitions of a group above which its target assignment is not computed at once."""

LARGE_INTERVAL_MS = 1000
"""Minimum time between two target assignments of such a group. Source: KIP-1263, with a fixed value."""

REWRITE_MS = 1000
"""Pause before what an append has failed to write is written again, if no heartbeat does so first."""

_NEW_MEMBER = ConsumerMemberMetadata(None, None, "", "", (), None, -1, None)


class ConsumerMembership:
    """Heartbeats, time-outs and descriptions of consumer groups. cluster: this broker's metadata. unique: returns a
    text that no process has returned before. classic: the members of classic groups. replay: takes a request that has
    waited. configs: what groups have in place of `config`."""

    def __init__(
        self,
        config: GroupConfig,
        timers: Timers,
        log: GroupLogWriter,
        unique: Callable[[], str],
        cluster: ClusterTopics,
        totals: GroupTotals,
        classic: Membership,
        replay: Callable[[GroupShard, Hashable, MemberRequest, int], Steps[None]],
        configs: GroupConfigs,
    ) -> None:
        self._classic = classic
        self._replay = replay
        self._config = config
        self._configs = configs
        self._assignors = config.consumer_assignors
        self._timers = timers
        self._log = log
        self._unique = unique
        self._cluster = cluster
        self._totals = totals

    def heartbeat(
        self, shard: GroupShard, reply_to: Hashable, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> Steps[None]:
        known = shard.groups.get(request.group_id)
        is_new = known is None or known.consumer is None
        refusal = invalid(request, self._assignors) or self._begin_group(shard, request)
        if refusal is not None:
            yield Reply(reply_to, refusal)
            return
        group = shard.groups[request.group_id]
        consumer = consumer_of(group)
        if request.member_epoch < JOIN_EPOCH:
            response = self._leave(consumer, request, now_ms)
        else:
            wall_ms: int = yield WallClock()
            response = self._follow(shard, group, request, now_ms, wall_ms)
            if is_new and response.error is not ErrorCode.NONE:
                self._undo_conversion(shard, group)
                yield Reply(reply_to, response)
                return
            if is_new:
                yield from self._convert(shard, group, now_ms)
        consumer.writes.answer(reply_to, lambda error: refused(error) if error else response)
        yield from self.settle(shard, group)

    # Refusals

    def _begin_group(
        self, shard: GroupShard, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Have a group of this kind, or return the response that says why there is none. A classic group becomes one,
        once its first member is admitted, as far as group.consumer.migration.policy allows."""
        group, joins = shard.groups.get(request.group_id), request.member_epoch == JOIN_EPOCH
        if group is None:
            if not joins:
                return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.group_id} has no members")
            group = Group(request.group_id)
            if not shard.reserve(group, group_size(group.group_id)):
                return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            shard.groups[group.group_id] = group
        if group.consumer is None:
            if not joins:
                return refused(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id} is a group of the classic protocol")
            consumer = ConsumerGroup(group.group_id)
            if group.members or group.pending or not group.is_empty:
                refusal = self._upgrade(shard, group, consumer)
                if refusal is not None:
                    return refused(*refusal)
            group.consumer = consumer
        return None

    def _upgrade(self, shard: GroupShard, group: Group, consumer: ConsumerGroup) -> Refusal | None:
        """Have the members of a classic group in this one, or return why it stays a classic one."""
        if not self._config.upgrades_groups:
            text = f"{group.group_id} is a group of the classic protocol, and group.consumer.migration.policy = "
            return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, text + self._config.group_consumer_migration_policy)
        if group.members:
            records = upgrade(group, self._cluster, self._config.group_consumer_max_size)
            if isinstance(records, Refusal):
                return records
            for record in records:
                self.change(consumer, record)
            if not shard.reserve(group, consumer.size):
                text = f"{group.group_id} is a group of the classic protocol, whose upgrade has no memory"
                return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
            shard.release(group, consumer.size)  # charged with all else that changes
        return None

    def _convert(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        """Nothing refuses the first member: what was stored of a classic group is deleted by the same append."""
        consumer, was_stored = consumer_of(group), group.is_stored
        if was_stored or consumer.classic:
            consumer.writes.unwritten = {GroupRecord: GroupRecord(group.group_id, None), **consumer.writes.unwritten}
        if consumer.classic:
            text = f"{group.group_id} is upgraded, with {consumer.classic} members of the classic protocol"
            yield StateChange("info", f"{shard.partition}: group {text}")
        yield from self._classic.end(shard, group)
        group.is_stored = was_stored
        for member_id in consumer.members:
            if consumer.is_classic(member_id):
                self.renew(shard, group, member_id, now_ms)
                self.limit_revocation(shard, group, member_id, now_ms)

    def _undo_conversion(self, shard: GroupShard, group: Group) -> None:
        """The first member of a group was refused: the group is what it was before."""
        for deadline in consumer_of(group).deadlines():
            deadline.cancel()
        group.consumer = None
        if group.is_gone:
            shard.remove(group)

    def room_refusal(
        self, shard: GroupShard, group: Group, member_id: str, member: ConsumerMemberMetadata
    ) -> ConsumerGroupHeartbeatResponse | None:
        """The response to a new member, or one that says more about itself than before, for which there is no room."""
        members, maximum = consumer_of(group).members, self._config.group_consumer_max_size
        if member_id not in members and len(members) >= maximum:
            return refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.group_id} has {maximum} members, the maximum")
        if subscription_bytes(member) > MAX_SUBSCRIPTION_BYTES:
            text = f"the subscription has more than {MAX_SUBSCRIPTION_BYTES} bytes: subscribe to fewer topics"
            return refused(ErrorCode.INVALID_REQUEST, text)
        known = members.get(member_id)
        growth = member_size(member_id, member) - (0 if known is None else member_size(member_id, known))
        if growth > 0:
            if unwritten_bytes(consumer_of(group), member_id, member) > MAX_UNWRITTEN_BYTES:
                return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if not shard.reserve(group, growth):
                return refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            shard.release(group, growth)  # charged with all else that changes
        return None

    # Members that join or stay

    def _follow(
        self, shard: GroupShard, group: Group, request: ConsumerGroupHeartbeatRequest, now_ms: int, wall_ms: int
    ) -> ConsumerGroupHeartbeatResponse:
        consumer = consumer_of(group)
        member_id = identified(consumer, request, self._unique)
        if not isinstance(member_id, str):
            return member_id
        former_id = replaced_member(consumer, request)
        known = consumer.members.get(former_id or member_id)
        member = stated(known or _NEW_MEMBER, request)
        if member != known:
            refusal = self.room_refusal(shard, group, former_id or member_id, member)
            if refusal is not None:
                if known is not None and former_id is None:
                    self.renew(shard, group, member_id, now_ms)  # it is alive
                return refusal
        self.admit(consumer, member_id, member, former_id, now_ms, wall_ms, request.view)
        before = consumer.assignment_of(member_id)
        current = before
        if request.member_epoch == before.member_epoch:  # else its last response was lost, and is repeated
            current = self.next_assignment(consumer, member_id, request.owned)
        elif request.member_epoch == JOIN_EPOCH:
            current = self._rejoined(consumer, member_id)
        if current != before or known is None:
            self.change(consumer, CurrentAssignmentRecord(group.group_id, member_id, current))
        self.renew(shard, group, member_id, now_ms)
        if current != before:
            self.limit_revocation(shard, group, member_id, now_ms)
        return ConsumerGroupHeartbeatResponse(
            ErrorCode.NONE,
            None,
            member_id,
            current.member_epoch,
            self._configs.times_of(group.group_id).heartbeat_interval_ms,
            current.assigned if self._includes_assignment(consumer, member_id, request, before, current) else None,
        )

    def _includes_assignment(
        self,
        consumer: ConsumerGroup,
        member_id: str,
        request: ConsumerGroupHeartbeatRequest,
        before: CurrentAssignment,
        current: CurrentAssignment,
    ) -> bool:
        """Whether the response includes the member's assignment: until the member has reported that it owns exactly
        that. Kafka includes it once, and relies on members to send a full request after a lost response: one that does
        not keeps what it had to revoke, and never reads what it was assigned. before: as of the last request."""
        if current.assigned != before.assigned:
            consumer.unacknowledged.add(member_id)
        elif request.owned is not None and to_partitions(request.owned) == to_partitions(current.assigned):
            consumer.unacknowledged.discard(member_id)
        return is_full(request) or member_id in consumer.unacknowledged

    def admit(
        self,
        consumer: ConsumerGroup,
        member_id: str,
        member: ConsumerMemberMetadata,
        former_id: str | None,
        now_ms: int,
        wall_ms: int,
        view: DescribableTopics | None = None,
    ) -> None:
        """Take what a member says about itself, and compute the target assignment if that, or the topics, have changed.
        former_id: of the static member that it replaces. view: as of `retarget`."""
        known = consumer.members.get(former_id or member_id)
        if former_id is not None:
            self._replace(consumer, former_id, member_id)
        if member != known:
            self.change(consumer, ConsumerMemberRecord(consumer.group_id, member_id, member))
        resubscribed = known is None or _subscription(known) != _subscription(member)
        self.retarget(consumer, now_ms, wall_ms, view, resubscribed=resubscribed)

    def retarget(
        self,
        consumer: ConsumerGroup,
        now_ms: int,
        wall_ms: int,
        view: DescribableTopics | None = None,
        *,
        resubscribed: bool = False,
    ) -> None:
        """Begin an epoch if a subscription, or the topics, have changed; compute the target assignment of one that has
        none yet. view: of the member; None for one of the classic protocol, which leaves expressions to the others."""
        if view is not None:
            self._resolve(consumer, now_ms, wall_ms, view)
        self.refresh(consumer, now_ms)
        if resubscribed or self._topics_have_changed(consumer, now_ms):
            self._begin_epoch(consumer)
        if consumer.epoch > consumer.target_epoch and self._may_assign(consumer, now_ms):
            self._assign(consumer)
            consumer.assigned_ms = now_ms

    def next_assignment(self, consumer: ConsumerGroup, member_id: str, owned: Assignment | None) -> CurrentAssignment:
        """The partitions that a member may own from now on. owned: those that it says it owns, None if that has not
        changed."""
        current, target = consumer.assignment_of(member_id), consumer.target.get(member_id, NOTHING)
        is_free = partial(self._is_free, consumer, member_id)
        if current.member_epoch == JOIN_EPOCH:  # of a static member that has returned: it has nothing to revoke
            current = retained(current, (current.member_epoch, current.previous_member_epoch), target)
        return reconcile(current, consumer.target_epoch, target, owned, is_free)

    def _rejoined(self, consumer: ConsumerGroup, member_id: str) -> CurrentAssignment:
        """As `next_assignment`, of a member that joins again. The join may be a late one, of which the member knows
        nothing any more: it begins no epoch, and acknowledges no revocation, which it does in Kafka. Here only where
        the member keeps nothing: librdkafka, which has nothing, takes that for no change, and acknowledges none."""
        before, following = consumer.assignment_of(member_id), self.next_assignment(consumer, member_id, None)
        if following.state is MemberState.UNREVOKED_PARTITIONS and not following.assigned:
            self.change(consumer, CurrentAssignmentRecord(consumer.group_id, member_id, following))
            return self.next_assignment(consumer, member_id, ())
        return following if following.member_epoch == before.member_epoch else before

    def waits(self, consumer: ConsumerGroup, member_id: str) -> bool:
        """Whether something of a member's target assignment is still another's."""
        wanted = consumer.target.get(member_id, NOTHING) - to_partitions(consumer.assignment_of(member_id).assigned)
        return not all(self._is_free(consumer, member_id, partition) for partition in wanted)

    def _is_free(self, consumer: ConsumerGroup, member_id: str, partition: Partition) -> bool:
        """Whether no other member owns the partition, or has yet to revoke it."""
        return consumer.owners.get(partition, member_id) == member_id

    def _replace(self, consumer: ConsumerGroup, former_id: str, member_id: str) -> None:
        """A static member has returned. What it may own is still its own."""
        member, target = consumer.members[former_id], consumer.target.get(former_id, NOTHING)
        former = consumer.assignment_of(former_id)
        current = retained(former, (JOIN_EPOCH, JOIN_EPOCH), to_partitions(former.assigned))
        for tombstone in list(consumer.member_tombstones(former_id)):
            self.change(consumer, tombstone)
        group_id = consumer.group_id
        self.change(consumer, ConsumerMemberRecord(group_id, member_id, member))
        self.change(consumer, TargetAssignmentRecord(group_id, member_id, to_assignment(target)))
        self.change(consumer, CurrentAssignmentRecord(group_id, member_id, current))

    # Epochs and target assignments

    def refresh(self, consumer: ConsumerGroup, now_ms: int) -> None:
        consumer.topics.refresh(consumer.subscribed_topics(), self._cluster, now_ms)

    def _resolve(self, consumer: ConsumerGroup, now_ms: int, wall_ms: int, view: DescribableTopics) -> None:
        """Match the expressions of the members, those that are new and, when topics have come or gone, the others. A
        topic that has matched does so still, and is dropped once it is known to be gone. view: of the member whose
        heartbeat it is, as in Kafka's TopicRegexResolver, which authorizes the matches as those of the group; names
        that it does not describe cost no time of RE2, which a hostile expression may take a lot of."""
        wanted, version = consumer.expressions, (self._cluster.topics_version, view.version)
        known, is_certain = consumer.topics.known.keys(), consumer.topics.is_certain(now_ms)
        self._forget_expressions(consumer, wanted)
        have_changed = version != consumer.resolved_version or (is_certain and not consumer.missing <= known)
        if not have_changed and len(wanted) == len(consumer.regexes):
            return
        pending = sorted(wanted if have_changed else wanted - consumer.regexes.keys())
        if have_changed:
            consumer.resolved_version, consumer.missing = version, frozenset()
        describable = list(filter(view.describes, self._cluster.topics())) if pending else []
        for regex in pending:
            former = frozenset(() if regex not in consumer.regexes else consumer.regexes[regex].topics)
            matched = matching(regex, describable) or frozenset()
            found = frozenset(filter(view.describes, matched | (known & former if is_certain else former)))
            consumer.missing |= found - matched
            topics = tuple(sorted(found))
            if regex not in consumer.regexes or frozenset(topics) != former:
                resolved = ResolvedRegex(topics, self._cluster.topics_version, wall_ms)
                self.change(consumer, ResolvedRegexRecord(consumer.group_id, regex, resolved))

    def _forget_expressions(self, consumer: ConsumerGroup, wanted: Container[str]) -> None:
        for regex in [regex for regex in consumer.regexes if regex not in wanted]:
            self.change(consumer, ResolvedRegexRecord(consumer.group_id, regex, None))

    def _topics_have_changed(self, consumer: ConsumerGroup, now_ms: int) -> bool:
        return consumer.topics.is_certain(now_ms) and consumer.topics.metadata_hash != consumer.metadata_hash

    def _begin_epoch(self, consumer: ConsumerGroup) -> None:
        self._totals.consumer_rebalances += 1
        value = ConsumerGroupMetadata(consumer.epoch + 1, consumer.topics.metadata_hash)
        self.change(consumer, ConsumerGroupRecord(consumer.group_id, value))

    def _may_assign(self, consumer: ConsumerGroup, now_ms: int) -> bool:
        """Not while topics may be missing from the metadata: their partitions would be taken from the members. Nor soon
        after the last time in a large group, to which members join one by one: each time takes the event loop a tenth
        of a second and more."""
        if consumer.target_epoch == 0:
            return True
        size = len(consumer.members) + sum(topic.partitions for topic in consumer.topics.known.values())
        waits = size > LARGE and consumer.assigned_ms is not None and now_ms < consumer.assigned_ms + LARGE_INTERVAL_MS
        return consumer.topics.is_certain(now_ms) and not waits

    def _assign(self, consumer: ConsumerGroup) -> None:
        """Compute the target assignment of the present epoch."""
        ids = {name: topic.topic_id for name, topic in consumer.topics.known.items()}
        subscriptions = {
            member_id: {ids[name] for name in consumer.subscription_of(member_id) if name in ids}
            for member_id in consumer.members
        }
        assignor = self._assignor_of(consumer)
        targets = ASSIGNORS[assignor](subscriptions, consumer.topics.counts(), consumer.target)
        members = {member_id: member.rack_id for member_id, member in consumer.members.items() if member.rack_id}
        if members:
            racks = Racks(members, consumer.topics.racks(self._cluster))
            targets = localized(targets, subscriptions, racks, alike=assignor == "range")
        for member_id, target in targets.items():
            if consumer.target.get(member_id) != target:
                self.change(consumer, TargetAssignmentRecord(consumer.group_id, member_id, to_assignment(target)))
        self.change(consumer, TargetEpochRecord(consumer.group_id, consumer.epoch))

    def _assignor_of(self, consumer: ConsumerGroup) -> str:
        """That which most members prefer, else the first of group.consumer.assignors."""
        assignors = self._assignors
        preferred = (member.server_assignor for member in consumer.members.values())
        return most_preferred((name for name in preferred if name in assignors), assignors[0])

    # Members that leave or expire

    def _leave(
        self, consumer: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> ConsumerGroupHeartbeatResponse:
        member_id, instance_id = request.member_id, request.instance_id
        holder = member_id if instance_id is None else consumer.static.get(instance_id)
        if holder not in consumer.members:
            return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member")
        if holder != member_id:
            return refused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is the member {holder} now")
        if request.member_epoch == LEAVE_EPOCH:
            self.remove(consumer, member_id, now_ms)
        elif consumer.is_classic(member_id):
            text = f"{member_id} uses the classic protocol, in which static members leave without a word"
            return refused(ErrorCode.INVALID_REQUEST, text)
        else:
            before = consumer.assignment_of(member_id)
            current = retained(before, (STATIC_LEAVE_EPOCH, STATIC_LEAVE_EPOCH), to_partitions(before.assigned))
            self.change(consumer, CurrentAssignmentRecord(consumer.group_id, member_id, current))
        return ConsumerGroupHeartbeatResponse(ErrorCode.NONE, None, member_id, request.member_epoch)

    def remove(self, consumer: ConsumerGroup, member_id: str, now_ms: int) -> None:
        for tombstone in list(consumer.member_tombstones(member_id)):
            self.change(consumer, tombstone)
        self.refresh(consumer, now_ms)
        self._begin_epoch(consumer)

    def renew(self, shard: GroupShard, group: Group, member_id: str, now_ms: int) -> None:
        consumer = consumer_of(group)
        if member_id not in consumer.sessions:
            consumer.sessions[member_id] = Deadline(partial(self._session_expired, shard, group, member_id))
        times = consumer.members[member_id].classic or self._configs.times_of(group.group_id)
        self._timers.set(consumer.sessions[member_id], now_ms + times.session_timeout_ms)

    def limit_revocation(self, shard: GroupShard, group: Group, member_id: str, now_ms: int) -> None:
        """A member has its rebalance time-out to revoke partitions, from when it has to."""
        consumer = consumer_of(group)
        if consumer.assignment_of(member_id).state is MemberState.UNREVOKED_PARTITIONS:
            if member_id not in consumer.revocations:
                consumer.revocations[member_id] = Deadline(partial(self._revocation_expired, shard, group, member_id))
            timeout_ms = consumer.members[member_id].rebalance_timeout_ms
            self._timers.set(consumer.revocations[member_id], now_ms + timeout_ms)
        elif member_id in consumer.revocations:
            consumer.revocations[member_id].cancel()

    def _session_expired(self, shard: GroupShard, group: Group, member_id: str, now_ms: int) -> Steps[None]:
        """Nothing was heard of a member for the session time-out."""
        yield from self.expire(consumer_of(group).sessions, shard, group, member_id, now_ms)

    def _revocation_expired(self, shard: GroupShard, group: Group, member_id: str, now_ms: int) -> Steps[None]:
        """A member has not acknowledged within its rebalance time-out that it has revoked partitions."""
        consumer = consumer_of(group)
        if consumer.assignment_of(member_id).state is MemberState.UNREVOKED_PARTITIONS:
            yield from self.expire(consumer.revocations, shard, group, member_id, now_ms)

    def expire(
        self, deadlines: Mapping[str, Deadline], shard: GroupShard, group: Group, member_id: str, now_ms: int
    ) -> Steps[None]:
        """A member has missed one of its `deadlines`. While the group becomes a classic one, which ends them all, that
        is set again, in case the append fails."""
        if consumer_of(group).deferred is not None:
            self._timers.set(deadlines[member_id], now_ms + REWRITE_MS)
            return
        self.remove(consumer_of(group), member_id, now_ms)
        yield from self.settle(shard, group)

    # Groups that become classic ones

    def convert_empty(self, shard: GroupShard, group_id: str) -> Steps[None]:
        """A member of the classic protocol joins: a group of this kind without members becomes a classic one. One that
        has members, or a write under way, refuses it."""
        group = shard.groups.get(group_id)
        if group is None or group.consumer is None or group.consumer.members or not group.consumer.writes.is_idle:
            return
        records = tuple(group.consumer.tombstones())
        was_stored = group.is_stored
        shard.forget(group)

        def written(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            if group.is_gone and shard.groups.get(group_id) is group:
                shard.remove(group)
            yield from ()

        if was_stored:  # if this fails, the record of a classic generation has the same effect
            yield from self._log.append(shard, group, records, written)

    def _may_downgrade(self, consumer: ConsumerGroup) -> bool:
        """Whether no member uses the consumer protocol any more, and the policy has the group become a classic one."""
        count = len(consumer.members)
        if not count or consumer.classic < count or not self._config.downgrades_groups:
            return False
        if consumer.refused_version == self._cluster.topics_version:
            return False
        return count <= self._config.group_max_size and not consumer.writes.is_writing

    def _begin_downgrade(self, shard: GroupShard, group: Group) -> Steps[None]:
        """Write what the group is as a classic one, in one batch with the tombstones. It becomes one once that is
        committed, and requests wait so long."""
        consumer, wall_ms = consumer_of(group), (yield WallClock())
        converted = downgrade(consumer, self._cluster, wall_ms)
        then: Outcome = partial(self._written, shard, group)
        if converted is None:
            consumer.refused_version = self._cluster.topics_version
        else:
            members, metadata = converted
            consumer.deferred = []
            for tombstone in consumer.tombstones():
                consumer.writes.unwritten[record_key(tombstone)] = tombstone
            consumer.writes.unwritten.pop(GroupRecord, None)
            consumer.writes.unwritten[GroupRecord] = GroupRecord(group.group_id, metadata)
            then = partial(self._downgraded, shard, group, members, metadata)
        yield from consumer.writes.flush(self._log, shard, group, then)

    def _downgraded(
        self,
        shard: GroupShard,
        group: Group,
        members: tuple[Member, ...],
        metadata: GroupMetadata,
        error: ErrorCode,
        now_ms: int,
    ) -> Steps[None]:
        """The append has ended. If it has failed, which of the two a later coordinator would find is not known: the
        next append has all of the group that it still is. Its members could not show meanwhile that they are alive."""
        consumer = consumer_of(group)
        deferred, consumer.deferred = consumer.deferred or [], None
        if error is ErrorCode.NONE:
            for deadline in consumer.deadlines():
                deadline.cancel()
            shard.release(group, consumer.charged)
            group.consumer = None
            text = f"{shard.partition}: group {group.group_id} is downgraded, with {len(members)} members"
            yield StateChange("info", text)
            yield from self._classic.begin(shard, group, members, metadata, now_ms)
            for reply_to, request in deferred:
                yield from self._replay(shard, reply_to, request, now_ms)
        else:
            consumer.writes.unwritten = {
                GroupRecord: GroupRecord(group.group_id, None),
                **{key: record for key, record in consumer.writes.unwritten.items() if key is not GroupRecord},
                **{record_key(record): record for record in consumer.records()},
            }
            self._write_later(shard, group, now_ms)
            for member_id in consumer.members:
                self.renew(shard, group, member_id, now_ms)
            for reply_to, request in deferred:
                yield Reply(reply_to, error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))

    # The log

    def change(self, consumer: ConsumerGroup, record: ConsumerGroupLogRecord) -> None:
        consumer.apply(record)
        consumer.refused_version = None
        consumer.writes.unwritten[record_key(record)] = record

    def settle(self, shard: GroupShard, group: Group) -> Steps[None]:
        """Write what has changed, charge it, and forget a group of which nothing is left. While a group is
        deleted, no other of its records may follow the tombstones."""
        consumer = consumer_of(group)
        shard.charge_consumer(group)
        if consumer.deferred is not None:
            return
        if not consumer.members and not group.is_stored:
            consumer.writes.drop()
        if self._may_downgrade(consumer):
            yield from self._begin_downgrade(shard, group)
        else:
            yield from consumer.writes.flush(self._log, shard, group, partial(self._written, shard, group))
        if group.is_gone and shard.groups.get(group.group_id) is group:
            shard.remove(group)

    def resume(
        self, shard: GroupShard, group: Group, consumer: ConsumerGroup, error: ErrorCode, now_ms: int
    ) -> Steps[None]:
        """The append that deletes the group has ended: take the requests that have waited. If it has failed, all of the
        group is written again, soon, since a later coordinator may find the tombstones; but for the expressions, which
        nobody needs and which together may be too large for a batch."""
        deferred, consumer.deferred = consumer.deferred, None
        if deferred is None:  # this broker coordinates the group no longer
            return
        if error is not ErrorCode.NONE:
            self._forget_expressions(consumer, wanted=())
            consumer.writes.unwritten |= {record_key(record): record for record in consumer.records()}
            self._write_later(shard, group, now_ms)
            if consumer.writes.has_waiting:
                yield from self.settle(shard, group)
        for reply_to, request in deferred:
            yield from self._replay(shard, reply_to, request, now_ms)

    def _written(self, shard: GroupShard, group: Group, error: ErrorCode, now_ms: int) -> Steps[None]:
        if group.consumer is None:
            return
        writes = group.consumer.writes
        if error is not ErrorCode.NONE:
            self._write_later(shard, group, now_ms)
        if writes.has_waiting or (writes.unwritten and error is ErrorCode.NONE):
            yield from self.settle(shard, group)

    def _write_later(self, shard: GroupShard, group: Group, now_ms: int) -> None:
        """After an append that has failed: a group may have no member any more whose heartbeat would repeat it."""
        consumer = consumer_of(group)
        if consumer.rewrite is None:
            consumer.rewrite = Deadline(partial(self._rewrite, shard, group))
        self._timers.set(consumer.rewrite, now_ms + REWRITE_MS)

    def _rewrite(self, shard: GroupShard, group: Group, now_ms: int) -> Steps[None]:
        if group.consumer is None:
            return
        if group.in_flight:  # such as the deletion of the group, which these records must not follow
            self._write_later(shard, group, now_ms)
        else:
            yield from self.settle(shard, group)

    # Shards

    def loaded(self, shard: GroupShard, now_ms: int) -> None:
        """The members of a loaded shard have their time-outs to show that they are alive."""
        for group in shard.groups.values():
            if group.consumer is not None:
                group.consumer.topics.loaded(now_ms)
                self._drop_without_members(group.consumer)
                if group.consumer.writes.unwritten:
                    self._write_later(shard, group, now_ms)
                for member_id in group.consumer.members:
                    self.renew(shard, group, member_id, now_ms)
                    self.limit_revocation(shard, group, member_id, now_ms)

    def _drop_without_members(self, consumer: ConsumerGroup) -> None:
        """Assignments without a member, as another program's records may have them, would hold partitions for ever."""
        for member_id in sorted((consumer.current.keys() | consumer.target.keys()) - consumer.members.keys()):
            for tombstone in list(consumer.member_tombstones(member_id)):
                self.change(consumer, tombstone)

    def unloaded(self, groups: Iterable[Group]) -> Steps[None]:
        for group in groups:
            if group.consumer is not None:
                for deadline in group.consumer.deadlines():
                    deadline.cancel()
                yield from group.consumer.writes.abandon()
                deferred, group.consumer.deferred = group.consumer.deferred or (), None
                for reply_to, request in deferred:
                    yield Reply(reply_to, error_response(request, ErrorCode.NOT_COORDINATOR))

    # Tools

    def described(self, group: Group) -> DescribedConsumerGroup:
        return described(consumer_of(group), self._cluster, self._assignor_of(consumer_of(group)))


def consumer_of(group: Group) -> ConsumerGroup:
    check(group.consumer is not None, f"group {group.group_id} is one of the classic protocol")
    assert group.consumer is not None
    return group.consumer


def _subscription(member: ConsumerMemberMetadata) -> tuple[tuple[str, ...], str | None]:
    return member.subscribed_topics, member.subscribed_regex
