"""Rules of requests of groups: operations on the group, and on the topics of its offsets and members.

Source: Kafka, KafkaApis; the tables of operations in its documentation, "Authorization and ACLs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from kreplog.core.broker.coordinator_lookup import GROUP, TRANSACTION
from kreplog.core.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribableTopics,
    DescribedConsumerGroup,
)
from kreplog.core.group_messages import (
    NO_OFFSET,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffsets,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kreplog.core.security.acls import Operation, ResourceType
from kreplog.errors import ErrorCode
from kreplog.server.authorization.checks import (
    FAILURES,
    MESSAGES,
    AuthorizationCheck,
    Authorized,
    Fields,
    Rule,
    is_transactional_allowed,
    message_fields,
    refused,
)
from kreplog.server.authorization.partition_rules import by_partition
from kreplog.types import TopicPartition

_GROUP_FAILED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_own_topic = attrgetter("topic")

_UNDESCRIBED_TOPIC = "The group has described topic(s) that the client is not authorized to describe."


def member(response_of: Callable[[ErrorCode], Any]) -> Rule:
    """The rule of a member's request: READ on the group. response_of: makes the response with an error."""

    def rule(check: AuthorizationCheck, request: Any) -> Authorized:
        if check.allows(Operation.READ, ResourceType.GROUP, request.group_id):
            return Authorized(request)
        return refused(response_of(_GROUP_FAILED))

    return rule


def consumer_heartbeat(check: AuthorizationCheck, request: ConsumerGroupHeartbeatRequest) -> Authorized:
    """READ on the group, DESCRIBE on every topic that the member names. Expressions of the group, which the heartbeat
    may have resolved, match no others than those that the client may describe."""
    error = ErrorCode.NONE
    if not check.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        error = _GROUP_FAILED
    elif check.split(request.subscribed_topics or (), str, Operation.DESCRIBE)[1]:
        error = _TOPIC_FAILED
    if error is ErrorCode.NONE:
        return Authorized(replace(request, view=DescribableTopics(check.visible, check.access.subject[0])))
    return refused(ConsumerGroupHeartbeatResponse(error, MESSAGES[error]))


# Offsets


def offset_commit(check: AuthorizationCheck, request: OffsetCommitRequest) -> Authorized:
    if not check.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return refused(OffsetCommitResponse(_errors(request.partitions, _GROUP_FAILED)))
    return _commit(check, request, OffsetCommitResponse)


def txn_offset_commit(check: AuthorizationCheck, request: TxnOffsetCommitRequest) -> Authorized:
    """WRITE on the transactional id, READ on the group and the topics."""
    if not is_transactional_allowed(check, request.transactional_id):
        failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return refused(TxnOffsetCommitResponse(_errors(request.partitions, failed)))
    if not check.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return refused(TxnOffsetCommitResponse(_errors(request.partitions, _GROUP_FAILED)))
    return _commit(check, request, TxnOffsetCommitResponse)


def _commit(check: AuthorizationCheck, request: Any, response_of: Callable[[tuple[Any, ...]], Any]) -> Authorized:
    return by_partition(
        check, request, Operation.READ, lambda committed: (committed.partition, _TOPIC_FAILED), response_of
    )


def _errors(partitions: Iterable[Any], error: ErrorCode) -> tuple[tuple[TopicPartition, ErrorCode], ...]:
    return tuple((each.partition, error) for each in partitions)


def offset_delete(check: AuthorizationCheck, request: OffsetDeleteRequest) -> Authorized:
    """DELETE on the group, READ on the topics."""
    if not check.allows(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return refused(OffsetDeleteResponse(_GROUP_FAILED))
    return by_partition(
        check,
        request,
        Operation.READ,
        lambda partition: (partition, _TOPIC_FAILED),
        lambda refusals: OffsetDeleteResponse(ErrorCode.NONE, refusals),
        _own_topic,
    )


def offset_fetch(check: AuthorizationCheck, request: OffsetFetchRequest) -> Authorized:
    """DESCRIBE on the groups and the topics; of a request for all offsets those of topics that may be described."""
    groups, denied = check.split(request.groups, attrgetter("group_id"), Operation.DESCRIBE, ResourceType.GROUP)
    left, refused_partitions = [], {}
    for group in groups:
        if group.partitions is not None:
            allowed, refused_partitions[group.group_id] = check.split(group.partitions, _own_topic, Operation.DESCRIBE)
            group = group._replace(partitions=tuple(allowed))
        left.append(group)
    refusals = tuple(_refused_group(group) for group in denied)

    def finish(response: OffsetFetchResponse | None) -> OffsetFetchResponse:
        found = () if response is None else response.groups
        return OffsetFetchResponse((*(finished(group) for group in found), *refusals))

    def finished(group: FetchedOffsets) -> FetchedOffsets:
        if group.error is not ErrorCode.NONE:
            return group
        hidden = refused_partitions.get(group.group_id)
        if hidden is None:
            shown, _ = check.split(group.offsets, lambda each: each[0].topic, Operation.DESCRIBE, logs_denied=False)
            return replace(group, offsets=tuple(shown))
        return _with_refused(group, hidden, _TOPIC_FAILED) if hidden else group

    return Authorized(replace(request, groups=tuple(left)) if left or not denied else None, finish)


def _refused_group(group: OffsetFetchGroup) -> FetchedOffsets:
    """With an error of each partition too, which is all that version 1 has."""
    return _with_refused(FetchedOffsets(group.group_id, _GROUP_FAILED), group.partitions or (), _GROUP_FAILED)


def _with_refused(group: FetchedOffsets, partitions: Iterable[TopicPartition], error: ErrorCode) -> FetchedOffsets:
    refused_offsets = tuple((partition, OffsetAndMetadata(NO_OFFSET)) for partition in partitions)
    return replace(
        group,
        offsets=(*group.offsets, *refused_offsets),
        refused=(*group.refused, *((partition, error) for partition in partitions)),
    )


# Coordinators and administrators


def find_coordinator(check: AuthorizationCheck, request: Any) -> Authorized:
    """DESCRIBE on the group or transactional id of each key."""
    kinds = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}
    key_type = request.key_type or 0
    if key_type not in kinds:
        return Authorized(request)  # the handler refuses other types
    failed: Fields = {**message_fields(FAILURES[kinds[key_type]]), "node_id": -1, "host": "", "port": -1}
    if check.version < _SEVERAL_KEYS_FROM:
        if check.allows(Operation.DESCRIBE, kinds[key_type], request.key):
            return Authorized(request)
        return refused(failed)
    allowed, denied = check.split(request.coordinator_keys, str, Operation.DESCRIBE, kinds[key_type])
    if not denied:
        return Authorized(request)
    request.coordinator_keys = allowed
    refusals = [{**failed, "key": key} for key in dict.fromkeys(denied)]

    def finish(response: Fields | None) -> Fields:
        return {**(response or {}), "coordinators": [*(response or {"coordinators": []})["coordinators"], *refusals]}

    return Authorized(request if allowed else None, finish)


_SEVERAL_KEYS_FROM = 4
"""Version of FindCoordinator that is for several keys (KIP-699)."""


def describe_groups(check: AuthorizationCheck, request: DescribeGroupsRequest) -> Authorized:
    allowed, refusals = _split_groups(check, request, Operation.DESCRIBE, DescribedGroup)

    def finish(response: DescribeGroupsResponse | None) -> DescribeGroupsResponse:
        groups = () if response is None else response.groups
        return DescribeGroupsResponse((*_with_operations(check, request, groups), *refusals))

    return Authorized(allowed, finish)


def describe_consumer_groups(check: AuthorizationCheck, request: ConsumerGroupDescribeRequest) -> Authorized:
    """DESCRIBE on the groups; a group with a topic that may not be described is not described either."""
    allowed, refusals = _split_groups(
        check,
        request,
        Operation.DESCRIBE,
        lambda group_id, error: DescribedConsumerGroup(group_id, error, MESSAGES[error]),
    )

    def finish(response: ConsumerGroupDescribeResponse | None) -> ConsumerGroupDescribeResponse:
        groups = () if response is None else response.groups
        shown = (
            group
            if all(check.visible(topic) for topic in _topics_of(group))
            else DescribedConsumerGroup(group.group_id, _TOPIC_FAILED, _UNDESCRIBED_TOPIC)
            for group in groups
        )
        return ConsumerGroupDescribeResponse((*_with_operations(check, request, shown), *refusals))

    return Authorized(allowed, finish)


def _topics_of(group: DescribedConsumerGroup) -> set[str]:
    """The topics that its members name or are assigned."""
    return {
        topic
        for member in group.members
        for topic in (
            *member.subscribed_topics,
            *(assigned.topic for assigned in (*member.assignment, *member.target_assignment)),
        )
    }


def _split_groups(
    check: AuthorizationCheck, request: Any, operation: Operation, refusal: Callable[[str, ErrorCode], Any]
) -> tuple[Any, tuple[Any, ...]]:
    """(what is left of a request with group ids, or None; the refused groups)."""
    allowed, denied = check.split(request.group_ids, str, operation, ResourceType.GROUP)
    refusals = tuple(refusal(group_id, _GROUP_FAILED) for group_id in denied)
    return replace(request, group_ids=tuple(allowed)) if allowed or not denied else None, refusals


def _with_operations(check: AuthorizationCheck, request: Any, groups: Iterable[Any]) -> Iterable[Any]:
    if not request.includes_operations:
        return groups
    return (
        replace(group, authorized_operations=check.access.operations(ResourceType.GROUP, group.group_id))
        if group.error is ErrorCode.NONE
        else group
        for group in groups
    )


def list_groups(check: AuthorizationCheck, request: ListGroupsRequest) -> Authorized:
    """All groups with DESCRIBE on the cluster; else those that may be described."""
    if check.allows_cluster(Operation.DESCRIBE, logs_denied=False):
        return Authorized(request)

    def finish(response: ListGroupsResponse) -> ListGroupsResponse:
        shown = (group for group in response.groups if check.visible(group.group_id, ResourceType.GROUP))
        return replace(response, groups=tuple(shown))

    return Authorized(request, finish)


def delete_groups(check: AuthorizationCheck, request: DeleteGroupsRequest) -> Authorized:
    allowed, refusals = _split_groups(check, request, Operation.DELETE, lambda group_id, error: (group_id, error))

    def finish(response: DeleteGroupsResponse | None) -> DeleteGroupsResponse:
        return DeleteGroupsResponse((*(() if response is None else response.results), *refusals))

    return Authorized(allowed, finish)
