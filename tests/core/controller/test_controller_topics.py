"""Topics created, grown, configured and deleted; preferred leaders; what administrators write for all that."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kreplog.config import INHERITED, LogConfig, ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.controller import admin_operations
from kreplog.core.controller.assignment import assign
from kreplog.core.controller.context import PartitionAndReplica
from kreplog.core.controller.controller import WRITE_RETRY_MS
from kreplog.core.controller.store_reader import STRICTEST
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import Effect, Multi
from kreplog.core.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from kreplog.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidTopicError,
    KreplogError,
    NodeExistsError,
    NoNodeError,
    UsageError,
)
from kreplog.types import NO_EPOCH, Create, Delete, ElectionType, LeaderAndIsr, Node, NodeStat, SetData, TopicPartition
from tests.core.controller.controlled import Box, Cluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def running(brokers: tuple[int, ...] = (1, 2, 3), config: ReplicationConfig | None = None) -> Cluster:
    cluster = Cluster(brokers, config)
    cluster.start_controller()
    cluster.run()
    return cluster


# Creation


def test_a_new_topic_is_led_by_its_first_live_replicas() -> None:
    cluster = running()
    cluster.brokers[2].stop()
    cluster.create_topic("t", {0: (2, 1, 3), 1: (3, 1, 2)}, topic_id="uuid")
    cluster.run()
    assert cluster.state(T0) == LeaderAndIsr(1, 0, (1, 3), (), 1, 0)
    assert cluster.state(T1) == LeaderAndIsr(3, 0, (1, 3), (), 1, 0)
    partition_state = cluster.brokers[1].replicas[T0]
    assert (partition_state.topic_id, partition_state.replicas, partition_state.is_new) == ("uuid", (2, 1, 3), True)
    assert cluster.controller.context.replica_status(PartitionAndReplica(T0, 2)) is ReplicaStatus.OFFLINE
    cluster.check()


def test_a_topic_none_of_whose_replicas_live_waits_for_one() -> None:
    cluster = running()
    cluster.brokers[2].stop()
    cluster.create_topic("t", {0: (2,)})
    cluster.run()
    assert not cluster.exists(nodes.leader_and_isr(T0))
    assert cluster.controller.context.partition_status(T0) is PartitionStatus.NEW
    cluster.brokers[2].start()
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2,))
    assert cluster.brokers[2].replicas[T0].is_new
    cluster.check()


def test_f32_partitions_are_created_in_few_multis_of_at_most_500() -> None:
    cluster = running()
    multis = cluster.note_multis()
    cluster.create_topic("t", assign(dict.fromkeys(cluster.brokers), 1000, 3))
    cluster.run()
    assert [len(multi.operations) for multi in multis] == [499, 499, 499, 499, 9]
    multis.clear()
    cluster.brokers[3].stop()
    cluster.run()
    assert sum(len(multi.operations) for multi in multis) == 1000 + len(multis)
    assert len(multis) == 3


def test_a_batch_is_one_request_of_a_kind_for_each_broker_in_the_right_order() -> None:
    cluster = running()
    cluster.sent.clear()
    cluster.create_topic("t", dict.fromkeys(range(50), (1, 2)))
    cluster.run()
    kinds = [(send.broker, type(send.request), len(send.request.partitions)) for send in cluster.sent]
    assert kinds == [
        (1, LeaderAndIsrRequest, 50),
        (1, UpdateMetadataRequest, 50),
        (2, LeaderAndIsrRequest, 50),
        (2, UpdateMetadataRequest, 50),
        (3, UpdateMetadataRequest, 50),
    ]
    cluster.sent.clear()
    cluster.brokers[1].mark_stopping()
    cluster.run()
    assert [type(send.request) for send in cluster.sent if send.broker == 1] == [
        UpdateMetadataRequest,
        StopReplicaRequest,
    ]


def test_a_partition_in_leader_and_isr_is_not_sent_again_in_update_metadata() -> None:
    """But a new topic is in one UpdateMetadata for all brokers, so that no client sees a part of it."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.run()
    created = [send for send in cluster.sent if isinstance(send.request, UpdateMetadataRequest)][-3:]
    assert [(send.broker, len(send.request.partitions)) for send in created] == [(1, 2), (2, 2), (3, 2)]
    cluster.sent.clear()
    cluster.write(*admin_operations.set_config_operations("t", TopicConfig(min_insync_replicas=2)))
    cluster.run()
    sent = [
        (send.broker, type(send.request), [state.partition.partition for state in send.request.partitions])
        for send in cluster.sent
    ]
    assert sent == [
        (1, LeaderAndIsrRequest, [0]),
        (1, UpdateMetadataRequest, [1]),
        (2, LeaderAndIsrRequest, [0, 1]),
        (3, LeaderAndIsrRequest, [1]),
        (3, UpdateMetadataRequest, [0]),
    ]
    cluster.check()


# Settings


def test_new_settings_are_sent_under_the_same_leader_epoch() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.sent.clear()
    cluster.write(*admin_operations.set_config_operations("t", TopicConfig(min_insync_replicas=2)))
    cluster.run()
    for broker in (1, 2):
        assert cluster.brokers[broker].replicas[T0].config.min_insync_replicas == 2
    assert cluster.state(T0).leader_epoch == 0
    assert cluster.controller.context.config("t").min_insync_replicas == 2
    cluster.sent.clear()
    cluster.write(*admin_operations.set_config_operations("t", TopicConfig(min_insync_replicas=2)))
    cluster.run()
    assert cluster.sent == []


FLUSHED = TopicConfig(flush_messages=1)


def states_sent(cluster: Cluster, broker: int) -> list[tuple[int, bool, TopicConfig]]:
    """Leader epoch, flush_every_record and settings of T0 in each LeaderAndIsr that the broker got."""
    return [
        (partition_state.state.leader_epoch, partition_state.state.flush_every_record, partition_state.config)
        for sent in cluster.sent
        if sent.broker == broker and isinstance(sent.request, LeaderAndIsrRequest)
        for partition_state in sent.request.partitions
        if partition_state.partition == T0
    ]


@pytest.mark.parametrize(("before", "after"), [(TopicConfig(), FLUSHED), (FLUSHED, TopicConfig())])
def test_flush_messages_takes_effect_with_a_new_leader_epoch(before: TopicConfig, after: TopicConfig) -> None:
    """It changes what fetch offsets promise, so leader and followers must agree on it for each of them."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)}, before)
    cluster.run()
    assert cluster.state(T0)[1::5] == (0, before == FLUSHED)
    cluster.sent.clear()
    cluster.write(*admin_operations.set_config_operations("t", after))
    cluster.run()
    assert cluster.state(T0)[1::5] == (1, after == FLUSHED)
    for broker in (1, 2):
        assert states_sent(cluster, broker) == [(1, after == FLUSHED, after)]
    cluster.check()


def test_flush_messages_takes_effect_after_a_failover_of_the_controller() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.create_topic("other", {0: (1, 2)})
    cluster.run()
    cluster.controllers[0].die()
    cluster.write(*admin_operations.set_config_operations("t", FLUSHED))
    cluster.start_controller()
    cluster.run()
    assert cluster.state(T0)[1::5] == (1, True)
    assert cluster.state(TopicPartition("other", 0)).leader_epoch == 0
    cluster.check()


@pytest.mark.parametrize("old_version", [False, True])
def test_an_election_has_the_flush_messages_of_now(old_version: bool) -> None:
    """The controller elects before it does anything else, and leaders serve from then on: the first epoch that it
    writes must have the setting already. old_version: leaderAndISR was written before it was part of the node."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)}, FLUSHED if old_version else TopicConfig())
    cluster.run()
    cluster.controllers[0].die()
    if old_version:
        content = json.loads(nodes.encode_leader_and_isr(cluster.state(T0)))
        del content["flush_every_record"]
        cluster.write(SetData(nodes.leader_and_isr(T0), json.dumps(content).encode()))
        assert not cluster.state(T0).flush_every_record
    else:
        cluster.write(*admin_operations.set_config_operations("t", FLUSHED))
    cluster.brokers[1].stop()
    cluster.sent.clear()
    cluster.start_controller()
    cluster.run()
    states = states_sent(cluster, 2)
    assert states and all(flushes for epoch, flushes, _ in states if epoch > 0)
    assert cluster.state(T0)[:2] == (2, 1)
    cluster.check()


def test_flush_messages_takes_effect_once_other_writers_let_it() -> None:
    """A leader that changes its ISR wins every race for the node: the controller tries again at a later tick."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    writes = 0

    def leader_first(box: Box, effect: Effect) -> bool:
        nonlocal writes
        path = nodes.leader_and_isr(T0)
        if isinstance(effect, Multi) and any(operation.path == path for operation in effect.operations) and writes < 50:
            writes += 1
            cluster.brokers[1].write_isr(T0, (1, 2))
        return False

    cluster.before = leader_first
    cluster.write(*admin_operations.set_config_operations("t", FLUSHED))
    cluster.run()
    assert cluster.controller.context.to_retry and not cluster.state(T0).flush_every_record
    writes = 50
    cluster.tick(WRITE_RETRY_MS)
    cluster.run()
    assert cluster.state(T0).flush_every_record
    cluster.check()


def test_unreadable_settings_are_the_strictest() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)}, TopicConfig(min_insync_replicas=2))
    cluster.run()
    cluster.write(SetData(nodes.topic_config("t"), b'{"min.insync.replicas":0}'))
    cluster.run()
    assert cluster.controller.context.config("t") == STRICTEST
    assert "the strictest settings apply until it is repaired" in cluster.errors()[0]


def test_a_setting_of_a_newer_version_does_not_undo_the_others() -> None:
    node = Node(b'{"min.insync.replicas":2,"remote.storage.enable":true}', NodeStat(0, 1, 1))
    inherited = tuple(name for name in INHERITED if name != "min_insync_replicas")
    expected = TopicConfig(min_insync_replicas=2, inherited=inherited)
    assert nodes.decode_topic_config("/config/topics/t", node) == expected


def test_log_settings_are_stored_with_the_topic() -> None:
    config = TopicConfig(retention_ms=1000, segment_bytes=4096, message_timestamp_type="LogAppendTime")
    data = nodes.encode_topic_config(config)
    assert b"retention.bytes" not in data
    assert nodes.decode_topic_config("/config/topics/t", Node(data, NodeStat(0, 1, 1))) == config
    log = LogConfig(replicated=True, retention_bytes=7)
    assert config.log_config(log) == replace(
        log, retention_ms=1000, segment_bytes=4096, message_timestamp_type="LogAppendTime"
    )
    assert TopicConfig().log_config(log) is log
    with pytest.raises(UsageError, match="retention_ms = -2 is out of range"):
        TopicConfig(retention_ms=-2)


# More and fewer partitions


def test_partitions_are_added_on_request() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.write(
        *admin_operations.add_partitions_operations("t", cluster.topic("t"), {1: (2, 3), 2: (3, 1)}, (1, 2, 3))
    )
    cluster.run()
    assert cluster.leader_and_isr(T1) == (2, (2, 3))
    assert cluster.topic("t").partitions[2].replicas == (3, 1)
    assert cluster.admin.children(nodes.ADDED) == []
    cluster.check()


def test_partitions_are_added_by_writing_the_topic() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    topic = cluster.topic("t")
    grown = nodes.TopicNode(topic.topic_id, {**topic.partitions, 1: nodes.Assignment((3, 2))})
    cluster.write(SetData(nodes.topic("t"), nodes.encode_topic(grown), topic.version))
    cluster.run()
    assert cluster.leader_and_isr(T1) == (3, (2, 3))
    cluster.check()


def test_additions_that_cannot_be_are_refused_and_their_requests_deleted() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    for topic, number, data in (
        ("t", 0, b"[1,2]"),
        ("t", 1, b"[1,1]"),
        ("t", 1, b"[]"),
        ("t", 1, b"[1,77]"),
        ("t", 1, b"?"),
        ("x", 0, b"[1]"),
    ):
        path = nodes.partition(TopicPartition(topic, number), nodes.ADDED)
        cluster.write(Create(f"{nodes.ADDED}/{topic}"), Create(path, data))
        cluster.run()
        assert "is not added" in cluster.errors()[-1]
        assert cluster.admin.children(nodes.ADDED) == []
    assert len(cluster.errors()) == 6
    cluster.check()


def test_a_partition_is_removed_with_all_that_is_in_it() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.run()
    cluster.write(*admin_operations.remove_partitions_operations("t", cluster.topic("t"), [1]))
    cluster.run()
    assert list(cluster.topic("t").partitions) == [0]
    assert not cluster.exists(nodes.leader_and_isr(T1))
    assert cluster.admin.children(nodes.REMOVED) == []
    assert [sorted(broker.replicas) for broker in cluster.brokers.values()] == [[T0], [T0], []]
    assert T1 not in cluster.brokers[1].metadata
    cluster.check()


def test_f26_a_partition_removed_and_added_again_goes_on_with_its_leader_epochs() -> None:
    """It has the topic id of the first one, so that only the epoch of a late StopReplica for that distinguishes it."""
    cluster = running()
    before = set(cluster.store.dump())
    cluster.create_topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.run()
    cluster.brokers[2].stop()
    cluster.run()
    cluster.brokers[2].start()
    cluster.run()
    assert cluster.state(T1).leader_epoch == 1
    cluster.write(*admin_operations.remove_partitions_operations("t", cluster.topic("t"), [1]))
    cluster.run()
    epochs = {
        stop.leader_epoch
        for send in cluster.sent
        if isinstance(send.request, StopReplicaRequest)
        for stop in send.request.partitions
        if stop.partition == T1
    }
    assert epochs == {1}
    cluster.write(*admin_operations.add_partitions_operations("t", cluster.topic("t"), {1: (3, 1)}, (1, 2, 3)))
    cluster.run()
    assert cluster.state(T1).leader_epoch == 2
    cluster.check()
    cluster.delete_topic("t")
    cluster.run()
    assert set(cluster.store.dump()) == before


def test_removals_that_cannot_be_are_refused() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.run()
    for topic, number in (("t", 7), ("x", 0)):
        path = nodes.partition(TopicPartition(topic, number), nodes.REMOVED)
        cluster.write(Create(f"{nodes.REMOVED}/{topic}"), Create(path))
        cluster.run()
    cluster.write(*(Create(path) for path in (f"{nodes.REMOVED}/t", *(f"{nodes.REMOVED}/t/{n}" for n in (0, 1)))))
    cluster.run()
    assert [error.split(":")[0] for error in cluster.errors()] == [
        "t-7 is not removed",
        "x-0 is not removed",
        "t-0 is not removed",
    ]
    assert list(cluster.topic("t").partitions) == [0]
    cluster.check()


def test_partitions_are_numbered_without_a_gap() -> None:
    """A removal and an addition may be requested at once: clients take all numbers below the count to exist."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2), 1: (2, 3), 2: (1, 3)})
    cluster.run()
    removed, added = TopicPartition("t", 1), TopicPartition("t", 3)
    cluster.write(Create(f"{nodes.REMOVED}/t"), Create(nodes.partition(removed, nodes.REMOVED)))
    cluster.run()
    last = nodes.partition(TopicPartition("t", 2), nodes.REMOVED)
    request = nodes.partition(added, nodes.ADDED)
    cluster.write(Create(f"{nodes.REMOVED}/t"), Create(last))
    cluster.write(Create(f"{nodes.ADDED}/t"), Create(request, nodes.encode_replicas((1, 2))))
    cluster.run()
    assert [error.split(":")[0] for error in cluster.errors()] == ["t-1 is not removed", "t-3 is not added"]
    assert list(cluster.topic("t").partitions) == [0, 1]
    cluster.check()


# Deletion


def test_a_deleted_topic_leaves_nothing() -> None:
    cluster = running()
    before = set(cluster.store.dump())
    cluster.create_topic("t", {0: (1, 2), 1: (2, 3)})
    cluster.run()
    cluster.sent.clear()
    cluster.delete_topic("t")
    cluster.run()
    assert set(cluster.store.dump()) == before
    assert all(broker.replicas == {} == broker.metadata for broker in cluster.brokers.values())
    assert cluster.controller.context.replica_statuses == {}
    assert cluster.controller.context.partition_statuses == {}
    stops = [
        (stop.delete, stop.leader_epoch)
        for send in cluster.sent
        if send.broker == 2 and isinstance(send.request, StopReplicaRequest)
        for stop in send.request.partitions
    ]
    assert stops == [(False, NO_EPOCH)] * 2 + [(True, NO_EPOCH)] * 2
    cluster.check()


def test_deletion_waits_for_brokers_that_are_down() -> None:
    """Their replicas are ineligible, and retried when they return; only then is the topic gone."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.brokers[2].stop()
    cluster.delete_topic("t")
    cluster.run()
    context = cluster.controller.context
    assert context.replica_status(PartitionAndReplica(T0, 1)) is ReplicaStatus.DELETION_SUCCESSFUL
    assert context.replica_status(PartitionAndReplica(T0, 2)) is ReplicaStatus.DELETION_INELIGIBLE
    assert cluster.exists(nodes.topic("t"))
    with pytest.raises(NodeExistsError):
        cluster.create_topic("t", {0: (1,)})
    cluster.brokers[2].start()
    cluster.run()
    assert not cluster.exists(nodes.topic("t"))
    assert not cluster.exists(f"{nodes.DELETED_TOPICS}/t")
    assert cluster.brokers[2].replicas == {}
    cluster.check()


def test_a_broker_that_dies_while_it_deletes_is_waited_for() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.brokers[2].stuck = True
    cluster.delete_topic("t")
    cluster.run()
    assert cluster.controller.context.replica_status(PartitionAndReplica(T0, 2)) is ReplicaStatus.DELETION_STARTED
    cluster.brokers[2].stop()
    cluster.run()
    assert cluster.controller.context.replica_status(PartitionAndReplica(T0, 2)) is ReplicaStatus.DELETION_INELIGIBLE
    cluster.brokers[2].stuck = False
    cluster.brokers[2].start()
    cluster.run()
    assert not cluster.exists(nodes.topic("t"))
    cluster.check()


def test_a_replica_on_a_failed_disk_is_deleted_when_its_broker_registers_again() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.brokers[2].broken.add(T0)
    cluster.delete_topic("t")
    cluster.run()
    assert cluster.controller.context.replica_status(PartitionAndReplica(T0, 2)) is ReplicaStatus.DELETION_INELIGIBLE
    cluster.brokers[2].stop()
    cluster.brokers[2].broken.clear()
    cluster.brokers[2].start()
    cluster.run()
    assert not cluster.exists(nodes.topic("t"))
    cluster.check()


def test_no_leader_is_elected_for_a_topic_that_is_being_deleted() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.run()
    for broker in cluster.brokers.values():
        broker.stuck = True
    cluster.delete_topic("t")
    cluster.run()
    state = cluster.state(T0)
    cluster.brokers[1].stop()
    cluster.run()
    assert cluster.state(T0) == state
    assert cluster.controller.context.partition_status(T0) is PartitionStatus.OFFLINE


def test_f41_a_topic_deleted_and_recreated_while_a_broker_was_away() -> None:
    """The second topic has another id, and its requests say so."""
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)}, topic_id="first")
    cluster.run()
    cluster.brokers[2].stop()
    cluster.delete_topic("t")
    cluster.run()
    cluster.brokers[2].start()
    cluster.run()
    cluster.create_topic("t", {0: (1, 2)}, topic_id="second")
    cluster.run()
    assert {cluster.brokers[broker].replicas[T0].topic_id for broker in (1, 2)} == {"second"}
    assert cluster.state(T0).leader_epoch == 0
    cluster.check()


def test_deleting_a_missing_topic_only_deletes_the_request() -> None:
    cluster = running()
    cluster.write(Create(f"{nodes.DELETED_TOPICS}/nothing"))
    cluster.run()
    assert cluster.admin.children(nodes.DELETED_TOPICS) == []
    assert ("warning", "topic nothing is to be deleted, but does not exist") in cluster.log


def test_a_topic_under_reassignment_can_be_deleted() -> None:
    cluster = running((1, 2, 3, 4))
    before = set(cluster.store.dump())
    cluster.create_topic("t", {0: (1, 2)})
    cluster.catching_up = False
    cluster.reassign(T0, (3, 4))
    cluster.run()
    assert cluster.assignment(T0).adding == (3, 4)
    cluster.delete_topic("t")
    cluster.run()
    assert set(cluster.store.dump()) == before
    assert all(broker.replicas == {} for broker in cluster.brokers.values())
    cluster.check()


def test_a_large_topic_is_deleted_in_chunks_the_request_last() -> None:
    cluster = running()
    cluster.create_topic("t", assign(dict.fromkeys(cluster.brokers), 600, 2))
    cluster.run()
    deletes: list[list[str]] = []

    def note(box: Box, effect: Effect) -> bool:
        if isinstance(effect, Multi):
            deletes.append([operation.path for operation in effect.operations if isinstance(operation, Delete)])
        return False

    cluster.before = note
    cluster.delete_topic("t")
    cluster.run()
    assert [len(paths) for paths in deletes] == [499, 499, 202, 3]
    assert deletes[-1] == [nodes.topic_config("t"), nodes.topic("t"), f"{nodes.DELETED_TOPICS}/t"]


def test_a_topic_deleted_by_hand_is_stopped_and_forgotten() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.write(Delete(nodes.leader_and_isr(T0)), Delete(nodes.partition(T0)), Delete(nodes.topic("t")))
    cluster.run()
    assert cluster.controller.context.topics == {}
    assert cluster.brokers[1].stopped == {T0}
    assert cluster.brokers[1].metadata == {}


# Preferred leaders


def test_leadership_goes_back_on_demand() -> None:
    cluster = running()
    cluster.create_topic("t", {0: (1, 2), 1: (1, 3), 2: (1, 2)})
    cluster.run()
    cluster.brokers[1].stop()
    cluster.run()
    cluster.brokers[1].start()
    cluster.run()
    assert [cluster.state(TopicPartition("t", n)).leader for n in range(3)] == [2, 3, 2]
    cluster.write(*admin_operations.election_operations(ElectionType.PREFERRED, [T0, TopicPartition("gone", 0)]))
    cluster.run()
    assert [cluster.state(TopicPartition("t", n)).leader for n in range(3)] == [1, 3, 2]
    cluster.write(*admin_operations.election_operations(ElectionType.PREFERRED))
    cluster.run()
    assert [cluster.state(TopicPartition("t", n)).leader for n in range(3)] == [1, 1, 1]
    assert not cluster.exists(nodes.PREFERRED_ELECTION)
    cluster.check()


def test_not_to_a_replica_that_is_not_in_sync() -> None:
    cluster = running()
    cluster.catching_up = False
    cluster.create_topic("t", {0: (1, 2)})
    cluster.run()
    cluster.brokers[1].stop()
    cluster.brokers[1].start()
    cluster.write(*admin_operations.election_operations(ElectionType.PREFERRED))
    cluster.run()
    assert cluster.leader_and_isr(T0) == (2, (2,))


@pytest.mark.parametrize(("percentage", "leaders"), [(10, [1, 1, 1]), (70, [2, 3, 1])])
def test_leadership_goes_back_where_too_much_is_led_elsewhere(percentage: int, leaders: list[int]) -> None:
    config = ReplicationConfig(
        leader_imbalance_check_interval_ms=1000, leader_imbalance_per_broker_percentage=percentage
    )
    cluster = running(config=config)
    cluster.create_topic("t", {0: (1, 2), 1: (1, 3)})
    cluster.run()
    cluster.brokers[1].stop()
    cluster.brokers[1].start()
    cluster.run()
    cluster.create_topic("u", {0: (1, 2)})
    cluster.run()
    assert cluster.controller.next_wakeup(0) == 1000
    cluster.tick(999)
    assert cluster.state(T0).leader == 2
    cluster.tick(1)
    partitions = [T0, T1, TopicPartition("u", 0)]
    assert [cluster.state(partition).leader for partition in partitions] == leaders
    assert cluster.controller.next_wakeup(0) == 2000


def test_unless_that_is_switched_off() -> None:
    cluster = running(config=ReplicationConfig(auto_leader_rebalance_enable=False))
    assert cluster.controller.next_wakeup(0) is None


# What administrators write


def test_f18_more_in_sync_replicas_than_replicas_are_refused() -> None:
    with pytest.raises(UsageError, match=r"min\.insync\.replicas 3 with 2 replicas"):
        admin_operations.create_topic_operations("t", "id", {0: (1, 2)}, TopicConfig(min_insync_replicas=3), (1, 2))


@pytest.mark.parametrize(
    ("name", "assignment", "error"),
    [
        ("a/b", {0: (1,)}, InvalidTopicError),
        ("t", {}, InvalidPartitionsError),
        ("t", {1: (1,)}, InvalidPartitionsError),
        ("t", {0: (1, 1)}, InvalidReplicaAssignmentError),
        ("t", {0: (9,)}, InvalidReplicaAssignmentError),
        ("t", {0: (1, 2), 1: (1,)}, InvalidReplicaAssignmentError),
    ],
)
def test_impossible_topics_are_refused(
    name: str, assignment: dict[int, tuple[int, ...]], error: type[KreplogError]
) -> None:
    with pytest.raises(error):
        admin_operations.create_topic_operations(name, "id", assignment, TopicConfig(), (1, 2, 3))


def test_other_requests_are_checked_as_well() -> None:
    topic = nodes.TopicNode("id", {0: nodes.Assignment((1, 2))})
    for wrong in ({0: (1, 2)}, {2: (1, 2)}, {}):
        with pytest.raises(InvalidPartitionsError):
            admin_operations.add_partitions_operations("t", topic, wrong, (1, 2))
    for unfit in ({1: (1,)}, {1: (1, 9)}):
        with pytest.raises(InvalidReplicaAssignmentError):
            admin_operations.add_partitions_operations("t", topic, unfit, (1, 2))
    for numbers in ([0], [5], []):
        with pytest.raises(InvalidPartitionsError):
            admin_operations.remove_partitions_operations("t", topic, numbers)
    with pytest.raises(InvalidReplicaAssignmentError):
        admin_operations.reassign_operations(T0, (1, 1), (1, 2))
    with pytest.raises(InvalidTopicError):
        admin_operations.delete_topic_operations("..")


def test_requests_for_missing_topics_fail_whole() -> None:
    cluster = running()
    for operations in (
        admin_operations.delete_topic_operations("t"),
        admin_operations.set_config_operations("t", TopicConfig()),
        admin_operations.cancel_reassignment_operations(T0),
        admin_operations.reassign_operations(T0, (1,), (1,), directory=False),
    ):
        with pytest.raises(NoNodeError):
            cluster.write(*operations)
