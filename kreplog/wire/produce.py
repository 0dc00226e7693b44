"""Produce: frames to and from the messages of `core`, by the native codec.

The layout is the codec's (kreplog/_native/wire_produce.pyx); these functions are what servers and clients call. An
encoded frame is a list of buffers, for sendmsg: bytes, and the records objects themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kreplog._native.wire_produce import ProduceCodec
from kreplog.core.messages import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from kreplog.errors import ErrorCode
from kreplog.wire.frames import (
    MAX_ITEMS,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from kreplog.wire.versions import ABORTABLE_FROM, ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CODEC = ProduceCodec(ProduceRequest, ProducePartition, ProduceResponse, ProducedPartition)


def decode_request(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> tuple[ProduceRequest, str | None]:
    """The request, and the transactional id or None. Versions 0 to 12; those below FIRST_REAL_PRODUCE hold old formats.

    Records are memoryviews of `frame`, which must not change while they live; b"" for none. budget: of partitions.
    Raises PeerProtocolError.
    """
    request, transactional_id = _CODEC.decode_request(frame, header.body, header.api_version, budget)
    return request, transactional_id


def encode_request(request: ProduceRequest, header: RequestHeader, transactional_id: str | None = None) -> list[Any]:
    """The whole frame; neighbours of the same topic are written as one topic."""
    return _CODEC.encode_request(encode_request_header(header), request, transactional_id, header.api_version)


def decode_response(frame: Buffer, header: RequestHeader) -> ProduceResponse:
    """The response to the request `header`, without messages about single records. Raises PeerProtocolError."""
    response: ProduceResponse = _CODEC.decode_response(frame, decode_response_header(frame, header), header.api_version)
    return response


def encode_response(response: ProduceResponse, header: RequestHeader) -> list[bytes]:
    """The whole frame. With acks 0 nothing is to be sent at all."""
    return _CODEC.encode_response(encode_response_header(header), response, header.api_version)


def known_to(response: ProduceResponse, version: int) -> ProduceResponse:
    """The response with errors that clients of this version know."""
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    if version >= ABORTABLE_FROM[ApiKey.PRODUCE] or all(
        produced.error is not abortable for produced in response.partitions
    ):
        return response
    return ProduceResponse(
        tuple(
            replace(produced, error=ErrorCode.INVALID_TXN_STATE) if produced.error is abortable else produced
            for produced in response.partitions
        )
    )
