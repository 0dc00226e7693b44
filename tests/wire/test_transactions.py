"""Transactions on the wire: requests, markers between brokers, and the records of `__transaction_state`."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.api_header import ResponseClassRegistry

from kreplog._native import batch
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
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionMetadata,
    TransactionRecord,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import generic, transaction_records, transactions
from kreplog.wire.frames import decode_request_header
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey
from tests.wire.messages import header, joined

A0, A2, B1 = TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)


def decoded(key: ApiKey, version: int, **fields: Any) -> Any:
    (frame,) = generic.encode_request(header(key, version), **fields)
    body = bytes(frame)[4:]
    return transactions.DECODERS[key](body, decode_request_header(body), 1000)


def encoded(key: ApiKey, version: int, response: Any) -> Any:
    (frame,) = transactions.ENCODERS[key](response, header(key, version))
    return generic.decode_response(bytes(frame)[4:], header(key, version))


@pytest.mark.parametrize("version", range(4))
def test_add_partitions(version: int) -> None:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    request = decoded(
        key,
        version,
        v3_and_below_transactional_id="id",
        v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=3,
        v3_and_below_topics=[{"name": "a", "partitions": [0, 2, 0]}, {"name": "b", "partitions": [1]}],
    )
    assert request == AddPartitionsToTxnRequest("id", 7, 3, (A0, A2, B1))
    results = ((A0, ErrorCode.NONE), (A2, ErrorCode.PRODUCER_FENCED), (B1, ErrorCode.NONE))
    response = encoded(key, version, AddPartitionsToTxnResponse(results))
    fenced = 90 if version >= 2 else 47
    assert [
        (topic.name, [(result.partition_index, result.partition_error_code) for result in topic.results_by_partition])
        for topic in response.results_by_topic_v3_and_below
    ] == [("a", [(0, 0), (2, fenced)]), ("b", [(1, 0)])]


@pytest.mark.parametrize("version", range(5))
def test_add_offsets(version: int) -> None:
    key = ApiKey.ADD_OFFSETS_TO_TXN
    request = decoded(key, version, transactional_id="id", producer_id=7, producer_epoch=3, group_id="g")
    assert request == AddOffsetsToTxnRequest("id", 7, 3, "g")
    response = encoded(key, version, AddOffsetsToTxnResponse(ErrorCode.PRODUCER_FENCED))
    assert response.error_code == (90 if version >= 2 else 47)


@pytest.mark.parametrize("version", range(5))
def test_end_txn(version: int) -> None:
    for committed in (True, False):
        request = decoded(
            ApiKey.END_TXN, version, transactional_id="id", producer_id=7, producer_epoch=3, committed=committed
        )
        assert request == EndTxnRequest("id", 7, 3, committed)
    response = encoded(ApiKey.END_TXN, version, EndTxnResponse(ErrorCode.PRODUCER_FENCED))
    assert response.error_code == (90 if version >= 2 else 47)


@pytest.mark.parametrize("committed", [True, False])
def test_markers_between_brokers(committed: bool) -> None:
    request_header = header(ApiKey.WRITE_TXN_MARKERS, 1)
    sent = ((A0, 7), (A2, 7), (B1, 7), (B1, 8), (A0, 9))
    produced = tuple(ProducePartition(name, TransactionMarker(producer, 3, committed, 9)) for name, producer in sent)
    request = WriteMarkersRequest(-1, 500, produced)
    frame = joined(transactions.encode_write_markers(request, request_header))[4:]
    sent_header = decode_request_header(frame, BETWEEN_BROKERS)
    assert transactions.decode_write_markers(frame, sent_header, timeout_ms=500) == request
    none, moved = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
    errors = zip(produced, (none, moved, none, moved, none), strict=True)
    response = ProduceResponse(tuple(ProducedPartition(each.partition, error) for each, error in errors))
    frame = joined(transactions.encode_write_markers_response(response, request, request_header))[4:]
    assert transactions.decode_write_markers_response(frame, request_header, request) == response
    longer = WriteMarkersRequest(-1, 500, (*produced, ProducePartition(B1, TransactionMarker(9, 3, committed, 9))))
    lacking = transactions.decode_write_markers_response(frame, request_header, longer)
    assert lacking.partitions[-1].error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_kip_664_markers_of_a_client_are_of_several_transactions() -> None:
    """Their partitions may be the same; -1 is the coordinator epoch of a log without a marker of the producer."""
    request_header = header(ApiKey.WRITE_TXN_MARKERS, 1)
    sent = [(7, 3, False, [("a", [0, 2])], -1), (8, 0, True, [("a", [0]), ("b", [1])], 5), (9, 0, False, [], 0)]
    frame = joined(generic.encode_request(request_header, markers=sent))[4:]
    request = transactions.decode_write_markers(frame, decode_request_header(frame), timeout_ms=500)
    first, second = TransactionMarker(7, 3, False, 0), TransactionMarker(8, 0, True, 5)
    of_first, of_second = ((A0, first), (A2, first)), ((A0, second), (B1, second))
    assert request == WriteMarkersRequest(-1, 500, tuple(ProducePartition(*each) for each in (*of_first, *of_second)))
    errors = (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.NONE)
    response = ProduceResponse(
        tuple(ProducedPartition(each.partition, error) for each, error in zip(request.partitions, errors, strict=True))
    )
    frame = joined(transactions.encode_write_markers_response(response, request, request_header))[4:]
    found = [
        (marker.producer_id, topic.name, partition.partition_index, partition.error_code)
        for marker in generic.decode_response(frame, request_header).markers
        for topic in marker.topics
        for partition in topic.partitions
    ]
    assert found == [(7, "a", 0, 0), (7, "a", 2, 6), (8, "a", 0, 47), (8, "b", 1, 0)]
    nothing = WriteMarkersRequest(-1, 500, ())
    frame = joined(transactions.encode_write_markers_response(ProduceResponse(()), nothing, request_header))[4:]
    assert not generic.decode_response(frame, request_header).markers


def test_describe_transactions() -> None:
    key = ApiKey.DESCRIBE_TRANSACTIONS
    assert decoded(key, 0, transactional_ids=["id", "u", "id"]) == DescribeTransactionsRequest(("id", "u"))
    described = DescribedTransaction(ErrorCode.NONE, "id", "Ongoing", 60_000, 2**40, 7, 3, (A0, A2, B1))
    unknown = DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "u")
    first, second = encoded(key, 0, DescribeTransactionsResponse((described, unknown))).transaction_states
    assert (first.transaction_state, first.transaction_timeout_ms, first.transaction_start_time_ms) == (
        ("Ongoing", 60_000, 2**40)
    )
    assert (first.error_code, first.transactional_id, first.producer_id, first.producer_epoch) == (0, "id", 7, 3)
    assert [(topic.topic, list(topic.partitions)) for topic in first.topics] == [("a", [0, 2]), ("b", [1])]
    assert (second.error_code, second.transactional_id, second.transaction_start_time_ms) == (105, "u", -1)


@pytest.mark.parametrize("version", range(3))
def test_list_transactions(version: int) -> None:
    key = ApiKey.LIST_TRANSACTIONS
    duration = {"duration_filter": 5} if version else {}
    pattern = {"transactional_id_pattern": "a.*"} if version > 1 else {}
    request = decoded(key, version, state_filters=["Ongoing"], producer_id_filters=[7, 8], **duration, **pattern)
    assert request == ListTransactionsRequest(("Ongoing",), (7, 8), 5 if version else -1, "a.*" if version > 1 else "")
    assert decoded(key, version, state_filters=[], producer_id_filters=[]) == ListTransactionsRequest()
    listed = (ListedTransaction("id", 7, "Ongoing"),)
    message = encoded(key, version, ListTransactionsResponse(ErrorCode.NONE, ("odd",), listed))
    (found,) = message.transaction_states
    assert (found.transactional_id, found.producer_id, found.transaction_state) == listed[0]
    assert list(message.unknown_state_filters) == ["odd"] and message.error_code == 0


def test_kip_890_requests_of_leaders() -> None:
    key = ApiKey.ADD_PARTITIONS_TO_TXN
    requests = [
        AddPartitionsToTxnRequest("id", 7, 3, (A0, A2, B1), from_leader=True, verify_only=True),
        AddPartitionsToTxnRequest("other", 8, 0, (A0,), from_leader=True),
    ]
    request_header = header(key, BETWEEN_BROKERS[key][1])
    frame = joined(transactions.encode_leaders_add_partitions(requests, request_header))[4:]
    assert transactions.decode_leaders_add_partitions(frame, decode_request_header(frame, BETWEEN_BROKERS)) == requests
    responses = {
        "id": AddPartitionsToTxnResponse(((A0, ErrorCode.NONE), (B1, ErrorCode.TRANSACTION_ABORTABLE)), 5),
        "other": AddPartitionsToTxnResponse(((A0, ErrorCode.NOT_COORDINATOR),)),
    }
    frame = joined(transactions.encode_leaders_add_partitions_response(responses, request_header))[4:]
    assert transactions.decode_leaders_add_partitions_response(frame, request_header) == responses


def test_the_clients_of_kafka_python_keep_their_own_class_of_a_response_that_brokers_have_another_of() -> None:
    registered = ResponseClassRegistry._response_class_registry[ApiKey.ADD_PARTITIONS_TO_TXN]
    assert "results_by_topic_v3_and_below" in registered._struct.fields


RECORDS = (
    TransactionRecord("id", TransactionMetadata(7, 3, 60_000, 1, (A0, A2, B1), 1_700_000_000_000, 1_699_999_999_999)),
    TransactionRecord("näme", TransactionMetadata(8, 0, 1, 0, (), 5, -1)),
    TransactionRecord("gone", None),
)


def test_records_are_kafkas() -> None:
    """TransactionLogKey and TransactionLogValue in version 0, by hand."""
    (key, value), (_, empty), (_, tombstone) = map(transaction_records.encode_record, RECORDS)
    assert key == bytes.fromhex("0000 0002") + b"id"
    assert value == bytes.fromhex(
        "0000 0000000000000007 0003 0000ea60 01"  # version, producer id, epoch, time-out, state
        "00000002 0001 61 00000002 00000000 00000002 0001 62 00000001 00000001"  # a: 0, 2; b: 1
        "0000018bcfe56800 0000018bcfe567ff"
    )
    assert empty == bytes.fromhex("0000 0000000000000008 0000 00000001 00 ffffffff 0000000000000005 ffffffffffffffff")
    assert tombstone is None


FLEXIBLE = (
    TransactionRecord("id", TransactionMetadata(7, 4, 60_000, 2, (A0, A2, B1), 2**40, 2**39, 2, -1, 300)),
    TransactionRecord("id", TransactionMetadata(300, 0, 60_000, 4, (), 2**40, -1, 2, 7, -1)),
    TransactionRecord("id", TransactionMetadata(300, 1, 60_000, 1, (A0,), 2**40, 5, 0, 7, -1)),
)


def test_kip_890_records_of_the_second_protocol_are_kafkas() -> None:
    """TransactionLogValue in version 1, by hand."""
    (_, value), (_, completed), _ = map(transaction_records.encode_record, FLEXIBLE)
    assert value == bytes.fromhex(
        "0001 0000000000000007 0004 0000ea60 02"
        "03 02 61 03 00000000 00000002 00 02 62 02 00000001 00"  # a: 0, 2; b: 1, each with its tags
        "0000010000000000 0000008000000000"
        "02 01 08 000000000000012c 02 02 0002"  # two tags: the next producer id, the version of the client
    )
    assert completed is not None and completed.endswith(bytes.fromhex("00 08 0000000000000007 02 02 0002"))


def test_records_of_the_second_protocol_are_read_back_and_damaged_ones_left_out() -> None:
    data = transaction_records.encode_batch(FLEXIBLE)
    assert transaction_records.decode_batches(data, 0) == tuple(enumerate(FLEXIBLE))
    key, value = transaction_records.encode_record(FLEXIBLE[0])
    assert value is not None
    damaged = [(key, value[:cut]) for cut in range(1, len(value))]
    damaged += [(key, value[:17] + size + value[18:]) for size in (b"\x7f", b"\xff\xff\xff\xff\xff")]
    found = transaction_records.decode_batches(batch.build([v for _, v in damaged], [k for k, _ in damaged]), 0)
    assert not found


def test_records_are_read_back_and_what_is_none_is_left_out() -> None:
    data = transaction_records.encode_batch(RECORDS)
    assert transaction_records.decode_batches(data, 1) == tuple(enumerate(RECORDS))[1:]
    key, value = transaction_records.encode_record(RECORDS[0])
    assert value is not None
    damaged = [(key, value[:cut]) for cut in range(1, len(value))]
    damaged += [(b"\0\1" + key[2:], value), (key, b"\0\2" + value[2:]), (key[:3], value), (b"", value)]
    found = transaction_records.decode_batches(batch.build([v for _, v in damaged], [k for k, _ in damaged]), 0)
    assert not found
