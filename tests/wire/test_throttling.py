"""throttle_time_ms in frames that were encoded without it: of every API and version that has the field."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kafka.protocol.consumer import FetchResponse as TheirFetchResponse
from kafka.protocol.producer import ProduceResponse as TheirProduceResponse

from kreplog.core.messages import FetchedPartition, FetchResponse, ProducedPartition, ProduceResponse
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import fetch, generic, produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.throttling import with_throttle_time
from kreplog.wire.versions import TO_CLIENTS, ApiKey

GENERIC = [
    (key, version)
    for key, (first, last) in TO_CLIENTS.items()
    for version in range(first, last + 1)
    if key not in (ApiKey.PRODUCE, ApiKey.FETCH)
]
WITHOUT_FIELD = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
TIME_MS = 0x1234_5678
TP = TopicPartition("topic", 0)


def joined(buffers: list[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@pytest.mark.parametrize(("key", "version"), GENERIC)
def test_every_response_with_the_field_gets_it_and_is_else_as_before(key: int, version: int) -> None:
    header = RequestHeader(key, version, 7)
    buffers = (
        generic.api_versions(header, TO_CLIENTS, [], 0)
        if key == ApiKey.API_VERSIONS
        else generic.encode_response(header)
    )
    before = generic.decode_response(joined(buffers)[4:], header).to_dict()
    after = generic.decode_response(joined(with_throttle_time(buffers, header, TIME_MS))[4:], header).to_dict()
    field = next(
        (each for each in generic._response_class(key, version).json["fields"] if each["name"] == "ThrottleTimeMs"),
        None,
    )
    has_field = field is not None and generic._holds(field["versions"], version)
    assert has_field or key in WITHOUT_FIELD or version < 3
    if has_field:
        assert after.pop("throttle_time_ms") == TIME_MS
        assert before.pop("throttle_time_ms") == 0
    assert after == before


def test_a_refused_version_of_api_versions_has_no_field() -> None:
    header = RequestHeader(ApiKey.API_VERSIONS, 99, 7, known=False)
    buffers = generic.api_versions(header, TO_CLIENTS, [], 0)
    assert joined(with_throttle_time(buffers, header, TIME_MS)) == joined(buffers)


@pytest.mark.parametrize("version", range(13))
def test_produce(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 7)
    response = ProduceResponse((ProducedPartition(TP, ErrorCode.NONE, 5), ProducedPartition(TP, ErrorCode.NONE, 6)))
    frame = joined(with_throttle_time(produce.encode_response(response, header), header, TIME_MS))
    assert produce.decode_response(frame[4:], header) == produce.decode_response(
        joined(produce.encode_response(response, header))[4:], header
    )
    if version >= 3:  # those that the library has
        assert TheirProduceResponse.decode(frame[4:], version=version, header=True).throttle_time_ms == TIME_MS


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch(version: int) -> None:
    header = RequestHeader(ApiKey.FETCH, version, 7)
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    response = FetchResponse(ErrorCode.NONE, 0, (FetchedPartition(TP, ErrorCode.NONE, 5, 0, records=b"x" * 100),))
    buffers = fetch.encode_response(response, header, lambda name: topic_id)
    patched = with_throttle_time(buffers, header, TIME_MS)
    assert TheirFetchResponse.decode(joined(patched)[4:], version=version, header=True).throttle_time_ms == TIME_MS
    assert [bytes(after) for after in patched[1:]] == [bytes(before) for before in buffers[1:]]


def test_no_response_stays_none() -> None:
    assert with_throttle_time((), RequestHeader(ApiKey.PRODUCE, 9, 7), TIME_MS) == []
