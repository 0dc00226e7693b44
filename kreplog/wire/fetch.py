"""Fetch: frames to and from the messages of `core`, by the native codec.

The layout is the codec's (kreplog/_native/wire_fetch.pyx); these functions are what servers, followers and clients use.
An encoded frame is a list of buffers in order: bytes, and the records objects themselves, which may be bytes-like,
FileRegions for sendfile, or any other object that has a length and is known to the sender.

From version 13 on topics have ids instead of names. `name_of` returns a topic's name for its id, or None; `id_of` the
id for the name. A response carries the ids of its request: a topic that is created again has another id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kreplog._native.wire_fetch import FetchCodec
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.types import BrokerRegistration
from kreplog.wire.frames import (
    MAX_ITEMS,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

NameOf = Callable[[str], str | None]
IdOf = Callable[[str], str]

_CODEC = FetchCodec(FetchRequest, FetchPartition, FetchResponse, FetchedPartition)


def decode_request(
    frame: Buffer, header: RequestHeader, name_of: NameOf | None = None, budget: int = MAX_ITEMS
) -> tuple[FetchRequest, tuple[tuple[str, int], ...]]:
    """The request, and (topic id, partition) of each requested topic id that has no name.

    The unknown ids are for encode_response; no session can hold them, so such a request is served without a session. A
    follower's broker epoch comes with versions from 15 on. budget: of topics and partitions. Raises PeerProtocolError.
    """
    request, unknown = _CODEC.decode_request(frame, header.body, header.api_version, name_of, budget)
    return request, unknown


def encode_request(request: FetchRequest, header: RequestHeader, id_of: IdOf | None = None) -> list[Any]:
    """The whole frame. What the version lacks is left out. id_of: of what is forgotten; the others bring their ids."""
    return _CODEC.encode_request(encode_request_header(header), request, header.api_version, id_of)


def decode_response(frame: Buffer, header: RequestHeader, name_of: NameOf | None = None) -> FetchResponse:
    """The response to the request `header`; partitions of topics that name_of does not know are left out.

    Records are memoryviews of `frame`, which must not change while they live; b"" for none.
    Raises PeerProtocolError.
    """
    body = decode_response_header(frame, header)
    response: FetchResponse = _CODEC.decode_response(frame, body, header.api_version, name_of)
    return response


def encode_response(
    response: FetchResponse,
    header: RequestHeader,
    id_of: IdOf | None = None,
    *,
    unknown: Sequence[tuple[str, int]] = (),
    nodes: Sequence[BrokerRegistration] = (),
) -> list[Any]:
    """The whole frame. unknown: from decode_request. nodes: the leaders that the response names, from version 16 on."""
    return _CODEC.encode_response(encode_response_header(header), response, header.api_version, id_of, unknown, nodes)
