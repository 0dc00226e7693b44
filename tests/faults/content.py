"""Record values that say who they are: a function of offset and generation, of varying length, so any mix-up shows."""

from __future__ import annotations

import random
import struct

_HEAD = struct.Struct(">QI")
_POOL = random.Random(20260101).randbytes(1 << 13)
_LONGEST = 120


def value(offset: int, generation: int = 0) -> bytes:
    """The record written at `offset` by the `generation`-th writer (or after the `generation`-th truncation)."""
    mixed = (offset * 0x9E3779B1 + generation * 0x85EBCA6B) & 0xFFFFFFFF
    start = mixed % (len(_POOL) - _LONGEST)
    return _HEAD.pack(offset, generation) + _POOL[start : start + (mixed >> 16) % _LONGEST]


def generation_of(data: bytes | None, offset: int) -> int:
    """The generation that wrote `data`; raises AssertionError unless it is whole and was written for `offset`."""
    assert data is not None and len(data) >= _HEAD.size, f"no record of ours at {offset}: {data!r}"
    written_for, generation = _HEAD.unpack_from(data)
    assert written_for == offset, f"the record at {offset} was written for {written_for}"
    assert data == value(offset, generation), f"the record at {offset} is damaged: {data!r}"
    return int(generation)


def offset_of(data: bytes | None) -> int:
    """The offset that `data` says it was written for."""
    assert data is not None and len(data) >= _HEAD.size, f"no record of ours: {data!r}"
    return int(_HEAD.unpack_from(data)[0])
