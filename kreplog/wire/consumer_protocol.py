"""Requests of consumer groups whose coordinator assigns the partitions (KIP-848), to and from the messages of `core`.

groups.py has those of the classic protocol and those that both share. A decoded heartbeat has no client host: that is
known to its connection alone. Decoders raise PeerProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kreplog.core.consumer_group_messages import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopic,
    TopicIdPartitions,
)
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MEMBERS_CHOOSE_IDS_FROM = 1
"""Version of ConsumerGroupHeartbeat whose members choose their ids (KIP-1082)."""


def decode_heartbeat(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> ConsumerGroupHeartbeatRequest:
    message = generic.decode_request(frame, header, budget)
    names, regex = message.subscribed_topic_names, message.subscribed_topic_regex
    return ConsumerGroupHeartbeatRequest(
        message.group_id,
        message.member_id,
        message.member_epoch,
        message.instance_id,
        message.rack_id,
        message.rebalance_timeout_ms,
        None if names is None else tuple(dict.fromkeys(names)),
        regex,
        message.server_assignor,
        None if message.topic_partitions is None else _assignment(message.topic_partitions),
        header.api_version < _MEMBERS_CHOOSE_IDS_FROM,
        header.client_id or "",
    )


def _assignment(topics: Iterable[Any]) -> Assignment:
    """In the order of the ids, each of them once."""
    found: dict[str, set[int]] = {}
    for topic in topics:
        found.setdefault(generic.topic_id(topic.topic_id), set()).update(topic.partitions)
    return tuple(TopicIdPartitions(each, tuple(sorted(numbers))) for each, numbers in sorted(found.items()))


def encode_heartbeat_response(response: ConsumerGroupHeartbeatResponse, header: RequestHeader) -> list[Buffer]:
    assignment = None
    if response.assignment is not None:
        topics = [{"topic_id": topic_id, "partitions": list(numbers)} for topic_id, numbers in response.assignment]
        assignment = {"topic_partitions": topics}
    return generic.encode_response(
        header,
        error_code=int(response.error),
        error_message=response.error_message,
        member_id=response.member_id,
        member_epoch=response.member_epoch,
        heartbeat_interval_ms=response.heartbeat_interval_ms,
        assignment=assignment,
    )


def decode_describe(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> ConsumerGroupDescribeRequest:
    message = generic.decode_request(frame, header, budget)
    return ConsumerGroupDescribeRequest(
        tuple(dict.fromkeys(message.group_ids)), bool(message.include_authorized_operations)
    )


def encode_describe_response(response: ConsumerGroupDescribeResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(header, groups=[_described(group) for group in response.groups])


def _described(group: DescribedConsumerGroup) -> dict[str, Any]:
    operations = group.authorized_operations
    shown = {} if operations is None else {"authorized_operations": generic.bit_field(operations)}
    return {
        **shown,
        "error_code": int(group.error),
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(member) for member in group.members],
    }


def _member(member: DescribedConsumer) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.subscribed_topics),
        "subscribed_topic_regex": member.subscribed_regex,
        "assignment": _topics(member.assignment),
        "target_assignment": _topics(member.target_assignment),
        "member_type": int(member.member_type),
    }


def _topics(topics: Iterable[DescribedTopic]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": list(numbers)}
            for topic_id, name, numbers in topics
        ]
    }


DECODERS: dict[int, Callable[[Buffer, RequestHeader, int], Any]] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: decode_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: decode_describe,
}
"""By API key: makes the request of `core` from a frame."""

ENCODERS: dict[int, Callable[[Any, RequestHeader], Sequence[Any]]] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: encode_heartbeat_response,
    ApiKey.CONSUMER_GROUP_DESCRIBE: encode_describe_response,
}
"""By API key: makes a frame from the response of `core`."""
