"""What stands before a key or value that has a schema.

    00                         magic
    00 00 00 07                id of the schema, big-endian
    00 | 04 02 00              of Protobuf: the message in its file, by index on each level of nesting: their number and
                               the indexes, zigzag varints; [0] is a single 00

Source: Confluent's documentation of the Schema Registry, "Wire format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAGIC = 0
_PREFIX = struct.Struct(">BI")
_MAX_DEPTH = 100


def with_id(schema_id: int, payload: bytes) -> bytes:
    return _PREFIX.pack(MAGIC, schema_id) + payload


def id_and_payload(data: bytes) -> tuple[int, bytes]:
    """Raises ValueError."""
    if len(data) < _PREFIX.size or data[0] != MAGIC:
        raise ValueError(f"it begins with {bytes(data[:1])!r}, not with a zero byte and the id of a schema")
    return _PREFIX.unpack_from(data)[1], data[_PREFIX.size :]


def encoded_indexes(indexes: tuple[int, ...]) -> bytes:
    if indexes == (0,):
        return b"\0"
    return b"".join(_varints((len(indexes), *indexes)))


def decoded_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """The indexes, and the message behind them. Raises ValueError."""
    count, at = _varint(payload, 0)
    if not 0 <= count <= _MAX_DEPTH:
        raise ValueError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(payload, at)
        if index < 0:
            raise ValueError(f"a message index of {index}")
        indexes.append(index)
    return tuple(indexes) or (0,), payload[at:]


def _varints(numbers: Iterable[int]) -> Iterable[bytes]:
    """Varints of numbers that are not negative, in zigzag encoding."""
    for number in numbers:
        rest = number << 1
        while rest > 127:
            yield bytes((rest & 127 | 128,))
            rest >>= 7
        yield bytes((rest,))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at == len(data):
            raise ValueError("the message indexes are cut short")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number >> 1 ^ -(number & 1), at
    raise ValueError("a message index of more than 5 bytes")
