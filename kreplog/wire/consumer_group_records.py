"""Records of `__consumer_offsets` of groups whose coordinator assigns the partitions (KIP-848), in Kafka's own formats.

    key    int16 type, string group, and of types 5, 7 and 8 string member id, of 16 string expression
    value  int16 version 0, the fields below in flexible form, and tagged fields

     3  a group             int32 epoch; tag 0: int64 hash of the topics' metadata
     5  a member            text|null instance id, text|null rack, text client id, text client host,
                            array of text topics, text|null expression, int32 rebalance time-out, text|null assignor;
                            tag 0: int8 1 (-1 for null), int32 session time-out,
                            array of (text name, bytes metadata, tags), tags
     6  target assignment   int32 epoch
     7  of a member         array of topics
     8  what it may own     int32 epoch, int32 previous epoch, int8 state, array of topics, array of topics to revoke
    16  an expression       array of text topics, int64 version of the metadata, int64 time
        a topic             uuid, array of int32 partitions, tags; of type 8 tag 0: array of int32 assignment epochs

No value: a tombstone. Written as Kafka 4.4 does, but for its tag with the time of an assignment (KIP-1263); other tags
are read over. Assignment epochs (KIP-1251) are of Kafka from 4.3 on: without them, or with another number of them than
of partitions, that of each partition is the member's epoch, as in Kafka. Type 4, the topics' metadata, is of Kafka
before 4.1, and is not read.
Source: Kafka, ConsumerGroupMetadataKey and the other schemas of its group coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kreplog._native.wire import topic_id_bytes
from kreplog.core.consumer_group_messages import (
    Assignment,
    ClassicMemberMetadata,
    ConsumerGroupLogRecord,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    MemberState,
    ResolvedRegex,
    ResolvedRegexRecord,
    TargetAssignmentRecord,
    TargetEpochRecord,
    TopicIdPartitions,
)
from kreplog.wire.record_fields import (
    INT,
    LONG,
    SHORT,
    FieldReader,
    compact_array,
    compact_numbers,
    compact_octets,
    compact_text,
    tags,
    text,
)

_GROUP, _MEMBER, _TARGET_EPOCH, _TARGET, _CURRENT, _REGEX = 3, 5, 6, 7, 8, 16
"""Types of keys."""

_METADATA_HASH = 0
_CLASSIC_MEMBER = 0
_ASSIGNMENT_EPOCHS = 0
"""Tags."""

_VERSION = SHORT.pack(0)
_PRESENT = b"\1"
_NULL = b"\0"


def encode_record(record: ConsumerGroupLogRecord) -> tuple[bytes, bytes | None]:
    """(key, value) of a record; None is the value of a tombstone."""
    key, value = _ENCODERS[type(record)](record)
    return key, None if value is None else _VERSION + value


def _key(kind: int, *names: str) -> bytes:
    return SHORT.pack(kind) + b"".join(map(text, names))


def _group(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    key = _key(_GROUP, record.group_id)
    if record.value is None:
        return key, None
    epoch, metadata_hash = record.value
    tagged = {_METADATA_HASH: LONG.pack(metadata_hash)} if metadata_hash else {}
    return key, INT.pack(epoch) + tags(tagged)


def _member(record: ConsumerMemberRecord) -> tuple[bytes, bytes | None]:
    key, value = _key(_MEMBER, record.group_id, record.member_id), record.value
    if value is None:
        return key, None
    fields = (
        compact_text(value.instance_id),
        compact_text(value.rack_id),
        compact_text(value.client_id),
        compact_text(value.client_host),
        _texts(value.subscribed_topics),
        compact_text(value.subscribed_regex),
        INT.pack(value.rebalance_timeout_ms),
        compact_text(value.server_assignor),
        tags({} if value.classic is None else {_CLASSIC_MEMBER: _classic(value.classic)}),
    )
    return key, b"".join(fields)


def _classic(classic: ClassicMemberMetadata) -> bytes:
    protocols = [compact_text(name) + compact_octets(metadata) + tags() for name, metadata in classic.protocols]
    return _PRESENT + INT.pack(classic.session_timeout_ms) + compact_array(protocols) + tags()


def _target_epoch(record: TargetEpochRecord) -> tuple[bytes, bytes | None]:
    value = None if record.value is None else INT.pack(record.value) + tags()
    return _key(_TARGET_EPOCH, record.group_id), value


def _target(record: TargetAssignmentRecord) -> tuple[bytes, bytes | None]:
    value = None if record.value is None else _topics(record.value) + tags()
    return _key(_TARGET, record.group_id, record.member_id), value


def _current(record: CurrentAssignmentRecord) -> tuple[bytes, bytes | None]:
    key, value = _key(_CURRENT, record.group_id, record.member_id), record.value
    if value is None:
        return key, None
    assigned = len(value.assigned)
    fields = (
        INT.pack(value.member_epoch),
        INT.pack(value.previous_member_epoch),
        bytes([value.state]),
        _topics_with_epochs(value.assigned, value.assignment_epochs[:assigned]),
        _topics_with_epochs(value.pending_revocation, value.assignment_epochs[assigned:]),
        tags(),
    )
    return key, b"".join(fields)


def _regex(record: ResolvedRegexRecord) -> tuple[bytes, bytes | None]:
    key, value = _key(_REGEX, record.group_id, record.regex), record.value
    if value is None:
        return key, None
    return key, _texts(value.topics) + LONG.pack(value.version) + LONG.pack(value.wall_ms) + tags()


def _texts(texts: Iterable[str]) -> bytes:
    return compact_array([*map(compact_text, texts)])


def _topics(assignment: Assignment) -> bytes:
    return compact_array(
        [topic_id_bytes(topic_id) + compact_numbers(numbers) + tags() for topic_id, numbers in assignment]
    )


def _topics_with_epochs(assignment: Assignment, assignment_epochs: tuple[tuple[int, ...], ...]) -> bytes:
    return compact_array(
        [
            topic_id_bytes(topic_id) + compact_numbers(numbers) + tags({_ASSIGNMENT_EPOCHS: compact_numbers(epochs)})
            for (topic_id, numbers), epochs in zip(assignment, assignment_epochs, strict=True)
        ]
    )


_ENCODERS: dict[type, Callable[[Any], tuple[bytes, bytes | None]]] = {
    ConsumerGroupRecord: _group,
    ConsumerMemberRecord: _member,
    TargetEpochRecord: _target_epoch,
    TargetAssignmentRecord: _target,
    CurrentAssignmentRecord: _current,
    ResolvedRegexRecord: _regex,
}


def decode_record(kind: int, key: FieldReader, value: bytes | None) -> ConsumerGroupLogRecord | None:
    """A record of `__consumer_offsets` as a message. None for a type or version that is not known.

    key: behind its type `kind`. Raises ValueError or struct.error for
    bytes that are no such record."""
    found = _DECODERS.get(kind)
    if found is None:
        return None
    record, decode, names = found
    identity = [key.text() for _ in range(names)]
    if value is None:
        return record(*identity, None)
    reader = FieldReader(value)
    return record(*identity, decode(reader)) if reader.short() == 0 else None


def _decoded_group(reader: FieldReader) -> ConsumerGroupMetadata:
    epoch, tagged = reader.number(), reader.tags()
    return ConsumerGroupMetadata(epoch, int.from_bytes(tagged.get(_METADATA_HASH, b""), "big", signed=True))


def _decoded_member(reader: FieldReader) -> ConsumerMemberMetadata:
    fields = (
        reader.compact_text_or_null(),
        reader.compact_text_or_null(),
        reader.compact_text(),
        reader.compact_text(),
        _decoded_texts(reader),
        reader.compact_text_or_null(),
        reader.number(),
        reader.compact_text_or_null(),
    )
    classic = reader.tags().get(_CLASSIC_MEMBER)
    return ConsumerMemberMetadata(*fields, None if classic is None else _decoded_classic(FieldReader(classic)))


def _decoded_classic(reader: FieldReader) -> ClassicMemberMetadata | None:
    if reader.byte() < 0:
        return None
    session_timeout_ms, protocols = reader.number(), []
    for _ in range(reader.compact_count()):
        protocols.append((reader.compact_text(), reader.compact_octets()))
        reader.tags()
    return ClassicMemberMetadata(session_timeout_ms, tuple(protocols))


def _decoded_target_epoch(reader: FieldReader) -> int:
    epoch, _ = reader.number(), reader.tags()
    return epoch


def _decoded_target(reader: FieldReader) -> Assignment:
    assignment, _ = _decoded_topics(reader), reader.tags()
    return assignment


def _decoded_current(reader: FieldReader) -> CurrentAssignment:
    epochs, state = (reader.number(), reader.number()), MemberState(reader.byte())
    topics, _ = [_decoded_topics_with_epochs(reader, epochs[0]) for _ in range(2)], reader.tags()
    (assigned, since), (pending_revocation, pending_since) = topics
    return CurrentAssignment(*epochs, state, assigned, pending_revocation, since + pending_since)


def _decoded_regex(reader: FieldReader) -> ResolvedRegex:
    topics, version, wall_ms, _ = _decoded_texts(reader), reader.long(), reader.long(), reader.tags()
    return ResolvedRegex(topics, version, wall_ms)


def _decoded_texts(reader: FieldReader) -> tuple[str, ...]:
    return tuple([reader.compact_text() for _ in range(reader.compact_count())])


def _decoded_topics(reader: FieldReader) -> Assignment:
    """In the order of the ids, whatever the order in the record."""
    topics = []
    for _ in range(reader.compact_count()):
        topics.append(TopicIdPartitions(reader.topic_id(), tuple(sorted(reader.compact_numbers()))))
        reader.tags()
    return tuple(sorted(topics))


def _decoded_topics_with_epochs(
    reader: FieldReader, member_epoch: int
) -> tuple[Assignment, tuple[tuple[int, ...], ...]]:
    """... and the assignment epochs of their partitions."""
    topics = []
    for _ in range(reader.compact_count()):
        topic_id, numbers, tagged = reader.topic_id(), reader.compact_numbers(), reader.tags()
        epochs = FieldReader(tagged.get(_ASSIGNMENT_EPOCHS, _NULL)).compact_numbers_or_null()
        if epochs is None or len(epochs) != len(numbers):
            epochs = (max(member_epoch, 0),) * len(numbers)
        topics.append((topic_id, sorted(zip(numbers, epochs, strict=True))))
    topics.sort()
    assignment = tuple(TopicIdPartitions(topic_id, tuple(number for number, _ in each)) for topic_id, each in topics)
    return assignment, tuple(tuple(epoch for _, epoch in each) for _, each in topics)


_DECODERS: dict[int, tuple[Callable[..., ConsumerGroupLogRecord], Callable[[FieldReader], Any], int]] = {
    _GROUP: (ConsumerGroupRecord, _decoded_group, 1),
    _MEMBER: (ConsumerMemberRecord, _decoded_member, 2),
    _TARGET_EPOCH: (TargetEpochRecord, _decoded_target_epoch, 1),
    _TARGET: (TargetAssignmentRecord, _decoded_target, 2),
    _CURRENT: (CurrentAssignmentRecord, _decoded_current, 2),
    _REGEX: (ResolvedRegexRecord, _decoded_regex, 2),
}
"""By type of the key: what makes the record, what decodes its value, and how many texts name it in the key."""
