"""Fetch in every version: kept through bytes, the same bytes as kafka-python's, records never copied."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from kafka.protocol.consumer.fetch import FetchResponse as TheirFetchResponse

from kreplog._native import batch
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode, UsageError
from kreplog.types import BrokerRegistration, FileRegion, TopicPartition
from kreplog.wire import fetch
from kreplog.wire.frames import decode_request_header
from kreplog.wire.versions import ApiKey
from tests.wire import peer
from tests.wire.messages import (
    FETCH_VERSIONS,
    IDS,
    NAMES,
    body_of,
    fetch_requests,
    fetch_responses,
    header,
    joined,
    seen_fetch_request,
    seen_fetch_response,
)

versions = pytest.mark.parametrize("version", FETCH_VERSIONS)
PLACE = TopicPartition("flights", 3)


@versions
@settings(max_examples=30)
@given(request=fetch_requests)
def test_a_request_is_kept_and_is_what_kafka_python_writes(version: int, request: FetchRequest) -> None:
    request_header = header(ApiKey.FETCH, version)
    frame = joined(fetch.encode_request(request, request_header, IDS.__getitem__))
    assert frame == peer.framed_request(peer.fetch_request(request, version), request_header)
    decoded = fetch.decode_request(frame[4:], decode_request_header(frame[4:]), NAMES.get)
    assert decoded == (seen_fetch_request(request, version), ())


@versions
@settings(max_examples=30)
@given(response=fetch_responses)
def test_a_response_is_kept_and_is_what_kafka_python_writes(version: int, response: FetchResponse) -> None:
    request_header = header(ApiKey.FETCH, version)
    frame = joined(fetch.encode_response(response, request_header, IDS.__getitem__))
    assert frame == peer.framed_response(peer.fetch_response(response, version), request_header)
    assert fetch.decode_response(frame[4:], request_header, NAMES.get) == seen_fetch_response(response, version)


@versions
def test_the_last_stable_offset(version: int) -> None:
    """Of a partition without undecided transactions it is the high watermark."""
    request_header = header(ApiKey.FETCH, version)
    for last_stable in (-1, 3):
        fetched = FetchedPartition(PLACE, ErrorCode.NONE, 5, 1, records=b"batch", last_stable_offset=last_stable)
        response = FetchResponse(ErrorCode.NONE, 0, (fetched,))
        frame = joined(fetch.encode_response(response, request_header, IDS.__getitem__))
        assert frame == peer.framed_response(peer.fetch_response(response, version), request_header)
        (found,) = fetch.decode_response(frame[4:], request_header, NAMES.get).partitions
        assert found.last_stable_offset == last_stable


@versions
def test_no_aborted_transactions_and_tags_that_are_not_ours(version: int) -> None:
    aborted = ((1, 0), (1, 7))
    fetched = FetchedPartition(PLACE, ErrorCode.NONE, 5, 1, records=b"batch", aborted=aborted)
    response = FetchResponse(ErrorCode.NONE, 0, (fetched,))
    theirs = peer.fetch_response(response, version)
    snapshot = peer.part(TheirFetchResponse, "responses.partitions.snapshot_id")
    (partition,) = theirs.responses[0].partitions
    if version >= 12:
        partition.snapshot_id = snapshot(version=version, end_offset=1, epoch=2)
    request_header = header(ApiKey.FETCH, version)
    frame = peer.framed_response(theirs, request_header)[4:]
    assert fetch.decode_response(frame, request_header, NAMES.get) == seen_fetch_response(response, version)
    partition.aborted_transactions = partition.records = None
    frame = peer.framed_response(theirs, request_header)[4:]
    (empty,) = fetch.decode_response(frame, request_header, NAMES.get).partitions
    assert (empty.records, empty.aborted) == (b"", ())


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_records_are_not_copied_either_way(version: int) -> None:
    records = [batch.build([b"value %d" % n] * 50) for n in range(3)]
    fetched = tuple(
        FetchedPartition(TopicPartition("flights", n), ErrorCode.NONE, 50, 0, records=data)
        for n, data in enumerate(records)
    )
    request_header = header(ApiKey.FETCH, version)
    buffers = fetch.encode_response(FetchResponse(ErrorCode.NONE, 0, fetched), request_header, IDS.__getitem__)
    assert [buffer for buffer in buffers if any(buffer is held for held in records)] == records
    frame = body_of(buffers)
    for n, partition in enumerate(fetch.decode_response(frame, request_header, NAMES.get).partitions):
        assert partition.records.obj is frame
        assert batch.validate(partition.records, deep=True).record_count == 50
        assert batch.decode_values(partition.records)[0] == b"value %d" % n


def test_file_regions_stand_for_their_bytes_in_order() -> None:
    regions = [FileRegion(n, 4096, 1000 + n) for n in range(3)]
    fetched = tuple(
        FetchedPartition(TopicPartition("a", n), ErrorCode.NONE, 9, records=region) for n, region in enumerate(regions)
    )
    buffers = fetch.encode_response(FetchResponse(ErrorCode.NONE, 0, fetched), header(ApiKey.FETCH, 12))
    assert [buffer for buffer in buffers if isinstance(buffer, FileRegion)] == regions
    filled = joined(bytes(buffer.count) if isinstance(buffer, FileRegion) else buffer for buffer in buffers)
    decoded = fetch.decode_response(body_of([filled]), header(ApiKey.FETCH, 12))
    assert [len(partition.records) for partition in decoded.partitions] == [1000, 1001, 1002]


def test_what_has_a_length_of_its_own_is_handed_on() -> None:
    class Held:
        def __len__(self) -> int:
            return 7

    held = Held()
    fetched = FetchedPartition(PLACE, ErrorCode.NONE, 9, records=held)
    buffers = fetch.encode_response(FetchResponse(ErrorCode.NONE, 0, (fetched,)), header(ApiKey.FETCH, 4))
    assert buffers[1] is held
    assert int.from_bytes(buffers[0][:4], "big") == len(buffers[0]) - 4 + 7


@pytest.mark.parametrize("version", range(13, 18))
def test_ids_without_a_name_are_reported_and_answered(version: int) -> None:
    """KIP-516: UNKNOWN_TOPIC_ID for each of its partitions."""
    request = FetchRequest(
        *(-1, -1, 500, 1, 1000),
        partitions=tuple(
            FetchPartition(TopicPartition(topic, n), IDS[topic], -1, 0) for topic in ("a", "flights") for n in (0, 1)
        ),
        forgotten=(TopicPartition("a", 9), TopicPartition("flights", 9)),
    )
    request_header = header(ApiKey.FETCH, version)
    frame = body_of(fetch.encode_request(request, request_header, IDS.__getitem__))
    only_flights = {IDS["flights"]: "flights"}
    decoded, unknown = fetch.decode_request(frame, decode_request_header(frame), only_flights.get)
    assert [partition.partition.topic for partition in decoded.partitions] == ["flights", "flights"]
    assert decoded.forgotten == (TopicPartition("flights", 9),)
    assert unknown == ((IDS["a"], 0), (IDS["a"], 1))

    fetched = FetchedPartition(TopicPartition("flights", 0), ErrorCode.NONE, 5)
    buffers = fetch.encode_response(
        FetchResponse(ErrorCode.NONE, 0, (fetched,)), request_header, IDS.__getitem__, unknown=unknown
    )
    answer = fetch.decode_response(body_of(buffers), request_header, NAMES.get)
    assert [(partition.partition, partition.error) for partition in answer.partitions] == [
        (TopicPartition("flights", 0), ErrorCode.NONE),
        (TopicPartition("a", 0), ErrorCode.UNKNOWN_TOPIC_ID),
        (TopicPartition("a", 1), ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert len(fetch.decode_response(body_of(buffers), request_header, only_flights.get).partitions) == 1


@pytest.mark.parametrize("version", range(13, 18))
def test_a_response_names_the_ids_that_were_requested(version: int) -> None:
    """A session may hold two topics of one name, the earlier of which was deleted."""
    fetched = (
        FetchedPartition(TopicPartition("flights", 0), ErrorCode.INCONSISTENT_TOPIC_ID, topic_id=IDS["a"]),
        FetchedPartition(TopicPartition("flights", 1), ErrorCode.NONE, 5, topic_id=IDS["flights"]),
        FetchedPartition(TopicPartition("flights", 2), ErrorCode.NONE, 5),
    )
    response_header = header(ApiKey.FETCH, version)
    buffers = fetch.encode_response(FetchResponse(ErrorCode.NONE, 0, fetched), response_header, IDS.__getitem__)
    decoded = fetch.decode_response(body_of(buffers), response_header, NAMES.get)
    assert [partition.partition for partition in decoded.partitions] == [
        TopicPartition("a", 0),
        TopicPartition("flights", 1),
        TopicPartition("flights", 2),
    ]


@pytest.mark.parametrize("version", [12, 15, 16, 17])
def test_leaders_are_encoded_with_their_addresses(version: int) -> None:
    """KIP-951."""
    fetched = FetchedPartition(PLACE, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=3, leader_epoch=9)
    nodes = (BrokerRegistration(3, 1, "localhost", 9092, "r1"), BrokerRegistration(4, 1, "h" * 200, 9093))
    request_header = header(ApiKey.FETCH, version)
    buffers = fetch.encode_response(
        FetchResponse(ErrorCode.NONE, 0, (fetched,)), request_header, IDS.__getitem__, nodes=nodes
    )
    frame = body_of(buffers)
    theirs = TheirFetchResponse.decode(frame, version=version, header=True)
    assert theirs.responses[0].partitions[0].current_leader.leader_id == 3
    if version >= 16:
        assert [(node.node_id, node.host, node.port, node.rack) for node in theirs.node_endpoints] == [
            (3, "localhost", 9092, "r1"),
            (4, "h" * 200, 9093, None),
        ]
    assert fetch.decode_response(frame, request_header, NAMES.get).partitions == (fetched,)


def test_a_topic_recreated_stands_apart_from_the_old_one() -> None:
    other = IDS["a"]
    request = FetchRequest(
        *(-1, -1, 500, 1, 1000),
        partitions=(FetchPartition(PLACE, IDS["flights"], -1, 0), FetchPartition(PLACE, other, -1, 0)),
    )
    frame = body_of(fetch.encode_request(request, header(ApiKey.FETCH, 17), IDS.__getitem__))
    names = {IDS["flights"]: "flights", other: "flights"}
    assert fetch.decode_request(frame, decode_request_header(frame), names.get)[0] == request


def test_misuse_is_reported() -> None:
    with pytest.raises(UsageError, match="version 3"):
        fetch.encode_response(FetchResponse(ErrorCode.NONE), header(ApiKey.FETCH, 3))
    request = FetchRequest(*(-1, -1, 500, 1, 1000), partitions=(FetchPartition(PLACE, "not an id", -1, 0),))
    with pytest.raises(UsageError, match="no topic id"):
        fetch.encode_request(request, header(ApiKey.FETCH, 13))
