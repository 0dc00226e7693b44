"""Requests of consumer groups, to and from the messages of `core`, in the versions that are offered.

A decoded JoinGroup has no client host: that is known to its connection alone. Decoders raise PeerProtocolError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from kreplog.core.group_messages import (
    CommitPartition,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffsets,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.nesting import Nesting, by_topic
from kreplog.wire.versions import ABORTABLE_FROM, ADDS_PARTITIONS_FROM, ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NESTING = Nesting()
_GROUP_ID_NOT_FOUND_FROM = 6
"""Version of DescribeGroups that reports an unknown group as an error; before it is one that is dead (KIP-1043)."""

_MEMBER_EPOCH_FROM = 9
"""Version of OffsetCommit from which on members of the consumer protocol commit (KIP-848)."""

_SEVERAL_GROUPS_FROM = 8
"""Version of OffsetFetch that is for several groups (KIP-709)."""

_MEMBERS_FROM = 3
"""Version of LeaveGroup that is for several members (KIP-345)."""

_MEMBER_ID_REQUIRED_FROM = 4
"""Version of JoinGroup in which new members get their id first (KIP-394)."""

_SKIP_ASSIGNMENT_FROM = 9
"""Version of JoinGroup in which a leader may learn that there is nothing to assign (KIP-814)."""

_LEADER_EPOCH_FROM = 5
"""Version of OffsetFetch whose response has leader epochs (KIP-320)."""

_STABLE_FROM = 7
"""Version of OffsetFetch that may require stable offsets (KIP-447)."""

_LOADING_FROM = 2
"""Version of TxnOffsetCommit whose clients know COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""


# Requests


def decode_join_group(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> JoinGroupRequest:
    message = generic.decode_request(frame, header, budget)
    rebalance_timeout_ms = message.rebalance_timeout_ms
    return JoinGroupRequest(
        message.group_id,
        message.member_id,
        message.group_instance_id,
        header.client_id or "",
        "",
        message.session_timeout_ms,
        message.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        message.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
        header.api_version >= _MEMBER_ID_REQUIRED_FROM,
        header.api_version >= _SKIP_ASSIGNMENT_FROM,
    )


def decode_sync_group(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> SyncGroupRequest:
    message = generic.decode_request(frame, header, budget)
    return SyncGroupRequest(
        message.group_id,
        message.generation_id,
        message.member_id,
        message.group_instance_id,
        message.protocol_type,
        message.protocol_name,
        tuple((assigned.member_id, bytes(assigned.assignment)) for assigned in message.assignments),
    )


def decode_heartbeat(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> HeartbeatRequest:
    message = generic.decode_request(frame, header, budget)
    return HeartbeatRequest(message.group_id, message.generation_id, message.member_id, message.group_instance_id)


def decode_leave_group(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> LeaveGroupRequest:
    message = generic.decode_request(frame, header, budget)
    if header.api_version < _MEMBERS_FROM:
        return LeaveGroupRequest(message.group_id, (MemberIdentity(message.member_id),))
    members = (MemberIdentity(member.member_id, member.group_instance_id) for member in message.members)
    return LeaveGroupRequest(message.group_id, tuple(members))


def _committed(topics: Sequence[Any]) -> tuple[CommitPartition, ...]:
    return tuple(
        CommitPartition(
            partition, fields.committed_offset, fields.committed_leader_epoch, fields.committed_metadata or ""
        )
        for partition, fields in _NESTING.read(topics)
    )


def decode_offset_commit(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> OffsetCommitRequest:
    message = generic.decode_request(frame, header, budget)
    return OffsetCommitRequest(
        message.group_id,
        message.generation_id_or_member_epoch,
        message.member_id,
        message.group_instance_id,
        _committed(message.topics),
        message.retention_time_ms,
        header.api_version >= _MEMBER_EPOCH_FROM,
    )


def decode_txn_offset_commit(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> TxnOffsetCommitRequest:
    message = generic.decode_request(frame, header, budget)
    return TxnOffsetCommitRequest(
        message.transactional_id,
        message.group_id,
        message.producer_id,
        message.producer_epoch,
        message.generation_id,
        message.member_id,
        message.group_instance_id,
        _committed(message.topics),
        header.api_version >= ADDS_PARTITIONS_FROM[ApiKey.TXN_OFFSET_COMMIT],
    )


def decode_offset_fetch(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> OffsetFetchRequest:
    message = generic.decode_request(frame, header, budget)
    if header.api_version < _SEVERAL_GROUPS_FROM:
        stable = header.api_version >= _STABLE_FROM and bool(message.require_stable)
        return OffsetFetchRequest((OffsetFetchGroup(message.group_id, _requested(message.topics)),), stable)
    groups = {
        group.group_id: OffsetFetchGroup(group.group_id, _requested(group.topics), group.member_id, group.member_epoch)
        for group in message.groups
    }
    return OffsetFetchRequest(tuple(groups.values()), bool(message.require_stable))


def _requested(topics: Iterable[Any] | None) -> tuple[TopicPartition, ...] | None:
    if topics is None:
        return None
    partitions = (TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes)
    return tuple(dict.fromkeys(partitions))


def decode_offset_delete(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> OffsetDeleteRequest:
    message = generic.decode_request(frame, header, budget)
    partitions = dict.fromkeys(partition for partition, _ in _NESTING.read(message.topics))
    return OffsetDeleteRequest(message.group_id, tuple(partitions))


def decode_describe_groups(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> DescribeGroupsRequest:
    message = generic.decode_request(frame, header, budget)
    return DescribeGroupsRequest(tuple(dict.fromkeys(message.groups)), bool(message.include_authorized_operations))


def decode_list_groups(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> ListGroupsRequest:
    message = generic.decode_request(frame, header, budget)
    return ListGroupsRequest(tuple(message.states_filter or ()), tuple(message.types_filter or ()))


def decode_delete_groups(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> DeleteGroupsRequest:
    message = generic.decode_request(frame, header, budget)
    return DeleteGroupsRequest(tuple(dict.fromkeys(message.groups_names)))


# Responses


def encode_join_group_response(response: JoinGroupResponse, header: RequestHeader) -> list[Buffer]:
    """Before version 7 a response without a protocol has "" in its place."""
    return generic.encode_response(
        header,
        error_code=int(response.error),
        generation_id=response.generation_id,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol if header.api_version >= 7 else response.protocol or "",
        leader=response.leader,
        skip_assignment=response.skip_assignment,
        member_id=response.member_id,
        members=[
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in response.members
        ],
    )


def encode_sync_group_response(response: SyncGroupResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(
        header,
        error_code=int(response.error),
        protocol_type=response.protocol_type,
        protocol_name=response.protocol,
        assignment=response.assignment,
    )


def encode_heartbeat_response(response: HeartbeatResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(header, error_code=int(response.error))


def encode_leave_group_response(response: LeaveGroupResponse, header: RequestHeader) -> list[Buffer]:
    """Before version 3 the error of its only member is that of the response."""
    error = response.error
    if header.api_version < _MEMBERS_FROM and response.members:
        error = response.members[0][1]
    members = [
        {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": int(code)}
        for member, code in response.members
    ]
    return generic.encode_response(header, error_code=int(error), members=members)


def encode_offset_commit_response(response: OffsetCommitResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(header, topics=_errors_by_topic(response.partitions))


def encode_txn_offset_commit_response(response: TxnOffsetCommitResponse, header: RequestHeader) -> list[Buffer]:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if header.api_version < _LOADING_FROM and any(error is loading for _, error in response.partitions):
        other = ErrorCode.COORDINATOR_NOT_AVAILABLE
        errors = tuple((name, other if error is loading else error) for name, error in response.partitions)
        response = TxnOffsetCommitResponse(errors)
    if header.api_version < ABORTABLE_FROM[ApiKey.TXN_OFFSET_COMMIT]:
        abortable = ErrorCode.TRANSACTION_ABORTABLE
        errors = tuple(
            (name, ErrorCode.INVALID_TXN_STATE if error is abortable else error) for name, error in response.partitions
        )
        response = TxnOffsetCommitResponse(errors)
    return generic.encode_response(header, topics=_errors_by_topic(response.partitions))


def _errors_by_topic(partitions: Iterable[tuple[TopicPartition, ErrorCode]]) -> list[tuple[Any, ...]]:
    return [
        (topic, [(partition.partition, int(error)) for partition, error in errors])
        for topic, errors in by_topic(partitions, itemgetter(0))
    ]


def encode_offset_fetch_response(response: OffsetFetchResponse, header: RequestHeader) -> list[Buffer]:
    """In version 1 the error of a group is that of each partition."""
    version = header.api_version
    if version >= _SEVERAL_GROUPS_FROM:
        groups = [
            {"group_id": group.group_id, "error_code": int(group.error), "topics": _offsets(group, version)}
            for group in response.groups
        ]
        return generic.encode_response(header, groups=groups)
    (group,) = response.groups
    return generic.encode_response(header, error_code=int(group.error), topics=_offsets(group, version))


def _offsets(group: FetchedOffsets, version: int) -> list[tuple[Any, ...]]:
    errors = {**dict.fromkeys(group.unstable, ErrorCode.UNSTABLE_OFFSET_COMMIT), **dict(group.refused)}
    has_epoch = version >= _LEADER_EPOCH_FROM
    return [
        (
            topic,
            [
                (
                    partition.partition,
                    offset.offset,
                    *((offset.leader_epoch,) if has_epoch else ()),
                    offset.metadata,
                    int(errors.get(partition, ErrorCode.NONE)),
                )
                for partition, offset in offsets
            ],
        )
        for topic, offsets in by_topic(group.offsets, itemgetter(0))
    ]


def encode_offset_delete_response(response: OffsetDeleteResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(header, error_code=int(response.error), topics=_errors_by_topic(response.partitions))


def encode_describe_groups_response(response: DescribeGroupsResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(header, groups=[_described(group, header) for group in response.groups])


def _described(group: DescribedGroup, header: RequestHeader) -> dict[str, Any]:
    error, message = group.error, None
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        message = f"there is no group {group.group_id}"
        if header.api_version < _GROUP_ID_NOT_FOUND_FROM:
            error = ErrorCode.NONE
    return {
        "error_code": int(error),
        "error_message": message,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": group.authorized_operations,
    }


def encode_list_groups_response(response: ListGroupsResponse, header: RequestHeader) -> list[Buffer]:
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state,
            "group_type": group.type,
        }
        for group in response.groups
    ]
    return generic.encode_response(header, error_code=int(response.error), groups=groups)


def encode_delete_groups_response(response: DeleteGroupsResponse, header: RequestHeader) -> list[Buffer]:
    results = [{"group_id": group_id, "error_code": int(error)} for group_id, error in response.results]
    return generic.encode_response(header, results=results)


DECODERS: dict[int, Callable[[Buffer, RequestHeader, int], Any]] = {
    ApiKey.OFFSET_COMMIT: decode_offset_commit,
    ApiKey.TXN_OFFSET_COMMIT: decode_txn_offset_commit,
    ApiKey.OFFSET_FETCH: decode_offset_fetch,
    ApiKey.JOIN_GROUP: decode_join_group,
    ApiKey.HEARTBEAT: decode_heartbeat,
    ApiKey.LEAVE_GROUP: decode_leave_group,
    ApiKey.SYNC_GROUP: decode_sync_group,
    ApiKey.DESCRIBE_GROUPS: decode_describe_groups,
    ApiKey.LIST_GROUPS: decode_list_groups,
    ApiKey.DELETE_GROUPS: decode_delete_groups,
    ApiKey.OFFSET_DELETE: decode_offset_delete,
}
"""By API key: makes the request of `core` from a frame."""

ENCODERS: dict[int, Callable[[Any, RequestHeader], Sequence[Any]]] = {
    ApiKey.OFFSET_COMMIT: encode_offset_commit_response,
    ApiKey.TXN_OFFSET_COMMIT: encode_txn_offset_commit_response,
    ApiKey.OFFSET_FETCH: encode_offset_fetch_response,
    ApiKey.JOIN_GROUP: encode_join_group_response,
    ApiKey.HEARTBEAT: encode_heartbeat_response,
    ApiKey.LEAVE_GROUP: encode_leave_group_response,
    ApiKey.SYNC_GROUP: encode_sync_group_response,
    ApiKey.DESCRIBE_GROUPS: encode_describe_groups_response,
    ApiKey.LIST_GROUPS: encode_list_groups_response,
    ApiKey.DELETE_GROUPS: encode_delete_groups_response,
    ApiKey.OFFSET_DELETE: encode_offset_delete_response,
}
"""By API key: makes the frame of a response of `core`."""
