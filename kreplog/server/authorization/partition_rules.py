"""Rules of requests for records, offsets and transactions of partitions: operations on their topics.

Source: Kafka, KafkaApis; the tables of operations in its documentation, "Authorization and ACLs".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from kreplog.core.messages import (
    DeletedRecords,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ListedOffset,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    TransactionalProduce,
    WriteMarkersRequest,
    refusal_of_produce,
)
from kreplog.core.replication.sessions import FINAL_EPOCH
from kreplog.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kreplog.core.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
)
from kreplog.errors import ErrorCode
from kreplog.server.authorization.checks import (
    AuthorizationCheck,
    Authorized,
    Fields,
    is_transactional_allowed,
    message_fields,
    refused,
)
from kreplog.server.handlers.metadata import is_by_id, lists_all, may_create
from kreplog.types import NO_EPOCH, EpochEndOffset
from kreplog.wire import generic

_TOPIC_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_ID_FAILED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_topic_of = attrgetter("partition.topic")
_own_topic = attrgetter("topic")


def by_partition(
    check: AuthorizationCheck,
    request: Any,
    operation: Operation,
    refusal: Callable[[Any], Any],
    response_of: Callable[[tuple[Any, ...]], Any],
    topic_of: Callable[[Any], str] = _topic_of,
) -> Authorized:
    """Split the partitions of a request by an operation on their topics. refusal: makes the entry of the response for a
    refused one. response_of: makes a response that has only such entries."""
    allowed, denied = check.split(request.partitions, topic_of, operation)
    if not denied:
        return Authorized(request)
    refusals = tuple(map(refusal, denied))
    if not allowed:
        return refused(response_of(refusals))

    def finish(response: Any) -> Any:
        return replace(response, partitions=(*response.partitions, *refusals))

    return Authorized(replace(request, partitions=tuple(allowed)), finish)


# Records


def produce(check: AuthorizationCheck, request: ProduceRequest) -> Authorized:
    """WRITE on the topics, and on the transactional id if there is one. Without it the log refuses batches of a
    transaction: nothing looks into the records here, which nobody has checked yet."""
    if isinstance(request, TransactionalProduce):
        name = request.transactional_id
        if not name or not is_transactional_allowed(check, name):
            return refused(refusal_of_produce(request, _ID_FAILED))
    return by_partition(
        check,
        request,
        Operation.WRITE,
        lambda produced: ProducedPartition(produced.partition, _TOPIC_FAILED),
        ProduceResponse,
    )


def fetch(check: AuthorizationCheck, request: FetchRequest) -> Authorized:
    """READ on the topics that the request lists. A session never holds a topic that may not be read: such a request is
    served without one. What a session holds already is checked in fetch_sessions.py."""
    allowed, denied = check.split(request.partitions, _topic_of, Operation.READ)
    if not denied:
        return Authorized(request)
    refusals = tuple(
        FetchedPartition(requested.partition, _TOPIC_FAILED, topic_id=requested.topic_id) for requested in denied
    )
    if not allowed and not request.session_id:
        return refused(FetchResponse(ErrorCode.NONE, 0, refusals))

    def finish(response: FetchResponse) -> FetchResponse:
        return replace(response, partitions=(*response.partitions, *refusals))

    wait_ms = request.max_wait_ms if allowed else 0
    return Authorized(
        replace(request, partitions=tuple(allowed), session_epoch=FINAL_EPOCH, max_wait_ms=wait_ms), finish
    )


def without_unreadable(check: AuthorizationCheck, response: FetchResponse) -> FetchResponse:
    """The response without the records of topics that may not be read."""
    _, denied = check.split(response.partitions, _topic_of, Operation.READ)
    if not denied:
        return response
    topics = set(map(_topic_of, denied))
    return replace(
        response,
        partitions=tuple(
            FetchedPartition(fetched.partition, _TOPIC_FAILED, topic_id=fetched.topic_id)
            if fetched.partition.topic in topics
            else fetched
            for fetched in response.partitions
        ),
    )


def delete_records(check: AuthorizationCheck, request: DeleteRecordsRequest) -> Authorized:
    return by_partition(
        check,
        request,
        Operation.DELETE,
        lambda deleted: DeletedRecords(deleted.partition, _TOPIC_FAILED),
        DeleteRecordsResponse,
    )


def list_offsets(check: AuthorizationCheck, request: ListOffsetsRequest) -> Authorized:
    return by_partition(
        check,
        request,
        Operation.DESCRIBE,
        lambda listed: ListedOffset(listed.partition, _TOPIC_FAILED),
        ListOffsetsResponse,
    )


def leader_epochs(check: AuthorizationCheck, request: OffsetsForLeaderEpochRequest) -> Authorized:
    if check.allows_cluster(Operation.CLUSTER_ACTION, logs_denied=False):
        return Authorized(request)
    return by_partition(
        check,
        request,
        Operation.DESCRIBE,
        lambda sought: (sought.partition, _TOPIC_FAILED, EpochEndOffset(NO_EPOCH, -1)),
        OffsetsForLeaderEpochResponse,
    )


def write_markers(check: AuthorizationCheck, request: WriteMarkersRequest) -> Authorized:
    """ALTER or CLUSTER_ACTION on the cluster."""
    if check.allows_cluster(Operation.ALTER, logs_denied=False) or check.allows_cluster(Operation.CLUSTER_ACTION):
        return Authorized(request)
    return refused(refusal_of_produce(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def describe_producers(check: AuthorizationCheck, request: Any) -> Authorized:
    allowed, denied = check.split(request.topics, attrgetter("name"), Operation.READ)
    if not denied:
        return Authorized(request)
    request.topics = allowed
    failed = {**message_fields(_TOPIC_FAILED), "active_producers": []}
    refusals = [
        {"name": topic.name, "partitions": [{"partition_index": index, **failed} for index in topic.partition_indexes]}
        for topic in denied
    ]

    def finish(response: Fields | None) -> Fields:
        return {"topics": [*(response or {"topics": []})["topics"], *refusals]}

    return Authorized(request if allowed else None, finish)


# Transactions


def init_producer_id(check: AuthorizationCheck, request: Any) -> Authorized:
    """WRITE on the transactional id. Without one IdempotentWrite on the cluster, or WRITE on some topic (KIP-679)."""
    error = ErrorCode.NONE
    if request.transactional_id is not None:
        if not is_transactional_allowed(check, request.transactional_id):
            error = _ID_FAILED
    elif not check.access.allows_on_any(Operation.WRITE, ResourceType.TOPIC) and not check.allows_cluster(
        Operation.IDEMPOTENT_WRITE
    ):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if error is ErrorCode.NONE:
        return Authorized(request)
    return refused({"error_code": int(error), "producer_id": -1, "producer_epoch": -1})


def add_partitions(check: AuthorizationCheck, request: AddPartitionsToTxnRequest) -> Authorized:
    """WRITE on the transactional id and the topics: one that lacks it leaves all of them out."""
    if not is_transactional_allowed(check, request.transactional_id):
        return refused(AddPartitionsToTxnResponse(tuple((name, _ID_FAILED) for name in request.partitions)))
    allowed, denied = check.split(request.partitions, _own_topic, Operation.WRITE)
    if not denied:
        return Authorized(request)
    results = [(name, _TOPIC_FAILED) for name in denied]
    results += [(name, ErrorCode.OPERATION_NOT_ATTEMPTED) for name in allowed]
    return refused(AddPartitionsToTxnResponse(tuple(results)))


def add_offsets(check: AuthorizationCheck, request: AddOffsetsToTxnRequest) -> Authorized:
    if not is_transactional_allowed(check, request.transactional_id):
        return refused(AddOffsetsToTxnResponse(_ID_FAILED))
    if not check.allows(Operation.READ, ResourceType.GROUP, request.group_id):
        return refused(AddOffsetsToTxnResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    return Authorized(request)


def end_transaction(check: AuthorizationCheck, request: EndTxnRequest) -> Authorized:
    if is_transactional_allowed(check, request.transactional_id):
        return Authorized(request)
    return refused(EndTxnResponse(_ID_FAILED))


def describe_transactions(check: AuthorizationCheck, request: DescribeTransactionsRequest) -> Authorized:
    """DESCRIBE on the transactional ids; the response has only topics that may be described, too."""
    kind = ResourceType.TRANSACTIONAL_ID
    allowed, denied = check.split(request.transactional_ids, str, Operation.DESCRIBE, kind)
    refusals = tuple(DescribedTransaction(_ID_FAILED, name) for name in denied)

    def finish(response: DescribeTransactionsResponse | None) -> DescribeTransactionsResponse:
        shown = (
            replace(each, partitions=tuple(name for name in each.partitions if check.visible(name.topic)))
            for each in (response.transactions if response is not None else ())
        )
        return DescribeTransactionsResponse((*shown, *refusals))

    return Authorized(DescribeTransactionsRequest(tuple(allowed)) if allowed or not denied else None, finish)


def list_transactions(check: AuthorizationCheck, request: ListTransactionsRequest) -> Authorized:
    def finish(response: Any) -> Any:
        shown = (each for each in response.transactions if check.visible(each.transactional_id, kind))
        return replace(response, transactions=tuple(shown))

    kind = ResourceType.TRANSACTIONAL_ID
    return Authorized(request, finish)


# Metadata


def metadata(check: AuthorizationCheck, request: Any) -> Authorized:
    """DESCRIBE on the topics; to create one automatically also CREATE, on the topic or the cluster. A request for all
    topics gets those that may be described."""
    refusals: list[Fields] = []
    empty = {"is_internal": False, "partitions": []}
    of_all, hides_all = lists_all(request, check.version), False
    if not of_all:
        topics = [(topic, *_identity(check, topic)) for topic in request.topics]
        known, unknown_ids = [each for each in topics if each[1]], [each for each in topics if not each[1]]
        allowed, denied = check.split(known, lambda each: str(each[1]), Operation.DESCRIBE)
        uncreatable = _uncreatable(check, request, allowed)
        for topic, name, by_id in [*denied, *uncreatable]:
            shown = name if not by_id else None if check.version >= _NULL_NAMES_FROM else ""
            identity = {"name": shown, "topic_id": topic.topic_id if by_id else ""}
            refusals.append({"error_code": int(_TOPIC_FAILED), **identity, **empty})
        refused_topics = {id(topic) for topic, _, _ in [*denied, *uncreatable]}
        request.topics = [topic for topic, _, _ in topics if id(topic) not in refused_topics]
        hides_all = bool(topics) and not request.topics and not unknown_ids

    def finish(response: Fields) -> Fields:
        shown = [] if hides_all else response["topics"]
        if of_all:
            shown = [topic for topic in shown if check.visible(topic["name"])]
        topics = [*shown, *refusals]
        fields = {**response, "topics": topics}
        if check.version >= _OPERATIONS_FROM:
            if request.include_topic_authorized_operations:
                fields["topics"] = [{**topic, "authorized_operations": _operations(check, topic)} for topic in topics]
            if check.version <= _CLUSTER_OPERATIONS_TO and request.include_cluster_authorized_operations:
                fields["authorized_operations"] = cluster_operations(check)
        return fields

    return Authorized(request, finish)


_NULL_NAMES_FROM = 12
_OPERATIONS_FROM = 8
_CLUSTER_OPERATIONS_TO = 10
"""Versions of Metadata: whose names may be null, and that have the authorized operations of topics, and of the cluster
(KIP-430, KIP-700)."""


def _identity(check: AuthorizationCheck, topic: Any) -> tuple[str | None, bool]:
    """(name, whether the request has its id in place of the name); no name for an id that is unknown."""
    if is_by_id(topic):
        return check.topics.name_of(generic.topic_id(topic.topic_id)), True
    return str(topic.name), False


_NamedTopic = tuple[Any, str | None, bool]
"""A topic of a Metadata request, and `_identity` of it."""


def _uncreatable(check: AuthorizationCheck, request: Any, topics: list[_NamedTopic]) -> list[_NamedTopic]:
    """Topics that do not exist, may be created by the request, and not by the client."""
    if not check.creates_topics or not may_create(request, check.version):
        return []
    missing = [each for each in topics if not each[2] and each[1] not in check.topics.all]
    if not missing or check.allows_cluster(Operation.CREATE, logs_denied=False):
        return []
    _, denied = check.split(missing, lambda each: str(each[1]), Operation.CREATE)
    return denied


def _operations(check: AuthorizationCheck, topic: Fields) -> frozenset[Operation]:
    return check.access.operations(ResourceType.TOPIC, topic["name"] or "")


def cluster_operations(check: AuthorizationCheck) -> frozenset[Operation]:
    """The operations on the cluster, none for those that may not describe it."""
    if not check.allows_cluster(Operation.DESCRIBE, logs_denied=False):
        return frozenset()
    return check.access.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def topic_partitions(check: AuthorizationCheck, request: Any) -> Authorized:
    """DescribeTopicPartitions: DESCRIBE on the topics; a request for all topics gets those that may be described."""
    names = [topic.name for topic in request.topics]
    refusals: list[Fields] = []
    if not check.access.is_super:  # else the request has its pages as it is
        given = names or list(check.topics.all)
        allowed, denied = check.split(given, str, Operation.DESCRIBE, logs_denied=bool(names))
        request.topics = [SimpleNamespace(name=name) for name in allowed]
        cursor = "" if request.cursor is None else request.cursor.topic_name
        empty = {"topic_id": "", "is_internal": False, "partitions": []}
        refusals = [
            {"error_code": int(_TOPIC_FAILED), "name": name, **empty}
            for name in (denied if names else ())
            if name >= cursor
        ]
    has_rest = check.access.is_super or bool(request.topics)

    def finish(response: Fields | None) -> Fields:
        fields = response or {"topics": [], "next_cursor": None}
        topics = [
            {**topic, "topic_authorized_operations": generic.bit_field(_operations(check, topic))}
            for topic in [*fields["topics"], *refusals]
        ]
        return {**fields, "topics": topics}

    return Authorized(request if has_rest else None, finish)
