"""Records of `__transaction_state` in Kafka's own format.

    key      int16 version 0, string transactional id
    value    int16 version 0, int64 producer id, int16 producer epoch, int32 time-out, int8 state,
             array|null of (string topic, array of int32 partitions), int64 update time, int64 start time

Numbers are big-endian; a string has an int16 length, an array an int32 one, -1 for null. No value: a tombstone.

Version 1 of the value (KIP-890) is written for producers whose epoch is bumped with every transaction. The lengths of
its strings and arrays are unsigned varints, one more than the length and 0 for null; each topic and the value end in
tagged fields, those of the value being

    0  int64 the producer id before this one          1  int64 the producer id after this transaction
    2  int16 version of the producer's protocol

Source: Kafka, TransactionLogKey and TransactionLogValue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kreplog._native import batch
from kreplog.core.transaction_messages import NO_PRODUCER_ID, TransactionMetadata, TransactionRecord
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_LONG = struct.Struct(">q")

_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = range(3)
"""Tags."""


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
    if value.client_version >= 2 or value.previous_producer_id >= 0:
        return key, _encode_flexible(value)
    head = _HEAD.pack(0, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
    return key, head + _partitions(value.partitions) + _TIMES.pack(value.update_ms, value.start_ms)


def _encode_flexible(value: TransactionMetadata) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in value.partitions:
        by_topic.setdefault(topic, []).append(number)
    parts = [_HEAD.pack(1, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)]
    parts.append(_varint(len(by_topic) + 1 if by_topic else 0))
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts += [_varint(len(name) + 1), name, _varint(len(numbers) + 1), *map(_INT.pack, numbers), _varint(0)]
    parts.append(_TIMES.pack(value.update_ms, value.start_ms))
    tags = [
        (tag, content.pack(number))
        for tag, content, number, default in (
            (_PREVIOUS_ID, _LONG, value.previous_producer_id, NO_PRODUCER_ID),
            (_NEXT_ID, _LONG, value.next_producer_id, NO_PRODUCER_ID),
            (_CLIENT_VERSION, _SHORT, value.client_version, 0),
        )
        if number != default
    ]
    parts.append(_varint(len(tags)))
    for tag, content in tags:
        parts += [_varint(tag), _varint(len(content)), content]
    return b"".join(parts)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


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
    if version not in (0, 1) or not 0 <= state <= 6:
        return None
    if version == 1:
        metadata = TransactionMetadata(producer_id, epoch, timeout_ms, state, *_decode_flexible(value))
        return TransactionRecord(transactional_id, metadata)
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


def _decode_flexible(value: bytes) -> tuple[tuple[TopicPartition, ...], int, int, int, int, int]:
    """What follows the state in version 1: the fields of TransactionMetadata from `partitions` on."""
    topics, at = _read_varint(value, _HEAD.size)
    partitions: list[TopicPartition] = []
    for _ in range(topics - 1):
        length, at = _read_length(value, at, 1)
        topic, at = value[at : at + length].decode(), at + length
        count, at = _read_length(value, at, 4)
        partitions += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", value, at)]
        _, at = _read_tags(value, at + 4 * count)
    update_ms, start_ms = _TIMES.unpack_from(value, at)
    tags, _ = _read_tags(value, at + _TIMES.size)
    numbers = {tag: int.from_bytes(content, "big", signed=True) for tag, content in tags.items()}
    version = numbers.get(_CLIENT_VERSION, 0)
    previous_id, next_id = (numbers.get(tag, NO_PRODUCER_ID) for tag in (_PREVIOUS_ID, _NEXT_ID))
    return tuple(partitions), update_ms, start_ms, version, previous_id, next_id


def _read_tags(data: bytes, at: int) -> tuple[dict[int, bytes], int]:
    count, at = _read_varint(data, at)
    found = {}
    for _ in range(count):
        tag, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        if size > len(data) - at:
            raise ValueError(f"a tagged field of {size} bytes where {len(data) - at} are left")
        found[tag] = data[at : at + size]
        at += size
    return found, at


def _read_length(data: bytes, at: int, item_size: int) -> tuple[int, int]:
    length, at = _read_varint(data, at)
    if not 0 < length <= (len(data) - at) // item_size + 1:
        raise ValueError(f"{length - 1} items in {len(data) - at} bytes")
    return length - 1, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ValueError("a number is cut short")
        byte, at = data[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number has more than 5 bytes")
