"""What ConsumerGroupDescribe shows of a group whose coordinator assigns the partitions."""

from __future__ import annotations

from collections.abc import Mapping

from kreplog.core.consumer_group_messages import (
    Assignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopic,
    MemberType,
)
from kreplog.core.groups.assignments import NOTHING, to_assignment
from kreplog.core.groups.consumer_group import ConsumerGroup
from kreplog.core.groups.subscribed_topics import ClusterTopics, topic_of
from kreplog.errors import ErrorCode


def described(consumer: ConsumerGroup, cluster: ClusterTopics, assignor: str) -> DescribedConsumerGroup:
    """The group with its members. assignor: that of its target assignment."""
    found = ((name, topic_of(name, cluster)) for name in consumer.subscribed_topics())
    names = {topic.topic_id: name for name, topic in found if topic is not None}
    return DescribedConsumerGroup(
        consumer.group_id,
        ErrorCode.NONE,
        None,
        str(consumer.state),
        consumer.epoch,
        consumer.target_epoch,
        assignor,
        tuple(_member(consumer, member_id, names) for member_id in consumer.members),
    )


def _member(consumer: ConsumerGroup, member_id: str, names: Mapping[str, str]) -> DescribedConsumer:
    """A member as it is described. names: of topics, by id."""
    member, current = consumer.members[member_id], consumer.assignment_of(member_id)
    return DescribedConsumer(
        member_id,
        member.instance_id,
        member.rack_id,
        current.member_epoch,
        member.client_id,
        member.client_host,
        member.subscribed_topics,
        member.subscribed_regex,
        _named(current.assigned, names),
        _named(to_assignment(consumer.target.get(member_id, NOTHING)), names),
        MemberType.CLASSIC if member.classic else MemberType.CONSUMER,
    )


def _named(assignment: Assignment, names: Mapping[str, str]) -> tuple[DescribedTopic, ...]:
    """Partitions of topics that exist."""
    return tuple(
        DescribedTopic(topic_id, names[topic_id], numbers) for topic_id, numbers in assignment if topic_id in names
    )
