"""Brokers that die, return, restart, stop and lose disks; and the same outcome whoever was the controller."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller import admin_operations
from kreplog.core.controller.admin_operations import set_broker_config_operations
from kreplog.core.controller.context import PartitionAndReplica
from kreplog.core.controller.controller import WRITE_RETRY_MS
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import Effect, Multi
from kreplog.core.events import ControlReplied
from kreplog.core.messages import (
    BrokerConfigs,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER, ElectionType, LeaderAndIsr, SetData, TopicPartition
from tests.core.controller.controlled import Box, Cluster

T0 = TopicPartition("t", 0)
TWO = TopicConfig(min_insync_replicas=2)


def cluster_with(*replicas: int, config: TopicConfig | None = None, brokers: Any = (1, 2, 3)) -> Cluster:
    cluster = Cluster(brokers)
    cluster.start_controller()
    cluster.create_topic("t", {0: replicas}, config)
    cluster.run()
    return cluster


def replica_status(cluster: Cluster, broker: int) -> ReplicaStatus:
    return cluster.controller.context.replica_status(PartitionAndReplica(T0, broker))


def test_a_dead_leader_is_followed_by_the_next_in_sync() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.state(T0) == LeaderAndIsr(2, 1, (2, 3), (), 1, 1)
    assert replica_status(cluster, 1) is ReplicaStatus.OFFLINE
    cluster.check()


def test_a_dead_follower_leaves_the_isr() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.brokers[3].stop()
    cluster.run()
    assert cluster.state(T0) == LeaderAndIsr(1, 1, (1, 2), (), 1, 1)
    cluster.check()


def test_a_replica_that_leaves_a_too_small_isr_stays_eligible() -> None:
    """KIP-966: with two of two needed, nothing can be committed without broker 2, so it may lead again."""
    cluster = cluster_with(1, 2, config=TWO)
    cluster.brokers[2].stop()
    cluster.run()
    state = cluster.state(T0)
    assert (state.isr, state.elr) == ((1,), (2,))
    cluster.brokers[1].stop()
    cluster.brokers[2].start()
    cluster.catching_up = False
    cluster.run()
    state = cluster.state(T0)
    assert (state.leader, state.isr, state.elr) == (2, (2,), (1,))


@pytest.mark.parametrize("failover", [False, True])
def test_a_lower_min_insync_replicas_ends_eligibility_before_the_leader_hears_of_it(failover: bool) -> None:
    """KIP-966: with one enough, broker 1 commits alone; broker 2 must not lead after that."""
    cluster = cluster_with(1, 2, config=TWO)
    cluster.brokers[2].stop()
    cluster.run()
    assert cluster.state(T0).elr == (2,)
    if failover:
        cluster.controllers[0].die()
    cluster.write(SetData(nodes.topic_config("t"), nodes.encode_topic_config(TopicConfig())))
    if failover:
        cluster.start_controller()
    cluster.run()
    partition_state = cluster.brokers[1].replicas[T0]
    assert (partition_state.config.min_insync_replicas, partition_state.state.elr) == (1, ())
    assert cluster.state(T0).elr == ()
    cluster.brokers[1].stop()
    cluster.brokers[2].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,))
    cluster.check()


def lose_in_sync_replicas(cluster: Cluster) -> None:
    """Broker 2 stops and leaves the ISRs; then broker 1, the last in them."""
    cluster.brokers[2].stop()
    cluster.run()
    cluster.brokers[1].stop()
    cluster.run()


def test_without_an_in_sync_replica_there_is_no_leader_until_it_returns() -> None:
    cluster = cluster_with(1, 2)
    lose_in_sync_replicas(cluster)
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,))
    assert cluster.controller.context.partition_status(T0) is PartitionStatus.OFFLINE
    cluster.brokers[2].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,))
    assert cluster.brokers[2].metadata[T0].state.leader == NO_LEADER
    cluster.brokers[1].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1, 2))
    assert cluster.controller.context.partition_status(T0) is PartitionStatus.ONLINE
    assert not cluster.unclean
    cluster.check()


def test_f19_an_unclean_election_only_where_the_topic_allows_it_and_loudly() -> None:
    cluster = cluster_with(1, 2)
    lose_in_sync_replicas(cluster)
    cluster.brokers[2].start()
    cluster.run()
    assert not cluster.unclean
    cluster.unclean_allowed = True
    data = nodes.encode_topic_config(TopicConfig(unclean_leader_election_enable=True))
    cluster.write(SetData(nodes.topic_config("t"), data))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2,))
    assert [(election.partition, election.leader) for election in cluster.unclean] == [(T0, 2)]
    assert "committed records may be lost" in cluster.errors()[0]


def test_an_unclean_election_on_request_of_the_partitions_named_that_have_no_leader() -> None:
    """KIP-460. Partition 0 is named and leaderless, 1 leaderless, 2 named and led, 3 does not exist."""
    cluster = cluster_with(1, 2, 3)
    cluster.create_topic("u", {0: (1, 2), 1: (1, 2), 2: (1, 3)})
    cluster.run()
    named = [TopicPartition("u", number) for number in (0, 2, 3)]
    lose_in_sync_replicas(cluster)
    cluster.brokers[2].start()
    cluster.run()
    led = cluster.leader_and_isr(named[1])
    assert [cluster.leader_and_isr(TopicPartition("u", number)) for number in (0, 1)] == [(NO_LEADER, (1,))] * 2
    cluster.unclean_allowed = True
    cluster.write(*admin_operations.election_operations(ElectionType.UNCLEAN, named))
    cluster.run()
    assert [(election.partition, election.leader) for election in cluster.unclean] == [(named[0], 2)]
    assert cluster.leader_and_isr(named[0]) == (2, (2,))
    assert cluster.leader_and_isr(TopicPartition("u", 1)) == (NO_LEADER, (1,))
    assert cluster.leader_and_isr(named[1]) == led
    assert not cluster.exists(nodes.UNCLEAN_ELECTION)
    assert "committed records may be lost" in cluster.errors()[0]


def test_an_unclean_election_on_request_takes_a_replica_in_sync_first_and_none_that_is_down() -> None:
    cluster = cluster_with(1, 2)
    cluster.brokers[2].stop()
    cluster.run()
    cluster.brokers[1].stop()
    cluster.write(*admin_operations.election_operations(ElectionType.UNCLEAN, [T0]))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,)) and not cluster.exists(nodes.UNCLEAN_ELECTION)
    cluster.write(*admin_operations.election_operations(ElectionType.UNCLEAN))  # names none, and elects none
    cluster.brokers[2].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,)) and not cluster.exists(nodes.UNCLEAN_ELECTION)
    cluster.brokers[2].stop()
    cluster.run()
    cluster.brokers[1].start()
    cluster.write(*admin_operations.election_operations(ElectionType.UNCLEAN, [T0]))
    cluster.run()
    assert cluster.leader_and_isr(T0)[0] == 1 and not cluster.unclean
    cluster.check()


def test_an_unclean_election_requested_of_an_earlier_controller_is_dropped() -> None:
    """Its replicas in sync may be about to return: whoever requested it has learned that nobody was elected."""
    cluster = cluster_with(1, 2)
    lose_in_sync_replicas(cluster)
    cluster.controllers[0].die()
    cluster.write(*admin_operations.election_operations(ElectionType.UNCLEAN, [T0]))
    cluster.brokers[2].start()
    cluster.start_controller()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (1,)) and not cluster.exists(nodes.UNCLEAN_ELECTION)
    assert any("an unclean election, requested before" in error for error in cluster.errors())
    cluster.unclean_allowed = True
    cluster.write(*admin_operations.election_operations(ElectionType.UNCLEAN, [T0]))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2,))


@pytest.mark.parametrize("witness", ["a third broker", "the broker that dies last"])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_the_inconsistency_of_the_replica_state_machine_study(witness: str, together: bool, first: int) -> None:
    """Replicas on A and B die one after the other; the state must be the same whether the controller saw both deaths,
    or died itself with the second and was followed by one that saw none (F33)."""
    outcomes = []
    for controller_dies in (False, True):
        cluster = cluster_with(1, 2)
        second = 3 - first
        standby = cluster.start_controller()
        cluster.run()
        cluster.brokers[first].stop()
        if not together:
            cluster.run()
        cluster.brokers[second].stop()
        if controller_dies and witness != "a third broker":
            cluster.controllers[0].die()
        cluster.run()
        assert standby.core.active == (controller_dies and witness != "a third broker")
        cluster.check()
        outcomes.append(cluster.outcome())
    assert outcomes[0] == outcomes[1]
    state = cluster.state(T0)
    assert state.leader == NO_LEADER
    assert state.isr == ((1, 2) if together else (second,))


def test_f33_a_new_controller_handles_a_failure_that_no_controller_saw() -> None:
    """KAFKA-3143: the controller and the leader die in the same moment."""
    cluster = cluster_with(1, 2, 3)
    cluster.controllers[0].die()
    cluster.brokers[1].stop()
    cluster.brokers[2].stop()
    cluster.start_controller()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (3, (3,))
    cluster.check()


def test_kip380_a_quick_restart_counts_as_a_failure() -> None:
    """The watch fires once for both; only the broker epoch shows it (KAFKA-7235)."""
    cluster = cluster_with(1, 2, 3)
    cluster.catching_up = False
    cluster.brokers[1].stop()
    cluster.brokers[1].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2, 3))
    request = cluster.brokers[1].requests[-2]
    assert isinstance(request, LeaderAndIsrRequest)
    assert request.is_init
    cluster.check()


def test_kip380_a_restart_while_there_was_no_controller_counts_as_well_and_once() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.catching_up = False
    cluster.controllers[0].die()
    cluster.brokers[1].stop()
    cluster.brokers[1].start()
    second = cluster.start_controller()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2, 3))
    epoch = cluster.state(T0).leader_epoch
    second.die()
    cluster.start_controller()
    cluster.run()
    assert cluster.state(T0).leader_epoch == epoch
    cluster.check()


def test_a_restarted_sole_leader_leads_under_a_new_epoch() -> None:
    cluster = cluster_with(1)
    cluster.brokers[1].stop()
    cluster.brokers[1].start()
    cluster.run()
    state = cluster.state(T0)
    assert (state.leader, state.isr) == (1, (1,))
    assert state.leader_epoch > 0


@pytest.mark.parametrize("seen", [True, False])
def test_f17_an_unclean_return_costs_the_place_in_the_isr(seen: bool) -> None:
    """KIP-966, KAFKA-15583: b1 was the only one in sync, lost power, and came back with a hole; b2 is eligible."""
    cluster = cluster_with(1, 2, 3, config=TWO)
    cluster.brokers[3].stop()
    cluster.run()
    cluster.brokers[2].stop()
    cluster.run()
    assert (cluster.state(T0).isr, cluster.state(T0).elr) == ((1,), (2,))
    if not seen:
        cluster.controllers[0].die()
    cluster.brokers[1].stop()
    if seen:
        cluster.run()
    cluster.brokers[1].start(unclean=True)
    if not seen:
        cluster.start_controller()
    cluster.run()
    state = cluster.state(T0)
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), (2,))
    cluster.brokers[2].start()
    cluster.run()
    assert cluster.state(T0).leader == 2
    cluster.check()


def test_f17_also_where_every_record_is_fsynced_now_but_not_for_the_last_replica() -> None:
    """It may not have been when those that were lost were written."""
    durable = TopicConfig(flush_messages=1, min_insync_replicas=2)
    for config, others, leader in ((durable, (2,), NO_LEADER), (TopicConfig(), (), 1)):
        cluster = cluster_with(1, *others, config=config)
        for broker in (*others, 1):
            cluster.brokers[broker].stop()
            cluster.run()
        cluster.brokers[1].start(unclean=True)
        cluster.run()
        assert cluster.state(T0).leader == leader
        for other in others:
            cluster.brokers[other].start()
            cluster.run()
            assert cluster.state(T0).leader == other


def test_an_unclean_return_is_counted_once() -> None:
    """After it rejoined, a failover must not throw it out again: it may be the only one that lives."""
    cluster = cluster_with(1, 2)
    cluster.brokers[1].stop()
    cluster.brokers[1].start(unclean=True)
    cluster.run()
    assert cluster.state(T0).isr == (1, 2)
    cluster.brokers[2].stop()
    cluster.controllers[0].die()
    cluster.start_controller()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1,))


def test_a_new_broker_learns_of_everything_and_all_learn_of_it() -> None:
    cluster = cluster_with(1, 2)
    cluster.broker(7).start()
    cluster.run()
    assert cluster.brokers[1].known == (1, 2, 3, 7)
    first, second = cluster.brokers[7].requests
    assert isinstance(first, LeaderAndIsrRequest)
    assert first.is_init
    assert first.partitions == ()
    assert isinstance(second, UpdateMetadataRequest)
    assert [partition_state.partition for partition_state in second.partitions] == [T0]
    cluster.check()


def test_an_init_makes_a_broker_delete_unassigned_replicas() -> None:
    cluster = cluster_with(1, 2)
    cluster.brokers[3].stop()
    cluster.run()
    cluster.brokers[3].replicas[TopicPartition("old", 0)] = cluster.brokers[1].replicas[T0]
    cluster.brokers[3].start()
    cluster.run()
    assert cluster.brokers[3].replicas == {}


def test_f15_controlled_shutdown_moves_leaders_and_followers_away() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.create_topic("u", {0: (2, 1)})
    cluster.create_topic("lonely", {0: (1,)})
    cluster.run()
    lonely = TopicPartition("lonely", 0)
    assert cluster.shut_down(1) == ControlledShutdownResponse(ErrorCode.NONE, ()), "nobody else ever leads it"
    assert cluster.leader_and_isr(T0) == (2, (2, 3))
    assert cluster.leader_and_isr(TopicPartition("u", 0)) == (2, (2,))
    assert cluster.brokers[1].stopped == {T0, TopicPartition("u", 0)}
    assert replica_status(cluster, 1) is ReplicaStatus.OFFLINE
    assert T0 in cluster.brokers[1].replicas, "stopped, not deleted"
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.leader_and_isr(lonely) == (NO_LEADER, (1,))
    cluster.brokers[1].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (1, 2, 3))
    cluster.check()


def test_a_controlled_shutdown_names_leaders_that_could_be_moved_later() -> None:
    cluster = cluster_with(1, 3)
    cluster.brokers[3].stop()
    cluster.run()
    cluster.catching_up = False
    cluster.brokers[3].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1,))
    assert cluster.shut_down(1) == ControlledShutdownResponse(ErrorCode.NONE, (T0,))


def test_f15_a_stopping_broker_is_never_elected_even_after_a_failover() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.brokers[2].mark_stopping()
    cluster.run()
    assert cluster.state(T0).isr == (1, 3)
    cluster.controllers[0].die()
    cluster.start_controller()
    cluster.run()
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (3, (3,))
    cluster.brokers[3].stop()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (3,))


def test_kip380_controlled_shutdown_of_an_earlier_registration_is_refused() -> None:
    cluster = cluster_with(1, 2)
    assert cluster.shut_down(1, epoch=0).error is ErrorCode.STALE_BROKER_EPOCH
    assert cluster.shut_down(2, epoch=99).error is ErrorCode.STALE_BROKER_EPOCH
    assert cluster.leader_and_isr(T0) == (1, (1, 2))


@pytest.mark.parametrize("failover", [False, True])
def test_a_lost_disk_counts_as_offline_until_the_broker_registers_again(failover: bool) -> None:
    """KIP-112: the event stays in the store, so that the next controller knows as well."""
    cluster = cluster_with(1, 2, 3)
    cluster.brokers[1].lose_disk([T0])
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2, 3))
    if failover:
        cluster.controllers[0].die()
        cluster.start_controller()
        cluster.run()
    assert replica_status(cluster, 1) is ReplicaStatus.OFFLINE
    assert len(cluster.admin.children(nodes.LOG_DIR_EVENTS)) == 1
    for broker in (2, 3):
        cluster.brokers[broker].stop()
        cluster.run()
    assert cluster.leader_and_isr(T0) == (NO_LEADER, (3,))
    for broker in (2, 3):
        cluster.brokers[broker].start()
    cluster.run()
    cluster.brokers[1].stop()
    cluster.brokers[1].broken.clear()
    cluster.brokers[1].start()
    cluster.run()
    assert cluster.state(T0).isr == (1, 2, 3)
    assert cluster.admin.children(nodes.LOG_DIR_EVENTS) == []
    cluster.check()


def test_a_storage_error_in_an_answer_counts_as_a_lost_disk() -> None:
    cluster = Cluster()
    cluster.brokers[2].broken.add(T0)
    cluster.start_controller()
    cluster.create_topic("t", {0: (2, 1, 3)})
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1, 3))
    assert replica_status(cluster, 2) is ReplicaStatus.OFFLINE
    (warning,) = [text for level, text in cluster.log if "offline" in text and level == "warning"]
    assert warning.startswith("1 replicas are offline, as reported by brokers 2: ")
    assert "server.log" in warning and "failed" not in warning  # it may be a log refused for want of descriptors
    cluster.check()


def test_f14_an_isr_that_changes_under_the_controllers_hands_is_read_again() -> None:
    """The leader shrinks its ISR between the controller's read and its write: the write is refused, the election is
    held again on what is there now, and does not elect who has just left."""
    cluster = cluster_with(1, 2, 3)
    cluster.catching_up = False
    cluster.brokers[3].stop()
    raced: list[Effect] = []

    def race(box: Box, effect: Effect) -> bool:
        if (
            isinstance(effect, Multi)
            and any(isinstance(operation, SetData) for operation in effect.operations)
            and not raced
        ):
            raced.append(effect)
            cluster.brokers[1].write_isr(T0, (1, 3))
        return False

    cluster.before = race
    cluster.run()
    state = cluster.state(T0)
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 1)
    cluster.check()


def test_a_partition_that_is_written_all_the_time_is_left_to_the_next_tick() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.catching_up = False
    cluster.brokers[3].stop()

    def race(box: Box, effect: Effect) -> bool:
        if isinstance(effect, Multi) and any(isinstance(operation, SetData) for operation in effect.operations):
            cluster.brokers[1].write_isr(T0, cluster.state(T0).isr)
        return False

    cluster.before = race
    cluster.run()
    assert cluster.state(T0).isr == (1, 2, 3)
    assert cluster.controller.next_wakeup(0) == WRITE_RETRY_MS
    cluster.before = lambda box, effect: False
    cluster.tick(WRITE_RETRY_MS)
    assert cluster.state(T0).isr == (1, 2)
    cluster.check()


def test_f30_a_broker_that_does_not_respond_delays_no_other() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.brokers[3].stuck = True
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.state(T0).leader == 2
    assert cluster.brokers[2].replicas[T0].state.leader_epoch == 1


def test_a_follower_is_stopped_only_on_a_live_broker() -> None:
    cluster = cluster_with(1, 2, 3)
    cluster.brokers[1].stop()
    cluster.run()
    assert not any(isinstance(send.request, StopReplicaRequest) for send in cluster.sent)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_a_whole_cluster_that_restarts_keeps_its_isr(order: tuple[int, ...]) -> None:
    cluster = cluster_with(1, 2, 3, config=TWO)
    cluster.controllers[0].die()
    for broker in order:
        cluster.brokers[broker].stop()
    for broker in order:
        cluster.brokers[broker].start()
    cluster.catching_up = False
    cluster.start_controller()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (1, (1, 2, 3))
    assert cluster.state(T0).leader_epoch > 0
    cluster.check()


@pytest.mark.parametrize("broker", [1, 2])
def test_a_leader_or_a_follower_that_takes_no_more_in_its_leader_epoch_is_given_another(broker: int) -> None:
    cluster = cluster_with(1, 2, 3)
    partition_state = PartitionState(T0, cluster.controller.context.topic_id(T0), cluster.state(T0), (1, 2, 3))
    request = LeaderAndIsrRequest(101, cluster.controller.epoch, cluster.brokers[broker].epoch, (partition_state,))
    refused = LeaderAndIsrResponse(ErrorCode.NONE, ((T0, ErrorCode.FENCED_LEADER_EPOCH),))
    for _ in range(2):  # the second answer is to an epoch that is over by then
        cluster.box.queue.append(ControlReplied(broker, cluster.brokers[broker].epoch, request, refused))
        cluster.run()
    assert cluster.state(T0) == LeaderAndIsr(1, 1, (1, 2, 3), (), 1, 1)
    cluster.check()


def sent_configs(cluster: Cluster, broker: int) -> BrokerConfigs:
    """Of the last LeaderAndIsr or UpdateMetadata to the broker."""
    request = cluster.brokers[broker].requests[-1]
    assert isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest)
    return request.configs


def test_kip226_each_broker_gets_its_own_dynamic_configs_and_those_of_all() -> None:
    cluster = cluster_with(1, 2)
    cluster.write(*set_broker_config_operations(None, {"log.roll.ms": "1"}, None, directory=True))
    cluster.write(*set_broker_config_operations(2, {"log.retention.ms": "2"}, None))
    cluster.run()
    own, default = (("log.retention.ms", "2"),), (("log.roll.ms", "1"),)
    assert [sent_configs(cluster, broker) for broker in (1, 2, 3)] == [
        BrokerConfigs((), default),
        BrokerConfigs(own, default),
        BrokerConfigs((), default),
    ]
    cluster.box.die()
    cluster.start_controller()
    cluster.run()
    init = next(
        request for request in reversed(cluster.brokers[2].requests) if isinstance(request, LeaderAndIsrRequest)
    )
    assert init.is_init and init.configs == BrokerConfigs(own, default)


def test_kip226_brokers_keep_the_dynamic_configs_of_a_node_that_becomes_unreadable() -> None:
    cluster = cluster_with(1, 2)
    cluster.write(*set_broker_config_operations(None, {"log.roll.ms": "1"}, None, directory=True))
    cluster.write(*set_broker_config_operations(2, {"log.retention.ms": "2"}, None))
    cluster.run()
    own, default = (("log.retention.ms", "2"),), (("log.roll.ms", "1"),)
    cluster.write(SetData(nodes.broker_config(2), b"{]"))
    cluster.write(SetData(nodes.broker_config(None), b"{]"))
    cluster.run()
    for broker, setting in ((2, "log.retention.ms = 2"), (None, "log.roll.ms = 1")):
        logged = f"brokers keep {setting} until it is repaired"
        assert any(nodes.broker_config(broker) in text and logged in text for _, text in cluster.log)
    cluster.brokers[2].stop()
    cluster.brokers[2].start()
    cluster.run()
    assert sent_configs(cluster, 2) == BrokerConfigs(own, default)
    cluster.write(SetData(nodes.broker_config(None), b"{}"))
    cluster.run()
    assert [sent_configs(cluster, broker) for broker in (1, 2)] == [BrokerConfigs(), BrokerConfigs(own)]
    assert not any("static settings" in text for _, text in cluster.log)
    cluster.box.die()
    cluster.start_controller()
    cluster.run()
    assert sent_configs(cluster, 2) == BrokerConfigs()
    assert any("have their static settings until it is repaired" in text for _, text in cluster.log)
