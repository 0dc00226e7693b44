"""Offsets that a transaction commits: pending until its marker, loaded by the next coordinator (KIP-98, KIP-447)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kreplog.config import GroupConfig
from kreplog.core.events import GroupRecordsAppended, LeadershipChanged, MarkerCommitted
from kreplog.core.group_messages import (
    OFFSETS_TOPIC,
    CommitPartition,
    DeleteGroupsRequest,
    OffsetDeleteRequest,
    TxnOffsetCommitRequest,
    partition_of_group,
)
from kreplog.core.groups.group import GROUP_BYTES, offset_size
from kreplog.core.memory import MemoryAccount
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from tests.core.groups.group_shell import GROUP, OTHER, PARTITIONS, TOPIC, GroupShell

NUMBER = partition_of_group(GROUP, PARTITIONS)
LOG = TopicPartition(OFFSETS_TOPIC, NUMBER)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.fixture
def shell() -> GroupShell:
    shell = GroupShell()
    shell.lead()
    return shell


def test_a_generation_commits_with_a_transaction_before_it_is_assigned(shell: GroupShell) -> None:
    """A Java producer takes REBALANCE_IN_PROGRESS for fatal; the generation alone keeps earlier members out (KIP-447).
    Source: Kafka, ClassicGroup.validateOffsetCommit."""
    (earlier,) = shell.stable("a")
    shell.join("a", earlier.member_id)
    member = shell.joined("a")
    assert shell.commit_offset(4, member) is ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.commit_pending(5, member=member) is ErrorCode.NONE
    assert shell.commit_pending(6, member=earlier) is ErrorCode.ILLEGAL_GENERATION
    assert shell.commit_pending(7, member=replace(member, member_id="none")) is ErrorCode.UNKNOWN_MEMBER_ID
    shell.mark(True)
    assert shell.offset() == 5


def test_a_static_member_commits_with_a_transaction_before_it_is_assigned(shell: GroupShell) -> None:
    shell.join("a", instance_id="i")
    shell.pass_time(0)
    member = shell.joined("a")
    commits = (CommitPartition(TOPIC, 5),)
    request = TxnOffsetCommitRequest("id", GROUP, 7, 0, member.generation_id, member.member_id, "i", commits)
    fenced = replace(request, member_id="earlier")
    assert shell.put("fenced", fenced).partitions == ((TOPIC, ErrorCode.FENCED_INSTANCE_ID),)
    assert shell.put("pending", request).partitions == ((TOPIC, ErrorCode.NONE),)


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_decides(shell: GroupShell, committed: bool) -> None:
    shell.commit_offset(3)
    assert shell.commit_pending(5) is ErrorCode.NONE
    assert (shell.offset(), shell.offset(stable=True), shell.offset(OTHER, stable=True)) == (3, UNSTABLE, -1)
    shell.mark(committed)
    wanted = 5 if committed else 3
    assert (shell.offset(), shell.offset(stable=True)) == (wanted, wanted)


def test_an_offset_is_unstable_before_its_record_is_committed(shell: GroupShell) -> None:
    """A member that read the offset before would process again what the transaction has processed."""
    shell.automatic = False
    assert shell.commit_pending(5) is None
    assert shell.offset(stable=True) is UNSTABLE
    shell.commit()
    assert (shell.offset(), shell.offset(stable=True)) == (-1, UNSTABLE)


def test_a_marker_ends_the_transaction_of_its_producer_alone(shell: GroupShell) -> None:
    shell.commit_pending(5)
    shell.commit_pending(6, producer_id=8, partition=OTHER)
    shell.mark(True, producer_id=8)
    assert (shell.offset(stable=True), shell.offset(OTHER, stable=True)) == (UNSTABLE, 6)


def test_the_last_offset_of_a_transaction_is_committed(shell: GroupShell) -> None:
    shell.commit_pending(5)
    shell.commit_pending(6)
    shell.mark(True)
    assert shell.offset() == 6


def test_a_later_commit_is_not_replaced_by_an_earlier_pending_one(shell: GroupShell) -> None:
    """By the order in the log, which a compaction keeps."""
    shell.commit_pending(5)
    shell.commit_offset(9)
    shell.mark(True)
    assert shell.offset() == 9


def test_a_deleted_offset_does_not_come_back(shell: GroupShell) -> None:
    shell.commit_pending(5)
    shell.put("delete", OffsetDeleteRequest(GROUP, (TOPIC,)))
    shell.mark(True)
    assert shell.offset() == -1
    assert shell.group_ids() == []


def test_a_group_with_a_pending_offset_can_be_deleted(shell: GroupShell) -> None:
    shell.commit_pending(5)
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))).results == ((GROUP, ErrorCode.NONE),)
    assert shell.group_ids() == []


@pytest.mark.parametrize("marked", [True, False, None])
def test_the_next_coordinator_loads_it(shell: GroupShell, marked: bool | None) -> None:
    shell.commit_offset(3)
    shell.commit_pending(5)
    if marked is not None:
        shell.mark(marked)
    shell.start()
    shell.lead()
    assert shell.offset(stable=True) == {True: 5, False: 3, None: UNSTABLE}[marked]
    if marked is None:
        shell.mark(True)
        assert shell.offset(stable=True) == 5


def test_a_marker_that_comes_while_a_shard_is_loading_is_not_lost(shell: GroupShell) -> None:
    shell.commit_pending(5)
    shell.start()
    shell.committed[NUMBER] = 0
    shell.epoch += 1
    shell.step(LeadershipChanged(LOG, shell.epoch, 1))
    assert shell.offset() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    shell.step(MarkerCommitted(LOG, 7, True, 1))
    shell.committed[NUMBER] = 1
    shell.pass_time(1000)
    assert shell.offset(stable=True) == 5


def test_a_marker_before_an_offset_does_not_end_its_transaction(shell: GroupShell) -> None:
    shell.commit_pending(5)
    shell.step(MarkerCommitted(LOG, 7, True, 0))
    assert shell.offset(stable=True) is UNSTABLE


@pytest.mark.parametrize(
    ("failed", "reported"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_one_that_is_not_appended_is_not_pending(shell: GroupShell, failed: ErrorCode, reported: ErrorCode) -> None:
    shell.automatic = False
    shell.commit_pending(5)
    shell.fail(failed)
    assert shell.replies["pending 5"].partitions == ((TOPIC, reported),)
    assert shell.offset(stable=True) == -1
    assert shell.group_ids() == []


def test_one_that_may_still_be_committed_stays_pending(shell: GroupShell) -> None:
    """Its append took too long; it is in the log all the same, and the marker after it commits it."""
    shell.automatic = False
    shell.commit_pending(5)
    ((_, base_offset, effect),) = shell.waiting
    shell.waiting = []
    shell.step(GroupRecordsAppended(effect.tag, ErrorCode.REQUEST_TIMED_OUT, base_offset))
    assert shell.replies["pending 5"].partitions == ((TOPIC, ErrorCode.COORDINATOR_NOT_AVAILABLE),)
    assert shell.offset(stable=True) is UNSTABLE
    shell.mark(True)
    assert shell.offset() == 5


def test_a_member_of_an_earlier_generation_is_refused(shell: GroupShell) -> None:
    (first,) = shell.stable("a")
    shell.join("b")
    shell.join("a", first.member_id)
    shell.pass_time(0)
    assert shell.commit_pending(5, member=first) is ErrorCode.ILLEGAL_GENERATION
    assert shell.offset(stable=True) == -1


def test_a_producer_that_knows_no_generation_is_accepted(shell: GroupShell) -> None:
    """Before KIP-447 requests have none."""
    shell.stable("a")
    assert shell.commit_pending(5) is ErrorCode.NONE


def test_refused_partitions_do_not_hinder_others(shell: GroupShell) -> None:
    gone = TopicPartition("gone", 0)
    assert shell.commit_pending(5, partition=gone) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert shell.commit_pending(6, metadata="x" * 5000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert shell.group_ids() == []


def test_pending_offsets_are_charged_and_released() -> None:
    memory = MemoryAccount(10_000)
    shell = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=0, offset_metadata_max_bytes=10_000), memory)
    shell.lead()
    assert shell.commit_pending(5, metadata="x" * 1500) is ErrorCode.NONE
    assert shell.core.charged == memory.held.total() == GROUP_BYTES + len(GROUP) + offset_size("x" * 1500)
    assert shell.commit_pending(6, partition=OTHER, metadata="x" * 1500) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    shell.mark(False)
    assert (shell.group_ids(), shell.core.charged, memory.held.total()) == ([], 0, 0)


def test_retention_leaves_a_group_with_a_pending_offset(shell: GroupShell) -> None:
    shell.commit_offset(3)
    shell.commit_pending(5)
    shell.pass_time(shell.config.offsets_retention_minutes * 60_000 + shell.config.offsets_retention_check_interval_ms)
    assert shell.offset(stable=True) is UNSTABLE
    shell.mark(True)
    assert shell.offset() == 5


def test_a_deleted_topic_takes_its_pending_offsets_along(shell: GroupShell) -> None:
    shell.commit_pending(5)
    shell.delete(TOPIC)
    assert shell.group_ids() == []
