"""TopicViews: metadata by topic, kept up to date with the control requests that change their partitions."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kreplog.core.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.core.replication.metadata import MetadataCache
from kreplog.server.handlers.topics import TopicViews
from kreplog.types import LeaderAndIsr, TopicPartition

A = TopicPartition("a", 0)


class Counted(dict[TopicPartition, Any]):
    """A dict that counts how often all its items were iterated."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def partition_state(partition: TopicPartition, topic_id: str, leader_epoch: int = 0) -> PartitionState:
    return PartitionState(partition, topic_id, LeaderAndIsr(1, leader_epoch, (1,)), (1,))


class World:
    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.replicas = Counted()
        self.topics = self.view()

    def view(self) -> TopicViews:
        return TopicViews(cast(Any, SimpleNamespace(metadata=self.metadata, partitions=self.replicas)))

    def apply(self, request: ControlRequest) -> None:
        if isinstance(request, UpdateMetadataRequest):
            self.metadata.apply(request)
        elif isinstance(request, LeaderAndIsrRequest):
            self.metadata.learn(request.partitions)
            self.replicas.update({partition.partition: partition for partition in request.partitions})
        else:
            for partition in request.partitions:
                self.replicas.pop(partition.partition)
        self.topics.changed(request)


@pytest.fixture
def world() -> World:
    world = World()
    world.apply(UpdateMetadataRequest(0, 1, 1, (), (partition_state(A, "id a"),)))
    assert world.topics.name_of("id a") == "a" and world.topics.name_of("id b") is None
    return world


def test_the_cache_of_ids_survives_new_states_of_known_partitions(world: World) -> None:
    """The requests of a failover change thousands of partitions in parts, and followers fetch between any two."""
    looks = world.replicas.looks
    for epoch in range(1, 50):
        world.apply(
            LeaderAndIsrRequest(0, 2, 1, (partition_state(A, "id a", epoch),))
        )  # a new controller, which has not sent all states yet
        world.apply(
            UpdateMetadataRequest(
                0, 1, 1, (), (partition_state(A, "id a", epoch), partition_state(TopicPartition("a", epoch), "id a"))
            )
        )
        assert world.topics.name_of("id a") == "a"
        assert len(world.topics.all["a"].partitions) == epoch + 1
    assert world.replicas.looks == looks


@pytest.mark.parametrize(
    "request_",
    [
        LeaderAndIsrRequest(0, 1, 1, (partition_state(TopicPartition("b", 0), "id b"),)),
        UpdateMetadataRequest(0, 1, 1, (), (partition_state(TopicPartition("b", 0), "id b"),)),
    ],
)
def test_a_new_topic_is_known_at_once(world: World, request_: ControlRequest) -> None:
    world.apply(request_)
    assert world.topics.name_of("id b") == "b" and world.topics.name_of("id a") == "a"


def test_a_deleted_topic_is_unknown(world: World) -> None:
    world.apply(UpdateMetadataRequest(0, 1, 1, (), deleted=(A,)))
    assert world.topics.name_of("id a") is None
    world.apply(LeaderAndIsrRequest(0, 1, 1, (partition_state(A, "id a"),)))
    assert world.topics.name_of("id a") == "a"
    world.apply(StopReplicaRequest(0, 1, 1, (StopReplica(A, "id a", -1, True),)))
    assert world.topics.name_of("id a") is None


def test_a_recreated_topic_has_another_id(world: World) -> None:
    world.apply(UpdateMetadataRequest(0, 1, 1, (), (partition_state(A, "id a2"),)))
    assert world.topics.name_of("id a2") == "a" and world.topics.name_of("id a") is None


def test_a_new_controllers_metadata_replace_all(world: World) -> None:
    world.apply(UpdateMetadataRequest(0, 2, 1, (), ()))
    assert world.topics.name_of("id a") is None


def test_a_new_controllers_metadata_replace_all_even_after_its_leader_and_isr(world: World) -> None:
    b = partition_state(TopicPartition("b", 0), "id b")
    world.apply(LeaderAndIsrRequest(0, 2, 1, (b,)))
    assert world.topics.name_of("id a") == "a"
    world.apply(UpdateMetadataRequest(0, 2, 1, (), (b,)))
    assert world.topics.name_of("id a") is None and world.topics.name_of("id b") == "b"


def test_topics_that_nothing_was_said_of_stay_as_they_are(world: World) -> None:
    """Metadata are requested all the time, and a failover changes thousands of partitions in parts."""
    world.apply(UpdateMetadataRequest(0, 1, 1, (), (partition_state(TopicPartition("b", 0), "id b"),)))
    before = world.topics.all
    world.apply(UpdateMetadataRequest(0, 1, 1, (), (partition_state(A, "id a", 1),)))
    assert world.topics.all["b"] is before["b"]
    assert (before["a"].partitions[0], world.topics.all["a"].partitions[0]) == (
        partition_state(A, "id a"),
        partition_state(A, "id a", 1),
    )


@pytest.mark.parametrize("seed", range(20))
def test_incremental_updates_equal_a_rebuild(world: World, seed: int) -> None:
    rng = random.Random(seed)
    places = [TopicPartition(topic, number) for topic in "cabd" for number in range(3)]
    controller = 1
    for epoch in range(60):
        controller += rng.random() < 0.1
        first = rng.sample(places, 4)
        states = tuple(
            partition_state(partition, f"id {partition.topic}", epoch) for partition in first[: rng.randrange(4)]
        )
        if rng.random() < 0.5:
            world.apply(UpdateMetadataRequest(0, controller, 1, (), states, tuple(first[3:])))
        else:
            world.apply(LeaderAndIsrRequest(0, controller, 1, states))
        if rng.random() < 0.7:
            found = world.topics.all
            rebuilt = world.view().all
            assert list(found.items()) == list(rebuilt.items())
            assert [list(view.partitions) for view in found.values()] == [
                list(view.partitions) for view in rebuilt.values()
            ]
            known = {TopicPartition(name, number) for name, view in found.items() for number in view.partitions}
            assert known == world.metadata.partitions.keys() and list(found) == sorted(found)
