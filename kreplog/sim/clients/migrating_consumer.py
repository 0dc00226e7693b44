"""Members of a group that restart with the other protocol now and then (KIP-848), as clients of workload.py.

With the consumer protocol it is a GroupConsumer. With the classic one it gives up all before it joins, as consumers
with an eager assignor do, leads a generation if it is to, and owns what its SyncGroup gets until its session ends.
After a JoinGroup without a response it joins as a new member: that request may arrive late, and says that its member
owns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.core.consumer_group_messages import JOIN_EPOCH
from kreplog.core.group_messages import (
    HeartbeatRequest,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from kreplog.core.groups.subscription import (
    CONSUMER_PROTOCOL,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kreplog.core.messages import PartitionState
from kreplog.errors import ErrorCode
from kreplog.sim.clients.consumer_group_client import (
    GROUP,
    HEARTBEAT_MS,
    REBALANCE_MS,
    SESSION_MS,
    GroupConsumer,
    Partition,
)
from kreplog.sim.clients.member_offsets import Steps
from kreplog.sim.clients.workload import Sleep
from kreplog.types import NO_LEADER, TopicPartition

_PROTOCOL = "eager"
_REJOIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})


class MigratingConsumer(GroupConsumer):
    """A member of the group, of the one protocol or the other until it restarts."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._instance = None
        self._is_classic = self._random.random() < 0.6
        self._leads_for: frozenset[TopicPartition] | None = None
        self._left = JOIN_EPOCH, ""
        self._assigned: frozenset[TopicPartition] = frozenset()

    def _begin(self) -> None:
        super()._begin()
        if self._is_classic:
            self._member_id = ""

    def _heartbeat(self) -> Steps:
        if not self._is_classic:
            return (yield from super()._heartbeat())
        if self._epoch > JOIN_EPOCH and self._now_ms >= self._until_ms:
            self._begin()
        if self._epoch == JOIN_EPOCH:
            return (yield from self._join())
        sent_ms = self._now_ms
        broker, response = yield from self._call(HeartbeatRequest(GROUP, self._epoch, self._member_id))
        if response is None:
            return False
        if response.error is ErrorCode.NONE:
            yield from self._stay(broker, sent_ms)
        elif response.error in _REJOIN:
            self._rejoin()
            return True
        elif response.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._fenced(broker, response.error)
        return False

    def _stay(self, broker: int, sent_ms: int) -> Steps:
        self._until_ms = sent_ms + SESSION_MS
        if self._now_ms >= self._until_ms:
            self._begin()
            return
        self._own(broker, self.owned)
        if self._leads_for is not None and self._random.random() < 0.3:
            yield from self._metadata.refresh()
            if self._leads_for != frozenset(self._metadata.partitions):
                self._rejoin()

    def _rejoin(self) -> None:
        """Give up all, to join the next generation."""
        self._left = self._epoch, self._member_id
        self._own(NO_LEADER, frozenset())
        self._epoch, self._leads_for = JOIN_EPOCH, None

    # JoinGroup and SyncGroup

    def _join(self) -> Steps:
        """Returns whether to go on at once."""
        request = JoinGroupRequest(
            *(GROUP, self._member_id, None, self._name, "", SESSION_MS, REBALANCE_MS, CONSUMER_PROTOCOL),
            ((_PROTOCOL, write_subscription(self._subscribed)),),
            requires_member_id=True,
        )
        _, response = yield from self._call(request, REBALANCE_MS)
        if response is None:
            self._member_id = ""
            return False
        if response.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            return True
        if response.error is not ErrorCode.NONE:
            if response.error is not ErrorCode.REBALANCE_IN_PROGRESS:
                self._member_id = ""
            return False
        self._member_id = response.member_id
        yield from self._sync(response)
        return False

    def _sync(self, joined: JoinGroupResponse) -> Steps:
        assignments: tuple[tuple[str, bytes], ...] = ()
        leads_for = None
        if joined.leader == self._member_id:
            yield from self._metadata.refresh()
            leads_for = frozenset(self._metadata.partitions)
            assignments = _dealt(joined.members, leads_for, joined.generation_id)
        identity = joined.generation_id, self._member_id
        request = SyncGroupRequest(GROUP, *identity, None, CONSUMER_PROTOCOL, _PROTOCOL, assignments)
        sent_ms = self._now_ms
        broker, response = yield from self._call(request, REBALANCE_MS)
        if response is None or response.error is not ErrorCode.NONE:
            if response is not None and response.error not in _REJOIN:
                self._member_id = ""
            return
        self._assigned = read_assignment(response.assignment) or frozenset()
        owned = yield from self._by_id(self._assigned)
        self._until_ms = sent_ms + SESSION_MS
        if owned is None or self._now_ms >= self._until_ms:
            return
        if self._left[1] == self._member_id and self._left[0] < joined.generation_id:
            self._earlier = self._left
        self._epoch, self._leads_for = joined.generation_id, leads_for
        yield from self._take_over(broker, owned)

    def _identity(self) -> tuple[str | None, int]:
        return (None, -1) if self._is_classic else super()._identity()

    def _by_id(self, assigned: frozenset[TopicPartition]) -> Steps:
        """The partitions by the ids of their topics; None if one of them is not known."""
        known = self._metadata.partitions
        if not assigned <= known.keys():
            yield from self._metadata.refresh()
            known = self._metadata.partitions
            if not assigned <= known.keys():
                return None
        owned: frozenset[Partition] = frozenset((known[each].topic_id, each.partition) for each in assigned)
        return owned

    def owned_among(self, known: Mapping[TopicPartition, PartitionState]) -> frozenset[Partition]:
        """... which with the classic protocol are names: a topic may have been deleted and created again since."""
        if not (self._is_classic and self.owned):
            return self.owned
        return frozenset((known[each].topic_id, each.partition) for each in self._assigned if each in known)

    # Else

    def _misbehave(self) -> Steps:
        if self._random.random() < 0.06:
            yield from self._restart()
            return
        subscribed = self._subscribed
        yield from super()._misbehave()
        if self._is_classic and subscribed != self._subscribed and self._epoch > JOIN_EPOCH:
            self._rejoin()

    def _restart(self) -> Steps:
        """Leave, mostly, and return with the other protocol."""
        if self._random.random() < 0.8:
            yield from self._leave()
        else:
            self._own(NO_LEADER, frozenset())
        self._is_classic = not self._is_classic
        self._member_id = ""
        self._begin()
        yield Sleep(self._random.randint(1, HEARTBEAT_MS))

    def _leave(self) -> Steps:
        if not self._is_classic:
            yield from super()._leave()
            return
        self._own(NO_LEADER, frozenset())
        yield from self._call(LeaveGroupRequest(GROUP, (MemberIdentity(self._member_id),)))
        self._begin()


def _dealt(
    members: tuple[JoinedMember, ...], partitions: frozenset[TopicPartition], generation: int
) -> tuple[tuple[str, bytes], ...]:
    """Each partition to one of its subscribers, another one in the next generation."""
    dealt: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    for topic, number in sorted(partitions):
        subscribers = [
            member.member_id
            for member in members
            if (read := read_subscription(member.metadata)) is not None and topic in read.topics
        ]
        if subscribers:
            dealt[subscribers[(number + generation) % len(subscribers)]].append(TopicPartition(topic, number))
    return tuple((member_id, write_assignment(found, 1)) for member_id, found in dealt.items())
