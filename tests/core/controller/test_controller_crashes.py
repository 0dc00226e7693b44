"""Long flows, with the controller dying at every single effect, and with every reply of the store lost once.

Each flow is run once undisturbed, to learn how many effects it has and what comes of it; then again for each effect,
with a controller that dies before it, and another that takes over; and again with the reply to it lost, whereupon the
same controller starts over under a new epoch. The store, the states, and what brokers hold must be the same each time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kreplog.config import TopicConfig
from kreplog.core.controller import admin_operations
from kreplog.core.effects import Effect, GetChildren, GetNodes, Multi
from kreplog.errors import ConnectionLossError
from kreplog.types import ElectionType, TopicPartition
from tests.core.controller.controlled import Box, Cluster

STORE_EFFECTS = Multi | GetNodes | GetChildren

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def cluster_with_topic() -> Cluster:
    """Brokers 1 to 4, controllers 101 (active) and 102, a topic of two partitions on 1, 2, 3."""
    cluster = Cluster((1, 2, 3, 4))
    cluster.start_controller()
    cluster.run()
    cluster.start_controller()
    cluster.create_topic("t", {0: (1, 2, 3), 1: (2, 3, 1)}, TopicConfig(min_insync_replicas=2))
    cluster.run()
    return cluster


def creation(cluster: Cluster) -> None:
    cluster.create_topic("new", {0: (1, 2), 1: (3, 4), 2: (4, 1)})


def deletion(cluster: Cluster) -> None:
    cluster.delete_topic("t")


def broker_failure(cluster: Cluster) -> None:
    cluster.brokers[2].stop()


def bounce(cluster: Cluster) -> None:
    cluster.brokers[1].stop()
    cluster.brokers[1].start()


def unclean_return(cluster: Cluster) -> None:
    cluster.brokers[1].stop()
    cluster.brokers[1].start(unclean=True)


def reassignment(cluster: Cluster) -> None:
    cluster.reassign(T0, (4, 3))


def cancellation(cluster: Cluster) -> None:
    cluster.brokers[4].stop()  # so that it does not finish
    cluster.reassign(T0, (4, 3))
    cluster.write(*admin_operations.cancel_reassignment_operations(T0))


def late_cancellation(cluster: Cluster) -> None:
    """The new replicas have joined already."""
    cluster.catching_up = False
    cluster.reassign(T0, (4, 3))
    cluster.run()
    cluster.write(*admin_operations.cancel_reassignment_operations(T0))
    cluster.catching_up = True


def other_target(cluster: Cluster) -> None:
    cluster.catching_up = False
    cluster.reassign(T0, (4, 3))
    cluster.run()
    cluster.write(*admin_operations.reassign_operations(T0, (3, 1), (1, 3), pending=True))
    cluster.catching_up = True


def move_of_a_dead_leader(cluster: Cluster) -> None:
    cluster.reassign(T0, (4, 3))
    cluster.brokers[1].stop()


def late_deletion(cluster: Cluster) -> None:
    """A replica's broker was down when the topic was deleted, and returns."""
    cluster.brokers[3].stop()
    cluster.delete_topic("t")
    cluster.run()
    cluster.brokers[3].start()


def shutdown(cluster: Cluster) -> None:
    cluster.brokers[2].mark_stopping()


def growth(cluster: Cluster) -> None:
    cluster.write(*admin_operations.add_partitions_operations("t", cluster.topic("t"), {2: (4, 1, 2)}, (1, 2, 4)))


def removal(cluster: Cluster) -> None:
    cluster.write(*admin_operations.remove_partitions_operations("t", cluster.topic("t"), [1]))


def lost_disk(cluster: Cluster) -> None:
    cluster.brokers[1].lose_disk([T0])


def preferred(cluster: Cluster) -> None:
    cluster.create_topic("more", {0: (1, 3), 1: (1, 4)})
    cluster.run()
    bounce(cluster)
    cluster.run()
    cluster.write(*admin_operations.election_operations(ElectionType.PREFERRED))


def active_partitions(cluster: Cluster) -> None:
    """A failover with all kinds of work waiting."""
    cluster.create_topic("old", {0: (1, 4)})
    cluster.run()
    cluster.delete_topic("old")
    cluster.create_topic("new", {0: (1, 2), 1: (3, 4)})
    cluster.reassign(T1, (3, 4))
    growth(cluster)
    cluster.brokers[2].stop()
    cluster.controllers[0].die()


FLOWS = [
    creation,
    deletion,
    broker_failure,
    bounce,
    unclean_return,
    reassignment,
    cancellation,
    late_cancellation,
    other_target,
    move_of_a_dead_leader,
    late_deletion,
    shutdown,
    growth,
    removal,
    lost_disk,
    preferred,
    active_partitions,
]


def run(flow: Callable[[Cluster], None], prepare: Callable[[Cluster], None]) -> Cluster:
    cluster = cluster_with_topic()
    flow(cluster)
    prepare(cluster)
    cluster.settle()
    return cluster


def count_effects(flow: Callable[[Cluster], None]) -> tuple[list[Effect], Cluster]:
    """The effects of whoever is the controller during the flow, and the cluster after it."""
    effects: list[Effect] = []

    def note(cluster: Cluster) -> None:
        def before(box: Box, effect: Effect) -> bool:
            effects.append(effect)
            return False

        cluster.before = before

    return effects, run(flow, note)


@pytest.mark.parametrize("flow", FLOWS)
def test_a_controller_that_dies_at_any_effect_is_replaced_by_one_that_finishes(
    flow: Callable[[Cluster], None],
) -> None:
    effects, undisturbed = count_effects(flow)
    undisturbed.check()
    wanted = undisturbed.outcome()
    assert len(effects) > 10
    for number, crashed_at in enumerate(effects):
        if number and not isinstance(crashed_at, STORE_EFFECTS) and not isinstance(effects[number - 1], STORE_EFFECTS):
            continue  # lines of the log, and requests that die together
        seen = 0

        def die(box: Box, effect: Effect, number: int = number) -> bool:
            nonlocal seen
            seen += 1
            return seen == number + 1

        def prepare(cluster: Cluster) -> None:
            cluster.before = die
            cluster.start_controller()

        cluster = run(flow, prepare)
        assert cluster.outcome() == wanted, (number, crashed_at)
        cluster.check()


@pytest.mark.parametrize("applied", [True, False], ids=["reply-lost", "request-lost"])
@pytest.mark.parametrize("flow", FLOWS)
def test_a_controller_that_loses_any_reply_of_the_store_starts_over(
    flow: Callable[[Cluster], None], applied: bool
) -> None:
    effects, undisturbed = count_effects(flow)
    wanted = undisturbed.outcome()
    numbers = [number for number, effect in enumerate(effects) if isinstance(effect, STORE_EFFECTS)]
    for number in numbers:
        seen = 0

        def lose(box: Box, effect: Effect, number: int = number) -> bool:
            nonlocal seen
            seen += 1
            if seen == number + 1:
                box.cluster.lost = ConnectionLossError("lost")
                box.cluster.unapplied = not applied
            return False

        def prepare(cluster: Cluster) -> None:
            cluster.before = lose

        cluster = run(flow, prepare)
        assert cluster.outcome() == wanted, (number, effects[number])
        cluster.check()
