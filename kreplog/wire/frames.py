"""Frames: the size before each message, and the header that says which message it is.

    frame             int32 size of the rest, header, message
    request header    int16 api key, int16 version, int32 correlation id, string|null client id, tags
    response header   int32 correlation id, tags

Tags end the headers of flexible versions; never the response's of ApiVersions. The client id is a plain string always.
Source: Kafka protocol guide, headers; KIP-482, KIP-511.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kreplog._native.heap import unfilled
from kreplog._native.wire_header import HeaderCodec
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.wire.versions import FLEXIBLE_FROM, TO_CLIENTS, ApiKey, Ranges

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_FRAME_BYTES = 100 << 20
"""Kafka's socket.request.max.bytes."""

MAX_ITEMS = 200_000
"""Maximum of topics, partitions and other entries in one message of a client, whatever its receiver knows."""

SCRATCH_BYTES = 64 << 10
_AT_FIRST = 64 << 10
_AT_ONCE = 1 << 20

_TLS_HANDSHAKE = 0x1603
"""The first two bytes of a TLS client."""

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Header of a request; the same value identifies the response to it.

    body: where in the frame the message begins. known: False for ApiVersions in a version that is not offered, which
    gets a response all the same (KIP-511); its message is then not to be read.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None
    body: int = 0
    known: bool = True


_CODEC = HeaderCodec(RequestHeader, FLEXIBLE_FROM, ApiKey.API_VERSIONS)


class FrameReader:
    """Splits received bytes into frames: receive into buffer(), then call received() with the number of bytes.

    limit: bytes; a larger frame raises PeerProtocolError before any of it is stored. An announced size reserves up to
    64 KiB, once those are filled 1 MiB: beyond that, memory grows with the bytes received. scratch: where small frames
    are received; may be shared by readers that one thread serves in turn, since nothing stays in it. trusting: the
    announced size reserves the whole frame, which is then never copied to grow.
    """

    def __init__(
        self, limit: int = MAX_FRAME_BYTES, scratch: bytearray | None = None, *, trusting: bool = False
    ) -> None:
        self.limit = limit
        self._at_first = limit if trusting else _AT_FIRST
        self._scratch = bytearray(SCRATCH_BYTES) if scratch is None else scratch
        self._size_bytes = b""  # of the next frame, as far as they have come
        self._frame: bytearray | None = None  # the frame that is not whole yet
        self._size = 0
        self._have = 0

    @property
    def pending(self) -> int:
        """Bytes held of a frame that is not whole yet."""
        return len(self._size_bytes) if self._frame is None else self._have

    @property
    def reserved(self) -> int:
        """Bytes of memory taken for a frame that is not whole yet."""
        return 0 if self._frame is None else len(self._frame)

    @property
    def missing(self) -> int:
        """Bytes that are still to come of a frame whose size is known; 0 between frames."""
        return 0 if self._frame is None else self._size - self._have

    def buffer(self) -> memoryview:
        """Where to receive next, never empty; to be given back with received() before the next call."""
        frame = self._frame
        if frame is None:
            return memoryview(self._scratch)
        if self._have == len(frame):
            grown = unfilled(min(self._size, max(2 * len(frame), _AT_ONCE)))
            grown[: len(frame)] = frame
            self._frame = frame = grown
        return memoryview(frame)[self._have :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """The frames that are complete now, without their sizes; the caller owns them. count: bytes, above 0.

        Raises PeerProtocolError for a size that is negative or above the limit; the reader is of no use thereafter.
        """
        if self._frame is not None:
            self._have += count
            if self._have < self._size:
                return []
            whole, self._frame = self._frame, None
            return [whole]
        return self._cut(memoryview(self._scratch)[:count])

    def _cut(self, data: memoryview) -> list[bytes | bytearray]:
        if not self._size_bytes and len(data) > _SIZE.size:
            (size,) = _SIZE.unpack_from(data)
            if size == len(data) - _SIZE.size <= self.limit:  # mostly one frame comes, and all of it
                return [bytes(data[_SIZE.size :])]
        frames: list[bytes | bytearray] = []
        at = 0
        while at < len(data):
            missing = 4 - len(self._size_bytes)
            self._size_bytes += bytes(data[at : at + missing])
            at += missing
            if len(self._size_bytes) < 4:
                break
            (size,) = _SIZE.unpack(self._size_bytes)
            self._size_bytes = b""
            if not 0 < size <= self.limit:
                advice = ": does the client use TLS here?" if size >> 16 == _TLS_HANDSHAKE else ""
                raise PeerProtocolError(f"a frame of {size} bytes: 1 to {self.limit} are allowed{advice}")
            if len(data) - at >= size:
                frames.append(bytes(data[at : at + size]))
            else:
                self._begin(data[at:], size)
            at += size
        return frames

    def _begin(self, start: memoryview, size: int) -> None:
        self._frame = unfilled(min(size, max(self._at_first, len(start))))
        self._frame[: len(start)] = start
        self._size, self._have = size, len(start)


def flexible(api_key: int, version: int) -> bool:
    """Whether this version of an API has compact strings and tags; its headers have, too."""
    return version >= FLEXIBLE_FROM[api_key]


def decode_request_header(frame: Buffer, ranges: Ranges = TO_CLIENTS) -> RequestHeader:
    """The header of a request. ranges: what this peer is offered.

    Raises PeerProtocolError for what is no header, and for an API or version that is not offered; of ApiVersions alone
    a version that is not offered passes, as not `known`.
    """
    header: RequestHeader = _CODEC.decode_request(frame, ranges)
    return header


def encode_request_header(header: RequestHeader) -> bytes:
    """The header without the frame's size."""
    client = header.client_id
    raw = b"" if client is None else client.encode()
    if len(raw) > 0x7FFF:
        raise UsageError(f"a client id of {len(raw)} bytes is too long: 32767 at most")
    size = -1 if client is None else len(raw)
    tags = b"\0" if flexible(header.api_key, header.api_version) else b""
    return _REQUEST.pack(header.api_key, header.api_version, header.correlation_id, size) + raw + tags


def decode_response_header(frame: Buffer, header: RequestHeader) -> int:
    """Where the message begins in the response to the request `header`.

    Raises PeerProtocolError when it belongs to another request: responses come in the order of the requests.
    """
    return _CODEC.decode_response(frame, header.correlation_id, _flexible_response(header))


def encode_response_header(header: RequestHeader) -> bytes:
    """The header of the response to the request `header`, without the frame's size."""
    return _SIZE.pack(header.correlation_id) + (b"\0" if _flexible_response(header) else b"")


def _flexible_response(header: RequestHeader) -> bool:
    """ApiVersions is read by clients that do not know yet what the broker speaks."""
    return header.api_key != ApiKey.API_VERSIONS and flexible(header.api_key, header.api_version)
