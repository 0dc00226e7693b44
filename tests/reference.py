"""Kafka's files written and read a second time: plain Python from the published format, no code shared with kreplog.

What kreplog writes must decode here, and what is encoded here must be what kreplog writes, byte for byte. Multi-byte
integers are big-endian; varints are zigzag. A record batch, magic 2:

    0 base_offset i64 | 8 length i32 (of all after it) | 12 leader_epoch i32 | 16 magic i8 = 2 | 17 crc u32 (CRC-32C of
    all after it) | 21 attributes i16 | 23 last_offset_delta i32 | 27 base_timestamp i64 | 35 max_timestamp i64 |
    43 producer_id i64 | 51 producer_epoch i16 | 53 base_sequence i32 | 57 record_count i32 | 61 records

    record: varint length | attributes i8, unused | varint timestamp_delta | varint offset_delta | varint key length
    (-1 null) and key | varint value length (-1 null) and value | varint header count | per header: varint key length
    and key, varint value length (-1 null) and value

Attributes: bits 0-2 codec, bit 3 log-append time, bit 4 transactional, bit 5 control.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import crcmod.predefined

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT = 17
BODY_AT = 21
LOG_APPEND_TIME = 8
TRANSACTIONAL = 16
CONTROL = 32
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")

Headers = Sequence[tuple[str, bytes | None]]

_crc32c = crcmod.predefined.mkCrcFun("crc-32c")


def crc32c(data: bytes) -> int:
    return int(_crc32c(data))


@dataclass(frozen=True)
class Rec:
    """One record; `offset` and `timestamp` are absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """One record batch; base_timestamp None means that of the first record, last_offset and max_timestamp follow."""

    records: tuple[Rec, ...]
    base_offset: int = 0
    leader_epoch: int = 0
    attributes: int = 0
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def last_offset(self) -> int:
        return self.records[-1].offset


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, position after it)."""
    zigzag = shift = 0
    while True:
        byte = data[at]
        at += 1
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), at


def _encode_bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _wrapped(value: int) -> int:
    """As 64-bit arithmetic has it, here as in Kafka."""
    return (value + 2**63) % 2**64 - 2**63


def encode_record(record: Rec, base_offset: int, base_timestamp: int) -> bytes:
    body = b"".join(
        [
            b"\0",
            varint(record.timestamp - base_timestamp),
            varint(record.offset - base_offset),
            _encode_bytes(record.key),
            _encode_bytes(record.value),
            varint(len(record.headers)),
            *(_encode_bytes(name.encode()) + _encode_bytes(value) for name, value in record.headers),
        ]
    )
    return varint(len(body)) + body


def encode_records(batch: Batch) -> bytes:
    base_timestamp = batch.records[0].timestamp if batch.base_timestamp is None else batch.base_timestamp
    return b"".join(encode_record(record, batch.base_offset, base_timestamp) for record in batch.records)


def encode(batch: Batch) -> bytes:
    """The bytes of an uncompressed batch."""
    return encode_around(batch, encode_records(batch))


def sent(producer_id: int, sequence: int, *values: bytes, epoch: int = 0, transactional: bool = True) -> bytes:
    """A batch of an idempotent producer, as it sends it now; its records have one key."""
    now_ms = int(time.time() * 1000)
    records = tuple(Rec(at, now_ms, b"key", value) for at, value in enumerate(values))
    attributes = TRANSACTIONAL if transactional else 0
    batch = Batch(records, attributes=attributes, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return encode(batch)


def encode_around(
    batch: Batch, payload: bytes, *, record_count: int | None = None, last_delta: int | None = None
) -> bytes:
    """A batch whose records section is `payload` (compressed, or damaged on purpose) under a right CRC."""
    first, stamps = batch.records[0], [record.timestamp for record in batch.records]
    return seal(
        HEADER.pack(
            batch.base_offset,
            HEADER.size - 12 + len(payload),
            batch.leader_epoch,
            2,
            0,
            batch.attributes,
            batch.last_offset - batch.base_offset if last_delta is None else last_delta,
            first.timestamp if batch.base_timestamp is None else batch.base_timestamp,
            max(stamps) if batch.max_timestamp is None else batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            len(batch.records) if record_count is None else record_count,
        )
        + payload
    )


def seal(data: bytes) -> bytes:
    """`data` with the CRC of a batch set right."""
    return data[:CRC_AT] + struct.pack(">I", crc32c(data[BODY_AT:])) + data[BODY_AT:]


def batch_size(data: bytes, at: int = 0) -> int:
    return 12 + int(struct.unpack_from(">i", data, at + 8)[0])


def decode(data: bytes, payload: bytes | None = None) -> Batch:
    """One sound batch; `payload` is the decompressed records section of a compressed one."""
    offset, length, epoch, magic, crc, attributes, last_delta, base_ts, max_ts, pid, p_epoch, sequence, count = (
        HEADER.unpack_from(data)
    )
    assert magic == 2 and length + 12 == len(data) and crc == crc32c(data[BODY_AT:])
    body, at, records = data[HEADER.size :] if payload is None else payload, 0, []
    for _ in range(count):
        size, at = read_varint(body, at)
        end = at + size
        stamp_delta, at = read_varint(body, at + 1)
        offset_delta, at = read_varint(body, at)
        key, at = _read_bytes(body, at)
        value, at = _read_bytes(body, at)
        header_count, at = read_varint(body, at)
        headers = []
        for _ in range(header_count):
            name, at = _read_bytes(body, at)
            content, at = _read_bytes(body, at)
            assert name is not None
            headers.append((name.decode(errors="replace"), content))
        assert at == end
        stamp = max_ts if attributes & LOG_APPEND_TIME else _wrapped(base_ts + stamp_delta)
        records.append(Rec(offset + offset_delta, stamp, key, value, tuple(headers)))
    assert at == len(body) and records[-1].offset <= offset + last_delta
    return Batch(tuple(records), offset, epoch, attributes, base_ts, max_ts, pid, p_epoch, sequence)


def split(data: bytes) -> list[tuple[int, bytes]]:
    """The whole batches at the start of `data`, each with its position."""
    out, at = [], 0
    while len(data) - at >= 12 and batch_size(data, at) <= len(data) - at and batch_size(data, at) >= HEADER.size:
        out.append((at, data[at : at + batch_size(data, at)]))
        at += batch_size(data, at)
    return out


def indexes(log: bytes, base_offset: int, interval: int) -> tuple[bytes, bytes]:
    """The `.index` and `.timeindex` of a closed segment whose batches were appended one by one.

    An entry is due once more than `interval` bytes lie between: (last offset of the batch, where it starts) and
    (largest timestamp so far, offset of its batch's last record). Closing adds the final time entry.
    """
    offsets, times, since, largest = b"", b"", 0, (-1, base_offset)
    last_time = -1
    for at, data in split(log):
        header = HEADER.unpack_from(data)
        last_offset, max_timestamp = header[0] + header[6], header[8]
        if max_timestamp > largest[0]:
            largest = (max_timestamp, last_offset)
        if since > interval:
            offsets += struct.pack(">ii", last_offset - base_offset, at)
            if largest[0] > last_time:
                times += struct.pack(">qi", largest[0], largest[1] - base_offset)
                last_time = largest[0]
            since = 0
        since += len(data)
    if largest[0] > last_time:
        times += struct.pack(">qi", largest[0], largest[1] - base_offset)
    return offsets, times


def offset_checkpoint(entries: Sequence[tuple[str, int, int]]) -> bytes:
    """Kafka's offset checkpoint: version 0, the count, `topic partition offset` a line."""
    lines = ["0", str(len(entries)), *(f"{topic} {partition} {offset}" for topic, partition, offset in entries)]
    return ("\n".join(lines) + "\n").encode()


def epoch_checkpoint(entries: Sequence[tuple[int, int]]) -> bytes:
    """Kafka's leader-epoch-checkpoint: version 0, the count, `epoch start_offset` a line."""
    return ("\n".join(["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]) + "\n").encode()


def snapshot(entries: Sequence[tuple[int, int, int, int, int, int]]) -> bytes:
    """Kafka's producer snapshot v1 of (producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp)."""
    body = struct.pack(">i", len(entries)) + b"".join(SNAPSHOT_ENTRY.pack(*entry, -1, -1) for entry in entries)
    return struct.pack(">hI", 1, crc32c(body)) + body
