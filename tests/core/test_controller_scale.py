"""Ten thousand partitions: what a failover costs is counted, not only timed (F32)."""

from __future__ import annotations

import time
from collections import Counter

from kreplog.core import nodes
from kreplog.core.controller.assignment import assign
from kreplog.core.effects import Effect, Multi, SendControl
from kreplog.core.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from kreplog.types import Create, LeaderAndIsr, TopicPartition
from tests.core.controlled import Box, Cluster

TOPICS, PARTITIONS = 100, 100


def test_f32_a_failover_with_ten_thousand_partitions() -> None:
    """A third of the leaders died with the controller: few multis, one request of a kind for each broker, seconds."""
    cluster = Cluster((1, 2, 3))
    for topic in range(TOPICS):
        placed = assign(dict.fromkeys(cluster.brokers), PARTITIONS, 3, start=topic * PARTITIONS)
        content = nodes.Topic(f"id{topic}", {number: nodes.Assignment(replicas) for number, replicas in placed.items()})
        created = [Create(nodes.topic(f"t{topic}"), nodes.encode_topic(content))]
        for number, replicas in placed.items():
            partition = TopicPartition(f"t{topic}", number)
            state = nodes.encode_leader_and_isr(LeaderAndIsr(replicas[0], 0, (1, 2, 3)))
            created += [Create(nodes.partition(partition)), Create(nodes.leader_and_isr(partition), state)]
        cluster.write(*created)
    for broker in cluster.brokers:
        cluster.write(Create(nodes.handled_epoch(broker), str(cluster.brokers[broker].epoch).encode()))
    cluster.brokers[1].stop()
    cluster.catching_up = False
    cluster.start_controller()
    effects: list[Effect] = []

    def note(box: Box, effect: Effect) -> bool:
        effects.append(effect)
        return False

    cluster.before = note
    began = time.process_time()
    cluster.run()
    assert time.process_time() - began < 15
    cluster.check()
    states = [cluster.state(partition) for partition in cluster.controller.context.everything()]
    assert len(states) == TOPICS * PARTITIONS
    assert all(state.isr == (2, 3) and state.leader in (2, 3) for state in states)
    written = [len(effect.operations) for effect in effects if isinstance(effect, Multi)]
    assert sum(written) < TOPICS * PARTITIONS + 100
    assert len(written) < TOPICS * PARTITIONS / 499 + 5
    sent = [(effect.broker, type(effect.request)) for effect in effects if isinstance(effect, SendControl)]
    assert Counter(sent) == {
        (broker, kind): 1 for broker in (2, 3) for kind in (LeaderAndIsrRequest, UpdateMetadataRequest)
    }
    counted = Counter(type(effect).__name__ for effect in effects)
    assert counted["GetNodes"] + counted["GetChildren"] < 40
