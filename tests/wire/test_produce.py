"""Produce in every version: kept through bytes, the same bytes as kafka-python's, records never copied."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog._native import batch
from kreplog.core.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    refusal_of_produce,
)
from kreplog.errors import ArgumentTypeError, ErrorCode, UsageError
from kreplog.types import FileRegion, TopicPartition
from kreplog.wire import produce
from kreplog.wire.frames import decode_request_header
from kreplog.wire.versions import ApiKey
from tests.wire import peer
from tests.wire.messages import (
    PRODUCE_VERSIONS,
    body_of,
    header,
    joined,
    produce_requests,
    produce_responses,
    seen_produce_response,
)

versions = pytest.mark.parametrize("version", PRODUCE_VERSIONS)
transactional_ids = st.none() | st.text(max_size=10)


@versions
@settings(max_examples=30)
@given(request=produce_requests, transactional_id=transactional_ids)
def test_a_request_is_kept_and_is_what_kafka_python_writes(
    version: int, request: ProduceRequest, transactional_id: str | None
) -> None:
    request_header = header(ApiKey.PRODUCE, version)
    frame = joined(produce.encode_request(request, request_header, transactional_id))
    assert frame == peer.framed_request(peer.produce_request(request, version, transactional_id), request_header)
    known = decode_request_header(frame[4:])
    assert (known.api_version, known.correlation_id, known.client_id) == (version, 77, "client")
    expected_id = transactional_id if version >= 3 else None
    assert produce.decode_request(frame[4:], known) == (request, expected_id)


@versions
@settings(max_examples=30)
@given(response=produce_responses)
def test_a_response_is_kept_and_is_what_kafka_python_writes(version: int, response: ProduceResponse) -> None:
    request_header = header(ApiKey.PRODUCE, version)
    frame = joined(produce.encode_response(response, request_header))
    assert frame == peer.framed_response(peer.produce_response(response, version), request_header)
    assert produce.decode_response(frame[4:], request_header) == seen_produce_response(response, version)


@pytest.mark.parametrize("version", [3, 8, 9])
def test_records_are_not_copied_either_way(version: int) -> None:
    records = batch.build([b"value"] * 100, compression="lz4")
    request = ProduceRequest(-1, 30000, (ProducePartition(TopicPartition("flights", 3), records),))
    request_header = header(ApiKey.PRODUCE, version)
    buffers = produce.encode_request(request, request_header)
    assert any(buffer is records for buffer in buffers)
    frame = body_of(buffers)
    decoded, _ = produce.decode_request(frame, decode_request_header(frame))
    view = decoded.partitions[0].records
    assert view.obj is frame
    assert batch.validate(view, deep=True).record_count == 100
    assert batch.decode_values(view) == [b"value"] * 100


def test_what_is_too_old_is_refused_in_its_own_form() -> None:
    request = ProduceRequest(1, 100, (ProducePartition(TopicPartition("flights", 3), b"old format"),))
    for version in range(3):
        request_header = header(ApiKey.PRODUCE, version)
        frame = body_of(produce.encode_request(request, request_header))
        known = decode_request_header(frame)
        decoded, _ = produce.decode_request(frame, known)
        refused = refusal_of_produce(decoded, ErrorCode.UNSUPPORTED_VERSION)
        answer = produce.decode_response(body_of(produce.encode_response(refused, known)), request_header)
        assert answer.partitions == (ProducedPartition(TopicPartition("flights", 3), ErrorCode.UNSUPPORTED_VERSION),)


def test_an_error_that_is_not_known_is_an_unknown_one() -> None:
    request_header = header(ApiKey.PRODUCE, 0)
    response = ProduceResponse((ProducedPartition(TopicPartition("a", 0), ErrorCode.NONE),))
    frame = bytearray(body_of(produce.encode_response(response, request_header)))
    at = frame.index(b"\0\x01a") + 3 + 4 + 4
    frame[at : at + 2] = (999).to_bytes(2, "big")
    (answered,) = produce.decode_response(frame, request_header).partitions
    assert answered.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_file_region_stands_for_its_bytes() -> None:
    region = FileRegion(5, 100, 1 << 20)
    request = ProduceRequest(1, 1, (ProducePartition(TopicPartition("a", 0), region),))
    buffers = produce.encode_request(request, header(ApiKey.PRODUCE, 9))
    small = b"".join(buffer for buffer in buffers if buffer is not region)
    assert buffers[1] is region
    assert int.from_bytes(small[:4], "big") == len(small) - 4 + (1 << 20)


def test_misuse_is_reported() -> None:
    request_header = header(ApiKey.PRODUCE, 9)
    with pytest.raises(UsageError, match="version 13"):
        produce.encode_response(ProduceResponse(()), header(ApiKey.PRODUCE, 13))
    with pytest.raises(ArgumentTypeError, match="ProduceResponse is needed"):
        produce.encode_response(ProduceRequest(0, 0, ()), request_header)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="bytes-like"):
        produce.decode_response("text", request_header)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="too long"):
        produce.encode_response(
            ProduceResponse((ProducedPartition(TopicPartition("t" * 40000, 0), ErrorCode.NONE),)),
            header(ApiKey.PRODUCE, 8),
        )
