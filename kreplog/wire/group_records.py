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
Pending offsets are in a batch of their producer's transaction, which a control batch ends.
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

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OFFSET_KEYS = (0, 1)
_GROUP_KEY = 2
_LATEST = 3
_WITH_EXPIRY = 1

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_VERSION_AND_OFFSET = struct.Struct(">hqi")
_PRODUCER = struct.Struct(">qh")

_HEADER_BYTES = 61
_TRANSACTIONAL = 16
_CONTROL = 32
"""Of a batch: the size of its header, and attributes."""


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
    for piece, attributes, producer_id, producer_epoch in _pieces(memoryview(data).cast("B")):
        records = batch.decode(piece)
        committed = markers.committed_of(piece) if attributes & _CONTROL else None
        if committed is not None:
            (at,) = _LONG.unpack_from(piece)
            found += [(at, MarkerRecord(producer_id, committed))] if at >= offset else []
            continue
        decoded = decode_records((each.offset, each.key, each.value) for each in records if each.offset >= offset)
        if attributes & _TRANSACTIONAL:
            found += [
                (at, PendingOffsetRecord(record.group_id, record.partition, record.value, producer_id, producer_epoch))
                for at, record in decoded
                if isinstance(record, OffsetRecord) and record.value is not None
            ]
        else:
            found += decoded
    return tuple(found)


def _pieces(data: memoryview) -> Iterator[tuple[memoryview, int, int, int]]:
    """(batches, attributes, producer id, epoch): each batch of a transaction alone, and what lies between two of them
    in one piece."""
    start = at = 0
    while len(data) - at >= _HEADER_BYTES:
        end = at + 12 + int(_INT.unpack_from(data, at + 8)[0])
        (attributes,) = _SHORT.unpack_from(data, at + 21)
        if end <= at or end > len(data):
            break  # what is damaged is the decoder's to say
        if attributes & (_TRANSACTIONAL | _CONTROL):
            if at > start:
                yield data[start:at], 0, -1, -1
            yield data[at:end], attributes, *_PRODUCER.unpack_from(data, at + 43)
            start = end
        at = end
    if start < len(data):
        yield data[start:], 0, -1, -1


def encode_record(record: LogRecord) -> tuple[bytes, bytes | None]:
    """(key, value) of a record; None is the value of a tombstone."""
    if isinstance(record, MarkerRecord):
        raise UsageError("a marker is appended by the leader of the partition, not by a coordinator of groups")
    if isinstance(record, (OffsetRecord, PendingOffsetRecord)):
        topic, number = record.partition
        key = b"".join((_SHORT.pack(1), _text(record.group_id), _text(topic), _INT.pack(number)))
        return key, None if record.value is None else _offset_value(record.value)
    key = _SHORT.pack(_GROUP_KEY) + _text(record.group_id)
    return key, None if record.value is None else _group_value(record.value)


def _offset_value(value: OffsetAndMetadata) -> bytes:
    if value.expire_ms >= 0:
        parts = (
            _SHORT.pack(_WITH_EXPIRY),
            _LONG.pack(value.offset),
            _text(value.metadata),
            _LONG.pack(value.commit_ms),
            _LONG.pack(value.expire_ms),
        )
        return b"".join(parts)
    head = _VERSION_AND_OFFSET.pack(_LATEST, value.offset, value.leader_epoch)
    return head + _text(value.metadata) + _LONG.pack(value.commit_ms)


def _group_value(value: GroupMetadata) -> bytes:
    parts = [
        _SHORT.pack(_LATEST),
        _text(value.protocol_type),
        _INT.pack(value.generation_id),
        _text(value.protocol),
        _text(value.leader),
        _LONG.pack(value.state_ms),
        _INT.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _text(member.member_id),
            _text(member.instance_id),
            _text(member.client_id),
            _text(member.client_host),
            _INT.pack(member.rebalance_timeout_ms),
            _INT.pack(member.session_timeout_ms),
            _INT.pack(len(member.subscription)),
            member.subscription,
            _INT.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _text(text: str | None) -> bytes:
    if text is None:
        return _SHORT.pack(-1)
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


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
    cursor = _Cursor(key)
    kind = cursor.short()
    if kind in _OFFSET_KEYS:
        group_id, topic, number = cursor.text(), cursor.text(), cursor.number()
        if value is None:
            return OffsetRecord(group_id, TopicPartition(topic, number), None)
        offset = _decoded_offset(_Cursor(value))
        return None if offset is None else OffsetRecord(group_id, TopicPartition(topic, number), offset)
    if kind != _GROUP_KEY:
        return None
    group_id = cursor.text()
    if value is None:
        return GroupRecord(group_id, None)
    metadata = _decoded_group(_Cursor(value))
    return None if metadata is None else GroupRecord(group_id, metadata)


def _decoded_offset(cursor: _Cursor) -> OffsetAndMetadata | None:
    version = cursor.short()
    if not 0 <= version <= _LATEST:
        return None
    offset = cursor.long()
    leader_epoch = cursor.number() if version >= 3 else NO_EPOCH
    metadata, commit_ms = cursor.text(), cursor.long()
    return OffsetAndMetadata(
        offset, leader_epoch, metadata, commit_ms, cursor.long() if version == _WITH_EXPIRY else -1
    )


def _decoded_group(cursor: _Cursor) -> GroupMetadata | None:
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


class _Cursor:
    """Reads fields from bytes, which end where they end: struct.error or ValueError beyond."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def short(self) -> int:
        return self._number(_SHORT)

    def number(self) -> int:
        return self._number(_INT)

    def long(self) -> int:
        return self._number(_LONG)

    def _number(self, form: struct.Struct) -> int:
        (number,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return int(number)

    def count(self) -> int:
        """Of an array whose items take at least a byte each."""
        count = self.number()
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError(f"an array of {count} items in {len(self._data) - self._at} bytes")
        return count

    def text(self) -> str:
        text = self.text_or_null()
        if text is None:
            raise ValueError("null in place of a text")
        return text

    def text_or_null(self) -> str | None:
        length = self.short()
        return None if length == -1 else self._take(length).decode()

    def octets(self) -> bytes:
        return self._take(self.number())

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise ValueError(f"{length} bytes where {len(self._data) - self._at} are left")
        taken = self._data[self._at : self._at + length]
        self._at += length
        return taken
