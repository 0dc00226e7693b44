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
from kreplog.wire.record_fields import (
    INT,
    LONG,
    SHORT,
    FieldReader,
    compact_array,
    compact_numbers,
    compact_text,
    tags,
    text,
    varint,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")

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
    key = SHORT.pack(0) + text(record.transactional_id)
    value = record.value
    if value is None:
        return key, None
    if value.client_version >= 2 or value.previous_producer_id >= 0:
        return key, _encode_flexible(value)
    head = _HEAD.pack(0, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)
    return key, head + _partitions(value.partitions) + _TIMES.pack(value.update_ms, value.start_ms)


def _encode_flexible(value: TransactionMetadata) -> bytes:
    by_topic = _by_topic(value.partitions)
    topics = [compact_text(topic) + compact_numbers(numbers) + tags() for topic, numbers in by_topic.items()]
    tagged = {
        tag: content.pack(number)
        for tag, content, number, default in (
            (_PREVIOUS_ID, LONG, value.previous_producer_id, NO_PRODUCER_ID),
            (_NEXT_ID, LONG, value.next_producer_id, NO_PRODUCER_ID),
            (_CLIENT_VERSION, SHORT, value.client_version, 0),
        )
        if number != default
    }
    parts = (
        _HEAD.pack(1, value.producer_id, value.producer_epoch, value.timeout_ms, value.state),
        compact_array(topics) if topics else varint(0),
        _TIMES.pack(value.update_ms, value.start_ms),
        tags(tagged),
    )
    return b"".join(parts)


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic = _by_topic(partitions)
    if not by_topic:
        return INT.pack(-1)
    parts = [INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [text(topic), INT.pack(len(numbers)), *map(INT.pack, numbers)]
    return b"".join(parts)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def decode_record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """None for a key or value of an unknown version. Raises ValueError or struct.error for bytes that are no such
    record."""
    reader = FieldReader(key)
    if reader.short() != 0:
        return None
    transactional_id = reader.text()
    if value is None:
        return TransactionRecord(transactional_id, None)
    version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(value)
    if version not in (0, 1) or not 0 <= state <= 6:
        return None
    decode = _decode_flexible if version == 1 else _decode_plain
    metadata = TransactionMetadata(producer_id, epoch, timeout_ms, state, *decode(FieldReader(value, _HEAD.size)))
    return TransactionRecord(transactional_id, metadata)


_Rest = tuple[tuple[TopicPartition, ...], int, int, int, int, int]
"""The fields of TransactionMetadata from `partitions` on."""


def _decode_plain(reader: FieldReader) -> _Rest:
    partitions: list[TopicPartition] = []
    for _ in range(reader.number()):
        topic = reader.text()
        partitions += [TopicPartition(topic, number) for number in reader.numbers()]
    return tuple(partitions), reader.long(), reader.long(), 0, NO_PRODUCER_ID, NO_PRODUCER_ID


def _decode_flexible(reader: FieldReader) -> _Rest:
    partitions: list[TopicPartition] = []
    for _ in range(reader.compact_count()):
        topic = reader.compact_text()
        partitions += [TopicPartition(topic, number) for number in reader.compact_numbers()]
        reader.tags()
    update_ms, start_ms = reader.long(), reader.long()
    numbers = {tag: int.from_bytes(content, "big", signed=True) for tag, content in reader.tags().items()}
    version = numbers.get(_CLIENT_VERSION, 0)
    previous_id, next_id = (numbers.get(tag, NO_PRODUCER_ID) for tag in (_PREVIOUS_ID, _NEXT_ID))
    return tuple(partitions), update_ms, start_ms, version, previous_id, next_id
