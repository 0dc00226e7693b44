"""Messages of consumer groups whose coordinator assigns the partitions: heartbeats of members, and stored records.

A member states in its heartbeats what it is subscribed to and what it owns; the response has its epoch and, when it has
changed, its assignment. Topics are named by their ids, so that one that was deleted and created again is another topic.
Times are in milliseconds. Source: Kafka protocol guide; KIP-848, KIP-1082 for ids that members choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from kreplog.errors import ErrorCode

JOIN_EPOCH = 0
"""The epoch of a member that joins, or joins again after it was fenced."""

LEAVE_EPOCH = -1
"""The epoch of a member that leaves."""

STATIC_LEAVE_EPOCH = -2
"""The epoch of a static member that leaves and will return: its partitions wait for it."""


class TopicIdPartitions(NamedTuple):
    """Partitions of a topic. topic_id: Kafka's 22 characters. partitions: their numbers, in order."""

    topic_id: str
    partitions: tuple[int, ...]


Assignment = tuple[TopicIdPartitions, ...]
"""Partitions by topic, in the order of the ids."""


# Requests


def _all(topic: str) -> bool:
    return True


class DescribableTopics(NamedTuple):
    """The topics that a client may describe: expressions match no others. describes: whether a topic is one. version:
    another number whenever that may have changed."""

    describes: Callable[[str], bool] = _all
    version: int = 0


EVERY_TOPIC = DescribableTopics()


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest:
    """A member joins, stays or leaves; None and -1 stand for what has not changed since its last heartbeat.

    member_epoch: JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, or that of the last response. instance_id: of a static
    member. subscribed_topics, subscribed_regex: what it reads; "" is no expression any more. server_assignor: that it
    prefers. owned: what it holds now, which acknowledges what it has revoked. needs_member_id: version 0, in which the
    coordinator may choose the id of a new member. client_id, client_host: of the request's header and connection. view:
    of the client.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    needs_member_id: bool = False
    client_id: str = ""
    client_host: str = ""
    view: DescribableTopics = field(default=EVERY_TOPIC, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """The response to a heartbeat. member_id: None with an error. heartbeat_interval_ms: until the member's next one.
    assignment: what the member may own from now on, None if that has not changed."""

    error: ErrorCode
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    """A request to describe groups. includes_operations: the response has the authorized operations (KIP-430)."""

    group_ids: tuple[str, ...]
    includes_operations: bool = False


class MemberType(IntEnum):
    """The protocol that a member of a consumer group uses, as ConsumerGroupDescribe names it."""

    CLASSIC = 0
    CONSUMER = 1


class DescribedTopic(NamedTuple):
    """Partitions of a topic as tools show them."""

    topic_id: str
    topic: str
    partitions: tuple[int, ...]


class DescribedConsumer(NamedTuple):
    """A member in the response to a ConsumerGroupDescribe. assignment, target_assignment: what it may own now, and once
    all members have followed the group."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: tuple[DescribedTopic, ...]
    target_assignment: tuple[DescribedTopic, ...]
    member_type: MemberType = MemberType.CONSUMER


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """A group in the response to a ConsumerGroupDescribe. group_epoch: of its members and their subscriptions.
    assignment_epoch: the group epoch that the target assignment is for. authorized_operations: numbers of ACL
    operations, None where they are not requested."""

    group_id: str
    error: ErrorCode
    error_message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeResponse:
    groups: tuple[DescribedConsumerGroup, ...]


# Records of a group's log; a value of None is a tombstone's


class ConsumerGroupMetadata(NamedTuple):
    """The epoch of a group. metadata_hash: of the topics that it is subscribed to, signed 64 bits; one that differs
    begins a new epoch."""

    epoch: int
    metadata_hash: int = 0


class ConsumerGroupRecord(NamedTuple):
    """Key type 3."""

    group_id: str
    value: ConsumerGroupMetadata | None


class ClassicMemberMetadata(NamedTuple):
    """The JoinGroup of a member that uses the classic protocol in such a group. protocols: (name, metadata)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberMetadata(NamedTuple):
    """A member's own statements about itself. classic: None for a member that uses the consumer protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMemberMetadata | None = None


class ConsumerMemberRecord(NamedTuple):
    """Key type 5."""

    group_id: str
    member_id: str
    value: ConsumerMemberMetadata | None


class TargetEpochRecord(NamedTuple):
    """Key type 6. value: the group epoch that the target assignment is for."""

    group_id: str
    value: int | None


class TargetAssignmentRecord(NamedTuple):
    """Key type 7: what a member is to own once all have followed the group."""

    group_id: str
    member_id: str
    value: Assignment | None


class MemberState(IntEnum):
    """The state of a member on its way to the target assignment, with the numbers of Kafka's records.

    STABLE                  it owns its target assignment
    UNREVOKED_PARTITIONS    it has to revoke partitions before it gets the epoch of the target assignment
    UNRELEASED_PARTITIONS   it has that epoch, and partitions of its target are still others'
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


class CurrentAssignment(NamedTuple):
    """The partitions that a member may own. pending_revocation: those that it still owns, and has to revoke.
    assignment_epochs: since when it has had each of the partitions, by topic, in the order of `assigned` and then
    `pending_revocation` (KIP-1251)."""

    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: Assignment
    pending_revocation: Assignment
    assignment_epochs: tuple[tuple[int, ...], ...]


class CurrentAssignmentRecord(NamedTuple):
    """Key type 8."""

    group_id: str
    member_id: str
    value: CurrentAssignment | None


class ResolvedRegex(NamedTuple):
    """The topics that an expression matches. version: that of the cluster's metadata. wall_ms: when they were matched,
    since 1970."""

    topics: tuple[str, ...]
    version: int
    wall_ms: int


class ResolvedRegexRecord(NamedTuple):
    """Key type 16."""

    group_id: str
    regex: str
    value: ResolvedRegex | None


ConsumerGroupLogRecord = (
    ConsumerGroupRecord
    | ConsumerMemberRecord
    | TargetEpochRecord
    | TargetAssignmentRecord
    | CurrentAssignmentRecord
    | ResolvedRegexRecord
)
"""A record of `__consumer_offsets` of a group whose coordinator assigns the partitions."""
