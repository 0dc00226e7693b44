"""Bytes made to harm: every decoder answers them with PeerProtocolError and nothing else, soon and in little memory."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog.core.messages import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.types import EpochEndOffset, TopicPartition
from kreplog.wire import fetch, produce
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import ApiKey
from tests.wire.messages import FETCH_VERSIONS, IDS, NAMES, PRODUCE_VERSIONS, body_of, header

PLACES = (TopicPartition("flights", 1), TopicPartition("a", 2))
LITTLE = 1 << 20


@dataclass(frozen=True)
class Case:
    """A small sound frame, and what reads it."""

    name: str
    frame: bytes
    decode: Callable[[bytes], object]


def read_produce_request(frame: bytes) -> object:
    return produce.decode_request(frame, decode_request_header(frame))


def read_fetch_request(frame: bytes) -> object:
    return fetch.decode_request(frame, decode_request_header(frame), NAMES.get)


def reading(decode: Callable[..., object], request_header: RequestHeader, *more: Any) -> Callable[[bytes], object]:
    return lambda frame: decode(frame, request_header, *more)


def cases() -> Iterator[Case]:
    for version in PRODUCE_VERSIONS:
        request_header = header(ApiKey.PRODUCE, version)
        request = ProduceRequest(-1, 100, tuple(ProducePartition(place, b"batch") for place in PLACES))
        yield Case(
            f"produce-request-{version}",
            body_of(produce.encode_request(request, request_header, "tx")),
            read_produce_request,
        )
        response = ProduceResponse(tuple(ProducedPartition(p, ErrorCode.NONE, 5, 6, 7, "text") for p in PLACES))
        yield Case(
            f"produce-response-{version}",
            body_of(produce.encode_response(response, request_header)),
            reading(produce.decode_response, request_header),
        )
    for version in FETCH_VERSIONS:
        request_header = header(ApiKey.FETCH, version)
        wanted = FetchRequest(
            *(1, 2, 3, 4, 5),
            partitions=tuple(FetchPartition(place, IDS[place.topic], 1, 2, 3, 4, 5) for place in PLACES),
            forgotten=PLACES,
        )
        yield Case(
            f"fetch-request-{version}",
            body_of(fetch.encode_request(wanted, request_header, IDS.__getitem__)),
            read_fetch_request,
        )
        fetched = tuple(
            FetchedPartition(place, ErrorCode.NONE, 9, 1, EpochEndOffset(3, 4), 5, 6, records=b"batch")
            for place in PLACES
        )
        yield Case(
            f"fetch-response-{version}",
            body_of(fetch.encode_response(FetchResponse(ErrorCode.NONE, 1, fetched), request_header, IDS.__getitem__)),
            reading(fetch.decode_response, request_header, NAMES.get),
        )


CASES = list(cases())
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LITTLE
    finally:
        tracemalloc.stop()


@every_case
def test_cut_short_at_every_byte(case: Case) -> None:
    case.decode(case.frame)
    for length in range(len(case.frame)):
        with pytest.raises(PeerProtocolError):
            case.decode(case.frame[:length])


@every_case
def test_bytes_behind_the_end(case: Case) -> None:
    """Of an answer they are refused; of a request they are passed over, as Kafka does."""
    for more in (b"\0", b"\xff" * 9, case.frame):
        if "request" in case.name:
            assert case.decode(case.frame + more) == case.decode(case.frame)
        else:
            with pytest.raises(PeerProtocolError, match="behind the end"):
                case.decode(case.frame + more)


@every_case
def test_every_byte_changed(case: Case) -> None:
    """It stays a message of another content, or it is refused."""
    for at, byte in enumerate(case.frame):
        for other in {0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, byte ^ 1, byte ^ 0x80, (byte + 1) & 0xFF} - {byte}:
            changed = bytearray(case.frame)
            changed[at] = other
            with suppress(PeerProtocolError):
                case.decode(bytes(changed))


@every_case
def test_huge_counts_and_lengths_take_no_memory(case: Case) -> None:
    bombs = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\0\0\0", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f")
    with little_memory():
        for at in range(len(case.frame)):
            for bomb in bombs:
                with suppress(PeerProtocolError):
                    case.decode(case.frame[:at] + bomb + case.frame[at + len(bomb) :])
                with suppress(PeerProtocolError):
                    case.decode(case.frame[:at] + bomb + case.frame[at + 1 :])


@settings(max_examples=300)
@given(case=st.sampled_from(CASES), body=st.binary(max_size=60))
def test_any_bytes(case: Case, body: bytes) -> None:
    start = len(case.frame) // 3
    for frame in (body, case.frame[:start] + body, case.frame[:15] + body):
        with suppress(PeerProtocolError):
            case.decode(frame)


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b"\x80\x80\x80\x01" + b"\x01\x01\0" * (2 << 20), id="topics"),
        pytest.param(b"\x02\x02a\x80\x80\x80\x01" + b"\0\0\0\0\x01\0" * (2 << 20), id="partitions"),
        pytest.param(b"\x01\x80\x80\x80\x01" + b"\x05\0" * (2 << 20), id="tags"),
    ],
)
def test_more_items_than_any_cluster_has(bomb: bytes) -> None:
    """A frame within its limit whose content would be a hundred times its size."""
    head = struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, -1) + b"\0"
    frame = head + b"\0" + struct.pack(">hi", 1, 1) + bomb
    known = decode_request_header(frame)
    with little_memory(), pytest.raises(PeerProtocolError, match="too many items"):
        produce.decode_request(frame, known)


def test_what_is_wrong_is_reported_with_its_place() -> None:
    frame = CASES[0].frame[:-1]
    with pytest.raises(PeerProtocolError, match=r"longer than the message, at byte \d+") as caught:
        CASES[0].decode(frame)
    assert caught.value.position == len(frame) - 4
    assert caught.value.kafka_code == ErrorCode.INVALID_REQUEST


def test_text_that_is_not_utf8() -> None:
    frame = CASES[0].frame.replace(b"flights", b"fl\xffghts")
    with pytest.raises(PeerProtocolError, match="UTF-8"):
        CASES[0].decode(frame)
