"""Floods of consumer groups against one broker: groups and members without number, giant metadata, many entries."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from kreplog.core.groups.shard import ACCOUNT
from kreplog.errors import ErrorCode
from kreplog.wire.versions import ApiKey
from tests.hostile.floods import (
    MOST_BYTES,
    Flood,
    array,
    compact_array,
    compact_text,
    int32,
    new_topic,
    repeated,
    text,
)
from tests.hostile.victim import PATIENCE_S, UNITS, Victim, receive, unit_s
from tests.integration.clusters import eventually

LIMIT = 8 << 20
"""Of the broker's memory for clients, half of it for what lasts between requests."""

SESSION_MS = 300
LONG_SESSION_MS = 5000
"""Of members that are to be held all at once: their requests come within it on a loaded machine too."""

ATTEMPTS = 4


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    settings = {
        "queued.max.request.bytes": LIMIT,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "group.min.session.timeout.ms": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.min.session.timeout.ms": LONG_SESSION_MS,
        "group.consumer.session.timeout.ms": LONG_SESSION_MS,
    }
    victim = Victim(tmp_path_factory.mktemp("victim"), **settings)
    try:
        create = Flood("create", ApiKey.CREATE_TOPICS, 2, array([new_topic("small", 4)]) + int32(60_000) + b"\0")
        assert victim.request(create.frame()) is not None
        eventually(lambda: commit(victim, "steady", 0) == ErrorCode.NONE, "there is no coordinator", PATIENCE_S)
        yield victim
    finally:
        victim.close()


def commit(victim: Victim, group: str, offset: int, metadata: str = "") -> int:
    """The error of a commit from outside of a group's members."""
    victim.request(Flood("find", ApiKey.FIND_COORDINATOR, 0, text(group)).frame())
    entry = int32(0) + struct.pack(">q", offset) + text(metadata)
    body = text(group) + int32(-1) + text("") + struct.pack(">q", -1) + array([text("small") + array([entry])])
    answer = victim.request(Flood("commit", ApiKey.OFFSET_COMMIT, 2, body).frame())
    assert answer is not None
    return int(struct.unpack(">h", answer[-2:])[0])


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def data(value: bytes) -> bytes:
    return int32(len(value)) + value


def join(group: str, protocols: list[bytes], version: int = 4, member: str = "", session_ms: int = SESSION_MS) -> Flood:
    """Version 4 gives a new member its id first, version 3 takes it at once."""
    times = int32(session_ms) + int32(session_ms)
    body = text(group) + times + text(member) + text("consumer") + array(protocols)
    return Flood("join", ApiKey.JOIN_GROUP, version, body)


def heartbeat(
    name: str, topics: list[bytes], owned: Sequence[bytes] = (), epoch: int = 0, expression: str | None = None
) -> Flood:
    """Of a member of a group whose coordinator assigns (KIP-848)."""
    body = compact_text(name) + compact_text("m") + int32(epoch) + b"\0" * 2 + int32(60_000) + compact_array(topics)
    body += b"\0" if expression is None else compact_text(expression)
    return Flood(
        name, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body + b"\0" + compact_array(list(owned)) + b"\0", flexible=True
    )


def error_of_join(answer: bytes | None) -> int:
    assert answer is not None
    return int(struct.unpack_from(">h", answer, 4 + 4)[0])


def held(victim: Victim) -> int:
    return int(victim.on_loop(lambda: victim.broker.memory.held[ACCOUNT]))


def floods() -> Iterator[Flood]:
    key, number = ApiKey, struct.pack(">i", 0)
    yield Flood(
        "join-many", key.JOIN_GROUP, 3, join("many", [text(f"p{each}") + data(b"x" * 400) for each in range(990)]).body
    )
    yield Flood("join-repeated", key.JOIN_GROUP, 4, join("repeated", repeated(text("p") + data(b""))).body)
    offsets = [number + struct.pack(">q", each) + text("") for each in range(980)]
    body = text("g") + int32(-1) + text("") + struct.pack(">q", -1)
    yield Flood("commit-one-partition", key.OFFSET_COMMIT, 2, body + array([text("small") + array(offsets)]))
    yield Flood("commit-repeated", key.OFFSET_COMMIT, 2, body + array([text("small") + array(repeated(offsets[0]))]))
    yield Flood(
        "leave", key.LEAVE_GROUP, 3, text("steady") + array([text(f"{each}") + text("i") for each in range(29_000)])
    )
    yield Flood("leave-repeated", key.LEAVE_GROUP, 3, text("steady") + array(repeated(text("m") + text("i"))))
    assigned = array([text(f"{each}") + data(b"xyz") for each in range(29_000)])
    yield Flood("sync", key.SYNC_GROUP, 0, text("steady") + int32(1) + text("m") + assigned)
    yield Flood("describe", key.DESCRIBE_GROUPS, 0, array([text(f"{each}") for each in range(59_000)]))
    yield Flood("describe-repeated", key.DESCRIBE_GROUPS, 0, array(repeated(text("steady"))))
    yield Flood("delete", key.DELETE_GROUPS, 0, array([text(f"{each}") for each in range(59_000)]))
    yield Flood("delete-offsets", key.OFFSET_DELETE, 0, text("steady") + array([text("none") + array([number] * 980)]))
    names = compact_array([compact_text(f"{each}") for each in range(59_000)])
    yield Flood("describe-consumers", key.CONSUMER_GROUP_DESCRIBE, 0, names + b"\0" * 2, flexible=True)
    topics = [compact_text(f"t{each}") for each in range(980)]
    yield heartbeat("consumers-topics", topics)
    yield heartbeat("consumers-topics-repeated", repeated(compact_text("t")))
    owned = [struct.pack(">qq", 1, each) + compact_array([int32(1)]) + b"\0" for each in range(480)]
    yield heartbeat("consumers-owned", topics[:1], owned, epoch=1)
    yield heartbeat("consumers-owned-repeated", topics[:1], repeated(owned[0]), epoch=1)
    yield heartbeat("consumers-expression", [], expression="(" * 32_000)
    yield heartbeat("consumers-large-expression", [], expression=r"(\pL{90}|.)*" * 2400)


@pytest.mark.parametrize("flood", list(floods()), ids=lambda flood: flood.name)
def test_many_entries(victim: Victim, flood: Flood) -> None:
    """As in test_small_requests.py, the shortest of several attempts counts."""
    frame = flood.frame()
    assert len(frame) <= MOST_BYTES
    pauses, answers = [], []
    for _ in range(ATTEMPTS):
        pauses.append(victim.longest_pause_s(lambda: answers.append(victim.request(frame))) / unit_s())
        if pauses[-1] <= UNITS:
            break
    else:
        pytest.fail(f"pauses of {pauses} units of work: {UNITS} are allowed")
    is_refused = "repeated" in flood.name
    assert [answer is None for answer in answers] == [is_refused] * len(answers), "more entries than are let pass"
    assert commit(victim, "steady", 1) == ErrorCode.NONE


def test_a_list_in_parts_is_answered_whole(victim: Victim) -> None:
    """DescribeGroups: error, id, state, protocol type, protocol and members of each."""
    names = [f"{number}" for number in range(1000)]
    answer = victim.request(Flood("describe", ApiKey.DESCRIBE_GROUPS, 0, array([text(name) for name in names])).frame())
    groups = [int16(ErrorCode.NONE) + text(name) + text("Dead") + text("") * 2 + array([]) for name in names]
    assert answer is not None and answer[4:] == array(groups)


def test_groups_without_number(victim: Victim) -> None:
    """Each by a member that gets its id, with a client id that takes as much memory as it can."""
    name = b"c" * 10_000
    errors = set()
    with victim.connect() as sock:
        for count in range(1000):
            body = join(f"group {count}", [text("range") + data(b"")], session_ms=LONG_SESSION_MS).body
            header = struct.pack(">hhih", ApiKey.JOIN_GROUP, 4, count, len(name)) + name
            sock.sendall(int32(len(header) + len(body)) + header + body)
            errors.add(error_of_join(receive(sock)))
            assert held(victim) <= LIMIT // 2
    assert errors == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert commit(victim, "steady", 2) == ErrorCode.NONE, "a group that was there goes on"
    assert commit(victim, "steady", 3, "x" * 4000) in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    commit(victim, "steady", 4)
    eventually(lambda: held(victim) < 10_000, lambda: f"{held(victim)} bytes stay charged", PATIENCE_S)


def test_consumers_without_number(victim: Victim) -> None:
    """Members of one group, each with as many long names of topics as it may have."""
    errors = set()
    topics = [compact_text(f"{each:0249}") for each in range(500)]
    for count in range(100):
        body = heartbeat("crowd", topics).body.replace(compact_text("m"), compact_text(f"member {count}"), 1)
        answer = victim.request(Flood("beat", ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body, flexible=True).frame())
        assert answer is not None
        errors.add(int(struct.unpack_from(">h", answer, 4 + 1 + 4)[0]))
        assert held(victim) <= LIMIT // 2
    assert errors == {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert commit(victim, "steady", 8) == ErrorCode.NONE
    eventually(lambda: held(victim) < 10_000, lambda: f"{held(victim)} bytes stay charged", PATIENCE_S)


def test_members_with_giant_metadata_that_never_synchronize(victim: Victim) -> None:
    """They are members of groups that complete no generation, and end with their sessions."""
    errors = [
        error_of_join(victim.request(join(f"giant {count}", [text("p") + data(b"x" * 900_000)], version=3).frame()))
        for count in range(12)
    ]
    assert set(errors) <= {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert ErrorCode.NONE in errors
    assert held(victim) <= LIMIT // 2
    assert commit(victim, "steady", 5) == ErrorCode.NONE
    eventually(lambda: held(victim) < 10_000, lambda: f"{held(victim)} bytes stay charged", PATIENCE_S)


def test_commits_for_no_group_that_anybody_reads(victim: Victim) -> None:
    """Groups without members, of one offset with as much metadata as is allowed, until there is no room."""
    for count in range(2000):
        error = commit(victim, f"reader {count}", 1, "m" * 4000)
        if error:
            break
    assert error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert LIMIT // 4 < held(victim) <= LIMIT // 2
    assert commit(victim, "steady", 6) == ErrorCode.NONE


def test_metadata_may_be_as_large_as_the_setting_allows(victim: Victim) -> None:
    assert commit(victim, "steady", 7, "x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
