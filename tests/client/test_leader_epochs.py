"""Leader epochs of a log as its leader reports them: those of the log itself, read once for each leader (KIP-320)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

import kreplog
from kreplog._native.checkpoint import EpochCache
from kreplog.client import Consumer, epoch_history
from kreplog.client.cluster_metadata import ClusterMetadata, PartitionMetadata
from kreplog.types import EpochEndOffset, TopicPartition
from tests.client.brokers import Topic
from tests.integration.clusters import eventually, kill

if TYPE_CHECKING:
    from kreplog.client.cluster_connections import ClusterConnections

AT = TopicPartition("t", 0)
DEADLINE = 1e18


class Leader:
    """A partition's epochs at its leader, with what EpochHistory takes of ClusterConnections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
        self.epochs = EpochCache(str(path / "leader-epoch-checkpoint"))
        self.end = 0
        self.requests = 0
        self.metadata = ClusterMetadata()
        monkeypatch.setattr(epoch_history, "epoch_end_offsets", self._answer)

    def elect(self, epoch: int, topic_id: str = "id") -> None:
        self.epochs.assign(epoch, self.end)
        self.metadata = ClusterMetadata({}, {AT: PartitionMetadata(0, epoch, topic_id)})

    def history(self) -> epoch_history.EpochHistory:
        return epoch_history.EpochHistory(cast("ClusterConnections", self))

    def require(self, partitions: Any, deadline: float) -> ClusterMetadata:
        return self.metadata

    def _answer(
        self, cluster: Any, wanted: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, EpochEndOffset]:
        self.requests += 1
        return {at: self.epochs.end_offset_for(epoch, self.end) for at, epoch in wanted.items()}


@pytest.mark.parametrize("seed", range(30))
def test_a_history_is_that_of_the_log(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    chance = random.Random(seed)
    leader = Leader(monkeypatch, tmp_path)
    history = leader.history()
    epoch, start = chance.choice([0, 3]), 0
    leader.elect(epoch)
    for _ in range(12):
        leader.end += chance.choice([0, 1, 50])
        if chance.random() < 0.3:  # retention
            start = chance.randint(start, leader.end)
            leader.epochs.truncate_from_start(start)
        if chance.random() < 0.3:  # an unclean election
            leader.end = chance.randint(start, leader.end)
            leader.epochs.truncate_from_end(leader.end)
        epoch += chance.choice([1, 2, 5])
        leader.elect(epoch)
        if chance.random() < 0.6:
            found = history.entries([AT], DEADLINE)[AT]
            reference = leader.epochs.entries
            for offset in range(start + 1, leader.end + 1):
                assert _epoch_before(found, offset) == _epoch_before(reference, offset), (found, reference, offset)
            assert [entry for entry in found if entry[1] > start] == [entry for entry in reference if entry[1] > start]
            before = leader.requests
            assert history.entries([AT], DEADLINE)[AT] == found
            assert leader.requests == before


def _epoch_before(entries: Any, offset: int) -> int | None:
    return next((epoch for epoch, start in reversed(entries) if start < offset), None)


def test_what_is_known_is_not_requested_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    leader = Leader(monkeypatch, tmp_path)
    history = leader.history()
    for epoch in range(50):
        leader.elect(epoch)
        leader.end += 10
    assert history.entries([AT], DEADLINE)[AT] == tuple((epoch, epoch * 10) for epoch in range(50))
    assert leader.requests == 50
    leader.elect(50)
    assert len(history.entries([AT], DEADLINE)[AT]) == 51
    assert leader.requests == 53
    leader.epochs = EpochCache(str(tmp_path / "other"))
    leader.end = 7
    leader.elect(50, "another id")
    assert history.entries([AT], DEADLINE)[AT][-1] == (50, 7)
    assert (49, 490) not in history.entries([AT], DEADLINE)[AT]


def test_a_change_of_the_leader_while_its_epochs_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    leader = Leader(monkeypatch, tmp_path)
    for epoch in range(5):
        leader.elect(epoch)
        leader.end += 10
    answer = leader._answer

    def change(cluster: Any, wanted: Any, deadline: float) -> dict[TopicPartition, EpochEndOffset]:
        if leader.requests == 2:
            leader.end = 15
            leader.epochs.truncate_from_end(15)
            leader.elect(9)
        return answer(cluster, wanted, deadline)

    monkeypatch.setattr(epoch_history, "epoch_end_offsets", change)
    history = leader.history()
    assert history.entries([AT], DEADLINE)[AT] == ((0, 0), (1, 10), (9, 15))


def _has_other_leader(consumer: Consumer, at: TopicPartition, leader: int) -> bool:
    return consumer.partitions(at.topic)[at].leader not in (-1, leader)


def test_epochs_of_a_cluster_are_those_of_its_files(topic: Topic) -> None:
    at = topic.partitions[0]
    with topic.consumer() as consumer:
        for _ in range(2):
            topic.append([b"x"] * 3)
            leader = consumer.partitions(topic.name)[at].leader
            kill(topic.cluster, leader)
            try:
                moved = partial(_has_other_leader, consumer, at, leader)
                eventually(moved, "no new leader")
            finally:
                topic.cluster.start()
        topic.append([b"y"])
        found = consumer.leader_epochs([at])[at]
        leader = consumer.partitions(topic.name)[at].leader
    with kreplog.Log.open(topic.cluster.home(leader) / "data" / str(at), read_only=True) as log:
        assert list(found) == log.leader_epochs
    assert len(found) >= 3
