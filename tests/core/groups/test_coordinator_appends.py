"""The replication core's part in groups: changes of leadership are reported, appends of another epoch refused."""

from __future__ import annotations

from kreplog.core.effects import Reply
from kreplog.core.events import LeadershipChanged, MarkerCommitted, PartitionsDeleted, Received, SessionLost
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.messages import (
    CoordinatorProduce,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchPartition,
    FetchRequest,
    ProducePartition,
    TransactionMarker,
    UpdateMetadataRequest,
    WriteMarkersRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from tests.core.shell import Shell, batch

HOME = TopicPartition(OFFSETS_TOPIC, 3)


def changes(shell: Shell) -> list[LeadershipChanged | PartitionsDeleted | MarkerCommitted]:
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


def mark(shell: Shell, partition: TopicPartition = HOME) -> None:
    produced = ProducePartition(partition, TransactionMarker(7, 0, True, 5))
    shell.step(Received("mark", WriteMarkersRequest(-1, 1000, (produced,))))


def test_a_marker_is_reported_once_all_in_sync_replicas_have_it() -> None:
    """The offsets of its transaction are committed then, and no sooner: another leader may not have it."""
    shell = Shell()
    shell.leader_and_isr(1, 1, (1, 2), replicas=(1, 2), partition=HOME)
    changes(shell)
    mark(shell)
    assert changes(shell) == []
    requested = FetchPartition(HOME, "id", 1, 1, 1)
    shell.step(Received("fetch", FetchRequest(2, -1, 0, 0, 1 << 20, (requested,))))
    assert changes(shell) == [MarkerCommitted(HOME, 7, True, 0)]


def test_a_marker_of_a_former_leader_is_not_reported() -> None:
    """It is truncated perhaps; if not, the coordinator loads it."""
    shell = Shell()
    shell.leader_and_isr(1, 1, (1, 2), replicas=(1, 2), partition=HOME)
    mark(shell)
    shell.leader_and_isr(2, 2, (1, 2), replicas=(1, 2), partition=HOME)
    shell.leader_and_isr(1, 3, (1,), replicas=(1, 2), partition=HOME)
    assert not [change for change in changes(shell) if isinstance(change, MarkerCommitted)]


def test_markers_of_other_topics_are_not_reported() -> None:
    shell = Shell()
    other = TopicPartition("topic", 0)
    shell.leader_and_isr(1, 1, (1,), replicas=(1,), partition=other)
    mark(shell, other)
    assert changes(shell) == []
