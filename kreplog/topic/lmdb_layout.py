"""The layout of a table's LMDB file: database `places`, where the table stands, and database `keys`, the records.

    places     key                         value
               b"topic"                    magic, b"KRTABLM1"; topic id 22; of a log by itself
                                           b"-", its partition in decimal
               b"commit"                   id of the transaction that wrote last 8, number of keys 8
               b"p", partition 4           log start offset 8, next offset 8, base offset of the last batch applied 8,
                                           its CRC 4 carried on over its leader epoch, generation of the log 8,
                                           incarnation id 8 (0 for none), ms since 1970 when a first load began 8 (0
                                           once the table has come to the log's end), offset below which entries are
                                           still to be removed 8
    keys       b"k", key                   each partition that has the key: partition 4, offset 8, timestamp 8, value
                                           length 4, value
               b"k", 478 bytes of the key, the same after key length 4, key: for keys above 509 bytes
               its BLAKE2b of 32 bytes

Big-endian. Each value begins with a CRC-32C 4 of its LMDB key and of the rest: LMDB has no checksums of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from kreplog._native.crc32c import crc32c

MAGIC = b"KRTABLM1"
TOPIC = b"topic"
COMMIT = b"commit"
EVERYTHING = (1 << 63) - 1
"""An offset that no record reaches."""

LONGEST = 511  # bytes of a key that every LMDB takes
DIGEST = 32
HEAD = LONGEST - DIGEST  # bytes by which long keys are in order
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_ENTRY = struct.Struct(">iqqI")
_PLACE = struct.Struct(">qqqIqQqq")
_COMMIT = struct.Struct(">QQ")
_PARTITION = struct.Struct(">i")


class DamagedTableError(Exception):
    """The file is not as it was written. The table is loaded into a new one."""


class Place(NamedTuple):
    """Where the table stands in a partition. base_offset: of the last batch applied, -1 where that is not known."""

    log_start_offset: int
    next_offset: int
    base_offset: int
    crc: int
    generation: int
    incarnation: int
    loading_since_ms: int
    remove_below: int


class Entry(NamedTuple):
    """The newest record of a key in a partition."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes


def place_key(partition: int) -> bytes:
    return b"p" + _PARTITION.pack(partition)


def partitions_of(stored: Iterable[bytes]) -> list[int]:
    """The partitions of the keys of places."""
    return [_PARTITION.unpack(key[1:])[0] for key in stored if len(key) == len(place_key(0)) and key[:1] == b"p"]


def encode_place(partition: int, place: Place) -> bytes:
    return _sealed(place_key(partition), _PLACE.pack(*place))


def decode_place(partition: int, data: bytes) -> Place:
    return Place(*_unpacked(_PLACE, place_key(partition), data))


def encode_topic(topic_id: str) -> bytes:
    return _sealed(TOPIC, MAGIC + topic_id.encode())


def decode_topic(data: bytes) -> str | None:
    """The topic id; None where the file has another format."""
    rest = _opened(TOPIC, data)
    return rest[len(MAGIC) :].decode("ascii", "replace") if rest.startswith(MAGIC) else None


def encode_commit(transaction: int, keys: int) -> bytes:
    return _sealed(COMMIT, _COMMIT.pack(transaction, keys))


def decode_commit(data: bytes) -> tuple[int, int]:
    transaction, keys = _unpacked(_COMMIT, COMMIT, data)
    return transaction, keys


def stored_key(key: bytes) -> bytes:
    """The key of a record as LMDB has it, which takes no empty and no long ones."""
    if len(key) < LONGEST - 1:
        return b"k" + key
    return stored_prefix(key) + blake2b(key, digest_size=DIGEST).digest()


def stored_prefix(prefix: bytes) -> bytes:
    """The beginning of the stored keys of all keys with this prefix, and perhaps of others."""
    return b"k" + prefix[: HEAD - 1]


def encode_entries(stored: bytes, key: bytes, entries: list[Entry]) -> bytes:
    rest = b"".join([_ENTRY.pack(*entry[:3], len(entry[3])) + entry[3] for entry in entries])
    if len(stored) == LONGEST:
        rest = _LENGTH.pack(len(key)) + key + rest
    return _sealed(stored, rest)


def encode_entry(stored: bytes, key: bytes, partition: int, offset: int, timestamp_ms: int, value: bytes) -> bytes:
    """As encode_entries, of one partition."""
    rest = _ENTRY.pack(partition, offset, timestamp_ms, len(value)) + value
    if len(stored) == LONGEST:
        rest = _LENGTH.pack(len(key)) + key + rest
    return _sealed(stored, rest)


def decode_entries(stored: bytes, data: bytes) -> tuple[bytes, list[Entry]]:
    """The key and its entries, at least one. Raises DamagedTableError."""
    rest = _opened(stored, data)
    key = stored[1:]
    at = 0
    if len(stored) == LONGEST:
        at = _LENGTH.size + _LENGTH.unpack_from(rest)[0]
        key = rest[_LENGTH.size : at]
    entries = []
    while at < len(rest):
        partition, offset, timestamp_ms, length = _ENTRY.unpack_from(rest, at)
        at += _ENTRY.size + length
        entries.append(Entry(partition, offset, timestamp_ms, rest[at - length : at]))
    return key, entries


def newest(entries: list[Entry]) -> Entry:
    return entries[0] if len(entries) == 1 else max(entries, key=lambda entry: (entry.timestamp_ms, entry.partition))


def _sealed(stored: bytes, rest: bytes) -> bytes:
    return _CRC.pack(crc32c(rest, crc32c(stored))) + rest


def _opened(stored: bytes, data: bytes) -> bytes:
    """The bytes after the CRC. Raises DamagedTableError."""
    rest = data[_CRC.size :]
    if len(data) < _CRC.size or _CRC.unpack_from(data)[0] != crc32c(rest, crc32c(stored)):
        raise DamagedTableError(f"the checksum of {stored[:40]!r} does not match")
    return rest


def _unpacked(layout: struct.Struct, stored: bytes, data: bytes) -> tuple[int, ...]:
    rest = _opened(stored, data)
    if len(rest) != layout.size:
        raise DamagedTableError(f"{stored!r} has {len(rest)} bytes")
    return layout.unpack(rest)
