"""Exhaustion of descriptors or memory fails no log: refused operations are retried, and no replica counts as lost."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.core.effects import (
    AppendAsFollower,
    AppendAsLeader,
    AssignLeaderEpoch,
    DeleteRecordsBefore,
    EnforceRetention,
    Flush,
    OpenLog,
    Send,
    SubmitMulti,
    TruncateTo,
)
from kreplog.core.events import Flushed, RetentionDue, Tick
from kreplog.core.messages import (
    CONSUMER,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    FetchPartition,
    FetchRequest,
    LeaderAndIsrResponse,
    ProducePartition,
    ProduceRequest,
    StopReplica,
    StopReplicaRequest,
)
from kreplog.core.replication.role import Role
from kreplog.errors import (
    ErrorCode,
    LogFailedError,
    ReplicaRefusedError,
    ResourceExhaustedError,
    StorageError,
    is_exhaustion,
)
from kreplog.types import NO_EPOCH
from tests.core.replication.test_following import Brokers, role
from tests.core.shell import TP, Shell, batch

EXHAUSTED = ResourceExhaustedError("no descriptors are left")


def interrupted() -> LogFailedError:
    error = LogFailedError("half done")
    error.__cause__ = EXHAUSTED
    return error


def reported(shell: Shell) -> bool:
    return any(isinstance(write, SubmitMulti) for write in shell.effects)


def is_interrupted(shell: Shell) -> bool:
    return shell.partition.interrupted


def later(shell: Shell) -> None:
    shell.now_ms += 5000
    shell.step(Tick())


def produced(shell: Shell, value: str) -> Any:
    """The immediate response to a produce with acks=1."""
    return shell.response_to(ProduceRequest(1, 1000, (ProducePartition(TP, batch(value)),))).partitions[0]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_the_cause_says_whether_the_disk_is_to_blame(number: int) -> None:
    raised = StorageError("cannot list")
    raised.__cause__ = OSError(number, "no")
    failed = LogFailedError("failed")
    failed.__cause__ = raised
    assert is_exhaustion(failed) and is_exhaustion(raised) and is_exhaustion(EXHAUSTED)
    raised.__cause__ = OSError(errno.EIO, "no")
    assert not is_exhaustion(failed)
    assert not is_exhaustion(None)


def test_a_leader_without_descriptors_refuses_appends_and_leads_on() -> None:
    shell = Shell()
    shell.update_metadata(1)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    shell.fails[AppendAsLeader] = EXHAUSTED
    assert produced(shell, "a").error is ErrorCode.KAFKA_STORAGE_ERROR
    assert role(shell) is Role.LEADER and not reported(shell)
    assert shell.partition.sequence_gap_grace.applies(shell.now_ms), (
        "later batches of the producer must not overtake it"
    )
    assert produced(shell, "a").error is ErrorCode.NONE
    assert shell.content() == ["a"]


def test_a_follower_backs_off_and_fetches_the_same_again() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers[2].fails[AppendAsFollower] = EXHAUSTED
    brokers.fetch(2)
    assert role(brokers[2]) is Role.FOLLOWER and brokers[2].content() == []
    brokers.catch_up(2)
    assert brokers[2].content() == ["a"] and not reported(brokers[2])


def test_a_follower_whose_truncation_was_interrupted_fetches_only_after_reopening_its_log() -> None:
    """Its fetch offset says what it has, which it does not know meanwhile."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(2, 1, (1, 2))
    brokers.write(2, "lost")
    brokers.leader_and_isr(1, 2, (1, 2))
    brokers.write(1, "a")
    brokers[2].logs[TP].truncate_to(0)
    brokers[2].fails[TruncateTo] = interrupted()
    brokers.fetch(2)
    assert is_interrupted(brokers[2]) and role(brokers[2]) is Role.FOLLOWER
    sent = len([sent for sent in brokers[2].effects if isinstance(sent, Send)])
    brokers[2].fails[OpenLog] = EXHAUSTED
    later(brokers[2])
    assert is_interrupted(brokers[2])
    assert len([sent for sent in brokers[2].effects if isinstance(sent, Send)]) == sent
    later(brokers[2])
    assert not is_interrupted(brokers[2])
    brokers.catch_up(2)
    assert brokers[2].content() == ["a"] == brokers[1].content() and not reported(brokers[2])


def test_records_are_fsynced_before_the_next_fetch_also_if_a_deletion_after_them_is_refused() -> None:
    """With flush.messages=1 the fetch offset promises it (seed 1532)."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2), config=TopicConfig(flush_messages=1))
    brokers.write(1, "a")
    brokers[1].step(Flushed(TP, 1))
    brokers.fetch(2)
    brokers[2].step(Flushed(TP, 1))
    brokers.fetch(2)
    brokers[1].request(DeleteRecordsRequest(1000, (DeleteRecordsPartition(TP, 1),)))
    brokers.write(1, "b")
    brokers[2].effects = brokers[2].effects[-1:]
    brokers[2].fails[DeleteRecordsBefore] = EXHAUSTED
    brokers.fetch(2)
    assert brokers[2].log.log_start == 0 and brokers[2].log.leo == 2
    later(brokers[2])
    assert [type(effect) for effect in brokers[2].effects[1:] if isinstance(effect, Flush | Send)] == [Flush]
    fetches = [effect for effect in brokers[2].step(Flushed(TP, 2)) if isinstance(effect, Send)]
    assert [sent.request.partitions[0].fetch_offset for sent in fetches] == [2]


@pytest.mark.parametrize("error", [EXHAUSTED, interrupted()])
def test_a_leader_whose_retention_or_deletion_found_no_descriptor_leads_on(error: StorageError) -> None:
    shell = Shell()
    shell.update_metadata(1)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    produced(shell, "a")
    shell.fails[EnforceRetention] = error
    shell.step(RetentionDue(TP))
    later(shell)
    assert role(shell) is Role.LEADER and not is_interrupted(shell)
    shell.fails[DeleteRecordsBefore] = error
    shell.request(DeleteRecordsRequest(1000, (DeleteRecordsPartition(TP, 1),)))
    later(shell)
    assert role(shell) is Role.LEADER and not is_interrupted(shell)
    assert produced(shell, "b").error is ErrorCode.NONE
    assert shell.content()[-1] == "b" and not any("offline" in line for line in shell.log_lines)


def test_reads_of_records_that_an_interrupted_deletion_has_removed_are_refused_until_the_log_is_reopened() -> None:
    """Where the log starts is not known before that (seed 2892)."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.fetch(2)
    brokers.fetch(2)
    brokers.write(1, "c")
    leader = brokers[1]
    leader.logs[TP].delete_records_before(2)
    leader.fails[DeleteRecordsBefore] = interrupted()
    leader.request(DeleteRecordsRequest(1000, (DeleteRecordsPartition(TP, 2),)))
    assert is_interrupted(leader) and leader.log.log_start == 2 and leader.partition.log.log_start == 0
    requested = FetchPartition(TP, leader.topic_ids[TP], 1, 1, 1, 0, 1 << 20)
    for replica in (CONSUMER, 2):
        read = leader.response_to(FetchRequest(replica, 1, 0, 0, 1 << 20, (requested,))).partitions[0]
        assert read.error is ErrorCode.KAFKA_STORAGE_ERROR
    leader.now_ms += 10**7
    leader.step(Tick())
    assert role(leader) is Role.LEADER and not is_interrupted(leader)
    read = leader.response_to(FetchRequest(CONSUMER, -1, 0, 0, 1 << 20, (requested,))).partitions[0]
    assert read.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_leader_whose_reopened_log_lost_records_has_failed() -> None:
    shell = Shell()
    shell.update_metadata(1)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    produced(shell, "a")
    shell.fails[EnforceRetention] = interrupted()
    shell.step(RetentionDue(TP))
    shell.logs[TP].truncate_to(0)
    later(shell)
    assert role(shell) is Role.OFFLINE


def test_a_leader_retains_the_records_of_an_interrupted_append() -> None:
    """The producer got no acknowledgement and retries; followers have to fetch it."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers[1].fails[AppendAsLeader] = interrupted()
    brokers.write(1, "a")
    brokers[1].logs[TP].append_as_leader(batch("a"), 1, False)
    later(brokers[1])
    assert role(brokers[1]) is Role.LEADER and not is_interrupted(brokers[1])
    brokers.catch_up(2)
    assert brokers[2].content() == ["a"] == brokers[1].content()
    assert brokers[1].partition.high_watermark == 1 == brokers[2].partition.high_watermark


@pytest.mark.parametrize("effect", [OpenLog, AssignLeaderEpoch])
def test_a_leader_and_isr_that_lacks_descriptors_is_applied_later(effect: type) -> None:
    """The failure is not reported: the controller would treat the replica as offline until the broker registers
    again."""
    shell = Shell()
    shell.update_metadata(1)
    shell.fails[effect] = EXHAUSTED
    answer = shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    assert isinstance(answer, LeaderAndIsrResponse) and dict(answer.partitions) == {TP: ErrorCode.NONE}
    assert TP not in shell.manager.partitions or role(shell) is Role.IDLE
    assert shell.manager.next_wakeup(shell.now_ms) is not None
    later(shell)
    assert role(shell) is Role.LEADER and not reported(shell)
    assert produced(shell, "a").error is ErrorCode.NONE


def test_a_leader_with_an_interrupted_log_leads_on_after_a_leader_and_isr_of_its_own_epoch() -> None:
    """To step down would end its epoch, in which it must not lead again."""
    shell = Shell()
    shell.update_metadata(1)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    shell.fails[EnforceRetention] = interrupted()
    shell.step(RetentionDue(TP))
    shell.fails[OpenLog] = EXHAUSTED
    answer = shell.leader_and_isr(1, 1, (1,), replicas=(1,), version=1)
    assert dict(answer.partitions) == {TP: ErrorCode.NONE} and role(shell) is Role.LEADER
    answer = shell.leader_and_isr(1, 2, (1,), replicas=(1,), version=2)
    assert dict(answer.partitions) == {TP: ErrorCode.NONE} and role(shell) is Role.IDLE
    later(shell)
    assert role(shell) is Role.LEADER and shell.partition.leader_epoch == 2


def test_a_postponed_leader_and_isr_is_dropped_when_the_replica_is_stopped() -> None:
    shell = Shell()
    shell.update_metadata(1)
    shell.fails[AssignLeaderEpoch] = EXHAUSTED
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    shell.request(StopReplicaRequest(9, 1, shell.epoch, (StopReplica(TP, "id", 2, False),)))
    later(shell)
    assert role(shell) is Role.IDLE


def test_a_replica_that_does_not_fit_is_refused_and_may_be_deleted() -> None:
    shell = Shell()
    shell.update_metadata(1)
    shell.fails[OpenLog] = ReplicaRefusedError("no room")
    answer = shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    assert dict(answer.partitions) == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    assert TP not in shell.manager.partitions
    assert any("no room" in line for line in shell.log_lines) and not reported(shell)
    answer = shell.response_to(StopReplicaRequest(9, 1, shell.epoch, (StopReplica(TP, "id", NO_EPOCH, True),)))
    assert dict(answer.partitions) == {TP: ErrorCode.NONE}
