"""Committed offsets: durable before they are answered, loaded by the next coordinator, deleted by retention."""

from __future__ import annotations

import pytest

from kreplog.config import GroupConfig
from kreplog.core.consumer_group_messages import ConsumerGroupDescribeRequest
from kreplog.core.events import PartitionsDeleted, Tick
from kreplog.core.group_messages import (
    OFFSETS_TOPIC,
    CommitPartition,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetRecord,
    TxnOffsetCommitRequest,
    java_hash,
    partition_of_group,
)
from kreplog.core.groups.deleted_partitions import GROUPS_PER_STEP
from kreplog.core.groups.states import GroupState
from kreplog.core.memory import MemoryAccount
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from tests.core.groups.group_shell import GROUP, OTHER, PARTITIONS, SESSION_MS, TOPIC, GroupShell

NUMBER = partition_of_group(GROUP, PARTITIONS)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def shell() -> GroupShell:
    shell = GroupShell()
    shell.lead()
    return shell


def test_a_group_has_the_partition_that_kafka_gives_it() -> None:
    """By Java's String.hashCode, of which these are known."""
    assert [java_hash(text) for text in ("", "a", "group", "polygenelubricants", "\U0001f600")] == [
        0,
        97,
        98629247,
        -(1 << 31),
        1772899,
    ]
    assert partition_of_group("polygenelubricants", 50) == 0
    assert partition_of_group("group", 50) == 98629247 % 50


def test_an_offset_is_committed_once_its_record_is(shell: GroupShell) -> None:
    shell.automatic = False
    assert shell.commit_offset(5) is None
    assert shell.offset() == -1
    shell.commit()
    assert shell.replies["commit 5"].partitions == ((TOPIC, ErrorCode.NONE),)
    assert (shell.offset(), shell.offset(OTHER)) == (5, -1)


@pytest.mark.parametrize(
    ("failed", "reported"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_fails_leaves_the_offset(shell: GroupShell, failed: ErrorCode, reported: ErrorCode) -> None:
    shell.commit_offset(4)
    shell.automatic = False
    shell.commit_offset(5)
    shell.fail(failed)
    assert shell.replies["commit 5"].partitions == ((TOPIC, reported),)
    assert shell.offset() == 4


def test_the_last_record_counts_whatever_the_order_of_the_outcomes(shell: GroupShell) -> None:
    shell.automatic = False
    shell.commit_offset(5)
    shell.commit_offset(6)
    shell.waiting.reverse()
    shell.commit()
    assert shell.offset() == 6


def test_members_commit_in_their_generation(shell: GroupShell) -> None:
    (member,) = shell.stable("a")
    assert shell.commit_offset(5, member) is ErrorCode.NONE
    assert shell.commit_offset(6) is ErrorCode.UNKNOWN_MEMBER_ID, "simple consumers have to wait"
    shell.join("a", member.member_id)
    assert shell.commit_offset(7, shell.joined("a")) is ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.commit_offset(8, member) is ErrorCode.ILLEGAL_GENERATION
    assert shell.offset() == 5


def test_a_commit_keeps_its_member_alive(shell: GroupShell) -> None:
    (member,) = shell.stable("a")
    shell.pass_time(SESSION_MS - 1)
    shell.commit_offset(5, member)
    shell.pass_time(SESSION_MS - 1)
    assert shell.heartbeat(member) is ErrorCode.NONE


def test_a_generation_of_a_group_without_members_is_none(shell: GroupShell) -> None:
    (member,) = shell.stable("a")
    shell.pass_time(SESSION_MS)
    assert shell.commit_offset(5, member) is ErrorCode.UNKNOWN_MEMBER_ID
    shell = GroupShell()
    shell.lead()
    assert shell.commit_offset(5, member) is ErrorCode.ILLEGAL_GENERATION


def test_illegal_commits_are_refused_one_by_one(shell: GroupShell) -> None:
    assert shell.commit_offset(1, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert shell.commit_offset(1, metadata="\u00e9" * 2049) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert shell.commit_offset(1, partition=TopicPartition("none", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not any(shell.logs.values())
    assert shell.commit_offset(1, metadata="x" * 4096) is ErrorCode.NONE


class TestLoading:
    def test_the_next_coordinator_has_the_offsets_and_the_members(self, shell: GroupShell) -> None:
        first, second = shell.stable("a", "b")
        shell.commit_offset(5, first)
        shell.start()
        assert shell.offset() is ErrorCode.NOT_COORDINATOR
        shell.lead()
        assert shell.offset() == 5
        assert shell.heartbeat(second) is ErrorCode.NONE
        assert shell.sync("b", second).assignment == b"b"
        shell.pass_time(SESSION_MS)
        assert shell.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID, "its session has begun with the load"

    def test_nothing_is_answered_before_all_is_committed(self, shell: GroupShell) -> None:
        """An offset that the leader alone has may be gone with it: a client would see it go back."""
        shell.commit_offset(5)
        shell.automatic = False
        shell.commit_offset(6)
        shell.start()
        shell.lead()
        assert shell.offset() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert shell.commit_offset(7) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        refused = shell.join("a")
        assert refused is not None and refused.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert shell.put("list", ListGroupsRequest()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shell.committed[NUMBER] = len(shell.logs[NUMBER])
        shell.pass_time(1000)
        assert shell.offset() == 6

    def test_a_coordinator_that_resigns_answers_whoever_waits(self, shell: GroupShell) -> None:
        first, second = shell.stable("a", "b")
        shell.join("a", first.member_id)
        shell.automatic = False
        shell.resign(NUMBER)
        assert shell.joined("a").error is ErrorCode.NOT_COORDINATOR
        assert shell.heartbeat(second) is ErrorCode.NOT_COORDINATOR
        shell.pass_time(10 * SESSION_MS)
        assert shell.group_ids() == []

    def test_a_leader_that_leads_on_in_another_epoch_keeps_its_groups(self, shell: GroupShell) -> None:
        (member,) = shell.stable("a")
        shell.lead()
        assert shell.heartbeat(member) is ErrorCode.NONE

    def test_tombstones_leave_nothing(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.put("delete", DeleteGroupsRequest((GROUP,)))
        shell.start()
        shell.lead()
        assert shell.group is None

    def test_the_memory_of_groups_is_returned(self) -> None:
        memory = MemoryAccount()
        shell = GroupShell(memory=memory)
        shell.lead()
        members = shell.stable("a", "b", "c")
        shell.commit_offset(5, members[0])
        held = memory.held["consumer groups"]
        assert held > 3000
        shell.start()
        shell.lead()
        assert memory.held["consumer groups"] == 2 * held, "the former process has not given its own back"
        for number in range(PARTITIONS):
            shell.resign(number)
        assert memory.held["consumer groups"] == held


class TestTools:
    def test_a_group_is_described(self, shell: GroupShell) -> None:
        first, second = shell.stable("a", "b")
        (group,) = shell.put("describe", DescribeGroupsRequest((GROUP,))).groups
        assert (group.state, group.protocol_type, group.protocol) == ("Stable", "consumer", "range")
        assert [member.member_id for member in group.members] == [first.member_id, second.member_id]
        assert group.members[1].assignment == b"b" and group.members[1].client_host == "/127.0.0.1"
        (group,) = shell.put("describe", DescribeGroupsRequest(("none",))).groups
        assert (group.error, group.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")

    def test_groups_are_listed_by_state_and_type(self, shell: GroupShell) -> None:
        shell.stable("a")
        assert [group.group_id for group in shell.put("list", ListGroupsRequest()).groups] == [GROUP]
        assert shell.put("list", ListGroupsRequest(("empty",))).groups == ()
        assert len(shell.put("list", ListGroupsRequest(("stable", "Empty"), ("Classic",))).groups) == 1
        assert shell.put("list", ListGroupsRequest((), ("consumer",))).groups == ()

    def test_a_group_with_members_is_not_deleted(self, shell: GroupShell) -> None:
        (member,) = shell.stable("a")
        shell.commit_offset(5, member)
        names = (GROUP, "none")
        results = dict(shell.put("delete", DeleteGroupsRequest(names)).results)
        assert [results[name] for name in names] == [
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ]
        shell.pass_time(SESSION_MS)
        assert shell.put("delete", DeleteGroupsRequest((GROUP,))).results == ((GROUP, ErrorCode.NONE),)
        assert shell.group is None and shell.offset() == -1

    def test_offsets_of_topics_without_readers_are_deleted(self, shell: GroupShell) -> None:
        """KIP-496."""
        away = TopicPartition("away", 0)
        shell.cluster.create("away", 1)
        (member,) = shell.stable("a")
        for partition in (TOPIC, away):
            shell.commit_offset(5, member, partition)
        response = shell.put("delete", OffsetDeleteRequest(GROUP, (TOPIC, away)))
        assert dict(response.partitions) == {TOPIC: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, away: ErrorCode.NONE}
        assert (shell.offset(), shell.offset(away)) == (5, -1)
        assert shell.logs[NUMBER][-1] == OffsetRecord(GROUP, away, None)
        assert shell.put("delete", OffsetDeleteRequest("none", (TOPIC,))).error is ErrorCode.GROUP_ID_NOT_FOUND

    def test_all_offsets_of_several_groups_are_fetched(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.commit_offset(6, partition=OTHER)
        groups = (OffsetFetchGroup(GROUP, None), OffsetFetchGroup("none", None))
        first, second = shell.put("fetch", OffsetFetchRequest(groups)).groups
        assert {partition: value.offset for partition, value in first.offsets} == {TOPIC: 5, OTHER: 6}
        assert (second.error, second.offsets) == (ErrorCode.NONE, ())


class TestGroupWithoutName:
    """Kafka has kept it for consumers that commit without a `group.id`."""

    def test_it_has_offsets_alone(self, shell: GroupShell) -> None:
        commits = (CommitPartition(TOPIC, 5),)
        assert shell.put("commit", OffsetCommitRequest("", -1, "", None, commits)).partitions == (
            (TOPIC, ErrorCode.NONE),
        )
        shell.start()
        shell.lead()
        (found,) = shell.put("fetch", OffsetFetchRequest((OffsetFetchGroup("", None),))).groups
        assert (found.error, [value.offset for _, value in found.offsets]) == (ErrorCode.NONE, [5])
        (group,) = shell.put("describe", DescribeGroupsRequest(("",))).groups
        assert (group.error, group.state) == (ErrorCode.NONE, "Empty")
        assert shell.put("delete", DeleteGroupsRequest(("",))).results == (("", ErrorCode.NONE),)
        assert shell.group_ids() == []

    def test_it_is_described_as_dead_before_its_first_commit(self, shell: GroupShell) -> None:
        (group,) = shell.put("describe", DescribeGroupsRequest(("",))).groups
        assert (group.error, group.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        (found,) = shell.put("fetch", OffsetFetchRequest((OffsetFetchGroup("", None),))).groups
        assert (found.error, found.offsets) == (ErrorCode.NONE, ())
        assert shell.put("delete", DeleteGroupsRequest(("",))).results == (("", ErrorCode.GROUP_ID_NOT_FOUND),)

    def test_it_has_no_members_and_no_transactions(self, shell: GroupShell) -> None:
        commits = (CommitPartition(TOPIC, 5),)
        joined = shell.join("a", group_id="")
        assert joined is not None and joined.error is ErrorCode.INVALID_GROUP_ID
        pending = TxnOffsetCommitRequest("id", "", 7, 0, -1, "", None, commits)
        assert shell.put("pending", pending).partitions == ((TOPIC, ErrorCode.INVALID_GROUP_ID),)
        assert shell.put("delete", OffsetDeleteRequest("", (TOPIC,))).error is ErrorCode.INVALID_GROUP_ID
        (group,) = shell.put("describe", ConsumerGroupDescribeRequest(("",))).groups
        assert group.error is ErrorCode.INVALID_GROUP_ID


class TestRetention:
    def test_offsets_of_a_simple_consumer_last_from_their_commit(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.pass_time(6 * DAY_MS)
        shell.commit_offset(6, partition=OTHER)
        assert shell.offset() == 5
        shell.pass_time(DAY_MS + 600_000)
        assert (shell.offset(), shell.offset(OTHER)) == (-1, 6)
        shell.pass_time(6 * DAY_MS)
        assert shell.group is None
        shell.start()
        shell.lead()
        assert shell.group is None, "the tombstones are in the log"

    def test_offsets_of_a_group_last_from_when_it_became_empty(self, shell: GroupShell) -> None:
        """KIP-211."""
        (member,) = shell.stable("a", session_timeout_ms=1_800_000)
        shell.commit_offset(5, member)
        for _ in range(8 * 24 * 2):
            shell.pass_time(1_800_000 - 1)
            assert shell.heartbeat(member) is ErrorCode.NONE
        assert shell.offset() == 5, "it has a member"
        shell.pass_time(7 * DAY_MS)
        assert shell.group is not None and shell.group.state is GroupState.EMPTY
        assert shell.offset() == 5
        shell.pass_time(2_400_000)
        assert shell.group is None

    def test_offsets_with_an_expiry_of_their_own(self, shell: GroupShell) -> None:
        """OffsetCommit 2 to 4."""
        commits = (CommitPartition(TOPIC, 5),)
        shell.put("commit", OffsetCommitRequest(GROUP, -1, "", None, commits, retention_ms=3_600_000))
        shell.pass_time(3_600_000 - 1)
        assert shell.offset() == 5
        shell.pass_time(600_001)
        assert shell.offset() == -1


def test_groups_without_number_meet_the_limit_of_memory() -> None:
    """Names of groups are anybody's choice."""
    memory = MemoryAccount(200_000)
    shell = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=0), memory)
    shell.lead()
    errors = set()
    for count in range(100):
        response = shell.join(f"c{count}", group_id=f"group {count}", requires_member_id=True)
        assert response is not None
        errors.add(response.error)
    assert errors == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert memory.held["consumer groups"] <= 100_000
    shell.pass_time(SESSION_MS)
    assert memory.held["consumer groups"] == 0


def test_there_is_no_coordinator_without_the_topic() -> None:
    shell = GroupShell()
    shell.cluster.delete(*(TopicPartition(OFFSETS_TOPIC, number) for number in range(PARTITIONS)))
    assert shell.offset() is ErrorCode.NOT_COORDINATOR
    shell.cluster.create(OFFSETS_TOPIC, PARTITIONS)
    shell.lead()
    assert shell.offset() == -1


class TestDeletedTopics:
    """Committed offsets of topics that are deleted. Source: Kafka, GroupCoordinator.handleDeletedPartitions."""

    def test_their_offsets_are_removed_and_others_stay(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.commit_offset(6, partition=OTHER)
        shell.delete(TOPIC)
        assert (shell.offset(), shell.offset(OTHER)) == (-1, 6)
        shell.start()
        shell.lead()
        assert (shell.offset(), shell.offset(OTHER)) == (-1, 6), "the next coordinator finds them"

    def test_a_group_without_members_goes_with_its_last_offset(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.delete(TOPIC)
        assert shell.group_ids() == []

    def test_a_group_with_members_stays(self, shell: GroupShell) -> None:
        (member,) = shell.stable("a")
        shell.commit_offset(5, member)
        shell.delete(TOPIC)
        assert shell.offset() == -1
        assert shell.heartbeat(member) is ErrorCode.NONE
        assert shell.commit_offset(6, member) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_coordinator_that_is_loading_removes_them_then(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.start()
        shell.committed = dict.fromkeys(shell.committed, 0)
        shell.lead()
        shell.delete(TOPIC)
        assert shell.offset() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shell.committed = {number: len(log) for number, log in shell.logs.items()}
        shell.pass_time(1000)
        assert shell.offset() == -1

    def test_a_coordinator_that_has_resigned_writes_nothing(self, shell: GroupShell) -> None:
        shell.commit_offset(5)
        shell.step(PartitionsDeleted(frozenset({TOPIC})))
        before = [len(log) for log in shell.logs.values()]
        for number in range(PARTITIONS):
            shell.resign(number)
        shell.pass_time(1000)
        assert [len(log) for log in shell.logs.values()] == before

    def test_many_groups_are_looked_at_in_several_steps(self, shell: GroupShell) -> None:
        count = 3 * GROUPS_PER_STEP
        for number in range(count):
            commits = (CommitPartition(TOPIC, 5),)
            shell.put("commit", OffsetCommitRequest(f"group {number}", -1, "", None, commits))
        shell.step(PartitionsDeleted(frozenset({TOPIC})))
        left = [count]
        while left[-1]:
            shell.step(Tick())
            shell.now_ms += 1
            left.append(len(shell.group_ids()))
            assert left[-2] - left[-1] <= GROUPS_PER_STEP
            assert len(left) < count
        assert len(left) > 3


@pytest.mark.parametrize("letters", ["a", "a\x7f", "\xe9\u20ac", "\U0001f600x", "\ud800"])
def test_the_hash_of_a_long_name_is_that_of_a_loop(letters: str) -> None:
    """Over its UTF-16 code units, as Java's String.hashCode; chunks of any size make no difference."""
    for count in (0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000):
        name = (letters * count)[:count]
        units = name.encode("utf-16-be", "surrogatepass")
        value = 0
        for at in range(0, len(units), 2):
            value = (31 * value + int.from_bytes(units[at : at + 2])) % (1 << 32)
        assert java_hash(name) % (1 << 32) == value
