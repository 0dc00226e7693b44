"""Frames and headers: however the bytes come in, and whatever they claim."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_header import RequestHeader as TheirRequestHeader

from kreplog.errors import PeerProtocolError, UsageError
from kreplog.wire import frames
from kreplog.wire.frames import FrameReader, RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS, FLEXIBLE_FROM, TO_CLIENTS, ApiKey


def feed(reader: FrameReader, stream: bytes, sizes: Iterator[int]) -> list[bytes]:
    """Receive `stream` in pieces, as a socket gives them."""
    got: list[bytes] = []
    at = 0
    while at < len(stream):
        room = reader.buffer()
        assert len(room) > 0
        count = min(next(sizes), len(room), len(stream) - at)
        room[:count] = stream[at : at + count]
        room.release()
        at += count
        got.extend(bytes(frame) for frame in reader.received(count))
    return got


def framed(messages: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(message)) + message for message in messages)


@settings(max_examples=150)
@given(
    messages=st.lists(st.binary(min_size=1, max_size=300), max_size=8),
    pieces=st.lists(st.integers(1, 90), min_size=1, max_size=20),
    scratch=st.integers(1, 100),
)
def test_frames_come_out_as_they_were_put_in(messages: list[bytes], pieces: list[int], scratch: int) -> None:
    def sizes() -> Iterator[int]:
        while True:
            yield from pieces

    reader = FrameReader(scratch=bytearray(scratch))
    assert feed(reader, framed(messages), sizes()) == messages
    assert reader.pending == 0


def test_readers_share_a_scratch() -> None:
    scratch = bytearray(16)
    first, second = FrameReader(scratch=scratch), FrameReader(scratch=scratch)
    stream = framed([b"first", b"x" * 50])
    got: list[bytes] = []
    for at in range(0, len(stream), 7):
        for reader in (first, second):
            got += feed(reader, stream[at : at + 7], iter([7] * 9))
    assert got == [b"first", b"first", b"x" * 50, b"x" * 50]


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_a_size_that_is_not_allowed(size: int) -> None:
    reader = FrameReader(limit=1000)
    reader.buffer()[:6] = struct.pack(">i", size) + b"ab"
    with pytest.raises(PeerProtocolError, match=f"{size} bytes: 1 to 1000"):
        reader.received(6)


def test_a_whole_frame_that_is_too_large() -> None:
    reader = FrameReader(limit=3)
    reader.buffer()[:8] = struct.pack(">i", 4) + b"four"
    with pytest.raises(PeerProtocolError, match="4 bytes: 1 to 3"):
        reader.received(8)


def test_a_claimed_size_takes_memory_only_as_bytes_come() -> None:
    reader = FrameReader(limit=1 << 30)
    tracemalloc.start()
    reader.buffer()[:5] = struct.pack(">i", 1 << 30) + b"a"
    assert reader.received(5) == []
    assert tracemalloc.get_traced_memory()[1] < 100 << 10
    tracemalloc.stop()
    assert (reader.pending, reader.reserved) == (1, 64 << 10)
    whole = FrameReader()
    stream = framed([b"x" * (5 << 20), b"y"])
    assert feed(whole, stream, iter([1 << 20] * 100)) == [b"x" * (5 << 20), b"y"]


def test_a_peer_that_is_trusted_is_given_the_memory_of_a_whole_frame() -> None:
    reader = FrameReader(trusting=True)
    stream = framed([b"x" * (5 << 20), b"y"])
    reader.buffer()[:5] = stream[:5]
    assert reader.received(5) == []
    assert (reader.pending, reader.reserved, len(reader.buffer())) == (1, 5 << 20, (5 << 20) - 1)
    assert reader.missing == (5 << 20) - 1
    assert feed(reader, stream[5:], iter([1 << 20] * 100)) == [b"x" * (5 << 20), b"y"]
    assert reader.missing == 0


def every_version() -> Iterator[tuple[int, int]]:
    for key, (first, last) in BETWEEN_BROKERS.items():
        for version in range(first, last + 1):
            yield key, version


@pytest.mark.parametrize("client_id", [None, "", "client", "ü" * 100])
def test_request_headers_are_kept_in_every_version(client_id: str | None) -> None:
    for key, version in every_version():
        header = RequestHeader(key, version, -5, client_id)
        data = frames.encode_request_header(header)
        theirs = TheirRequestHeader(
            request_api_key=key, request_api_version=version, correlation_id=-5, client_id=client_id
        )
        assert data == theirs.encode(flexible=version >= FLEXIBLE_FROM[key])
        known = frames.decode_request_header(data + b"message", BETWEEN_BROKERS)
        assert known == RequestHeader(key, version, -5, client_id, len(data))
        for length in range(len(data)):
            with pytest.raises(PeerProtocolError):
                frames.decode_request_header(data[:length], BETWEEN_BROKERS)


def test_response_headers_are_kept_in_every_version() -> None:
    for key, version in every_version():
        header = RequestHeader(key, version, 12)
        data = frames.encode_response_header(header)
        assert len(data) == 4 + (version >= FLEXIBLE_FROM[key] and key != ApiKey.API_VERSIONS)
        assert frames.decode_response_header(data + b"message", header) == len(data)
        with pytest.raises(PeerProtocolError, match="request 12 came for request 13"):
            frames.decode_response_header(data, RequestHeader(key, version, 13))
        for length in range(len(data)):
            with pytest.raises(PeerProtocolError):
                frames.decode_response_header(data[:length], header)


def test_tags_in_a_header_are_passed_over() -> None:
    data = struct.pack(">hhih", ApiKey.FETCH, 12, 1, -1) + b"\x02\x00\x03abc\x07\x00" + b"message"
    assert data[frames.decode_request_header(data).body :] == b"message"
    for bad in (b"\x02\x00\x7fabc", b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x0f", b"\x01\x00\x80"):
        with pytest.raises(PeerProtocolError):
            frames.decode_request_header(data[:10] + bad)


def test_only_what_is_offered_is_read() -> None:
    def request(key: int, version: int) -> bytes:
        return struct.pack(">hhih", key, version, 9, -1) + b"\0"

    for key, version in [
        (0, 13),
        (24, 4),
        (1, 3),
        (1, 19),
        (2, 0),
        (4, 7),
        (25, 5),
        (27, 0),
        (27, 2),
        (999, 0),
        (-1, 0),
        (18 << 8, 0),
        (3, -1),
    ]:
        with pytest.raises(PeerProtocolError, match=f"API {key} in version {version} is not offered"):
            frames.decode_request_header(request(key, version))
    assert frames.decode_request_header(request(4, 7), BETWEEN_BROKERS).known
    assert not set(TO_CLIENTS) & {4, 5, 6, 7}


@pytest.mark.parametrize("version", [4, 99, -1])
def test_api_versions_passes_in_any_version(version: int) -> None:
    """KIP-511: it is answered in its first version."""
    header = frames.decode_request_header(struct.pack(">hhi", 18, version, 7) + b"\xffwhatever")
    assert (header.known, header.correlation_id) == (False, 7)


def test_a_client_id_too_long_to_write() -> None:
    with pytest.raises(UsageError, match="too long"):
        frames.encode_request_header(RequestHeader(3, 1, 0, "c" * 32768))
