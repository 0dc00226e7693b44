"""Records of `__transaction_state` in Kafka's own format.

    key      int16 version 0, string transactional id
    value    int16 version 0, int64 producer id, int16 producer epoch, int32 time-out, int8 state,
             array|null of (string topic, array of int32 partitions), int64 update time, int64 start time

Numbers are big-endian; a string has an int16 length, an array an int32 one, -1 for null. No value: a tombstone.
Source: Kafka, TransactionLogKey and TransactionLogValue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplog._native import batch
from kreplog.core.transaction_messages import TransactionMetadata, TransactionRecord
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

_VERSION = 0
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")


def encode_batch(records: Iterable[TransactionRecord]) -> bytes:
    """One record batch, to append as a leader."""
    pairs = [encode_record(record) for record in records]
    return batch.build([value for _, value in pairs], [key for key, _ in pairs])


def decode_batches(data: Buffer, offset: int) -> tuple[tuple[int, TransactionRecord], ...]:
    """The records of whole batches from `offset` on, each with its offset; those in other formats are left out. Raises
    CorruptBatchError."""
    found = []
    for record in batch.decode(data):
        if record.offset >= offset and record.key is not None:
            try:
                decoded = decode_record(record.key, record.value)
            except (struct.error, UnicodeDecodeError, ValueError):
                continue
            if decoded is not None:
                found.append((record.offset, decoded))
    return tuple(found)


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """(key, value) of a record; None is the value of a tombstone."""
    key = _SHORT.pack(0) + _text(record.transactional_id)
    value = record.value
    if value is None:
        return key, None
    head = _HEAD.pack(_VERSION, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
    return key, head + _partitions(value.partitions) + _TIMES.pack(value.update_ms, value.start_ms)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    if not by_topic:
        return _INT.pack(-1)
    parts = [_INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_text(topic), _INT.pack(len(numbers)), *map(_INT.pack, numbers)]
    return b"".join(parts)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """None for a key or value of an unknown version. Raises ValueError or struct.error for bytes that are no such
    record."""
    if _SHORT.unpack_from(key)[0] != 0:
        return None
    transactional_id, _ = _read_text(key, 2)
    if value is None:
        return TransactionRecord(transactional_id, None)
    version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(value)
    if version != _VERSION or not 0 <= state <= 6:
        return None
    at = _HEAD.size
    (topics,) = _INT.unpack_from(value, at)
    at += 4
    partitions = []
    for _ in range(topics):
        topic, at = _read_text(value, at)
        (count,) = _INT.unpack_from(value, at)
        at += 4
        if not 0 <= count <= (len(value) - at) // 4:
            raise ValueError(f"{count} partitions in {len(value) - at} bytes")
        partitions += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", value, at)]
        at += 4 * count
    update_ms, start_ms = _TIMES.unpack_from(value, at)
    metadata = TransactionMetadata(producer_id, epoch, timeout_ms, state, tuple(partitions), update_ms, start_ms)
    return TransactionRecord(transactional_id, metadata)


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, at)
    if not 0 <= length <= len(data) - at - 2:
        raise ValueError(f"a text of {length} bytes where {len(data) - at - 2} are left")
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length
