"""Members that are in their group still and join it again, in epoch 0: they have given up what they owned."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core.consumer_group_messages import MemberState
from kreplog.core.group_messages import partition_of_group
from kreplog.errors import ErrorCode

from .consumers import Consumer, consumer_shell, described, settle
from .group_shell import GROUP, PARTITIONS, GroupShell


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell()


def joined(shell: GroupShell, *names: str, **fields: Any) -> list[Consumer]:
    """Members that share the partitions, in the epoch of the last."""
    members = [Consumer(shell, name, **fields) for name in names]
    for consumer in members:
        consumer.join()
    settle(*members)
    return members


def state_of(shell: GroupShell, name: str) -> MemberState:
    assert shell.group is not None and shell.group.consumer is not None
    return shell.group.consumer.assignment_of(name).state


def test_kafka_19233_a_member_gets_back_what_it_had(shell: GroupShell) -> None:
    a, b = joined(shell, "a", "b")
    epoch, owned = a.epoch, a.owned
    a.send(member_epoch=7)
    assert a.error is ErrorCode.FENCED_MEMBER_EPOCH
    a.join()
    assert (a.error, a.epoch, a.owned) == (ErrorCode.NONE, epoch, owned)
    settle(a, b)
    assert (a.owned, b.epoch, len(b.owned)) == (owned, epoch, 2)


def test_a_member_whose_leave_met_a_moving_coordinator_joins_again(shell: GroupShell) -> None:
    a, b = joined(shell, "a", "b")
    number = partition_of_group(GROUP, PARTITIONS)
    shell.resign(number)
    a.leave()
    assert a.error is ErrorCode.NOT_COORDINATOR
    shell.lead(number)
    shell.pass_time(100)
    a.join()
    settle(a, b)
    assert (a.error, len(a.owned), len(b.owned)) == (ErrorCode.NONE, 2, 2)


def test_a_join_ends_no_revocation(shell: GroupShell) -> None:
    """It may be a late one: the member reads still what it has to revoke."""
    b = joined(shell, "a", "b")[1]
    c = Consumer(shell, "c")
    c.join()
    late = Consumer(shell, "a")
    late.join()
    late.join()
    c.send()
    assert (late.error, len(late.owned), c.numbers) == (ErrorCode.NONE, 1, [])
    assert state_of(shell, "a") is MemberState.UNREVOKED_PARTITIONS
    settle(late, b, c)
    assert sorted(len(each.owned) for each in (late, b, c)) == [1, 1, 2]


def test_a_late_join_begins_no_epoch(shell: GroupShell) -> None:
    """The member goes on in the one that it knows."""
    a, b = joined(shell, "a", "b")
    b.leave()
    Consumer(shell, "a").join()
    a.send()
    assert (a.error, a.numbers) == (ErrorCode.NONE, [0, 1, 2, 3])


def test_a_member_joins_again_for_other_topics(shell: GroupShell) -> None:
    """It keeps nothing of what it had, which it need not acknowledge: librdkafka would not."""
    shell.cluster.create("other", 2)
    a, b = joined(shell, "a", "b")
    a.join("other")
    assert (a.error, len(a.owned), state_of(shell, "a")) == (ErrorCode.NONE, 2, MemberState.STABLE)
    settle(a, b)
    assert (len(a.owned), b.numbers) == (2, [0, 1, 2, 3])
    assert described(shell).state == "Stable"


def test_a_member_that_waits_for_partitions_gets_those_that_are_free(shell: GroupShell) -> None:
    (a,) = joined(shell, "a")
    b = Consumer(shell, "b")
    b.join()
    a.send()
    assert state_of(shell, "b") is MemberState.UNRELEASED_PARTITIONS
    a.acknowledge()
    b.join()
    assert (b.error, len(b.owned), state_of(shell, "b")) == (ErrorCode.NONE, 2, MemberState.STABLE)


def test_a_static_member_that_has_not_left_joins_again(shell: GroupShell) -> None:
    (a,) = joined(shell, "a", instance_id="instance")
    (b,) = joined(shell, "b")
    settle(a, b)
    owned = a.owned
    a.join()
    assert (a.error, a.owned, len(owned)) == (ErrorCode.NONE, owned, 2)
    other = Consumer(shell, "other", instance_id="instance")
    other.join()
    assert other.error is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_that_has_left_returns_with_its_instance_id_alone(shell: GroupShell) -> None:
    (a,) = joined(shell, "a", instance_id="instance")
    a.leave(-2)
    again = Consumer(shell, "a")
    again.join()
    assert again.error is ErrorCode.FENCED_MEMBER_EPOCH and again.message and again.message.endswith("InstanceId")
    a.join()
    assert (a.error, a.numbers) == (ErrorCode.NONE, [0, 1, 2, 3])
