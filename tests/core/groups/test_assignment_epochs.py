"""Commits in an earlier epoch than the member's: accepted for what it has had since (KIP-1251)."""

from __future__ import annotations

import pytest

from kreplog.core.consumer_group_messages import CurrentAssignment, MemberState, TopicIdPartitions
from kreplog.core.group_messages import CommitPartition, OffsetCommitRequest, TxnOffsetCommitRequest
from kreplog.core.groups.assignments import assigned_since, held, retained
from kreplog.core.groups.reconciliation import reconcile
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

from .consumers import Consumer, consumer_shell, settle
from .group_shell import GROUP, GroupShell
from .mixed_groups import Classic, formed, settled

STALE, NONE = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.NONE


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell()


def member(shell: GroupShell, name: str, **fields: str) -> Consumer:
    consumer = Consumer(shell, name, **fields)
    consumer.join()
    return consumer


def commit(shell: GroupShell, member_id: str, epoch: int, *numbers: int) -> dict[int, ErrorCode]:
    """The errors of a commit, by the number of the partition."""
    commits = tuple(CommitPartition(TopicPartition("topic", number), 5) for number in numbers or range(4))
    response = shell.put("commit", OffsetCommitRequest(GROUP, epoch, member_id, None, commits))
    transaction = shell.put("pending", TxnOffsetCommitRequest("id", GROUP, 7, 0, epoch, member_id, None, commits))
    shell.mark(True)
    errors = {partition.partition: ErrorCode(error) for partition, error in response.partitions}
    illegal = {number: ErrorCode.ILLEGAL_GENERATION if error is STALE else error for number, error in errors.items()}
    assert {partition.partition: error for partition, error in transaction.partitions} == illegal
    return errors


def shared(shell: GroupShell) -> tuple[Consumer, Consumer]:
    """A member that had all partitions in epoch 1, and one that got two of them in epoch 2."""
    a, b = member(shell, "a"), member(shell, "b")
    settle(a, b)
    assert a.epoch == b.epoch == 2 and len(a.numbers) == len(b.numbers) == 2
    return a, b


def expected(accepted: list[int], refusal: ErrorCode = STALE) -> dict[int, ErrorCode]:
    return {number: NONE if number in accepted else refusal for number in range(4)}


def test_what_was_revoked_and_given_to_another_is_refused(shell: GroupShell) -> None:
    a, _ = shared(shell)
    assert commit(shell, "a", 1) == expected(a.numbers)
    assert commit(shell, "b", 1) == expected([])
    for epoch in (3, 0, -1):
        assert commit(shell, "a", epoch) == expected([]), f"epoch {epoch}"
    assert commit(shell, "a", 2) == expected([0, 1, 2, 3]), "in its present epoch Kafka does not look at partitions"


def test_an_epoch_that_changes_no_partitions_leaves_its_commits_valid(shell: GroupShell) -> None:
    a = member(shell, "a")
    shell.cluster.create("other", 1)
    a.send(subscribed_topics=("topic", "other"))
    assert a.epoch == 2
    assert commit(shell, "a", 1) == expected([0, 1, 2, 3])


def test_what_is_to_be_revoked_is_the_members_until_it_acknowledges(shell: GroupShell) -> None:
    a, b = shared(shell)
    former = a.numbers
    c = member(shell, "c")
    b.acknowledge()
    a.send()
    assert a.epoch == 2
    assert commit(shell, "a", 1) == expected(former), "not revoked yet"
    settle(a, b, c)
    assert a.epoch == 3
    for epoch in (1, 2):
        assert commit(shell, "a", epoch) == expected(sorted(set(former) & set(a.numbers)))


def test_a_partition_that_returns_is_the_members_since_then(shell: GroupShell) -> None:
    a, b = shared(shell)
    former = a.numbers
    b.leave()
    settle(a)
    assert a.epoch == 3 and a.numbers == [0, 1, 2, 3]
    shell.cluster.create("other", 1)
    a.send(subscribed_topics=("topic", "other"))
    assert a.epoch == 4
    for epoch in (1, 2):
        assert commit(shell, "a", epoch) == expected(former)
    assert commit(shell, "a", 3) == expected([0, 1, 2, 3])


def test_the_next_coordinator_knows_since_when(shell: GroupShell) -> None:
    a, _ = shared(shell)
    shell.start()
    shell.lead()
    assert commit(shell, "a", 1) == expected(a.numbers)


def test_one_that_was_removed_and_joins_again_has_nothing_since_before(shell: GroupShell) -> None:
    a = member(shell, "a")
    a.leave()
    a.join()
    assert a.epoch > 1 and a.numbers == [0, 1, 2, 3]
    assert commit(shell, "a", 1) == expected([])


def test_a_static_member_that_returns_has_had_what_waited_for_it(shell: GroupShell) -> None:
    a, b = member(shell, "a", instance_id="one"), member(shell, "b")
    settle(a, b)
    a.leave(-2)
    for epoch in (1, 2):
        assert commit(shell, "a", epoch) == expected([]), "until it returns"
    again = member(shell, "a2", instance_id="one")
    assert again.epoch == 2 and commit(shell, "a2", 1) == expected(again.numbers)
    assert commit(shell, "b", 1) == expected([])
    assert commit(shell, "a", 1) == expected([], ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_topic_that_was_created_again_is_another(shell: GroupShell) -> None:
    a, _ = shared(shell)
    shell.delete(*(TopicPartition("topic", number) for number in range(4)))
    shell.cluster.create("topic", 4)
    assert commit(shell, "a", 1, *a.numbers) == dict.fromkeys(a.numbers, STALE)


def test_members_of_the_classic_protocol_commit_likewise(shell: GroupShell) -> None:
    """The generation of the upgrade is the first epoch."""
    a, c = Classic(shell, "a"), Consumer(shell, "c")
    formed(shell, a)
    c.join()
    settled(a, c)
    assert a.generation == 2
    assert commit(shell, a.member_id, 1) == expected(a.numbers, ErrorCode.ILLEGAL_GENERATION)
    for generation in (0, 3):
        assert commit(shell, a.member_id, generation) == expected([], ErrorCode.ILLEGAL_GENERATION)
    assert commit(shell, "c", 1) == expected([])


def current(*epochs: int, revoked: tuple[int, ...] = ()) -> CurrentAssignment:
    """In epoch 4, with partitions 0, 1, ... of a topic since these epochs, the last of which it has to revoke."""
    numbers = tuple(range(len(epochs) - len(revoked)))
    assigned = (TopicIdPartitions("t", numbers),) if numbers else ()
    pending = (TopicIdPartitions("t", revoked),) if revoked else ()
    since = tuple(each for each in (epochs[: len(numbers)], epochs[len(numbers) :]) if each)
    state = MemberState.UNREVOKED_PARTITIONS if revoked else MemberState.STABLE
    return CurrentAssignment(4, 3, state, assigned, pending, since)


def test_a_partition_keeps_its_epoch_until_it_is_revoked() -> None:
    target = frozenset({("t", 0), ("t", 2)})
    following = reconcile(current(1, 3), 5, target, None, lambda partition: True)
    assert following.state is MemberState.UNREVOKED_PARTITIONS
    assert dict(held(following)) == {("t", 0): 1, ("t", 1): 3}
    owned = (TopicIdPartitions("t", (0,)),)
    following = reconcile(following, 5, target, owned, lambda partition: True)
    assert following.member_epoch == 5 and dict(held(following)) == {("t", 0): 1, ("t", 2): 5}


def test_a_partition_that_is_assigned_again_once_it_is_revoked_has_another_epoch() -> None:
    owned = (TopicIdPartitions("t", (0,)),)
    both = frozenset({("t", 0), ("t", 1)})
    following = reconcile(current(1, 3, revoked=(1,)), 6, both, owned, lambda partition: True)
    assert following.member_epoch == 6 and dict(held(following)) == {("t", 0): 1, ("t", 1): 6}


def test_what_is_retained_keeps_its_epochs() -> None:
    left = retained(current(1, 3, 2, revoked=(2,)), (-2, -2), frozenset({("t", 1), ("t", 9)}))
    assert left == CurrentAssignment(-2, -2, MemberState.STABLE, (TopicIdPartitions("t", (1,)),), (), ((3,),))
    assert assigned_since(left) == {("t", 1): 3}
