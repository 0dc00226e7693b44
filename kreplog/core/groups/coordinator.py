"""GroupCoordinator: the groups whose partitions of `__consumer_offsets` this broker leads.

It routes each request to the shard of its group, loads a shard when its leadership begins, drops it when that ends,
and has the timers. membership.py, consumer_membership.py and classic_members.py decide about members,
committed_offsets.py about offsets. Nothing waits: an append is an effect, and what follows from it is a step of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import islice

from kreplog.config import GroupConfig
from kreplog.core.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DescribedConsumerGroup,
)
from kreplog.core.effects import ReadGroupRecords, Reply, StateChange, Steps, WallClock
from kreplog.core.events import (
    Event,
    GroupRecordsAppended,
    GroupRecordsRead,
    LeadershipChanged,
    MarkerCommitted,
    PartitionsDeleted,
    Received,
    Tick,
)
from kreplog.core.group_messages import (
    OFFSETS_TOPIC,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffsets,
    GroupRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    RequestOfGroup,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    partition_of_group,
)
from kreplog.core.groups.classic_members import ClassicMembers
from kreplog.core.groups.committed_offsets import CommittedOffsets
from kreplog.core.groups.consumer_group import ConsumerGroupState
from kreplog.core.groups.consumer_membership import ConsumerMembership
from kreplog.core.groups.deleted_partitions import DeletedPartitions
from kreplog.core.groups.error_responses import error_response
from kreplog.core.groups.group import Group
from kreplog.core.groups.group_configs import GroupConfigs
from kreplog.core.groups.log_writer import GroupLogWriter
from kreplog.core.groups.membership import Membership
from kreplog.core.groups.shard import GroupShard
from kreplog.core.groups.states import GroupState
from kreplog.core.groups.subscribed_topics import ClusterTopics
from kreplog.core.groups.subscription import CONSUMER_PROTOCOL
from kreplog.core.groups.totals import GroupTotals
from kreplog.core.memory import MemoryAccount
from kreplog.core.timers import Deadline, Timers
from kreplog.errors import ErrorCode, InvariantError
from kreplog.types import TopicPartition

MAX_FIRED_PER_STEP = 200
"""Deadlines that one step takes: thousands of members may expire at once."""

GROUPS_PER_STEP = 100
"""Groups whose retention one step checks."""

RELOAD_MS = 10
"""Pause before a shard reads on whose log is not committed up to its end yet."""

FAILED_RELOAD_MS = 1000
"""Pause after a failed read."""

_CLASSIC = "classic"
_CONSUMER = "consumer"


class GroupCoordinator:
    """The coordinator core of one broker.

    cluster: this broker's copy of the cluster's metadata, for the partitions of `__consumer_offsets` and the topics of
    members. unique: returns a text that no process has returned before. memory: the account for what groups take.
    shards: by partition number. configs: the dynamic ones of groups, replaced in place. totals: for metrics.
    """

    def __init__(
        self,
        config: GroupConfig,
        cluster: ClusterTopics,
        unique: Callable[[], str],
        memory: MemoryAccount | None = None,
    ) -> None:
        self.config = config
        self.configs = GroupConfigs(config)
        self.shards: dict[int, GroupShard] = {}
        self._memory = memory or MemoryAccount()
        self._cluster = cluster
        self._timers = Timers()
        self._log = GroupLogWriter(config.offsets_commit_timeout_ms)
        self.totals = GroupTotals()
        self._membership = Membership(config, self._timers, self._log, unique, self.totals)
        self._consumers = ConsumerMembership(
            config,
            self._timers,
            self._log,
            unique,
            cluster,
            self.totals,
            self._membership,
            self._handle,
            self.configs,
        )
        self._classic_members = ClassicMembers(config, self._timers, unique, cluster, self._membership, self._consumers)
        self._offsets = CommittedOffsets(config, self._log, cluster, self.totals, self._consumers.resume)
        self._deleted = DeletedPartitions(self._offsets, self._timers, self._is_led)
        self._retention = Deadline(self._begin_retention)
        self._to_check: Iterator[tuple[GroupShard, Group]] = iter(())

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        match event:
            case Received(reply_to, request):
                # core.broker routes only requests about groups here, which the union of all requests does not show.
                yield from self._received(reply_to, request, now_ms)  # type: ignore[arg-type]
            case GroupRecordsAppended():
                yield from self._log.appended(event, now_ms)
            case LeadershipChanged(partition, leader_epoch, end):
                yield from self._leadership(partition, leader_epoch, end, now_ms)
            case PartitionsDeleted(deleted):
                self._deleted.deleted(self.shards.values(), deleted, now_ms)
            case MarkerCommitted(partition, producer_id, committed, offset):
                self._marker_committed(partition, producer_id, committed, offset)
            case GroupRecordsRead():
                yield from self._read(event, now_ms)
            case Tick():
                for deadline in islice(self._timers.due(now_ms), MAX_FIRED_PER_STEP):
                    yield from deadline.action(now_ms)
            case _:
                raise InvariantError(f"the group coordinator does not handle {type(event).__name__}")

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due, at the latest; None for never."""
        return self._timers.next_ms()

    @property
    def charged(self) -> int:
        """Bytes of memory that its groups are charged."""
        return sum(group.charged for shard in self.shards.values() for group in shard.groups.values())

    # Shards

    def _shard_of(self, group_id: str) -> GroupShard | ErrorCode:
        """The shard of a group; or the error: it is loading, or another broker coordinates the group."""
        count = self._cluster.partition_count(OFFSETS_TOPIC)
        shard = self.shards.get(partition_of_group(group_id, count)) if count else None
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return shard if self._may_answer(shard) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _shard_of_named(self, group_id: str) -> GroupShard | ErrorCode:
        """The shard of a group that has a name. The one without has committed offsets, and neither members nor
        transactions, for simple consumers that set no `group.id`, as in Kafka."""
        return self._shard_of(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    def _may_answer(self, shard: GroupShard) -> bool:
        return shard.active

    def _is_led(self, shard: GroupShard) -> bool:
        return self.shards.get(shard.partition.partition) is shard

    def _leadership(self, partition: TopicPartition, leader_epoch: int | None, end: int, now_ms: int) -> Steps[None]:
        if partition.topic != OFFSETS_TOPIC:
            return
        shard = self.shards.get(partition.partition)
        if leader_epoch is None:
            yield from self._unload(partition.partition)
        elif shard is not None:  # no other broker has led it in between: what is loaded still holds
            shard.leader_epoch = leader_epoch
        else:
            shard = self.shards[partition.partition] = GroupShard(partition, leader_epoch, end, self._memory)
            yield StateChange("info", f"{partition}: its groups are loaded up to offset {end}, epoch {leader_epoch}")
            yield ReadGroupRecords(partition, leader_epoch, shard.next_offset)

    def _marker_committed(self, partition: TopicPartition, producer_id: int, committed: bool, offset: int) -> None:
        shard = self.shards.get(partition.partition)
        if partition.topic != OFFSETS_TOPIC or shard is None:
            return
        if shard.active:
            shard.end_transaction(producer_id, committed, offset)
            shard.drop_unused()
        else:
            shard.markers.append((producer_id, committed, offset))

    def _unload(self, number: int) -> Steps[None]:
        shard = self.shards.pop(number, None)
        if shard is not None:
            yield StateChange("info", f"{shard.partition}: this broker no longer coordinates its groups")
            yield from self._membership.unloaded(shard.groups.values())
            yield from self._consumers.unloaded(shard.groups.values())
            shard.close()

    def _read(self, event: GroupRecordsRead, now_ms: int) -> Steps[None]:
        shard = self.shards.get(event.partition.partition)
        if shard is None or shard.active or event.offset != shard.next_offset:
            return  # the result of an earlier time as leader
        if event.failure:
            yield StateChange("error", f"{event.partition}: its groups cannot be loaded: {event.failure}")
            self._read_later(shard, now_ms + FAILED_RELOAD_MS)
            return
        shard.load(event.records)
        progress = event.next_offset > shard.next_offset
        shard.next_offset = event.next_offset
        if self._has_loaded(shard):
            shard.active = True
            for marker in shard.markers:  # those that were loaded too have nothing left to end
                shard.end_transaction(*marker)
            shard.markers.clear()
            shard.forget_unused()
            shard.drop_unused()
            yield from self._membership.loaded(shard, now_ms)
            self._consumers.loaded(shard, now_ms)
            self._deleted.loaded(shard, now_ms)
            if self._retention.at_ms is None:
                self._timers.set(self._retention, now_ms + self.config.offsets_retention_check_interval_ms)
            yield StateChange("info", f"{event.partition}: {len(shard.groups)} groups are loaded")
        elif progress:
            yield ReadGroupRecords(shard.partition, shard.leader_epoch, shard.next_offset)
        else:
            self._read_later(shard, now_ms + RELOAD_MS)

    def _has_loaded(self, shard: GroupShard) -> bool:
        return shard.is_loaded

    def _read_later(self, shard: GroupShard, at_ms: int) -> None:
        self._timers.set(Deadline(partial(self._read_again, shard)), at_ms)

    def _read_again(self, shard: GroupShard, now_ms: int) -> Steps[None]:
        if self._is_led(shard) and not shard.active:
            yield ReadGroupRecords(shard.partition, shard.leader_epoch, shard.next_offset)

    # Requests

    def _received(self, reply_to: Hashable, request: GroupRequest, now_ms: int) -> Steps[None]:
        match request:
            case OffsetFetchRequest(groups, require_stable):
                found = (self._fetch(requested, require_stable) for requested in groups)
                yield Reply(reply_to, OffsetFetchResponse(tuple(found)))
            case DescribeGroupsRequest(group_ids):
                yield Reply(reply_to, DescribeGroupsResponse(tuple(map(self._describe, group_ids))))
            case ConsumerGroupDescribeRequest(group_ids):
                yield Reply(reply_to, ConsumerGroupDescribeResponse(tuple(map(self._describe_consumers, group_ids))))
            case ListGroupsRequest():
                yield Reply(reply_to, self._list(request))
            case DeleteGroupsRequest(group_ids):
                yield from self._delete_groups(reply_to, tuple(dict.fromkeys(group_ids)), now_ms)
            case _:
                find = self._shard_of if isinstance(request, OffsetCommitRequest) else self._shard_of_named
                shard = find(request.group_id)
                if isinstance(shard, ErrorCode):
                    yield Reply(reply_to, error_response(request, shard))
                else:
                    yield from self._handle(shard, reply_to, request, now_ms)

    def _handle(self, shard: GroupShard, reply_to: Hashable, request: RequestOfGroup, now_ms: int) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        consumer = None if group is None else group.consumer
        if isinstance(request, MemberRequest) and consumer is not None and consumer.deferred is not None:
            consumer.deferred.append((reply_to, request))
            return
        classic = self._membership if consumer is None or not consumer.members else self._classic_members
        match request:
            case ConsumerGroupHeartbeatRequest():
                yield from self._consumers.heartbeat(shard, reply_to, request, now_ms)
            case HeartbeatRequest():
                yield from classic.heartbeat(shard, reply_to, request, now_ms)
            case OffsetCommitRequest():
                self._membership.renew_session(shard, request.group_id, request.member_id, now_ms)
                yield from self._offsets.commit(shard, reply_to, request)
            case TxnOffsetCommitRequest():
                yield from self._offsets.commit_in_transaction(shard, reply_to, request)
            case JoinGroupRequest():
                if self._membership.may_join(request):
                    yield from self._consumers.convert_empty(shard, request.group_id)
                yield from classic.join(shard, reply_to, request, now_ms)
            case SyncGroupRequest():
                yield from classic.sync(shard, reply_to, request, now_ms)
            case LeaveGroupRequest():
                leaves = classic if consumer is None else self._classic_members
                yield from leaves.leave(shard, reply_to, request, now_ms)
            case OffsetDeleteRequest():
                yield from self._offsets.delete(shard, reply_to, request)
            case _:
                raise InvariantError(f"the group coordinator does not handle {type(request).__name__}")

    def _fetch(self, requested: OffsetFetchGroup, require_stable: bool) -> FetchedOffsets:
        shard = self._shard_of(requested.group_id)
        if isinstance(shard, ErrorCode):
            return FetchedOffsets(requested.group_id, shard)
        return self._offsets.fetch(shard, requested, require_stable)

    # Tools

    def _describe(self, group_id: str) -> DescribedGroup:
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return DescribedGroup(group_id, shard)
        group = shard.groups.get(group_id)
        if group is None or group.consumer is not None:
            return DescribedGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, str(GroupState.DEAD))
        return group.described()

    def _describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        shard = self._shard_of_named(group_id)
        if isinstance(shard, ErrorCode):
            return DescribedConsumerGroup(group_id, shard)
        group = shard.groups.get(group_id)
        if group is None or group.consumer is None:
            text = "there is no such group" if group is None else f"{group_id} is a group of the classic protocol"
            dead = str(ConsumerGroupState.DEAD)
            return DescribedConsumerGroup(group_id, ErrorCode.GROUP_ID_NOT_FOUND, text, dead)
        return self._consumers.described(group)

    def _list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        if any(not shard.active for shard in self.shards.values()):
            return ListGroupsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.lower() for state in request.states}
        types = {kind.lower() for kind in request.types}
        listed = (_listed(group) for _, shard in sorted(self.shards.items()) for group in shard.groups.values())
        found = (
            group
            for group in listed
            if (not states or group.state.lower() in states) and (not types or group.type in types)
        )
        return ListGroupsResponse(ErrorCode.NONE, tuple(found))

    def _delete_groups(self, reply_to: Hashable, group_ids: tuple[str, ...], now_ms: int) -> Steps[None]:
        """Reply once the last of them is deleted, or refused."""
        errors: dict[str, ErrorCode] = {}

        def done(group_id: str, error: ErrorCode, now_ms: int) -> Steps[None]:
            errors[group_id] = error
            if len(errors) == len(group_ids):
                yield Reply(reply_to, DeleteGroupsResponse(tuple((name, errors[name]) for name in group_ids)))

        if not group_ids:
            yield Reply(reply_to, DeleteGroupsResponse(()))
        for group_id in group_ids:
            shard = self._shard_of(group_id)
            if isinstance(shard, ErrorCode):
                yield from done(group_id, shard, now_ms)
            else:
                yield from self._offsets.delete_group(shard, group_id, partial(done, group_id), now_ms)

    # Retention

    def _begin_retention(self, now_ms: int) -> Steps[None]:
        self._to_check = iter(
            [(shard, group) for shard in self.shards.values() if shard.active for group in shard.groups.values()]
        )
        yield from self._check_retention(now_ms)

    def _check_retention(self, now_ms: int) -> Steps[None]:
        """Check as many groups as a step may, and the others in further steps."""
        wall_ms: int = yield WallClock()
        checked = 0
        for shard, group in islice(self._to_check, GROUPS_PER_STEP):
            checked += 1
            if self._is_led(shard) and shard.groups.get(group.group_id) is group:
                yield from self._offsets.expire(shard, group, wall_ms)
        if checked == GROUPS_PER_STEP:
            self._timers.set(Deadline(self._check_retention), now_ms + 1)
        else:
            self._timers.set(self._retention, now_ms + self.config.offsets_retention_check_interval_ms)


def _listed(group: Group) -> ListedGroup:
    if group.consumer is not None:
        return ListedGroup(group.group_id, CONSUMER_PROTOCOL, str(group.consumer.state), _CONSUMER)
    return ListedGroup(group.group_id, group.protocol_type or "", str(group.state), _CLASSIC)
