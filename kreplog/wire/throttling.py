"""throttle_time_ms of responses, which are encoded with 0 and rarely have another value."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader, encode_response_header, flexible
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_INT32 = struct.Struct(">i")
_API_VERSIONS_KEY_BYTES = 6
_FRAME_SIZE_BYTES = 4


def with_throttle_time(frame: Sequence[Any], header: RequestHeader, throttle_ms: int) -> list[Any]:
    """A whole frame, with that throttle_time_ms if the version of its API has one. frame: buffers, the first of which
    has at least the header and all up to the first array."""
    buffers = list(frame)
    key, version = header.api_key, header.api_version
    if not buffers:
        return buffers
    if key == ApiKey.PRODUCE:
        if version >= 1:
            buffers[-1] = _patched(buffers[-1], len(buffers[-1]) - _INT32.size - flexible(key, version), throttle_ms)
        return buffers
    place = _place(key, version) if key != ApiKey.API_VERSIONS else _place_in_api_versions(buffers[0], header)
    if place is not None:
        body = _FRAME_SIZE_BYTES + len(encode_response_header(header))
        buffers[0] = _patched(buffers[0], body + place, throttle_ms)
    return buffers


@cache
def _place(key: int, version: int) -> int | None:
    return 0 if key == ApiKey.FETCH else generic.throttle_time_offset(key, version)


def _place_in_api_versions(buffer: Buffer, header: RequestHeader) -> int | None:
    """Behind the array of API keys; a refusal of the version has the form of version 0, without one."""
    if not header.known or header.api_version < 1:
        return None
    compact = flexible(header.api_key, header.api_version)
    response = generic.decode_response(memoryview(buffer)[_FRAME_SIZE_BYTES:], header)
    count = len(response.api_keys)
    size_bytes = (1 if count + 1 < 1 << 7 else 2) if compact else _INT32.size
    return 2 + size_bytes + count * (_API_VERSIONS_KEY_BYTES + compact)


def _patched(buffer: Buffer, place: int, value: int) -> bytearray:
    patched = bytearray(buffer)
    _INT32.pack_into(patched, place, value)
    return patched
