"""Requests of transactions, to and from the messages of `core`, in the versions that are offered.

Decoders raise PeerProtocolError. In versions without the error PRODUCER_FENCED it is INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kreplog.core.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    TransactionMarker,
    WriteMarkersRequest,
)
from kreplog.core.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FENCED_FROM = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""By API key: the first version with the error PRODUCER_FENCED (KIP-588)."""


_DURATION_FROM = 1
"""The first version of ListTransactions with a filter by duration."""

_PATTERN_FROM = 2
"""The first version of ListTransactions with a filter by a regular expression."""

_BUMPS_EPOCH_FROM = 5
"""Version of EndTxn whose producers go on in the epoch that is in the response."""

FROM_LEADERS = 4
"""The first version of AddPartitionsToTxn that leaders send instead of producers."""


def error_code(error: ErrorCode, key: int, version: int) -> int:
    """The error as a version of the API has it."""
    if error is ErrorCode.PRODUCER_FENCED and version < _FENCED_FROM[ApiKey(key)]:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return int(error)


def decode_add_partitions(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> AddPartitionsToTxnRequest:
    message = generic.decode_request(frame, header, budget)
    named = [TopicPartition(topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions]
    return AddPartitionsToTxnRequest(
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
        tuple(dict.fromkeys(named)),
    )


def encode_add_partitions_response(response: AddPartitionsToTxnResponse, header: RequestHeader) -> list[Buffer]:
    key, version = header.api_key, header.api_version
    results = [
        (topic, [(number, error_code(error, key, version)) for number, error in numbers])
        for topic, numbers in _by_topic(response.partitions)
    ]
    return generic.encode_response(header, results_by_topic_v3_and_below=results)


def _by_topic(partitions: Iterable[tuple[TopicPartition, Any]]) -> Iterable[tuple[str, list[tuple[int, Any]]]]:
    found: dict[str, list[tuple[int, Any]]] = {}
    for (topic, number), rest in partitions:
        found.setdefault(topic, []).append((number, rest))
    return found.items()


def _numbers_by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    return [
        (topic, [number for number, _ in numbers]) for topic, numbers in _by_topic((name, None) for name in partitions)
    ]


def _errors_by_topic(partitions: Iterable[tuple[TopicPartition, ErrorCode]]) -> list[tuple[str, list[tuple[int, int]]]]:
    return [(topic, [(number, int(error)) for number, error in errors]) for topic, errors in _by_topic(partitions)]


def decode_add_offsets(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> AddOffsetsToTxnRequest:
    message = generic.decode_request(frame, header, budget)
    return AddOffsetsToTxnRequest(
        message.transactional_id, message.producer_id, message.producer_epoch, message.group_id
    )


def encode_add_offsets_response(response: AddOffsetsToTxnResponse, header: RequestHeader) -> list[Buffer]:
    return generic.encode_response(header, error_code=error_code(response.error, header.api_key, header.api_version))


def decode_end_txn(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> EndTxnRequest:
    message = generic.decode_request(frame, header, budget)
    producer = message.producer_id, message.producer_epoch
    bumps_epoch = header.api_version >= _BUMPS_EPOCH_FROM
    return EndTxnRequest(message.transactional_id, *producer, bool(message.committed), bumps_epoch)


def encode_end_txn_response(response: EndTxnResponse, header: RequestHeader) -> list[Buffer]:
    error = error_code(response.error, header.api_key, header.api_version)
    producer = {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}
    return generic.encode_response(header, error_code=error, **producer)


# Requests of administrators


def decode_describe(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> DescribeTransactionsRequest:
    message = generic.decode_request(frame, header, budget)
    return DescribeTransactionsRequest(tuple(dict.fromkeys(message.transactional_ids)))


def encode_describe_response(response: DescribeTransactionsResponse, header: RequestHeader) -> list[Buffer]:
    states = [
        {
            "error_code": int(described.error),
            "transactional_id": described.transactional_id,
            "transaction_state": described.state,
            "transaction_timeout_ms": described.timeout_ms,
            "transaction_start_time_ms": described.start_ms,
            "producer_id": described.producer_id,
            "producer_epoch": described.producer_epoch,
            "topics": _numbers_by_topic(described.partitions),
        }
        for described in response.transactions
    ]
    return generic.encode_response(header, transaction_states=states)


def decode_list(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> ListTransactionsRequest:
    message = generic.decode_request(frame, header, budget)
    longer_than_ms = message.duration_filter if header.api_version >= _DURATION_FROM else -1
    pattern = (message.transactional_id_pattern or "") if header.api_version >= _PATTERN_FROM else ""
    filters = tuple(message.state_filters), tuple(message.producer_id_filters), longer_than_ms
    return ListTransactionsRequest(*filters, pattern)


def encode_list_response(response: ListTransactionsResponse, header: RequestHeader) -> list[Buffer]:
    states = [
        {
            "transactional_id": listed.transactional_id,
            "producer_id": listed.producer_id,
            "transaction_state": listed.state,
        }
        for listed in response.transactions
    ]
    return generic.encode_response(
        header,
        error_code=int(response.error),
        unknown_state_filters=list(response.unknown_states),
        transaction_states=states,
    )


# Requests of leaders (KIP-890)


def encode_leaders_add_partitions(requests: Sequence[AddPartitionsToTxnRequest], header: RequestHeader) -> list[Buffer]:
    """A leader's request for several transactions, at most one of each transactional id."""
    transactions = [
        (
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.verify_only,
            _numbers_by_topic(request.partitions),
        )
        for request in requests
    ]
    return generic.encode_request(header, transactions=transactions)


def decode_leaders_add_partitions(frame: Buffer, header: RequestHeader) -> list[AddPartitionsToTxnRequest]:
    message = generic.decode_request(frame, header)
    return [
        AddPartitionsToTxnRequest(
            sent.transactional_id,
            sent.producer_id,
            sent.producer_epoch,
            tuple(TopicPartition(topic.name, number) for topic in sent.topics for number in topic.partitions),
            from_leader=True,
            verify_only=bool(sent.verify_only),
        )
        for sent in message.transactions
    ]


def encode_leaders_add_partitions_response(
    responses: Mapping[str, AddPartitionsToTxnResponse], header: RequestHeader
) -> list[Buffer]:
    """The response to a leader that verifies partitions. responses: by transactional id."""
    results = [
        {
            "transactional_id": transactional_id,
            "coordinator_epoch": response.coordinator_epoch,  # a tagged field, which no tuple has
            "topic_results": _errors_by_topic(response.partitions),
        }
        for transactional_id, response in responses.items()
    ]
    return generic.encode_response(header, results_by_transaction=results)


def decode_leaders_add_partitions_response(
    frame: Buffer, header: RequestHeader
) -> dict[str, AddPartitionsToTxnResponse]:
    """The responses by transactional id."""
    message = generic.decode_response(frame, header)
    return {
        result.transactional_id: AddPartitionsToTxnResponse(
            tuple(
                (TopicPartition(topic.name, found.partition_index), generic.error_of(found.partition_error_code))
                for topic in result.topic_results
                for found in topic.results_by_partition
            ),
            result.coordinator_epoch,
        )
        for result in message.results_by_transaction
    }


# Markers, of a coordinator or of a client that ends a hanging transaction (KIP-664)


def encode_write_markers(request: WriteMarkersRequest, header: RequestHeader) -> list[Buffer]:
    """A request of a coordinator, in which the partitions of each transaction are adjacent."""
    markers = [
        (
            marker.producer_id,
            marker.producer_epoch,
            marker.committed,
            _numbers_by_topic(produced.partition for produced in of_marker),
            marker.coordinator_epoch,
        )
        for marker, of_marker in groupby(request.partitions, lambda produced: produced.records)
    ]
    return generic.encode_request(header, markers=markers)


def decode_write_markers(
    frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS, *, timeout_ms: int
) -> WriteMarkersRequest:
    """A request for the markers of one or more transactions.

    timeout_ms: how long the in-sync replicas may take to have the markers."""
    message = generic.decode_request(frame, header, budget)
    produced = tuple(
        ProducePartition(TopicPartition(topic.name, number), marker)
        for sent, marker in ((sent, _marker(sent)) for sent in message.markers)
        for topic in sent.topics
        for number in topic.partition_indexes
    )
    return WriteMarkersRequest(-1, timeout_ms, produced)


def _marker(sent: Any) -> TransactionMarker:
    """Where no marker of the producer is in a log, DescribeProducers has the coordinator epoch -1, which a client may
    send back: it is before all others, as 0 is."""
    return TransactionMarker(
        sent.producer_id, sent.producer_epoch, bool(sent.transaction_result), max(0, sent.coordinator_epoch)
    )


def encode_write_markers_response(
    response: ProduceResponse, request: WriteMarkersRequest, header: RequestHeader
) -> list[Buffer]:
    pairs = zip(request.partitions, response.partitions, strict=True)
    markers = [
        (marker.producer_id, _errors_by_topic((produced.partition, produced.error) for _, produced in of_marker))
        for marker, of_marker in groupby(pairs, lambda pair: pair[0].records)
    ]
    return generic.encode_response(header, markers=markers)


def decode_write_markers_response(
    frame: Buffer, header: RequestHeader, request: WriteMarkersRequest
) -> ProduceResponse:
    """The error of each partition, in the request's order; base offsets are not in the response. What it lacks has
    UNKNOWN_SERVER_ERROR. A producer occurs at most once in the request."""
    message = generic.decode_response(frame, header)
    errors = {
        (marker.producer_id, topic.name, partition.partition_index): generic.error_of(partition.error_code)
        for marker in message.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
    return ProduceResponse(
        tuple(
            ProducedPartition(
                produced.partition,
                errors.get((produced.records.producer_id, *produced.partition), ErrorCode.UNKNOWN_SERVER_ERROR),
            )
            for produced in request.partitions
        )
    )


DECODERS: dict[int, Callable[[Buffer, RequestHeader, int], Any]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: decode_add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: decode_add_offsets,
    ApiKey.END_TXN: decode_end_txn,
    ApiKey.DESCRIBE_TRANSACTIONS: decode_describe,
    ApiKey.LIST_TRANSACTIONS: decode_list,
}
"""By API key: makes the request of `core` from a frame."""

ENCODERS: dict[int, Callable[[Any, RequestHeader], Sequence[Any]]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: encode_add_partitions_response,
    ApiKey.ADD_OFFSETS_TO_TXN: encode_add_offsets_response,
    ApiKey.END_TXN: encode_end_txn_response,
    ApiKey.DESCRIBE_TRANSACTIONS: encode_describe_response,
    ApiKey.LIST_TRANSACTIONS: encode_list_response,
}
"""By API key: makes the frame of a response of `core`."""
