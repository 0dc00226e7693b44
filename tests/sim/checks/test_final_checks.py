"""Checks at the end of a run: lost records, logs that differ, clusters not at rest, contexts that differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kreplog.core import nodes
from kreplog.core.controller.context import PartitionAndReplica
from kreplog.core.controller.transitions import (
    ReplicaStatus,
)
from kreplog.sim.checks import final_checks
from kreplog.sim.history import (
    DeletionRequested,
)
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition
from tests.sim.checked_world import BROKERS, ID, TP, World


def test_lost(world: World) -> None:
    """Every replica is wiped at once: nobody looked, but at the end it shows."""
    world.checkers.model(TP, ID).members = ()
    for broker in BROKERS:
        world.logs[broker].truncate_to(0)
    world.write_state(world.state._replace(leader_epoch=1))
    world.checkers.violations.clear()
    assert "lost" in world.judged()


def test_lost_with_its_partition(world: World) -> None:
    del world.dump[nodes.topic("t")]
    assert "lost" in world.judged(at_rest=False)


def damage_a_log(world: World) -> None:
    world.logs[3].truncate_to(1)
    world.append(1, 4, (3,))


def lag(world: World) -> None:
    world.append(2, 2)
    world.commit(3, (1, 2))


def leave_a_stray(world: World) -> None:
    world.disks.disk(2).open(TopicPartition("gone", 0), "x")


BREAKS: dict[str, tuple[str, Callable[[World], None]]] = {
    "a leader is missing": ("not converged", lambda world: world.write_state(LeaderAndIsr(-1, 5, BROKERS))),
    "somebody is not in sync": ("not converged", lambda world: world.write_state(LeaderAndIsr(1, 5, (1, 2)))),
    "an epoch has another flush.messages": (
        "not converged",
        lambda world: world.write_state(LeaderAndIsr(1, 5, BROKERS, flush_every_record=True)),
    ),
    "a log is missing": ("not converged", lambda world: world.disks.disk(3).delete(TP)),
    "a log is longer": ("not converged", lambda world: world.append(2, 2, (3,))),
    "a watermark lags": ("not converged", lag),
    "a log differs": ("logs differ", damage_a_log),
    "a request stands": ("not converged", lambda world: world.put(nodes.partition(TP, nodes.REASSIGNED), b"[]")),
    "a deletion stands": ("not converged", lambda world: world.put(f"{nodes.DELETED_TOPICS}/other", b"")),
    "an election stands": ("not converged", lambda world: world.put(nodes.PREFERRED_ELECTION, b"[]")),
    "a notification stands": ("not converged", lambda world: world.put(f"{nodes.ISR_CHANGES}/change_0", b"[]")),
    "a stray stands": ("not converged", leave_a_stray),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_cluster_that_is_not_at_rest(world: World, broken: str) -> None:
    kind, break_it = BREAKS[broken]
    break_it(world)
    assert kind in world.judged()


def test_a_context_that_is_not_the_stores(world: World) -> None:
    context = world.context()
    context.put_state(TP, world.state._replace(leader=2))
    assert world.judged(context=context) == ["context"]


def test_a_context_with_a_broker_too_many(world: World) -> None:
    context = world.context()
    context.brokers[4] = BrokerRegistration(4, 0)
    assert world.judged(context=context) == ["context"]


def test_a_context_with_an_offline_replica(world: World) -> None:
    context = world.context()
    context.put_replica_status(PartitionAndReplica(TP, 3), ReplicaStatus.OFFLINE)
    assert world.judged(context=context) == ["context"]


def test_no_active_controller(world: World) -> None:
    assert [violation.kind for violation in final_checks.judge(world.checkers, world.dump, None, at_rest=True)] == [
        "context"
    ]


def test_records_deleted_on_request_are_not_lost() -> None:
    world = World()
    for log in world.logs.values():
        log._files._segment_bytes = 1  # type: ignore[attr-defined]
    world.append(0, 0)
    world.append(1, 1)
    world.commit(2)
    world.ok(0, 0)
    world.history.add(DeletionRequested(0, TP, ID, 1))
    for log in world.logs.values():
        log.delete_records_before(1)
    assert final_checks.judge(world.checkers, world.dump, None, at_rest=False) == []
    world.checkers.model(TP, ID).released = 0
    assert [violation.kind for violation in final_checks.judge(world.checkers, world.dump, None, at_rest=False)] == [
        "lost"
    ]


def test_a_follower_must_follow_the_log_start_of_its_leader(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 1))
    world.logs[1].delete_records_before(1)
    found = final_checks.judge(world.checkers, world.dump, world.context(), at_rest=True)
    assert [violation.text for violation in found if violation.kind == "not converged"] == [
        "t-0: the log of broker 2 begins at 0, that of its leader at 1"
    ]
