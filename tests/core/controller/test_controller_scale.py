"""Ten thousand partitions: what a failover costs is counted, not only timed (F32)."""

from __future__ import annotations

import time
from collections import Counter

from kreplog.core import nodes
from kreplog.core.controller import admin_operations, fencing
from kreplog.core.controller.assignment import assign
from kreplog.core.controller.request_batch import MAX_PARTITIONS_PER_REQUEST
from kreplog.core.effects import DrainControlChannels, Effect, Multi, SendControl
from kreplog.core.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from kreplog.types import Check, Create, LeaderAndIsr, SetData, TopicPartition
from tests.core.controller.controlled import Box, Cluster

TOPICS, PARTITIONS = 100, 100


def _cluster(topics: int, partitions: int) -> Cluster:
    """Of three brokers that no controller has seen yet, with so many partitions, led by all of them in turn."""
    cluster = Cluster((1, 2, 3))
    for topic in range(topics):
        placed = assign(dict.fromkeys(cluster.brokers), partitions, 3, start=topic * partitions)
        content = nodes.TopicNode(
            f"id{topic}", {number: nodes.Assignment(replicas) for number, replicas in placed.items()}
        )
        created = [Create(nodes.topic(f"t{topic}"), nodes.encode_topic(content))]
        for number, replicas in placed.items():
            partition = TopicPartition(f"t{topic}", number)
            state = nodes.encode_leader_and_isr(LeaderAndIsr(replicas[0], 0, (1, 2, 3)))
            created += [Create(nodes.partition(partition)), Create(nodes.leader_and_isr(partition), state)]
        cluster.write(*created)
    for broker in cluster.brokers:
        cluster.write(Create(nodes.handled_epoch(broker), str(cluster.brokers[broker].epoch).encode()))
    return cluster


def _noted(cluster: Cluster) -> list[Effect]:
    """What the controllers do from now on."""
    effects: list[Effect] = []

    def note(box: Box, effect: Effect) -> bool:
        effects.append(effect)
        return False

    cluster.before = note
    return effects


def test_f32_a_failover_with_ten_thousand_partitions() -> None:
    """A third of the leaders died with the controller: few multis; new leaders are sent as they are written, shrunk
    ISRs
    after them; then each broker gets one INIT."""
    cluster = _cluster(TOPICS, PARTITIONS)
    cluster.brokers[1].stop()
    cluster.catching_up = False
    cluster.start_controller()
    effects = _noted(cluster)
    began = time.process_time()
    cluster.run()
    assert time.process_time() - began < 15
    cluster.check()
    states = [cluster.state(partition) for partition in cluster.controller.context.active_partitions()]
    assert len(states) == TOPICS * PARTITIONS
    assert all(state.isr == (2, 3) and state.leader in (2, 3) for state in states)
    written = [len(effect.operations) for effect in effects if isinstance(effect, Multi)]
    assert sum(written) < TOPICS * PARTITIONS + 100
    assert len(written) < TOPICS * PARTITIONS / 499 + 5
    orphaned = {TopicPartition(f"t{n // PARTITIONS}", n % PARTITIONS) for n in range(0, TOPICS * PARTITIONS, 3)}
    partitions_sent = _partitions_sent_as_written(effects, orphaned)
    assert partitions_sent == set(cluster.controller.context.states)
    sent = [effect for effect in effects if isinstance(effect, SendControl)]
    early = [send for send in sent if isinstance(send.request, LeaderAndIsrRequest) and not send.request.is_init]
    assert sent[: len(early)] == early
    (waited,) = (at for at, effect in enumerate(effects) if isinstance(effect, DrainControlChannels))
    assert effects[waited] == DrainControlChannels(500, 250)
    assert [effect for effect in effects[:waited] if isinstance(effect, SendControl)] == early, "taken before the INIT"
    assert [(send.broker, type(send.request), len(send.request.partitions)) for send in sent[len(early) :]] == [
        (broker, kind, TOPICS * PARTITIONS)
        for broker in (2, 3)
        for kind in (LeaderAndIsrRequest, UpdateMetadataRequest)
    ]
    counted = Counter(type(effect).__name__ for effect in effects)
    assert counted["GetNodes"] + counted["GetChildren"] < 40


def test_new_leaders_are_sent_before_other_isrs_are_written() -> None:
    """A broker dies that led a third of thousands of partitions and followed in the others: the new leaders wait for
    the multis of those led by it, in pieces, and for nothing else."""
    cluster = _cluster(2, 3 * (fencing.MAX_OPERATIONS + 1))
    cluster.catching_up = False
    cluster.start_controller()
    cluster.run()
    led = {partition for partition, state in cluster.controller.context.states.items() if state.leader == 1}
    assert len(led) > 2 * MAX_PARTITIONS_PER_REQUEST
    effects = _noted(cluster)
    cluster.brokers[1].stop()
    cluster.run()
    cluster.check()
    assert all(state.isr == (2, 3) for state in cluster.controller.context.states.values())
    assert _partitions_sent_as_written(effects, led) == set(cluster.controller.context.states)


def test_requests_that_are_fulfilled_are_not_read_again() -> None:
    """The watches of thousands of requests fire as the controller deletes them; a broker's failure that comes after
    them waits for none."""
    cluster = _cluster(1, 3)
    cluster.start_controller()
    cluster.run()
    effects = _noted(cluster)
    placed = assign(dict.fromkeys(cluster.brokers), PARTITIONS * 10, 3)
    additions = {number + 3: replicas for number, replicas in placed.items()}
    cluster.write(*admin_operations.add_partitions_operations("t0", cluster.topic("t0"), additions, (1, 2, 3)))
    cluster.run()
    cluster.check()
    assert len(cluster.topic("t0").partitions) == PARTITIONS * 10 + 3
    counted = Counter(type(effect).__name__ for effect in effects)
    assert counted["GetNodes"] + counted["GetChildren"] < 40


def _partitions_sent_as_written(effects: list[Effect], led: set[TopicPartition]) -> set[TopicPartition]:
    """The partitions sent before any INIT; those of `led` must be sent as soon as each multi of them is written."""
    partitions_sent: set[TopicPartition] = set()
    multis = 0
    for effect in effects:
        if isinstance(effect, SendControl):
            assert isinstance(effect.request, LeaderAndIsrRequest | UpdateMetadataRequest)
            if isinstance(effect.request, LeaderAndIsrRequest):
                if effect.request.is_init:
                    break
                partitions_sent.update(state.partition for state in effect.request.partitions)
            assert len(effect.request.partitions) <= MAX_PARTITIONS_PER_REQUEST
        elif isinstance(effect, Multi) and [type(operation) for operation in effect.operations[:2]] == [Check, SetData]:
            multis += 1
            assert len(partitions_sent & led) >= min(len(led), (multis - 1) * (fencing.MAX_OPERATIONS - 1)), (
                "sent as it is written"
            )
    assert multis > 6
    return partitions_sent
