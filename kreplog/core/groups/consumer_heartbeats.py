"""What a heartbeat of the consumer protocol says, as pure functions (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection

from kreplog.core.consumer_group_messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerMemberMetadata,
)
from kreplog.core.patterns import whole_text_matcher
from kreplog.errors import ErrorCode


def invalid(
    request: ConsumerGroupHeartbeatRequest, assignors: Collection[str]
) -> ConsumerGroupHeartbeatResponse | None:
    """The response to a heartbeat that makes no sense, None if it does. assignors: that a member may prefer."""
    epoch, problem = request.member_epoch, None
    joins = epoch == JOIN_EPOCH
    if request.instance_id == "" or request.rack_id == "":
        problem = "InstanceId and RackId are null or not empty"
    elif not request.member_id and not (joins and request.needs_member_id):
        problem = "MemberId is empty"
    elif epoch < STATIC_LEAVE_EPOCH:
        problem = f"MemberEpoch is {epoch}, which is no epoch"
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "InstanceId is null, of a static member that leaves"
    elif joins and request.rebalance_timeout_ms < 0:
        problem = "RebalanceTimeoutMs is missing, of a member that joins"
    elif joins and request.owned != ():
        problem = "TopicPartitions is not an empty list, of a member that joins"
    elif joins and request.subscribed_topics is None and request.subscribed_regex is None:
        problem = "SubscribedTopicNames and SubscribedTopicRegex are null, of a member that joins"
    if problem is not None:
        return refused(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        offered = ",".join(assignors)
        return refused(ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.server_assignor} is none of {offered}")
    if request.subscribed_regex and whole_text_matcher(request.subscribed_regex) is None:
        text = f"SubscribedTopicRegex {request.subscribed_regex} is no regular expression of RE2's syntax"
        return refused(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
    return None


def refused(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error, message)


def stated(member: ConsumerMemberMetadata, request: ConsumerGroupHeartbeatRequest) -> ConsumerMemberMetadata:
    """A member's metadata from this heartbeat, and from earlier ones where this has none."""
    topics, regex = request.subscribed_topics, request.subscribed_regex
    return ConsumerMemberMetadata(
        request.instance_id or member.instance_id,
        request.rack_id or member.rack_id,
        request.client_id,
        request.client_host,
        member.subscribed_topics if topics is None else tuple(sorted(set(topics))),
        member.subscribed_regex if regex is None else regex or None,
        member.rebalance_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
        request.server_assignor or member.server_assignor,
    )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether a member states all, as when it joins or has missed a response."""
    subscribed = request.subscribed_topics is not None or request.subscribed_regex is not None
    return request.rebalance_timeout_ms >= 0 and subscribed and request.owned is not None
