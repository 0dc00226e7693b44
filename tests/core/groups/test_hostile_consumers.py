"""Groups of the consumer protocol where things go wrong: nobody is left behind, and no partition without an owner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kreplog.core.consumer_group_messages import (
    CurrentAssignment,
    CurrentAssignmentRecord,
    DescribableTopics,
    MemberState,
    TopicIdPartitions,
)
from kreplog.core.group_messages import DeleteGroupsRequest, partition_of_group
from kreplog.core.groups.consumer_group import MAX_SUBSCRIPTION_BYTES
from kreplog.core.groups.consumer_membership import REWRITE_MS
from kreplog.core.groups.subscribed_topics import LOSS_MS
from kreplog.core.patterns import matching
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from tests.core.groups.consumers import NEEDS_RE2, SESSION_MS, Consumer, consumer_shell, described, settle
from tests.core.groups.group_shell import GROUP, PARTITIONS, GroupShell

AT = partition_of_group(GROUP, PARTITIONS)
TOO_MANY_TOPICS = tuple(f"{number:0200}" for number in range(MAX_SUBSCRIPTION_BYTES // 200 + 1))


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell()


def leave_unwritten(shell: GroupShell) -> None:
    """The only member leaves, which an append has failed to write."""
    a = Consumer(shell, "a")
    a.join()
    shell.automatic = False
    a.leave()
    shell.fail(ErrorCode.REQUEST_TIMED_OUT)


def load_without_member(shell: GroupShell, topic_id: str) -> None:
    """The next coordinator loads an assignment of a member that there is not."""
    current = CurrentAssignment(1, 0, MemberState.STABLE, (TopicIdPartitions(topic_id, (0, 1)),), (), ((1, 1),))
    shell.logs[AT].append(CurrentAssignmentRecord(GROUP, "gone", current))
    shell.committed[AT] = len(shell.logs[AT])
    shell.start()
    shell.lead()


def test_a_static_member_returns_to_a_smaller_target(shell: GroupShell) -> None:
    """As in a rolling restart of a group that grows. It has nothing to revoke: it has just started."""
    first = Consumer(shell, "a", instance_id="i")
    first.join()
    first.leave(-2)
    b = Consumer(shell, "b")
    b.join()
    assert b.numbers == []
    second = Consumer(shell, "a2", instance_id="i")
    second.join()
    settle(second, b)
    assert (second.error, b.error) == (ErrorCode.NONE, ErrorCode.NONE)
    assert sorted(second.numbers + b.numbers) == [0, 1, 2, 3] and len(b.numbers) == 2


def test_a_member_does_not_take_the_place_of_another(shell: GroupShell) -> None:
    left, other = Consumer(shell, "a", instance_id="i"), Consumer(shell, "b")
    left.join()
    other.join()
    settle(left, other)
    left.leave(-2)
    impostor = Consumer(shell, "b", instance_id="i")
    impostor.join()
    assert impostor.error is ErrorCode.INVALID_REQUEST
    other.acknowledge()
    assert other.error is ErrorCode.NONE and len(other.numbers) == 2


def test_the_end_of_a_member_is_written_although_nobody_is_left(shell: GroupShell) -> None:
    leave_unwritten(shell)
    shell.automatic = True
    shell.pass_time(REWRITE_MS)
    response = shell.join("c", requires_member_id=True)
    assert response is not None and response.error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_deleted_group_stays_deleted_after_a_failed_append(shell: GroupShell) -> None:
    leave_unwritten(shell)
    shell.automatic = True
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))).results == ((GROUP, ErrorCode.NONE),)
    assert shell.group_ids() == [] and shell.core.charged == 0
    shell.start()
    shell.lead()
    assert shell.group_ids() == []


def test_a_coordinator_that_was_replaced_writes_nothing_again(shell: GroupShell) -> None:
    shell.automatic = False
    a = Consumer(shell, "a")
    a.join()
    shell.resign(AT)
    shell.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    shell.pass_time(2 * REWRITE_MS)
    assert not shell.waiting


def test_a_subscription_that_no_record_holds_is_refused(shell: GroupShell) -> None:
    """One batch has what has changed of all members: it would fail for all of them."""
    a, b = Consumer(shell, "a"), Consumer(shell, "b")
    a.join()
    a.send(subscribed_topics=TOO_MANY_TOPICS)
    assert a.error is ErrorCode.INVALID_REQUEST
    b.join(*TOO_MANY_TOPICS)
    assert b.error is ErrorCode.INVALID_REQUEST
    a.acknowledge()
    assert (a.error, len(a.numbers)) == (ErrorCode.NONE, 4)


def test_topics_are_missing_for_as_long_as_each_is(shell: GroupShell) -> None:
    """One that is gone for good does not shorten the time of another that is missing for a moment."""
    shell.cluster.create("other", 1)
    a = Consumer(shell, "a")
    a.join("topic", "other")
    shell.delete(TopicPartition("other", 0))
    a.send()
    shell.pass_time(LOSS_MS - 10)
    missing = {name: state for name, state in shell.cluster.partitions.items() if name.topic == "topic"}
    shell.cluster.delete(*missing)
    a.send()
    shell.pass_time(20)
    a.acknowledge()
    assert {0, 1, 2, 3} <= set(a.numbers)


def test_an_assignment_without_a_member_holds_no_partition(shell: GroupShell) -> None:
    a = Consumer(shell, "a")
    a.join()
    ((topic_id, _), *_) = a.owned
    load_without_member(shell, topic_id)
    shell.pass_time(LOSS_MS)
    a.leave()
    b = Consumer(shell, "b")
    b.join()
    settle(b)
    assert b.numbers == [0, 1, 2, 3] and str(described(shell).state) == "Stable"


@NEEDS_RE2
def test_an_expression_is_matched_once(shell: GroupShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with each that another member brings."""
    matched: list[str] = []

    def noting(pattern: str, names: frozenset[str]) -> frozenset[str] | None:
        matched.append(pattern)
        return matching(pattern, names)

    monkeypatch.setattr("kreplog.core.groups.consumer_membership.matching", noting)
    patterns = [f"topic|x{number}" for number in range(5)]
    for number, pattern in enumerate(patterns):
        member = Consumer(shell, f"{number}")
        member.join(subscribed_topics=None, subscribed_regex=pattern)
        assert member.error is ErrorCode.NONE
    assert matched == patterns


@NEEDS_RE2
def test_an_expression_is_compared_with_no_topic_that_its_client_may_not_describe(
    shell: GroupShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile one takes a third of a millisecond for each name: in a large cluster seconds, in which nobody else is
    served."""
    compared: list[str] = []

    def noting(pattern: str, names: Iterable[str]) -> frozenset[str] | None:
        compared.extend(names)
        return frozenset(compared)

    monkeypatch.setattr("kreplog.core.groups.consumer_membership.matching", noting)
    member = Consumer(shell, "a")
    member.join(subscribed_topics=None, subscribed_regex="(.?){250}q", view=DescribableTopics("topic".__eq__, 1))
    assert (compared, member.error) == (["topic"], ErrorCode.NONE)
    stranger = Consumer(shell, "b")
    stranger.join(subscribed_topics=None, subscribed_regex="(.?){251}q", view=DescribableTopics("other".__eq__, 1))
    assert (compared, stranger.error) == (["topic"], ErrorCode.NONE)


def test_a_static_member_returns_with_its_member_id(shell: GroupShell) -> None:
    """As Java's client does, which has one for its life."""
    a = Consumer(shell, "a", instance_id="i")
    a.join()
    a.leave(-2)
    a.join()
    assert (a.error, len(a.numbers)) == (ErrorCode.NONE, 4)


def test_a_refused_return_leaves_the_member_as_it_was(shell: GroupShell) -> None:
    """It still expires."""
    a = Consumer(shell, "a", instance_id="i")
    a.join()
    a.leave(-2)
    Consumer(shell, "a2", instance_id="i").join(*TOO_MANY_TOPICS)
    assert [member.member_id for member in described(shell).members] == ["a"]
    shell.pass_time(SESSION_MS)
    assert described(shell).members == ()


def test_what_is_written_again_does_not_follow_a_deletion(shell: GroupShell) -> None:
    leave_unwritten(shell)
    assert shell.put("delete", DeleteGroupsRequest((GROUP,))) is None
    shell.pass_time(REWRITE_MS)
    shell.commit()
    shell.automatic = True
    shell.pass_time(2 * REWRITE_MS)
    assert shell.group_ids() == []
    shell.start()
    shell.lead()
    assert shell.group_ids() == []


def test_an_empty_group_with_an_assignment_left_behind_can_change_its_protocol(shell: GroupShell) -> None:
    a = Consumer(shell, "a")
    a.join()
    ((topic_id, _), *_) = a.owned
    a.leave()
    load_without_member(shell, topic_id)
    shell.pass_time(REWRITE_MS)
    response = shell.join("c", requires_member_id=True)
    assert response is not None and response.error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_member_whose_change_is_refused_is_alive(shell: GroupShell) -> None:
    a = Consumer(shell, "a")
    a.join()
    for _ in range(2):
        shell.pass_time(SESSION_MS - 1)
        a.send(subscribed_topics=TOO_MANY_TOPICS)
    assert [member.member_id for member in described(shell).members] == ["a"]


def test_a_refused_member_does_not_convert_a_classic_group(shell: GroupShell) -> None:
    """The time for which it has had no members counts for its offsets."""
    shell.stable("c")
    shell.pass_time(10_000)
    group = shell.group
    assert group is not None and group.is_empty
    before = group.state_ms, group.protocol_type, len(shell.logs[AT])
    Consumer(shell, "a").join(*TOO_MANY_TOPICS)
    assert shell.group is group and group.consumer is None
    assert (group.state_ms, group.protocol_type, len(shell.logs[AT])) == before


def test_a_refused_first_member_leaves_no_group(shell: GroupShell) -> None:
    Consumer(shell, "a").join(*TOO_MANY_TOPICS)
    assert shell.group_ids() == [] and shell.core.charged == 0


@pytest.mark.parametrize("fields", [{"session_timeout_ms": 1}, {"protocols": ()}, {"member_id": "unknown"}])
def test_a_refused_member_does_not_convert_a_consumer_group(shell: GroupShell, fields: dict[str, Any]) -> None:
    a = Consumer(shell, "a")
    a.join()
    a.leave()
    before = described(shell).group_epoch
    response = shell.join("c", **fields)
    assert response is not None and response.error is not ErrorCode.NONE
    assert described(shell).group_epoch == before


@NEEDS_RE2
def test_a_deleted_topic_leaves_the_matches_of_an_expression(shell: GroupShell) -> None:
    shell.cluster.create("topic-2", 1)
    a = Consumer(shell, "a")
    a.join(subscribed_topics=None, subscribed_regex="topic.*")
    shell.delete(TopicPartition("topic-2", 0))
    a.send()
    shell.pass_time(LOSS_MS)
    for _ in range(2):
        a.send()
    group = shell.group
    assert group is not None and group.consumer is not None
    assert group.consumer.regexes["topic.*"].topics == ("topic",)
