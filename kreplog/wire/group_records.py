"""Records of `__consumer_offsets` in Kafka's own formats.

    key of an offset     int16 0 or 1, string group, string topic, int32 partition
    its value            int16 version, int64 offset, int32 leader epoch (3), string metadata, int64 commit time,
                         int64 expiry time (1)
    key of a group       int16 2, string group
    its value            int16 version, string protocol type, int32 generation, string|null protocol,
                         string|null leader, int64 state time (2, 3), array of members
    member               string member id, string|null instance id (3), string client id, string client host,
                         int32 rebalance time-out (1 to 3), int32 session time-out, bytes subscription, bytes assignment

Numbers are big-endian; a string has an int16 length, bytes an int32 one, -1 for null. Values are written in version 3,
that of an offset with an expiry time in version 1, as Kafka does; versions 0 to 3 are read. No value: a tombstone.
Pending offsets are in a batch of their producer's transaction, which a control batch ends. consumer_group_records.py
has the other keys.
Source: Kafka, OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kreplog._native import batch, markers
from kreplog.core.group_messages import (
    GroupMetadata,
    GroupRecord,
    LogRecord,
    MarkerRecord,
    OffsetAndMetadata,
    OffsetRecord,
    PendingOffsetRecord,
    StoredMember,
)
from kreplog.errors import UsageError
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire import consumer_group_records
from kreplog.wire.record_fields import INT, LONG, SHORT, FieldReader, octets, text

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_LATEST = 3
_WITH_EXPIRY = 1

_VERSION_AND_OFFSET = struct.Struct(">hqi")

_TRANSACTIONAL = 16
"""A bit of a batch's attributes."""


def encode_batch(records: Iterable[LogRecord]) -> bytes:
    """One record batch, to append as a leader; pending offsets are all of one producer."""
    records = tuple(records)
    pairs = [encode_record(record) for record in records]
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    if isinstance(first := records[0], PendingOffsetRecord):
        return batch.build(
            values,
            keys,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
    return batch.build(values, keys)


def decode_batches(data: Buffer, offset: int) -> tuple[tuple[int, LogRecord], ...]:
    """The records of whole batches from `offset` on, each with its offset, as decode_records. Raises
    CorruptBatchError."""
    found: list[tuple[int, LogRecord]] = []
    for piece, info in _pieces(memoryview(data).cast("B")):
        records = batch.decode(piece)
        committed = markers.committed_of(piece) if info.is_control else None
        if committed is not None:
            at = info.base_offset
            found += [(at, MarkerRecord(info.producer_id, committed))] if at >= offset else []
            continue
        decoded = decode_records((each.offset, each.key, each.value) for each in records if each.offset >= offset)
        if info.attributes & _TRANSACTIONAL:
            producer = info.producer_id, info.producer_epoch
            found += [
                (at, PendingOffsetRecord(record.group_id, record.partition, record.value, *producer))
                for at, record in decoded
                if isinstance(record, OffsetRecord) and record.value is not None
            ]
        else:
            found += decoded
    return tuple(found)


def _pieces(data: memoryview) -> Iterator[tuple[memoryview, batch.BatchInfo]]:
    """Batches, and the first one's header: each of a transaction alone, and what lies between two in one piece."""
    start = at = 0
    first: batch.BatchInfo | None = None
    while at < len(data):
        info = batch.validate(data[at:])
        if info.is_control or info.attributes & _TRANSACTIONAL:
            if first is not None:
                yield data[start:at], first
                first = None
            yield data[at : at + info.size], info
        elif first is None:
            start, first = at, info
        at += info.size
    if first is not None:
        yield data[start:], first


def encode_record(record: LogRecord) -> tuple[bytes, bytes | None]:
    """(key, value) of a record; None is the value of a tombstone."""
    if isinstance(record, MarkerRecord):
        raise UsageError("a marker is appended by the leader of the partition, not by a coordinator of groups")
    if isinstance(record, (OffsetRecord, PendingOffsetRecord)):
        topic, number = record.partition
        key = b"".join((SHORT.pack(1), text(record.group_id), text(topic), INT.pack(number)))
        return key, None if record.value is None else _offset_value(record.value)
    if isinstance(record, GroupRecord):
        key = SHORT.pack(_GROUP_KEY) + text(record.group_id)
        return key, None if record.value is None else _group_value(record.value)
    return consumer_group_records.encode_record(record)


def _offset_value(value: OffsetAndMetadata) -> bytes:
    if value.expire_ms >= 0:
        parts = (
            SHORT.pack(_WITH_EXPIRY),
            LONG.pack(value.offset),
            text(value.metadata),
            LONG.pack(value.commit_ms),
            LONG.pack(value.expire_ms),
        )
        return b"".join(parts)
    head = _VERSION_AND_OFFSET.pack(_LATEST, value.offset, value.leader_epoch)
    return head + text(value.metadata) + LONG.pack(value.commit_ms)


def _group_value(value: GroupMetadata) -> bytes:
    parts = [
        SHORT.pack(_LATEST),
        text(value.protocol_type),
        INT.pack(value.generation_id),
        text(value.protocol),
        text(value.leader),
        LONG.pack(value.state_ms),
        INT.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            text(member.member_id),
            text(member.instance_id),
            text(member.client_id),
            text(member.client_host),
            INT.pack(member.rebalance_timeout_ms),
            INT.pack(member.session_timeout_ms),
            octets(member.subscription),
            octets(member.assignment),
        )
    return b"".join(parts)


def decode_records(records: Iterable[tuple[int, bytes | None, bytes | None]]) -> tuple[tuple[int, LogRecord], ...]:
    """Decode (offset, key, value) of each record. Those in other formats, such as of a later Kafka, and those that are
    no records of groups are left out."""
    found = []
    for offset, key, value in records:
        try:
            record = None if key is None else decode_record(key, value)
        except (struct.error, UnicodeDecodeError, ValueError):
            continue
        if record is not None:
            found.append((offset, record))
    return tuple(found)


def decode_record(key: bytes, value: bytes | None) -> LogRecord | None:
    """None for a key or value of an unknown version. Raises ValueError or struct.error for bytes that are no such
    record."""
    cursor = FieldReader(key)
    kind = cursor.short()
    if kind in _OFFSET_KEYS:
        group_id, topic, number = cursor.text(), cursor.text(), cursor.number()
        if value is None:
            return OffsetRecord(group_id, TopicPartition(topic, number), None)
        offset = _decoded_offset(FieldReader(value))
        return None if offset is None else OffsetRecord(group_id, TopicPartition(topic, number), offset)
    if kind != _GROUP_KEY:
        return consumer_group_records.decode_record(kind, cursor, value)
    group_id = cursor.text()
    if value is None:
        return GroupRecord(group_id, None)
    metadata = _decoded_group(FieldReader(value))
    return None if metadata is None else GroupRecord(group_id, metadata)


def _decoded_offset(cursor: FieldReader) -> OffsetAndMetadata | None:
    version = cursor.short()
    if not 0 <= version <= _LATEST:
        return None
    offset = cursor.long()
    leader_epoch = cursor.number() if version >= 3 else NO_EPOCH
    metadata, commit_ms = cursor.text(), cursor.long()
    return OffsetAndMetadata(
        offset, leader_epoch, metadata, commit_ms, cursor.long() if version == _WITH_EXPIRY else -1
    )


def _decoded_group(cursor: FieldReader) -> GroupMetadata | None:
    version = cursor.short()
    if not 0 <= version <= _LATEST:
        return None
    protocol_type, generation_id = cursor.text(), cursor.number()
    protocol, leader = cursor.text_or_null(), cursor.text_or_null()
    state_ms = cursor.long() if version >= 2 else -1
    members = []
    for _ in range(cursor.count()):
        member_id = cursor.text()
        instance_id = cursor.text_or_null() if version >= 3 else None
        client_id, client_host = cursor.text(), cursor.text()
        rebalance_timeout_ms = cursor.number() if version >= 1 else -1
        session_timeout_ms = cursor.number()
        members.append(
            StoredMember(
                member_id,
                instance_id,
                client_id,
                client_host,
                session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
                session_timeout_ms,
                cursor.octets(),
                cursor.octets(),
            )
        )
    return GroupMetadata(protocol_type, generation_id, protocol, leader, state_ms, tuple(members))
