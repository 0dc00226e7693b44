"""Records of groups whose coordinator assigns the partitions (KIP-848), in Kafka's bytes."""

from __future__ import annotations

import pytest

from kreplog.core.consumer_group_messages import (
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
from kreplog.wire.group_records import decode_batches, decode_record, decode_records, encode_batch, encode_record

FIRST, SECOND = "AAECAwQFBgcICQoLDA0ODw", "EBESExQVFhcYGRobHB0eHw"

CLASSIC = ClassicMemberMetadata(45_000, (("range", b"\1\2"),))
MEMBER = ConsumerMemberMetadata("i", "r", "c", "/h", ("t", "u"), "x.*", 300_000, "range")
TARGET = (TopicIdPartitions(FIRST, (0, 300)), TopicIdPartitions(SECOND, (1,)))
CURRENT = CurrentAssignment(
    7,
    6,
    MemberState.UNREVOKED_PARTITIONS,
    (TopicIdPartitions(FIRST, (0,)),),
    (TopicIdPartitions(SECOND, (1, 2)),),
    ((5,), (6, 7)),
)

RECORDS: tuple[tuple[ConsumerGroupLogRecord, str], ...] = (
    (ConsumerGroupRecord("g", ConsumerGroupMetadata(7)), "0003000167 00000000000700"),
    (ConsumerGroupRecord("g", ConsumerGroupMetadata(7, -2)), "0003000167 000000000007010008fffffffffffffffe"),
    (ConsumerGroupRecord("g", None), "0003000167 null"),
    (
        ConsumerMemberRecord("g", "m", MEMBER),
        "000500016700016d 0000026902720263032f68030274027504782e2a000493e00672616e676500",
    ),
    (
        ConsumerMemberRecord("g", "m", ConsumerMemberMetadata(None, None, "c", "/h", (), None, -1, None, CLASSIC)),
        "000500016700016d 000000000263032f680100ffffffff00010011010000afc8020672616e67650301020000",
    ),
    (ConsumerMemberRecord("g", "m", None), "000500016700016d null"),
    (TargetEpochRecord("g", 6), "0006000167 00000000000600"),
    (TargetEpochRecord("g", None), "0006000167 null"),
    (
        TargetAssignmentRecord("g", "m", TARGET),
        "000700016700016d 000003000102030405060708090a0b0c0d0e0f03000000000000012c00"
        "101112131415161718191a1b1c1d1e1f02000000010000",
    ),
    (TargetAssignmentRecord("g", "m", ()), "000700016700016d 00000100"),
    (TargetAssignmentRecord("g", "m", None), "000700016700016d null"),
    (
        CurrentAssignmentRecord("g", "m", CURRENT),
        "000800016700016d 000000000007000000060102000102030405060708090a0b0c0d0e0f020000000001000502000000050"
        "2101112131415161718191a1b1c1d1e1f03000000010000000201000903000000060000000700",
    ),
    (CurrentAssignmentRecord("g", "m", None), "000800016700016d null"),
    (
        ResolvedRegexRecord("g", "x.*", ResolvedRegex(("xa", "xb"), 12, 1000)),
        "00100001670003782e2a 000003037861037862000000000000000c00000000000003e800",
    ),
    (ResolvedRegexRecord("g", "x.*", None), "00100001670003782e2a null"),
)
"""Each with its key and value as Kafka 4.4 writes them: printed by tests/interop/GroupRecords.java."""

WITH_TAGS: tuple[tuple[ConsumerGroupLogRecord, str], ...] = (
    (TargetEpochRecord("g", 6), "0006000167 00000000000601000800000000000003e8"),
    (
        CurrentAssignmentRecord("g", "m", CURRENT._replace(assignment_epochs=((7,), (7, 7)))),
        "000800016700016d 000000000007000000060102000102030405060708090a0b0c0d0e0f020000000000"
        "02101112131415161718191a1b1c1d1e1f0300000001000000020000",
    ),
    (
        CurrentAssignmentRecord("g", "m", CURRENT._replace(assignment_epochs=((7,), (7, 7)))),
        "000800016700016d 000000000007000000060102000102030405060708090a0b0c0d0e0f0200000000010009030000000500000006"
        "02101112131415161718191a1b1c1d1e1f030000000100000002010005020000000600",
    ),
)
"""With a tag that kreplog has no use for, the time of an assignment; and as before assignment epochs, or with another
number of them than of partitions."""


def bytes_of(pair: str) -> tuple[bytes, bytes | None]:
    key, value = pair.split()
    return bytes.fromhex(key), None if value == "null" else bytes.fromhex(value)


@pytest.mark.parametrize(("record", "pair"), RECORDS)
def test_a_record_is_written_and_read_as_kafka_does(record: ConsumerGroupLogRecord, pair: str) -> None:
    assert encode_record(record) == bytes_of(pair)
    assert decode_record(*bytes_of(pair)) == record


@pytest.mark.parametrize(("record", "pair"), WITH_TAGS)
def test_records_of_other_versions_are_read(record: ConsumerGroupLogRecord, pair: str) -> None:
    assert decode_record(*bytes_of(pair)) == record


def test_a_static_member_that_has_left_has_no_negative_assignment_epoch() -> None:
    left = CURRENT._replace(member_epoch=-2, pending_revocation=(), assignment_epochs=((0,),))
    key, value = encode_record(CurrentAssignmentRecord("g", "m", left))
    tagged, untagged = bytes.fromhex("01000502000000000100"), bytes.fromhex("000100")
    assert value is not None and value.endswith(tagged)
    value = value.removesuffix(tagged) + untagged
    assert decode_record(key, value) == CurrentAssignmentRecord("g", "m", left)


def test_partitions_are_read_in_order_whatever_the_order_of_the_record() -> None:
    turned = tuple(each._replace(partitions=each.partitions[::-1]) for each in reversed(TARGET))
    key, value = encode_record(TargetAssignmentRecord("g", "m", turned))
    assert value != bytes_of(RECORDS[8][1])[1]
    assert decode_record(key, value) == TargetAssignmentRecord("g", "m", TARGET)


def test_a_batch_has_them_in_order() -> None:
    records = tuple(record for record, _ in RECORDS)
    assert decode_batches(encode_batch(records), 0) == tuple(enumerate(records))


def test_unknown_types_and_versions_and_damaged_bytes_are_left_out() -> None:
    """Type 4 is of Kafka before 4.1; 15 and 17 are of share and streams groups; 0 is the only version of a value."""
    pairs = [bytes_of(pair) for _, pair in RECORDS]
    others: list[tuple[bytes, bytes | None]] = []
    for kind in (4, 9, 15, 17, 300):
        others += [(kind.to_bytes(2, "big") + key[2:], value) for key, value in pairs]
    others += [(key, b"\0\1" + value[2:]) for key, value in pairs if value]
    for key, value in pairs:
        others += [(key[:end], value) for end in range(len(key))]
        others += [(key, value[:end]) for end in range(len(value))] if value else []
    (at,) = [at for at, (record, _) in enumerate(RECORDS) if record == CurrentAssignmentRecord("g", "m", CURRENT)]
    key, value = pairs[at]
    assert value is not None
    others.append((key, value[:10] + b"\x7f" + value[11:]))  # an unknown state
    assert decode_records((at, *pair) for at, pair in enumerate(others)) == ()


def test_any_bytes_are_a_record_or_left_out() -> None:
    for _, pair in RECORDS:
        key, value = bytes_of(pair)
        for at in range(len(value or b"")):
            assert value is not None
            for flip in (0x01, 0x80, 0xFF):
                decode_records([(0, key, value[:at] + bytes([value[at] ^ flip]) + value[at + 1 :])])
