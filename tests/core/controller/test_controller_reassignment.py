"""Partitions that move: joining, switching, leaving; changed, cancelled, refused, and under failures."""

from __future__ import annotations

import pytest

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller import admin_operations
from kreplog.core.effects import Effect, GetChildren, Multi
from kreplog.core.messages import StopReplicaRequest
from kreplog.core.nodes import Assignment
from kreplog.types import NO_LEADER, Create, Delete, SetData, TopicPartition
from tests.core.controller.controlled import Box, Cluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def cluster_with(*replicas: int, catching_up: bool = False, config: TopicConfig | None = None) -> Cluster:
    cluster = Cluster((1, 2, 3, 4, 5))
    cluster.start_controller()
    cluster.create_topic("t", {0: replicas}, config)
    cluster.run()
    cluster.catching_up = catching_up
    return cluster


def test_the_target_joins_catches_up_and_takes_over() -> None:
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (4, 3))
    cluster.run()
    assert cluster.assignment(T0) == Assignment((1, 2, 4, 3), (4, 3), (1, 2))
    assert cluster.assignment(T0).target == (4, 3)
    state = cluster.state(T0)
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 2), 1)
    for broker in (1, 2, 3, 4):
        partition_state = cluster.brokers[broker].replicas[T0]
        assert (partition_state.adding, partition_state.removing, partition_state.is_new) == (
            (4, 3),
            (1, 2),
            broker in (3, 4),
        )
    cluster.check()

    cluster.brokers[1].write_isr(T0, (1, 2, 4))
    cluster.run()
    assert cluster.assignment(T0).adding == (4, 3), "not before all of the target are in sync"
    cluster.brokers[1].write_isr(T0, (1, 2, 3, 4))
    cluster.run()
    assert cluster.assignment(T0) == Assignment((4, 3))
    state = cluster.state(T0)
    assert (state.leader, state.isr, state.leader_epoch) == (4, (3, 4), 2)
    assert [broker.id for broker in cluster.brokers.values() if T0 in broker.replicas] == [3, 4]
    assert cluster.admin.children(nodes.REASSIGNED) == []
    cluster.check()


def test_the_switch_is_one_multi() -> None:
    """Leader, ISR, assigned replicas and the request change together, so no failover can find them apart."""
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (3, 2))
    cluster.run()
    multis = cluster.note_multis()
    cluster.brokers[1].write_isr(T0, (1, 2, 3))
    cluster.run()
    (switch,) = [multi for multi in multis if any(isinstance(operation, SetData) for operation in multi.operations)]
    assert [operation.path for operation in switch.operations] == [
        nodes.CONTROLLER_EPOCH,
        nodes.topic("t"),
        nodes.leader_and_isr(T0),
        nodes.partition(T0, nodes.REASSIGNED),
    ]


def test_the_leader_goes_on_leading_if_it_stays() -> None:
    cluster = cluster_with(1, 2, catching_up=True)
    cluster.reassign(T0, (5, 2, 1))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1, 2, 5))
    assert cluster.assignment(T0).replicas == (5, 2, 1)
    cluster.check()


def test_old_replicas_are_deleted_under_the_new_leader_epoch() -> None:
    cluster = cluster_with(1, 2, catching_up=True)
    cluster.reassign(T0, (3, 4))
    cluster.run()
    (stop,) = [
        stop
        for send in cluster.sent
        if send.broker == 1 and isinstance(send.request, StopReplicaRequest)
        for stop in send.request.partitions
    ]
    assert stop.delete
    assert stop.leader_epoch == cluster.state(T0).leader_epoch == 2


@pytest.mark.parametrize("target", [(2, 1), (1,), (2,), (1, 2, 3)])
def test_fewer_more_and_other_orders(target: tuple[int, ...]) -> None:
    cluster = cluster_with(1, 2, catching_up=True)
    cluster.reassign(T0, target)
    cluster.run()
    assert cluster.assignment(T0) == Assignment(target)
    assert cluster.state(T0).isr == tuple(sorted(target))
    cluster.check()


def test_several_partitions_move_in_one_write_of_their_topic() -> None:
    cluster = Cluster((1, 2, 3, 4))
    cluster.start_controller()
    cluster.create_topic("t", dict.fromkeys(range(300), (1, 2)))
    cluster.run()
    cluster.write(
        Create(f"{nodes.REASSIGNED}/t"),
        *(Create(nodes.partition(TopicPartition("t", n), nodes.REASSIGNED), b"[3,4]") for n in range(300)),
    )
    cluster.run()
    assert all(assigned == Assignment((3, 4)) for assigned in cluster.topic("t").partitions.values())
    assert cluster.topic("t").version == 4
    cluster.check()


def test_cancelling_restores_the_assignment_and_deletes_joined_replicas() -> None:
    cluster = cluster_with(2, 1, 3)
    cluster.reassign(T0, (3, 4))
    cluster.run()
    cluster.brokers[2].write_isr(T0, (1, 2, 3, 4))
    cluster.brokers[4].stop()  # in sync, so the switch would be next
    cluster.write(*admin_operations.cancel_reassignment_operations(T0))
    cluster.brokers[4].start()
    cluster.run()
    assert cluster.assignment(T0) == Assignment((2, 1, 3))
    assert cluster.leader_and_isr(T0) == (2, (1, 2, 3))
    assert cluster.admin.children(nodes.REASSIGNED) == []
    assert T0 not in cluster.brokers[4].replicas
    cluster.check()


def test_cancelling_waits_while_only_a_new_replica_holds_committed_records() -> None:
    """Otherwise the newcomer, the last in the ISR, would be deleted with what nobody else has."""
    cluster = cluster_with(1)
    cluster.reassign(T0, (4, 5))
    cluster.run()
    cluster.brokers[1].write_isr(T0, (1, 4))
    cluster.run()
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (4, (4,))
    cluster.write(*admin_operations.cancel_reassignment_operations(T0))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (4, (4,))
    assert cluster.exists(nodes.partition(T0, nodes.REASSIGNED))
    cluster.brokers[1].start()
    cluster.catching_up = True
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1,))
    assert cluster.assignment(T0) == Assignment((1,))
    assert cluster.admin.children(nodes.REASSIGNED) == []
    cluster.check()


@pytest.mark.parametrize("target", [(), (1, 5)])
def test_joined_replicas_stay_while_too_few_others_hold_committed_records(target: tuple[int, ...]) -> None:
    """min.insync.replicas is what an acknowledged record is promised; a change of mind does not delete so many of it
    that fewer are left."""
    cluster = cluster_with(1, 2, config=TopicConfig(min_insync_replicas=2))
    cluster.reassign(T0, (4, 3))
    cluster.run()
    cluster.brokers[1].write_isr(T0, (1, 4))
    cluster.run()
    if target:
        cluster.write(*admin_operations.reassign_operations(T0, target, target, pending=True))
    else:
        cluster.write(*admin_operations.cancel_reassignment_operations(T0))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1, 4))
    assert T0 in cluster.brokers[4].replicas
    cluster.brokers[1].write_isr(T0, (1, 2, 4))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1, 2))
    assert cluster.assignment(T0).replicas == ((1, 2, 5) if target else (1, 2))
    assert T0 not in cluster.brokers[4].replicas
    cluster.check()


def test_another_target_replaces_the_first() -> None:
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (3, 4))
    cluster.run()
    cluster.write(*admin_operations.reassign_operations(T0, (5, 2), (2, 5), pending=True))
    cluster.run()
    assert cluster.assignment(T0) == Assignment((1, 2, 5), (5,), (1,))
    assert [broker.id for broker in cluster.brokers.values() if T0 in broker.replicas] == [1, 2, 5]
    cluster.catching_up = True
    cluster.run()
    assert cluster.assignment(T0) == Assignment((5, 2))
    assert cluster.state(T0).isr == (2, 5)
    cluster.check()


def test_a_request_replaced_at_the_last_moment_is_not_deleted_unread() -> None:
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (3, 4))
    cluster.run()
    cluster.brokers[1].write_isr(T0, (1, 2, 3, 4))

    def race(box: Box, effect: Effect) -> bool:
        if isinstance(effect, Multi) and any(isinstance(operation, Delete) for operation in effect.operations[2:]):
            cluster.before = lambda box, effect: False
            cluster.write(*admin_operations.reassign_operations(T0, (5, 3), (3, 5), pending=True))
        return False

    cluster.before = race
    cluster.catching_up = True
    cluster.run()
    assert cluster.assignment(T0) == Assignment((5, 3))
    cluster.check()


@pytest.mark.parametrize(
    ("partition", "data"),
    [(T0, b"[1,1]"), (T0, b"[1,77]"), (T0, b"?"), (T1, b"[1]"), (TopicPartition("x", 0), b"[1]"), (T0, b"[-1]")],
)
def test_an_impossible_request_is_refused_and_deleted(partition: TopicPartition, data: bytes) -> None:
    cluster = cluster_with(1, 2)
    path = nodes.partition(partition, nodes.REASSIGNED)
    cluster.write(Create(f"{nodes.REASSIGNED}/{partition.topic}"), Create(path, data))
    cluster.run()
    assert len(cluster.errors()) == 1
    assert f"{partition} is not reassigned" in cluster.errors()[0]
    assert cluster.admin.children(nodes.REASSIGNED) == []
    assert cluster.assignment(T0) == Assignment((1, 2))
    cluster.check()


def test_a_request_that_replaces_a_refused_one_is_carried_out() -> None:
    cluster = cluster_with(1, 2, catching_up=True)
    path = nodes.partition(T0, nodes.REASSIGNED)

    def replace_refused(box: Box, effect: Effect) -> bool:
        if isinstance(effect, Multi) and any(
            isinstance(each, Delete) and each.path == path for each in effect.operations
        ):
            cluster.before = lambda box, effect: False
            cluster.write(*admin_operations.reassign_operations(T0, (3, 1), (1, 3), pending=True))
        return False

    cluster.before = replace_refused
    cluster.write(Create(f"{nodes.REASSIGNED}/t"), Create(path, b"[1,1]"))
    cluster.run()
    assert len(cluster.errors()) == 1
    assert cluster.assignment(T0) == Assignment((3, 1))
    assert cluster.admin.children(nodes.REASSIGNED) == []
    cluster.check()


def test_a_broken_new_target_leaves_the_first_under_way() -> None:
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (3,))
    cluster.run()
    cluster.write(SetData(nodes.partition(T0, nodes.REASSIGNED), b"?"))
    cluster.catching_up = True
    cluster.run()
    assert cluster.assignment(T0) == Assignment((3,))
    assert cluster.admin.children(nodes.REASSIGNED) == []
    cluster.check()


def test_a_broker_that_is_known_but_down_is_waited_for() -> None:
    cluster = cluster_with(1, 2, catching_up=True)
    cluster.brokers[5].stop()
    cluster.run()
    cluster.reassign(T0, (5, 2))
    cluster.run()
    assert cluster.assignment(T0).adding == (5,)
    cluster.brokers[5].start()
    cluster.run()
    assert cluster.assignment(T0) == Assignment((5, 2))
    cluster.check()


def test_it_goes_on_when_the_leader_dies_and_when_the_controller_does() -> None:
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (3, 4))
    cluster.run()
    cluster.brokers[1].stop()
    cluster.controllers[0].die()
    cluster.start_controller()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2,))
    assert cluster.assignment(T0) == Assignment((1, 2, 3, 4), (3, 4), (1, 2))
    cluster.catching_up = True
    cluster.run()
    assert cluster.assignment(T0) == Assignment((3, 4))
    cluster.brokers[1].start()
    cluster.run()
    assert T0 not in cluster.brokers[1].replicas, "the INIT has it"
    cluster.check()


def test_a_newcomer_may_be_elected_only_out_of_the_isr() -> None:
    cluster = cluster_with(1)
    cluster.reassign(T0, (3,))
    cluster.run()
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,))
    cluster.brokers[1].start()
    cluster.catching_up = True
    cluster.run()
    assert cluster.leader_and_isr(T0) == (3, (3,))
    cluster.check()


def test_a_reassignment_under_way_continues_without_its_request() -> None:
    cluster = cluster_with(1, 2)
    cluster.reassign(T0, (3, 4))
    cluster.run()
    cluster.write(Delete(nodes.partition(T0, nodes.REASSIGNED)))
    cluster.controllers[0].die()
    cluster.start_controller()
    cluster.run()
    cluster.catching_up = True
    cluster.run()
    assert cluster.assignment(T0) == Assignment((3, 4))
    cluster.check()


def test_a_partition_that_never_had_a_leader_just_moves() -> None:
    cluster = cluster_with(1, 2)
    cluster.brokers[5].stop()
    cluster.create_topic("u", {0: (5,)})
    cluster.run()
    partition = TopicPartition("u", 0)
    cluster.reassign(partition, (3, 4))
    cluster.run()
    assert cluster.assignment(partition) == Assignment((3, 4))
    assert cluster.leader_and_isr(partition) == (3, (3, 4))
    cluster.check()


def test_a_topic_and_its_reassignment_while_a_new_controller_reads() -> None:
    """The requests are read after the topics, so that they may name one that was not there yet."""
    cluster = cluster_with(1, 2)
    late = TopicPartition("late", 0)
    cluster.catching_up = True

    def request(box: Box, effect: Effect) -> bool:
        if isinstance(effect, GetChildren) and effect.path == nodes.REASSIGNED:
            cluster.before = lambda box, effect: False
            cluster.create_topic("late", {0: (1, 2)})
            cluster.reassign(late, (5, 3))
        return False

    cluster.controllers[0].die()
    cluster.before = request
    cluster.start_controller()
    cluster.run()
    assert cluster.assignment(late) == Assignment((5, 3))
    assert not [text for level, text in cluster.log if level == "error"]
    cluster.check()
