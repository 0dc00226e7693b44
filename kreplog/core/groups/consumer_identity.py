"""Which member of a consumer group a heartbeat is from, and whether its epoch will do, as pure functions (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable

from kreplog.core.consumer_group_messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    CurrentAssignment,
)
from kreplog.core.groups.assignments import to_partitions
from kreplog.core.groups.consumer_group import ConsumerGroup
from kreplog.core.groups.consumer_heartbeats import refused
from kreplog.errors import ErrorCode


def identified(
    consumer: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, unique: Callable[[], str]
) -> str | ConsumerGroupHeartbeatResponse:
    """The id of the member that a heartbeat is from, also of a new one; or the response that refuses it. A static
    member that has left is replaced by the one that has its instance id. unique: returns a new id."""
    member_id, instance_id = request.member_id, request.instance_id
    known = None if instance_id is None else consumer.static.get(instance_id)
    joins = request.member_epoch == JOIN_EPOCH
    if known is not None and known == replaced_member(consumer, request):
        if member_id != known and member_id in consumer.members:
            return refused(ErrorCode.INVALID_REQUEST, f"{member_id} is a member already, and not {instance_id}")
        return member_id or unique()
    if known is not None and known != member_id:
        if joins:
            return refused(ErrorCode.UNRELEASED_INSTANCE_ID, f"{instance_id} is still the member {known}")
        return refused(ErrorCode.FENCED_INSTANCE_ID, f"{instance_id} is the member {known} now")
    if member_id not in consumer.members or (instance_id is not None and known is None and not joins):
        if not joins:
            return refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member")
        return member_id or unique()
    return _fenced(consumer.assignment_of(member_id), request) or member_id


def replaced_member(consumer: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> str | None:
    """The static member that the one that joins with this request replaces: it has left, as those of the classic
    protocol do without a word."""
    holder = None if request.instance_id is None else consumer.static.get(request.instance_id)
    if request.member_epoch != JOIN_EPOCH or holder is None:
        return None
    return holder if consumer.has_left(holder) or consumer.is_classic(holder) else None


def _fenced(
    current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | None:
    """The response to a member that goes by another epoch than its own. The epoch before will do, if it owns nothing
    that can be another's: it has missed the response with the last. Kafka fences it, too, if it owns what that
    response has it revoke."""
    epoch = request.member_epoch
    if epoch == current.member_epoch or joins_again(current, request):
        return None
    if epoch == current.previous_member_epoch and request.owned is not None:
        own = to_partitions(current.assigned) | to_partitions(current.pending_revocation)
        if to_partitions(request.owned) <= own:
            return None
    text = f"the member's epoch is {current.member_epoch}, not {epoch}: it has to join again, without partitions"
    if current.member_epoch == STATIC_LEAVE_EPOCH:
        text += ", and with its InstanceId"
    return refused(ErrorCode.FENCED_MEMBER_EPOCH, text)


def joins_again(current: CurrentAssignment, request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether a member that has not left gives up what it owned, as one does that was fenced or whose leave was lost.
    Source: KAFKA-19233."""
    return request.member_epoch == JOIN_EPOCH < current.member_epoch
