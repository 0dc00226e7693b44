"""Converts a group between the two protocols, as pure functions: nothing is changed by them.

    upgrade    classic group -> records of a consumer group: its members go on with the classic protocol. The generation
               is the epoch; the last assignment what each owns; what it had still owned when it joined, and nobody has
               been assigned since, it has to revoke
    downgrade  consumer group -> classic group, once its members all use the classic protocol. Each is assigned what it
               may still own, so that no other conversion gives that to somebody else; they have to rejoin at once

Source: KIP-848 on migration; Kafka, ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kreplog.core.consumer_group_messages import (
    Assignment,
    ClassicMemberMetadata,
    ConsumerGroupLogRecord,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    ConsumerMemberRecord,
    CurrentAssignmentRecord,
    MemberState,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from kreplog.core.group_messages import GroupMetadata
from kreplog.core.groups.assignments import current_assignment, to_assignment, to_partitions
from kreplog.core.groups.assignors import Partition, Partitions
from kreplog.core.groups.consumer_group import (
    KEYS,
    MAX_SUBSCRIPTION_BYTES,
    RECORD_BYTES,
    ConsumerGroup,
    subscription_bytes,
)
from kreplog.core.groups.group import Group
from kreplog.core.groups.member import Member
from kreplog.core.groups.subscribed_topics import ClusterTopics, SubscribedTopic, topic_of
from kreplog.core.groups.subscription import (
    CONSUMER_PROTOCOL,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

MAX_BYTES = 800_000
"""Maximum of the metadata and assignments of a group's members, in the larger of the two protocols' records: those of
one protocol and the tombstones of the other are one batch of `__consumer_offsets`, of 1,048,588 bytes by default."""


class Refusal(NamedTuple):
    """Why a group keeps its protocol."""

    error: ErrorCode
    text: str


class _ClassicMember(NamedTuple):
    """A member of a classic group. owned: the partitions that it had when it last joined."""

    metadata: ConsumerMemberMetadata
    assigned: Partitions
    owned: Partitions


def upgrade(group: Group, cluster: ClusterTopics, max_size: int) -> tuple[ConsumerGroupLogRecord, ...] | Refusal:
    """The records of a classic group with members as a consumer group, or why it stays what it is. max_size: maximum of
    members of a consumer group."""
    text = f"{group.group_id} is a group of the classic protocol, and stays so:"
    if group.protocol_type != CONSUMER_PROTOCOL:
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{text} its members are of type {group.protocol_type}")
    if len(group.members) > max_size:
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{text} it has {len(group.members)} members, over {max_size}")
    if _size(group.group_id, group.members.values()) > MAX_BYTES:
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{text} its members are too large for one batch of records")
    members: dict[str, _ClassicMember] = {}
    for member in group.members.values():
        found = _read(member, group.protocol, cluster)
        if isinstance(found, Refusal):
            return found._replace(text=f"{text} {found.text}")
        if subscription_bytes(found.metadata) > MAX_SUBSCRIPTION_BYTES:
            text = f"{text} the subscription of {member.member_id} has more than {MAX_SUBSCRIPTION_BYTES} bytes"
            return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, text)
        members[member.member_id] = found
    assigned = [partition for member in members.values() for partition in member.assigned]
    if len(set(assigned)) < len(assigned):
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{text} a partition is assigned to two of its members")
    return tuple(_records(group.group_id, group.generation, members))


def _read(member: Member, protocol: str | None, cluster: ClusterTopics) -> _ClassicMember | Refusal:
    """A member as its metadata and assignment describe it. A partition that the metadata lack may have been created a
    moment ago: it is not to be forgotten, so that the group is converted only once it is known, or its member has
    joined without it."""
    octets = member.metadata(protocol) or next((metadata for _, metadata in member.protocols), b"")
    subscription, assigned = read_subscription(octets), read_assignment(member.assignment)
    if subscription is None or assigned is None:
        return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"what {member.member_id} has sent is not that of a consumer")
    partitions = assigned | subscription.owned
    topics = known_topics(partitions, cluster)
    unknown = next((each for each in partitions if each.partition >= _partition_count(topics, each.topic)), None)
    if unknown is not None:
        text = f"{member.member_id} owns {unknown}, which is not known here yet"
        return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
    return _ClassicMember(
        classic_metadata(
            subscription,
            member.instance_id,
            (member.client_id, member.client_host),
            member.rebalance_timeout_ms,
            ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
        ),
        _by_id(assigned, topics),
        _by_id(subscription.owned, topics),
    )


def owned_assignment(subscription: Subscription, cluster: ClusterTopics) -> Assignment | None:
    """The partitions that a joining member owns; None if a topic of these is not known here, which may be so for a
    moment: it has not given up what it owns of it."""
    topics = known_topics(subscription.owned, cluster)
    if any(partition.topic not in topics for partition in subscription.owned):
        return None
    return to_assignment(_by_id(subscription.owned, topics))


def known_topics(partitions: frozenset[TopicPartition], cluster: ClusterTopics) -> dict[str, SubscribedTopic]:
    """The topics of these partitions that are known, by name."""
    found = ((name, topic_of(name, cluster)) for name in {partition.topic for partition in partitions})
    return {name: topic for name, topic in found if topic is not None}


def _partition_count(topics: Mapping[str, SubscribedTopic], name: str) -> int:
    return topics[name].partitions if name in topics else 0


def _by_id(partitions: frozenset[TopicPartition], topics: Mapping[str, SubscribedTopic]) -> Partitions:
    return frozenset((topics[topic].topic_id, number) for topic, number in partitions)


def classic_metadata(
    subscription: Subscription,
    instance_id: str | None,
    client: tuple[str, str],
    rebalance_timeout_ms: int,
    classic: ClassicMemberMetadata,
) -> ConsumerMemberMetadata:
    """The metadata that a member of the classic protocol has in a JoinGroup. client: its id and host."""
    return ConsumerMemberMetadata(
        instance_id,
        subscription.rack_id,
        *client,
        tuple(sorted(subscription.topics)),
        None,
        rebalance_timeout_ms,
        None,
        classic,
    )


def _records(group_id: str, epoch: int, members: Mapping[str, _ClassicMember]) -> Iterator[ConsumerGroupLogRecord]:
    for member_id, member in members.items():
        yield ConsumerMemberRecord(group_id, member_id, member.metadata)
    yield ConsumerGroupRecord(group_id, ConsumerGroupMetadata(epoch))
    for member_id, member in members.items():
        yield TargetAssignmentRecord(group_id, member_id, to_assignment(member.assigned))
    yield TargetEpochRecord(group_id, epoch)
    taken: set[Partition] = {partition for member in members.values() for partition in member.assigned}
    for member_id, member in members.items():
        revoked = member.owned - taken
        taken |= revoked
        state = MemberState.UNREVOKED_PARTITIONS if revoked else MemberState.STABLE
        current = current_assignment((epoch, epoch), state, member.assigned, revoked, {}, epoch)
        yield CurrentAssignmentRecord(group_id, member_id, current)


def downgrade(
    consumer: ConsumerGroup, cluster: ClusterTopics, wall_ms: int
) -> tuple[tuple[Member, ...], GroupMetadata] | None:
    """The members and the record of a consumer group, whose members all use the classic protocol, as a classic group;
    None if that does not fit in a batch, the members have no protocol in common, or a topic of what they may own is not
    known here. The record has no leader, which has the members rejoin wherever it is loaded. Its generation is the last
    epoch of a member: those of that epoch may commit until they rejoin."""
    classic = Group(consumer.group_id)
    for member_id, metadata in consumer.members.items():
        if metadata.classic is not None:
            classic.add(_member(member_id, metadata, metadata.classic))
    members = tuple(classic.members.values())
    classic.protocol_type, classic.protocol, classic.leader = CONSUMER_PROTOCOL, classic.select_protocol(), None
    if classic.protocol is None or _size(classic.group_id, members) > MAX_BYTES:  # before what takes longer
        return None
    names = _names_of_owned(consumer, cluster)
    if names is None:
        return None
    for member in members:
        member.assignment = held_assignment(consumer, member.member_id, names)
    if _size(classic.group_id, members) > MAX_BYTES:
        return None
    classic.generation = max(0, *(consumer.assignment_of(member.member_id).member_epoch for member in members))
    return members, classic.metadata(wall_ms, {member.member_id: member.assignment for member in members})


def _names_of_owned(consumer: ConsumerGroup, cluster: ClusterTopics) -> dict[str, str] | None:
    """The names of the topics, by id, of which members may own partitions; None if one of them is not known."""
    owned = {topic_id for topic_id, _ in consumer.owners}
    names = {topic.topic_id: name for name, topic in consumer.topics.known.items()}
    if not owned <= names.keys():  # of a topic that nobody is subscribed to any more
        names |= {topic.topic_id: name for name in cluster.topics() if (topic := topic_of(name, cluster)) is not None}
    return names if owned <= names.keys() else None


def held_assignment(consumer: ConsumerGroup, member_id: str, names: Mapping[str, str]) -> bytes:
    """The partitions that a member may still own, encoded."""
    current = consumer.assignment_of(member_id)
    held = to_partitions(current.assigned) | to_partitions(current.pending_revocation)
    return encoded_assignment(consumer, member_id, to_assignment(held), names)


def encoded_assignment(
    consumer: ConsumerGroup, member_id: str, assignment: Assignment, names: Mapping[str, str]
) -> bytes:
    """An assignment in the version of the member's subscription. names: of topics, by id; others are left out."""
    classic = consumer.members[member_id].classic
    subscription = None if classic is None else read_subscription(next((data for _, data in classic.protocols), b""))
    named = (
        TopicPartition(names[topic_id], number)
        for topic_id, numbers in assignment
        if topic_id in names
        for number in numbers
    )
    return write_assignment(named, 0 if subscription is None else subscription.version)


def _member(member_id: str, metadata: ConsumerMemberMetadata, classic: ClassicMemberMetadata) -> Member:
    return Member(
        member_id,
        metadata.instance_id,
        metadata.client_id,
        metadata.client_host,
        metadata.rebalance_timeout_ms,
        classic.session_timeout_ms,
        classic.protocols,
    )


def _size(group_id: str, members: Iterable[Member]) -> int:
    """The bytes that members take in records of either protocol, and in their tombstones, at most about."""
    key = len(group_id.encode())
    return sum(
        RECORD_BYTES
        + KEYS * (key + len(member.member_id.encode()))
        + sum(len(text.encode()) for text in (member.instance_id or "", member.client_id, member.client_host))
        + sum(100 + len(name.encode()) + len(metadata) for name, metadata in member.protocols)
        + 3 * len(member.assignment)
        + max((len(metadata) for _, metadata in member.protocols), default=0)
        for member in members
    )
