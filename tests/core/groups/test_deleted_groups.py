"""Requests of members while their empty consumer group is being deleted: the log and the coordinator go on alike."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core import deletion_batches
from kreplog.core.consumer_group_messages import ConsumerGroupRecord, ResolvedRegexRecord
from kreplog.core.group_messages import (
    CommitPartition,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    MarkerRecord,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetRecord,
    partition_of_group,
)
from kreplog.core.groups.consumer_group import record_key
from kreplog.core.groups.consumer_membership import REWRITE_MS
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

from .consumers import CONFIG, NEEDS_RE2, Consumer, consumer_shell
from .group_shell import GROUP, PARTITIONS, SESSION_MS, GroupShell

AT = partition_of_group(GROUP, PARTITIONS)
PATTERN: dict[str, Any] = {"subscribed_topics": (), "subscribed_regex": "to.*"}


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell()


def records(shell: GroupShell) -> list[str]:
    """All that is stored of the group, as its coordinator knows it."""
    assert shell.group is not None and shell.group.consumer is not None
    return sorted(map(repr, shell.group.consumer.records()))


def restart(shell: GroupShell) -> None:
    """Have the shard loaded from all of its log."""
    shell.committed[AT] = len(shell.logs[AT])
    shell.start()
    shell.lead()


def under_way(shell: GroupShell) -> list[Any]:
    """The records of the only append under way."""
    ((_, _, effect),) = shell.waiting
    return list(effect.records)


def begin_deletion(shell: GroupShell, **fields: Any) -> None:
    """Of a group that had a member, in two epochs."""
    a = Consumer(shell, "a", **fields)
    a.join()
    a.leave()
    shell.automatic = False
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))) is None


def deletion(shell: GroupShell) -> ErrorCode:
    response = shell.replies["delete"]
    assert isinstance(response, DeleteGroupsResponse)
    return response.results[0][1]


@pytest.mark.parametrize("fields", [{}, pytest.param(PATTERN, marks=NEEDS_RE2)])
@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT])
def test_a_member_that_joins_waits_for_the_end_of_a_deletion(
    shell: GroupShell, fields: dict[str, Any], error: ErrorCode
) -> None:
    """The tombstones of a deletion that has timed out may be committed still."""
    begin_deletion(shell, **fields)
    b = Consumer(shell, "b", **fields)
    assert b.join() is None
    shell.fail(error) if error else shell.commit()
    assert deletion(shell) is (ErrorCode.COORDINATOR_NOT_AVAILABLE if error else ErrorCode.NONE)
    shell.automatic = True
    shell.commit()
    b.take(shell.replies["heartbeat b"])
    assert (b.error, b.epoch, b.numbers) == (ErrorCode.NONE, 3 if error else 1, [0, 1, 2, 3])
    before = records(shell)
    restart(shell)
    assert records(shell) == before
    b.acknowledge()
    assert (b.error, b.numbers) == (ErrorCode.NONE, [0, 1, 2, 3])


def test_a_member_of_the_classic_protocol_waits_too(shell: GroupShell) -> None:
    begin_deletion(shell)
    assert shell.join("b") is None
    shell.automatic = True
    shell.commit()
    shell.pass_time(CONFIG.group_initial_rebalance_delay_ms)
    assert (deletion(shell), shell.joined("b").error) == (ErrorCode.NONE, ErrorCode.NONE)


def test_a_former_end_of_a_member_does_not_follow_the_deletion(shell: GroupShell) -> None:
    """Neither the heartbeat of a stranger nor one that waits already has it written."""
    a = Consumer(shell, "a")
    a.join()
    shell.automatic = False
    a.leave()
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))) is None
    stranger = Consumer(shell, "x")
    stranger.leave()
    shell.automatic = True
    shell.commit()
    stranger.take(shell.replies["heartbeat x"])
    assert (deletion(shell), stranger.error) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert shell.group_ids() == []
    restart(shell)
    assert shell.group_ids() == []


def test_an_end_of_a_member_that_fails_during_the_deletion_is_deleted_with_the_group(shell: GroupShell) -> None:
    a = Consumer(shell, "a")
    a.join()
    shell.automatic = False
    a.leave()
    (left,) = shell.waiting
    stranger = Consumer(shell, "x")
    stranger.leave()
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))) is None
    deleting, shell.waiting = shell.waiting[1:], [left]
    shell.logs[AT][left[1] : left[1] + len(left[2].records)] = [MarkerRecord(999, True)] * len(left[2].records)
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert shell.waiting == [] and "heartbeat x" not in shell.replies
    shell.waiting = deleting
    shell.automatic = True
    shell.commit()
    stranger.take(shell.replies["heartbeat x"])
    assert (deletion(shell), stranger.error) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert shell.group_ids() == [] and shell.core.charged == 0
    restart(shell)
    assert shell.group_ids() == []


def test_those_that_have_waited_are_answered_when_the_deletion_fails(shell: GroupShell) -> None:
    a = Consumer(shell, "a")
    a.join()
    shell.automatic = False
    a.leave()
    stranger = Consumer(shell, "x")
    stranger.leave()
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))) is None
    shell.fail(ErrorCode.REQUEST_TIMED_OUT)
    assert deletion(shell) is ErrorCode.COORDINATOR_NOT_AVAILABLE and "heartbeat x" not in shell.replies
    shell.automatic = True
    shell.commit()
    stranger.take(shell.replies["heartbeat x"])
    assert stranger.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))).results == ((GROUP, ErrorCode.NONE),)
    restart(shell)
    assert shell.group_ids() == []


def test_a_group_whose_deletion_fails_is_written_again_though_nobody_waits(shell: GroupShell) -> None:
    """The group is idle only then, and members of the classic protocol can join it."""
    begin_deletion(shell)
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert deletion(shell) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    shell.automatic = True
    early = shell.join("b", group_id=GROUP)
    assert early is not None and early.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    shell.pass_time(REWRITE_MS)
    assert shell.join("b", group_id=GROUP) is None, "it waits for others to join"


@NEEDS_RE2
def test_expressions_are_not_written_again_when_a_deletion_fails(shell: GroupShell) -> None:
    """Each was small enough for a batch, together they may not be: the group could never be written or deleted."""
    begin_deletion(shell, **PATTERN)
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert shell.put("again", DeleteGroupsRequest((GROUP,))) is None
    batch = under_way(shell)
    keys = [record_key(record) for record in batch]
    assert len(keys) == len(set(keys)), "a value and its tombstone in one batch"
    assert isinstance(batch[-1], ConsumerGroupRecord), "what follows it would be of a group that is gone"
    assert batch[-1].value is None
    assert [record for record in batch if isinstance(record, ResolvedRegexRecord)] == [
        ResolvedRegexRecord(GROUP, "to.*", None)
    ]
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    shell.pass_time(REWRITE_MS)
    batch = under_way(shell)
    assert batch
    assert [record for record in batch if isinstance(record, ResolvedRegexRecord)] == [
        ResolvedRegexRecord(GROUP, "to.*", None)
    ]
    shell.automatic = True
    shell.commit()
    b = Consumer(shell, "b", **PATTERN)
    b.join()
    assert b.numbers == [0, 1, 2, 3]


def test_another_deletion_meanwhile_is_to_be_tried_again(shell: GroupShell) -> None:
    begin_deletion(shell)
    other = shell.put("other", DeleteGroupsRequest((GROUP,)))
    assert other == DeleteGroupsResponse(((GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),))
    shell.commit()
    other = shell.put("other", DeleteGroupsRequest((GROUP,)))
    assert other == DeleteGroupsResponse(((GROUP, ErrorCode.GROUP_ID_NOT_FOUND),))


def test_a_member_that_waits_is_sent_to_the_next_coordinator(shell: GroupShell) -> None:
    begin_deletion(shell)
    b = Consumer(shell, "b")
    b.join()
    shell.resign(AT)
    b.take(shell.replies["heartbeat b"])
    assert b.error is ErrorCode.NOT_COORDINATOR
    shell.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    shell.automatic = True
    restart(shell)
    b.join()
    assert b.numbers == [0, 1, 2, 3]


def offsets(shell: GroupShell) -> list[int]:
    """The partitions of a group that have one."""
    (found,) = shell.put("fetch", OffsetFetchRequest((OffsetFetchGroup(GROUP, None),))).groups
    return sorted(partition.partition for partition, _ in found.offsets)


@pytest.mark.parametrize("failing", [None, 0, 1, 2])
@pytest.mark.parametrize("protocol", ["none", "classic", "consumer"])
def test_a_deletion_that_one_batch_has_no_room_for(
    shell: GroupShell, monkeypatch: pytest.MonkeyPatch, failing: int | None, protocol: str
) -> None:
    """What a batch of it deletes is gone once that is committed, whatever comes of the others."""
    monkeypatch.setattr(deletion_batches, "RECORD_BYTES", 1)
    monkeypatch.setattr(deletion_batches, "MAX_BATCH_BYTES", 3 * (1 + len(GROUP) + len("wide")))
    shell.cluster.create("wide", 8)
    commits = tuple(CommitPartition(TopicPartition("wide", number), 5) for number in range(8))
    if protocol == "consumer":
        a = Consumer(shell, "a")
        a.join()
        a.leave()
    elif protocol == "classic":
        shell.stable("a")
        shell.pass_time(SESSION_MS)
    shell.put("commit", OffsetCommitRequest(GROUP, -1, "", None, commits))
    assert offsets(shell) == list(range(8))
    shell.automatic = False
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))) is None
    appends, shell.waiting = shell.waiting, []
    assert [len(effect.records) for _, _, effect in appends[:2]] == [3, 3]
    assert [type(record) is OffsetRecord for record in appends[2][2].records[:3]] == [True, True, False]
    for number, append in enumerate(appends):
        assert "delete" not in shell.replies
        shell.waiting = [append]
        shell.fail(ErrorCode.REQUEST_TIMED_OUT) if number == failing else shell.commit()
    assert deletion(shell) is (ErrorCode.NONE if failing is None else ErrorCode.COORDINATOR_NOT_AVAILABLE)
    left = [] if failing is None else [[0, 1, 2], [3, 4, 5], [6, 7]][failing]
    assert offsets(shell) == left
    if failing in (0, 1):
        assert shell.group is not None
        assert (shell.group.generation, shell.group.protocol_type) == (0, None), "the group's own record is deleted"
    shell.automatic = True
    shell.commit()
    shell.pass_time(REWRITE_MS)
    if failing is not None:
        shell.put("delete", DeleteGroupsRequest((GROUP,)))
        assert deletion(shell) is ErrorCode.NONE
    assert shell.group is None
    restart(shell)
    assert shell.group is None
