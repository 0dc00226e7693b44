"""The state tables: every legal transition is carried out, every other pair is refused whole and logged."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core import nodes
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.transitions import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    PartitionStatus,
    ReplicaStatus,
    table,
)
from kreplog.core.effects import Effect, Multi, StateChange, Steps
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition

PARTITION = TopicPartition("t", 0)
REPLICA = PartitionAndReplica(PARTITION, 2)


def machines() -> tuple[StateMachines, list[Any]]:
    seen: list[Any] = []
    context = ControllerContext(1, 1, 1, lambda *change: seen.append(change))
    context.brokers = {broker: BrokerRegistration(broker, 1) for broker in (1, 2)}
    context.put_topic("t", nodes.TopicNode("id", {0: nodes.Assignment((1, 2))}))
    context.put_state(PARTITION, LeaderAndIsr(1, 0, (1, 2)))
    return StateMachines(context), seen


def effects_of(steps: Steps[None]) -> list[Effect]:
    found = []
    try:
        effect = next(steps)
        while True:
            found.append(effect)
            effect = steps.send([None] * 500 if isinstance(effect, Multi) else None)
    except StopIteration:
        return found


def replica_in(status: ReplicaStatus) -> tuple[StateMachines, list[Any]]:
    made, seen = machines()
    made.context.put_replica_status(REPLICA, status)
    seen.clear()
    return made, seen


def partition_in(status: PartitionStatus) -> tuple[StateMachines, list[Any]]:
    made, seen = machines()
    made.context.put_partition_status(PARTITION, status)
    seen.clear()
    return made, seen


LEGAL_REPLICA = [(old, new) for new, allowed in REPLICA_TRANSITIONS.items() for old in ReplicaStatus if old in allowed]
ILLEGAL_REPLICA = [(old, new) for old in ReplicaStatus for new in ReplicaStatus if (old, new) not in LEGAL_REPLICA]
LEGAL_PARTITION = [
    (old, new) for new, allowed in PARTITION_TRANSITIONS.items() for old in PartitionStatus if old in allowed
]
ILLEGAL_PARTITION = [
    (old, new) for old in PartitionStatus for new in PartitionStatus if (old, new) not in LEGAL_PARTITION
]


def test_the_tables_agree_with_the_study() -> None:
    """Seven states of a replica and four of a partition; OnlineReplica as the study quotes it."""
    assert len(REPLICA_TRANSITIONS) == 7
    assert len(PARTITION_TRANSITIONS) == 4
    assert {str(status) for status in REPLICA_TRANSITIONS[ReplicaStatus.ONLINE]} == {
        "NewReplica",
        "OnlineReplica",
        "OfflineReplica",
        "ReplicaDeletionIneligible",
    }
    assert (len(LEGAL_REPLICA), len(ILLEGAL_REPLICA)) == (14, 35)
    assert (len(LEGAL_PARTITION), len(ILLEGAL_PARTITION)) == (8, 8)
    assert len(table().splitlines()) == 11
    assert "ReplicaDeletionSuccessful  from ReplicaDeletionStarted" in table()


@pytest.mark.parametrize(("old", "new"), LEGAL_REPLICA)
def test_legal_replica_transition(old: ReplicaStatus, new: ReplicaStatus) -> None:
    made, seen = replica_in(old)
    effects = effects_of(made.replicas.handle_state_changes([REPLICA], new))
    assert made.context.replica_status(REPLICA) is new
    assert seen == [(REPLICA, old, new)]
    assert not [effect for effect in effects if isinstance(effect, StateChange) and effect.level == "error"]


@pytest.mark.parametrize(("old", "new"), ILLEGAL_REPLICA)
def test_illegal_replica_transition(old: ReplicaStatus, new: ReplicaStatus) -> None:
    """Nothing is written, nothing is sent, nothing changes; the log says which and why."""
    made, seen = replica_in(old)
    effects = effects_of(made.replicas.handle_state_changes([REPLICA], new))
    assert effects == [StateChange("error", f"replica t-0@2 cannot become {new}: it is {old}")]
    assert made.context.replica_status(REPLICA) is old
    assert seen == []
    assert effects_of(made.batch.send()) == []


@pytest.mark.parametrize(("old", "new"), LEGAL_PARTITION)
def test_legal_partition_transition(old: PartitionStatus, new: PartitionStatus) -> None:
    made, seen = partition_in(old)
    effects_of(made.partitions.handle_state_changes([PARTITION], new))
    assert made.context.partition_status(PARTITION) is new
    assert seen == [(PARTITION, old, new)] or old is new is PartitionStatus.ONLINE


@pytest.mark.parametrize(("old", "new"), ILLEGAL_PARTITION)
def test_illegal_partition_transition(old: PartitionStatus, new: PartitionStatus) -> None:
    made, seen = partition_in(old)
    effects = effects_of(made.partitions.handle_state_changes([PARTITION], new))
    assert effects == [StateChange("error", f"partition t-0 cannot become {new}: it is {old}")]
    assert made.context.partition_status(PARTITION) is old
    assert seen == []
    assert effects_of(made.batch.send()) == []


def test_in_a_batch_the_legal_ones_are_done_together() -> None:
    made, _ = replica_in(ReplicaStatus.ONLINE)
    other = PartitionAndReplica(PARTITION, 1)
    made.context.put_replica_status(other, ReplicaStatus.DELETION_STARTED)
    effects = effects_of(made.replicas.handle_state_changes([REPLICA, other], ReplicaStatus.OFFLINE))
    assert made.context.replica_status(REPLICA) is ReplicaStatus.OFFLINE
    assert made.context.replica_status(other) is ReplicaStatus.DELETION_STARTED
    assert [effect.text for effect in effects if isinstance(effect, StateChange) and effect.level == "error"] == [
        "replica t-0@1 cannot become OfflineReplica: it is ReplicaDeletionStarted"
    ]
