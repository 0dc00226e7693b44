"""The replication core's part in groups: changes of leadership are reported, appends of another epoch refused."""

from __future__ import annotations

from kreplog.core.effects import Reply
from kreplog.core.events import LeadershipChanged, PartitionsDeleted, Received, SessionLost
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.messages import (
    CoordinatorProduce,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProducePartition,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from tests.core.shell import Shell, batch

HOME = TopicPartition(OFFSETS_TOPIC, 3)


def changes(shell: Shell) -> list[LeadershipChanged | PartitionsDeleted]:
    found, shell.manager.coordinator_events = shell.manager.coordinator_events, []
    return found


def append(shell: Shell, epoch: int) -> ErrorCode:
    produced = ProducePartition(HOME, batch("record"))
    (reply,) = [
        effect
        for effect in shell.step(Received("append", CoordinatorProduce(-1, 1000, (produced,), epoch)))
        if isinstance(effect, Reply)
    ]
    return reply.response.partitions[0].error  # type: ignore[union-attr]


def test_every_change_of_leadership_is_reported_in_order() -> None:
    shell = Shell()
    shell.leader_and_isr(1, 1, (1,), replicas=(1,), partition=HOME)
    assert changes(shell) == [LeadershipChanged(HOME, 1, 0)]
    assert append(shell, 1) is ErrorCode.NONE
    shell.leader_and_isr(1, 2, (1,), replicas=(1,), partition=HOME)
    assert changes(shell) == [LeadershipChanged(HOME, 2, 1)]
    shell.step(SessionLost())
    assert changes(shell) == [LeadershipChanged(HOME, None, 1)]


def test_other_topics_are_not_reported() -> None:
    shell = Shell()
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    assert changes(shell) == []


def test_an_append_of_another_epoch_is_refused() -> None:
    shell = Shell()
    shell.leader_and_isr(1, 2, (1,), replicas=(1,), partition=HOME)
    assert append(shell, 1) is ErrorCode.FENCED_LEADER_EPOCH
    assert append(shell, 3) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert append(shell, 2) is ErrorCode.NONE


def test_records_of_groups_cannot_be_deleted() -> None:
    """Source: Kafka, ReplicaManager.deleteRecords, which rejects internal topics."""
    shell = Shell()
    shell.leader_and_isr(1, 1, (1,), replicas=(1,), partition=HOME)
    assert append(shell, 1) is ErrorCode.NONE
    request = DeleteRecordsRequest(1000, (DeleteRecordsPartition(HOME, -1),))
    (reply,) = [effect for effect in shell.step(Received("delete", request)) if isinstance(effect, Reply)]
    assert isinstance(reply.response, DeleteRecordsResponse)
    (deleted,) = reply.response.partitions
    assert deleted.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert shell.logs[HOME].log_start == 0


def test_deletions_are_reported_unless_the_controller_is_deposed() -> None:
    shell = Shell()
    deleted = (TopicPartition("topic", 0), TopicPartition("topic", 1))
    for epoch, reported in ((2, [PartitionsDeleted(frozenset(deleted))]), (1, [])):
        shell.step(Received("update", UpdateMetadataRequest(9, epoch, shell.epoch, (), (), deleted)))
        assert changes(shell) == reported
    shell.step(Received("update", UpdateMetadataRequest(9, 2, shell.epoch, ())))
    assert changes(shell) == []
