"""The response to any request about a group that its coordinator cannot answer."""

from __future__ import annotations

from kreplog.core.consumer_group_messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kreplog.core.group_messages import (
    GroupResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    RequestOfGroup,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kreplog.errors import ErrorCode, InvariantError


def error_response(request: RequestOfGroup, error: ErrorCode) -> GroupResponse:
    """The response to a request for a group that this broker cannot answer for."""
    match request:
        case ConsumerGroupHeartbeatRequest():
            return ConsumerGroupHeartbeatResponse(error)
        case JoinGroupRequest():
            return JoinGroupResponse(error, request.member_id)
        case SyncGroupRequest():
            return SyncGroupResponse(error)
        case HeartbeatRequest():
            # A member cannot do better than to send another: its session begins once its group is loaded.
            loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(ErrorCode.NONE if loading else error)
        case LeaveGroupRequest():
            return LeaveGroupResponse(error)
        case OffsetCommitRequest():
            return OffsetCommitResponse(tuple((commit.partition, error) for commit in request.partitions))
        case TxnOffsetCommitRequest():
            return TxnOffsetCommitResponse(tuple((commit.partition, error) for commit in request.partitions))
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(error)
        case _:
            raise InvariantError(f"{type(request).__name__} is not for one group")
