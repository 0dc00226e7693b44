"""New partitions that administrators request: their number, and their replicas."""

from __future__ import annotations

import pytest

from kreplog.core.controller import new_partitions
from kreplog.core.controller.new_partitions import (
    MAX_NEW_PARTITIONS,
    added_partitions,
    check_keeps_partitions,
    given_replicas,
    topic_replicas,
)
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.messages import PartitionState
from kreplog.core.nodes import Assignment, TopicNode
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, UsageError
from kreplog.types import NO_LEADER, BrokerRegistration, LeaderAndIsr, TopicPartition

BROKERS = {number: BrokerRegistration(number, 1, "host", 9092, "r") for number in (1, 2, 3)}
TOPIC = TopicNode("id", {0: Assignment((1, 2)), 1: Assignment((2, 3))})


def test_a_broker_that_stops_gets_no_replicas() -> None:
    stopping = BrokerRegistration(4, 1, "host", 9092, stopping=True)
    assert new_partitions.assignable({**BROKERS, 4: stopping}) == BROKERS
    assert new_partitions.racks(BROKERS) == {1: "r", 2: "r", 3: "r"}


def test_a_request_may_leave_numbers_to_the_broker() -> None:
    assert [new_partitions.number_of_partitions(requested, 6) for requested in (-1, 0, 4)] == [6, 0, 4]
    factors = [new_partitions.replication_factor(*given) for given in ((2, 5, 9), (-1, 5, 9), (-1, -1, 9), (-1, -1, 2))]
    assert factors == [2, 5, 3, 2]


def test_replicas_of_a_new_topic_are_placed_or_given() -> None:
    placed = topic_replicas({}, 3, 2, BROKERS)
    assert list(placed) == [0, 1, 2]
    assert {len(set(replicas)) for replicas in placed.values()} == {2}
    assert topic_replicas({}, 1, 1, BROKERS)[0] != topic_replicas({}, 1, 1, BROKERS, existing=1)[0]
    assert topic_replicas({0: [3, 1], 1: [1, 2]}, 5, 1, BROKERS) == {0: (3, 1), 1: (1, 2)}


def test_partitions_are_placed_or_given() -> None:
    placed = added_partitions("t", TOPIC, 4, (), BROKERS)
    assert list(placed) == [2, 3]
    assert {len(set(replicas)) for replicas in placed.values()} == {2}
    assert added_partitions("t", TOPIC, 4, [[3, 1], [1, 2]], BROKERS) == {2: (3, 1), 3: (1, 2)}


@pytest.mark.parametrize("count", [1, 2])
def test_a_topic_does_not_shrink(count: int) -> None:
    with pytest.raises(InvalidPartitionsError, match="has 2 partitions already"):
        added_partitions("t", TOPIC, count, (), BROKERS)


def test_a_request_has_few_enough_partitions() -> None:
    new_partitions.check_number(MAX_NEW_PARTITIONS)
    with pytest.raises(InvalidPartitionsError, match="10,001 new partitions"):
        added_partitions("t", TOPIC, 2 + MAX_NEW_PARTITIONS + 1, (), BROKERS)


def test_each_new_partition_is_given_its_replicas_or_none_is() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match="1 assignments for 2 partitions"):
        added_partitions("t", TOPIC, 4, [[1, 2]], BROKERS)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics_keep_their_partitions(topic: str) -> None:
    with pytest.raises(InvalidPartitionsError, match="keeps its 2 partitions"):
        added_partitions(topic, TOPIC, 3, (), BROKERS)


def test_only_internal_topics_keep_their_partitions() -> None:
    check_keeps_partitions("t")
    with pytest.raises(InvalidPartitionsError, match=f"{OFFSETS_TOPIC} is internal and keeps its partitions"):
        check_keeps_partitions(OFFSETS_TOPIC)


def test_a_request_that_gives_replicas_gives_them_once_and_no_numbers() -> None:
    assert given_replicas([(1, [2]), (0, [1])], -1, -1) == {0: (1,), 1: (2,)}
    assert given_replicas([], 3, 2) == {}
    with pytest.raises(InvalidReplicaAssignmentError, match="partition 0 is assigned twice"):
        given_replicas([(0, [1]), (0, [2])], -1, -1)
    for partitions, factor in ((1, -1), (-1, 2)):
        with pytest.raises(UsageError, match="the assignments decide"):
            given_replicas([(0, [1])], partitions, factor)


def test_a_request_is_carried_out_once_all_its_partitions_have_leaders() -> None:
    def states(*leaders: int) -> list[PartitionState]:
        return [
            PartitionState(TopicPartition("t", number), "id", LeaderAndIsr(leader, 0, (1,)), (1,))
            for number, leader in enumerate(leaders)
        ]

    assert new_partitions.are_led(states(1, 2), 2) and new_partitions.are_led(states(1, 2), 1)
    assert not new_partitions.are_led(states(1), 2)
    assert not new_partitions.are_led(states(1, NO_LEADER), 2)
