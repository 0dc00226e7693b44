"""Replicas that an INIT does not name: set aside, taken back when they are named again, and never taken for empty."""

from __future__ import annotations

from typing import Any

from kreplog.core.effects import DeleteLog, DeleteStrays, RestoreStray, SetAsideStray
from kreplog.core.messages import LeaderAndIsrRequest, PartitionState, StopReplica, StopReplicaRequest
from kreplog.errors import ErrorCode, StorageError
from kreplog.types import LeaderAndIsr
from tests.core.shell import TP, Shell, batch


def follower(shell: Shell, topic_id: str = "id", epoch: int = 2, *, is_new: bool = False) -> PartitionState:
    return PartitionState(TP, topic_id, LeaderAndIsr(2, epoch, (1, 2, 3), (), 1, epoch), (1, 2, 3), is_new=is_new)


def leader_and_isr(shell: Shell, *states: PartitionState, is_init: bool = True) -> Any:
    return shell.response_to(LeaderAndIsrRequest(9, 1, shell.epoch, states, is_init))


def leading(*values: str) -> Shell:
    """Broker 1, which leads topic id "id" with these records."""
    shell = Shell()
    shell.update_metadata(1, 2, 3)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    shell.log.append_as_leader(batch(*values), 1, False)
    return shell


def kinds(shell: Shell) -> list[type[Any]]:
    strays = (SetAsideStray, RestoreStray, DeleteStrays, DeleteLog)
    return [type(effect) for effect in shell.effects if isinstance(effect, strays)]


def test_a_replica_that_an_init_does_not_name_is_set_aside_and_restored() -> None:
    shell = leading("a", "b")
    assert leader_and_isr(shell).error is ErrorCode.NONE
    assert TP not in shell.manager.partitions
    assert any("stray" in line for line in shell.log_lines)
    assert dict(leader_and_isr(shell, follower(shell)).partitions) == {TP: ErrorCode.NONE}
    assert shell.content() == ["a", "b"]
    assert kinds(shell) == [SetAsideStray, RestoreStray]


def test_it_is_taken_back_in_the_next_life_as_well() -> None:
    shell = leading("a", "b")
    leader_and_isr(shell)
    shell.start(2)
    assert dict(leader_and_isr(shell, follower(shell)).partitions) == {TP: ErrorCode.NONE}
    assert shell.content() == ["a", "b"]


def test_a_replica_of_another_topic_id_is_set_aside_and_stays_so() -> None:
    shell = leading("a")
    assert dict(leader_and_isr(shell, follower(shell, "other", is_new=True)).partitions) == {TP: ErrorCode.NONE}
    assert shell.content() == []
    assert shell.strays.keys() == {("id", 0)}


def test_a_replica_in_the_next_life_is_not_replaced_by_an_older_stray() -> None:
    """Simulator seed 306: the replica may be in sync, and the stray lacks what it has acknowledged since."""
    shell = leading("a")
    leader_and_isr(shell)
    assert dict(leader_and_isr(shell, follower(shell, is_new=True)).partitions) == {TP: ErrorCode.NONE}
    shell.start(2)
    assert dict(leader_and_isr(shell, follower(shell)).partitions) == {TP: ErrorCode.NONE}
    assert shell.content() == [] and RestoreStray not in kinds(shell)
    assert shell.strays.keys() == {("id", 0)}


def test_a_new_partition_is_not_made_of_an_old_one() -> None:
    """A partition that was removed and created again has the same topic id."""
    shell = leading("a")
    leader_and_isr(shell)
    assert dict(leader_and_isr(shell, follower(shell, is_new=True)).partitions) == {TP: ErrorCode.NONE}
    assert shell.content() == []


def test_a_stray_is_deleted_where_a_controller_names_it_for_that() -> None:
    """As of a topic that was deleted while this broker was down."""
    shell = leading("a")
    leader_and_isr(shell)
    for topic_id, delete, left in (("other", True, 1), ("id", False, 1), ("id", True, 0)):
        stop = StopReplica(TP, topic_id, -1, delete)
        answer = shell.response_to(StopReplicaRequest(9, 1, shell.epoch, (stop,)))
        assert answer.partitions == ((TP, ErrorCode.NONE),)
        assert len(shell.strays) == left
    assert kinds(shell) == [SetAsideStray, DeleteStrays]


def test_one_in_sync_whose_stray_is_gone_is_not_made_from_nothing() -> None:
    shell = leading("a")
    leader_and_isr(shell)
    shell.strays.clear()
    for _ in range(2):
        assert dict(leader_and_isr(shell, follower(shell)).partitions) == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    assert shell.manager.missing == {TP: "id"}
    out_of_sync = follower(shell)
    out_of_sync = out_of_sync._replace(state=out_of_sync.state._replace(isr=(2, 3)))
    assert dict(leader_and_isr(shell, out_of_sync).partitions) == {TP: ErrorCode.NONE}


def test_a_replica_that_cannot_be_set_aside_remains() -> None:
    shell = leading("a")
    shell.fails[SetAsideStray] = StorageError("the disk is gone")
    assert leader_and_isr(shell).error is ErrorCode.NONE
    assert any("cannot be set aside" in line for line in shell.log_lines)
    assert shell.strays == {}
    assert dict(leader_and_isr(shell, follower(shell)).partitions) == {TP: ErrorCode.NONE}
    assert shell.content() == ["a"]
