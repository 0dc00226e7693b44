"""Requests of groups in all offered versions, and the records of their log in Kafka's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog import Log, LogConfig
from kreplog._native.batch import validate
from kreplog.core.group_messages import (
    CommitPartition,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffsets,
    GroupMetadata,
    GroupRecord,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    LogRecord,
    MarkerRecord,
    MemberIdentity,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetRecord,
    PendingOffsetRecord,
    StoredMember,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kreplog.errors import CorruptBatchError, ErrorCode, ProducerFencedError
from kreplog.types import TopicPartition
from kreplog.wire import generic, groups
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.group_records import decode_batches, decode_record, decode_records, encode_batch, encode_record
from kreplog.wire.versions import TO_CLIENTS, ApiKey

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPICS = [("t", (0, 1)), ("u", (0,))]


def decoded(key: ApiKey, version: int, **fields: Any) -> Any:
    (frame,) = generic.encode_request(RequestHeader(key, version, 7, "client"), **fields)
    body = bytes(frame)[4:]
    return groups.DECODERS[key](body, decode_request_header(body, TO_CLIENTS), 1000)


def encoded(key: ApiKey, version: int, response: Any) -> Any:
    header = RequestHeader(key, version, 7, "client")
    (frame,) = groups.ENCODERS[key](response, header)
    return generic.decode_response(bytes(frame)[4:], header)


def versions(key: ApiKey) -> list[int]:
    low, high = TO_CLIENTS[key]
    return list(range(low, high + 1))


def of(key: ApiKey) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", versions(key))


def test_every_api_of_groups_has_both() -> None:
    assert groups.DECODERS.keys() == groups.ENCODERS.keys() <= TO_CLIENTS.keys()


@of(ApiKey.JOIN_GROUP)
def test_join_group(version: int) -> None:
    request = decoded(
        ApiKey.JOIN_GROUP,
        version,
        group_id="g",
        session_timeout_ms=10,
        rebalance_timeout_ms=20,
        member_id="m",
        group_instance_id="i",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"r"}, {"name": "sticky", "metadata": b""}],
        reason="why",
    )
    assert request == JoinGroupRequest(
        "g",
        "m",
        "i" if version >= 5 else None,
        "client",
        "",
        10,
        20 if version >= 1 else 10,
        "consumer",
        (("range", b"r"), ("sticky", b"")),
        version >= 4,
        version >= 9,
    )
    members = (JoinedMember("m", "i", b"r"), JoinedMember("n", None, b""))
    response = JoinGroupResponse(ErrorCode.NONE, "m", 3, "consumer", "range", "m", members, True)
    message = encoded(ApiKey.JOIN_GROUP, version, response)
    assert (message.error_code, message.generation_id, message.protocol_name, message.leader) == (0, 3, "range", "m")
    assert [(each.member_id, each.metadata) for each in message.members] == [("m", b"r"), ("n", b"")]
    assert [each.group_instance_id for each in message.members] == (["i", None] if version >= 5 else [None, None])
    assert message.skip_assignment == (version >= 9)
    refused = encoded(ApiKey.JOIN_GROUP, version, JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, "m"))
    assert (refused.error_code, refused.member_id, refused.generation_id) == (79, "m", -1)
    assert refused.protocol_name == (None if version >= 7 else "")


@of(ApiKey.SYNC_GROUP)
def test_sync_group(version: int) -> None:
    request = decoded(
        ApiKey.SYNC_GROUP,
        version,
        group_id="g",
        generation_id=3,
        member_id="m",
        group_instance_id="i",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": "m", "assignment": b"a"}],
    )
    static, named = version >= 3, version >= 5
    assert request == SyncGroupRequest(
        "g",
        3,
        "m",
        "i" if static else None,
        "consumer" if named else None,
        "range" if named else None,
        (("m", b"a"),),
    )
    message = encoded(ApiKey.SYNC_GROUP, version, SyncGroupResponse(ErrorCode.NONE, "consumer", "range", b"a"))
    assert (message.error_code, message.assignment) == (0, b"a")
    assert message.protocol_name == ("range" if named else None)
    assert encoded(ApiKey.SYNC_GROUP, version, SyncGroupResponse(ErrorCode.ILLEGAL_GENERATION)).error_code == 22


@of(ApiKey.HEARTBEAT)
def test_heartbeat(version: int) -> None:
    fields = {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": "i"}
    request = decoded(ApiKey.HEARTBEAT, version, **fields)
    assert request == HeartbeatRequest("g", 3, "m", "i" if version >= 3 else None)
    assert encoded(ApiKey.HEARTBEAT, version, HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS)).error_code == 27


@of(ApiKey.LEAVE_GROUP)
def test_leave_group(version: int) -> None:
    listed = [{"member_id": "m", "group_instance_id": None}, {"member_id": "", "group_instance_id": "i"}]
    request = decoded(ApiKey.LEAVE_GROUP, version, group_id="g", member_id="m", members=listed)
    members = (MemberIdentity("m"), MemberIdentity("", "i"))
    assert request == LeaveGroupRequest("g", members if version >= 3 else members[:1])
    results = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in members)
    message = encoded(ApiKey.LEAVE_GROUP, version, LeaveGroupResponse(ErrorCode.NONE, results))
    if version < 3:
        assert message.error_code == 25, "there is one member, whose error it is"
    else:
        assert message.error_code == 0
        assert [(each.member_id, each.group_instance_id, each.error_code) for each in message.members] == [
            ("m", None, 25),
            ("", "i", 25),
        ]


@of(ApiKey.OFFSET_COMMIT)
def test_offset_commit(version: int) -> None:
    partitions = [
        {
            "partition_index": number,
            "committed_offset": 5,
            "committed_leader_epoch": 2,
            "committed_metadata": None if number else "x",
        }
        for number in (0, 1)
    ]
    request = decoded(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id="g",
        generation_id_or_member_epoch=3,
        member_id="m",
        group_instance_id="i",
        retention_time_ms=1000,
        topics=[{"name": "t", "partitions": partitions}],
    )
    epoch = 2 if version >= 6 else -1
    assert request == OffsetCommitRequest(
        "g",
        3,
        "m",
        "i" if version >= 7 else None,
        (CommitPartition(T0, 5, epoch, "x"), CommitPartition(T1, 5, epoch, "")),
        1000 if version <= 4 else -1,
        version >= 9,
    )
    response = OffsetCommitResponse(((T0, ErrorCode.NONE), (T1, ErrorCode.NOT_COORDINATOR), (U0, ErrorCode.NONE)))
    message = encoded(ApiKey.OFFSET_COMMIT, version, response)
    assert [(each.name, [entry.error_code for entry in each.partitions]) for each in message.topics] == [
        ("t", [0, 16]),
        ("u", [0]),
    ]


@of(ApiKey.OFFSET_FETCH)
def test_offset_fetch(version: int) -> None:
    topics = [{"name": name, "partition_indexes": list(numbers)} for name, numbers in TOPICS]
    wanted = (T0, T1, U0)
    if version >= 8:
        listed = [{"group_id": "g", "topics": topics}, {"group_id": "h", "topics": None}]
        request = decoded(ApiKey.OFFSET_FETCH, version, groups=listed, require_stable=True)
        assert request == OffsetFetchRequest((OffsetFetchGroup("g", wanted), OffsetFetchGroup("h", None)), True)
        member = {"member_id": "m", "member_epoch": 4} if version >= 9 else {}
        request = decoded(ApiKey.OFFSET_FETCH, version, groups=[{"group_id": "g", "topics": topics, **member}])
        assert request.groups == (OffsetFetchGroup("g", wanted, *(("m", 4) if version >= 9 else ())),)
    else:
        request = decoded(ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics, require_stable=False)
        assert request == OffsetFetchRequest((OffsetFetchGroup("g", wanted),))
        if version >= 2:
            request = decoded(ApiKey.OFFSET_FETCH, version, group_id="g", topics=None)
            assert request == OffsetFetchRequest((OffsetFetchGroup("g", None),))
    found = FetchedOffsets("g", ErrorCode.NONE, ((T0, OffsetAndMetadata(5, 2, "x")), (T1, OffsetAndMetadata(-1))))
    message = encoded(ApiKey.OFFSET_FETCH, version, OffsetFetchResponse((found,)))
    (topic,) = message.groups[0].topics if version >= 8 else message.topics
    assert [(each.committed_offset, each.metadata, each.error_code) for each in topic.partitions] == [
        (5, "x", 0),
        (-1, "", 0),
    ]
    assert topic.partitions[0].committed_leader_epoch == (2 if version >= 5 else -1)


@of(ApiKey.OFFSET_DELETE)
def test_offset_delete(version: int) -> None:
    topics = [{"name": name, "partitions": [{"partition_index": each} for each in numbers]} for name, numbers in TOPICS]
    request = decoded(ApiKey.OFFSET_DELETE, version, group_id="g", topics=topics)
    assert request == OffsetDeleteRequest("g", (T0, T1, U0))
    response = OffsetDeleteResponse(ErrorCode.NONE, ((T0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),))
    message = encoded(ApiKey.OFFSET_DELETE, version, response)
    assert message.topics[0].partitions[0].error_code == 86


@of(ApiKey.DESCRIBE_GROUPS)
def test_describe_groups(version: int) -> None:
    assert decoded(ApiKey.DESCRIBE_GROUPS, version, groups=["g", "h", "g"]) == DescribeGroupsRequest(("g", "h"))
    member = DescribedMember("m", "i", "client", "/host", b"metadata", b"assignment")
    described = DescribedGroup("g", ErrorCode.NONE, "Stable", "consumer", "range", (member,))
    unknown = DescribedGroup("h", ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    message = encoded(ApiKey.DESCRIBE_GROUPS, version, DescribeGroupsResponse((described, unknown)))
    first, second = message.groups
    assert (first.group_state, first.protocol_data, first.members[0].member_assignment) == (
        "Stable",
        "range",
        b"assignment",
    )
    assert (second.group_state, second.error_code) == ("Dead", 69 if version >= 6 else 0)


@of(ApiKey.LIST_GROUPS)
def test_list_groups(version: int) -> None:
    request = decoded(ApiKey.LIST_GROUPS, version, states_filter=["Stable"], types_filter=["classic"])
    assert request == ListGroupsRequest(("Stable",) if version >= 4 else (), ("classic",) if version >= 5 else ())
    response = ListGroupsResponse(ErrorCode.NONE, (ListedGroup("g", "consumer", "Stable", "classic"),))
    (group,) = encoded(ApiKey.LIST_GROUPS, version, response).groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    assert group.group_state == ("Stable" if version >= 4 else "")


@of(ApiKey.DELETE_GROUPS)
def test_delete_groups(version: int) -> None:
    assert decoded(ApiKey.DELETE_GROUPS, version, groups_names=["g"]) == DeleteGroupsRequest(("g",))
    message = encoded(ApiKey.DELETE_GROUPS, version, DeleteGroupsResponse((("g", ErrorCode.NON_EMPTY_GROUP),)))
    assert [(each.group_id, each.error_code) for each in message.results] == [("g", 68)]


# Records

MEMBER = StoredMember("m", "i", "client", "/host", 20, 10, b"subscription", b"assignment")
GROUP = GroupMetadata("consumer", 3, "range", "m", 1000, (MEMBER, MEMBER._replace(member_id="n", instance_id=None)))
RECORDS: tuple[LogRecord, ...] = (
    OffsetRecord("g", T0, OffsetAndMetadata(5, 2, "x", 1000)),
    OffsetRecord("g", T0, OffsetAndMetadata(5, -1, "", 1000, 2000)),
    OffsetRecord("gr\u00fcn", T1, None),
    GroupRecord("g", GROUP),
    GroupRecord("g", GroupMetadata("", 0, None, None, -1, ())),
    GroupRecord("g", None),
)


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back(record: LogRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def test_records_are_kafkas_bytes() -> None:
    """By hand from the schemas of OffsetCommitKey 1, OffsetCommitValue 3 and 1, and GroupMetadataKey 2."""
    key, value = encode_record(RECORDS[0])
    assert key == bytes.fromhex("0001 0001 67 0001 74 00000000")
    assert value == bytes.fromhex("0003 0000000000000005 00000002 0001 78 00000000000003e8")
    _, value = encode_record(RECORDS[1])
    assert value == bytes.fromhex("0001 0000000000000005 0000 00000000000003e8 00000000000007d0")
    key, value = encode_record(RECORDS[4])
    assert key == bytes.fromhex("0002 0001 67")
    assert value == bytes.fromhex("0003 0000 00000000 ffff ffff ffffffffffffffff 00000000")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0000 0000000000000005 0001 78 00000000000003e8", OffsetAndMetadata(5, -1, "x", 1000)),
        ("0002 0000000000000005 0001 78 00000000000003e8", OffsetAndMetadata(5, -1, "x", 1000)),
    ],
)
def test_offsets_of_older_versions_are_read(value: str, found: OffsetAndMetadata) -> None:
    key = bytes.fromhex("0000 0001 67 0001 74 00000000")
    assert decode_record(key, bytes.fromhex(value)) == OffsetRecord("g", T0, found)


def test_groups_of_older_versions_are_read() -> None:
    member = "0001 6d 0001 63 0001 68 0000000a 00000000 00000000"
    value = bytes.fromhex("0000 0001 70 00000003 0001 72 0001 6d 00000001" + member)
    record = decode_record(bytes.fromhex("0002 0001 67"), value)
    expected = StoredMember("m", None, "c", "h", 10, 10, b"", b"")
    assert record == GroupRecord("g", GroupMetadata("p", 3, "r", "m", -1, (expected,)))


def test_other_records_and_any_bytes_are_left_out() -> None:
    """A later Kafka's records, transaction markers, and whatever a disk may hold."""
    others: list[tuple[bytes | None, bytes | None]] = [(None, b"x"), (b"", b"x"), (b"\0\3\0\1g", b"x")]
    others += [(key, b"\0\4" + value[2:]) for key, value in map(encode_record, RECORDS) if value]
    for record in RECORDS:
        key, value = encode_record(record)
        others += [(key[:end], value) for end in range(len(key))]
        others += [(key, value[:end]) for end in range(len(value or b""))] if value else []
    assert decode_records((at, *pair) for at, pair in enumerate(others)) == ()
    key, value = encode_record(RECORDS[3])
    assert value is not None
    for at in range(len(value)):
        flipped = value[:at] + bytes([value[at] ^ 0xFF]) + value[at + 1 :]
        decode_records([(0, key, flipped)])


def test_a_batch_has_the_records_from_an_offset_on() -> None:
    batch = encode_batch(RECORDS)
    assert decode_batches(batch, 0) == tuple(enumerate(RECORDS))
    assert decode_batches(batch, 4) == tuple(enumerate(RECORDS))[4:]


def test_pending_offsets_and_markers_are_read_between_other_batches(tmp_path: Path) -> None:
    """A batch of a transaction has Kafka's attributes, and a marker comes from the log itself."""
    pending = [PendingOffsetRecord("g", part, OffsetAndMetadata(5, 2, "x", 3), 7, 1) for part in (T0, U0)]
    data = encode_batch(pending)
    info = validate(data, deep=True)
    assert (info.attributes, info.producer_id, info.producer_epoch, info.base_sequence) == (16, 7, 1, 0)
    with Log.open(tmp_path / "offsets-0", LogConfig(replicated=True)) as log:
        log.append_batches(encode_batch(RECORDS))
        for _ in range(2):  # not taken for a repetition
            log.append_batches(data, transactional=True, sequenced=False)
        log.append_transaction_marker(7, 1, committed=True, coordinator_epoch=0)
        log.append_batches(encode_batch(RECORDS[:1]))
        log.append_batches(data, transactional=True, sequenced=False)
        log.append_transaction_marker(7, 1, committed=False, coordinator_epoch=0)
        stored = log.fetch(0, 1 << 20, "log_end").data
        with pytest.raises(ProducerFencedError, match="epoch 0"):
            log.append_batches(
                encode_batch([pending[0]._replace(producer_epoch=0)]), transactional=True, sequenced=False
            )
    wanted = [*RECORDS, *pending, *pending, MarkerRecord(7, True), RECORDS[0], *pending, MarkerRecord(7, False)]
    assert decode_batches(stored, 0) == tuple(enumerate(wanted))
    start = len(RECORDS) + 4
    assert decode_batches(stored, start) == tuple(enumerate(wanted))[start:]
    for cut in (1, 60, len(stored) - 1):
        with pytest.raises(CorruptBatchError):
            decode_batches(bytes(stored)[:cut], 0)


@of(ApiKey.TXN_OFFSET_COMMIT)
def test_txn_offset_commit(version: int) -> None:
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": each,
                    "committed_offset": 5,
                    "committed_leader_epoch": 2,
                    "committed_metadata": None if name == "u" else "x",
                }
                for each in numbers
            ],
        }
        for name, numbers in TOPICS
    ]
    identity = {"generation_id": 4, "member_id": "m", "group_instance_id": "i"} if version >= 3 else {}
    request = decoded(
        ApiKey.TXN_OFFSET_COMMIT,
        version,
        transactional_id="id",
        group_id="g",
        producer_id=7,
        producer_epoch=1,
        topics=topics,
        **identity,
    )
    epoch = 2 if version >= 2 else -1
    assert request == TxnOffsetCommitRequest(
        "id",
        "g",
        7,
        1,
        4 if version >= 3 else -1,
        "m" if version >= 3 else "",
        "i" if version >= 3 else None,
        tuple(CommitPartition(part, 5, epoch, "" if part == U0 else "x") for part in (T0, T1, U0)),
        adds_partitions=version >= 5,
    )
    abortable = encoded(
        ApiKey.TXN_OFFSET_COMMIT, version, TxnOffsetCommitResponse(((T0, ErrorCode.TRANSACTION_ABORTABLE),))
    )
    assert abortable.topics[0].partitions[0].error_code == (120 if version >= 4 else 48)
    errors = (ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    response = TxnOffsetCommitResponse(tuple(zip((T0, T1, U0), errors, strict=True)))
    message = encoded(ApiKey.TXN_OFFSET_COMMIT, version, response)
    loading = 14 if version >= 2 else 15
    assert [(each.name, [entry.error_code for entry in each.partitions]) for each in message.topics] == [
        ("t", [0, loading]),
        ("u", [88]),
    ]


@of(ApiKey.OFFSET_FETCH)
def test_an_unstable_offset_has_an_error_of_its_own(version: int) -> None:
    offsets = ((T0, OffsetAndMetadata(-1)), (T1, OffsetAndMetadata(5)))
    found = FetchedOffsets("g", ErrorCode.NONE, offsets, frozenset({T0}))
    message = encoded(ApiKey.OFFSET_FETCH, version, OffsetFetchResponse((found,)))
    (topic,) = message.groups[0].topics if version >= 8 else message.topics
    assert [entry.error_code for entry in topic.partitions] == [88, 0]
    if version == 7:
        assert decoded(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=None, require_stable=True).require_stable
