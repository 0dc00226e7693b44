"""Defaults of topics: which value counts, and that topics without their own take an altered default at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kreplog.config import INHERITED, NO_OWN_SETTINGS, SETTINGS_OF_TOPICS, TopicConfig
from kreplog.core.controller import broker_changes, store_reader
from kreplog.core.controller.admin_operations import set_broker_config_operations, set_config_operations
from kreplog.core.controller.context import ControllerContext
from kreplog.core.effects import Steps
from kreplog.core.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from kreplog.core.topic_defaults import topic_defaults
from kreplog.types import NO_LEADER, TopicPartition
from tests.core.controller.controlled import Cluster

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)

OTHERS: dict[str, tuple[str, Any]] = {
    "min.insync.replicas": ("2", 2),
    "unclean.leader.election.enable": ("true", True),
    "log.flush.interval.messages": ("1", 1),
    "log.flush.interval.ms": ("7", 7),
    "compression.type": ("gzip", "gzip"),
    "compression.gzip.level": ("1", 1),
    "compression.lz4.level": ("17", 17),
    "compression.zstd.level": ("-131072", -131072),
}
"""A text other than the default, and its value."""


def cluster_of() -> Cluster:
    """Brokers 1 to 3; topic t inherits all settings, topic u has its own."""
    cluster = Cluster()
    cluster.start_controller()
    cluster.run()
    cluster.create_topic("t", {0: (1, 2)}, NO_OWN_SETTINGS)
    cluster.create_topic("u", {0: (1, 2)}, TopicConfig())
    cluster.run()
    cluster.write(*set_broker_config_operations(None, {}, None, directory=True))
    cluster.run()
    cluster.sent.clear()
    return cluster


def alter(cluster: Cluster, config: Mapping[str, str]) -> None:
    cluster.write(*set_broker_config_operations(None, config, -1))
    cluster.run()


def replica_config(cluster: Cluster, partition: TopicPartition, broker: int = 1) -> TopicConfig:
    return cluster.brokers[broker].replicas[partition].config


def test_every_inherited_setting_is_tested() -> None:
    assert OTHERS.keys() == SETTINGS_OF_TOPICS.keys()


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_dynamic_default_counts_before_the_static_one(name: str) -> None:
    field, (text, value) = SETTINGS_OF_TOPICS[name], OTHERS[name]
    assert getattr(topic_defaults(TopicConfig(), ((name, text),)), field) == value
    static = TopicConfig(3, True, 5, 6, "compact,delete", "zstd")
    assert topic_defaults(static, ()) == static
    for wrong in ("", "?", "-999999"):
        assert topic_defaults(static, ((name, wrong), ("log.retention.ms", "1"))) == static


def test_the_own_setting_of_a_topic_counts_before_any_default() -> None:
    context = ControllerContext(1, 1, 1, None, TopicConfig(min_insync_replicas=3, flush_ms=9))
    context.configs["own"] = TopicConfig(min_insync_replicas=2, inherited=INHERITED[1:])
    assert (context.config("own").min_insync_replicas, context.config("own").flush_ms) == (2, 9)
    assert context.config("other").min_insync_replicas == 3
    context.put_topic_defaults((("min.insync.replicas", "4"), ("log.flush.interval.ms", "8")))
    assert (context.config("own").min_insync_replicas, context.config("own").flush_ms) == (2, 8)
    assert context.config("other").min_insync_replicas == 4
    context.put_topic_defaults(())
    assert (context.config("own").flush_ms, context.config("other").min_insync_replicas) == (9, 3)


@pytest.mark.parametrize("name", sorted(OTHERS))
@pytest.mark.parametrize("failover", [False, True])
def test_topics_without_their_own_setting_take_an_altered_default(name: str, failover: bool) -> None:
    field, (text, value) = SETTINGS_OF_TOPICS[name], OTHERS[name]
    cluster = cluster_of()
    before = getattr(TopicConfig(), field)
    alter(cluster, {name: text})
    if failover:
        cluster.box.die()
        cluster.run()
        cluster.start_controller()
        cluster.run()
    for broker in (1, 2):
        config = replica_config(cluster, T0, broker)
        assert (getattr(config, field), config.inherited) == (value, INHERITED)
        assert getattr(replica_config(cluster, U0, broker), field) == before
    if not failover:
        sent = [send.request for send in cluster.sent if isinstance(send.request, LeaderAndIsrRequest)]
        assert {state.partition for request in sent for state in request.partitions} == {T0}
    alter(cluster, {})
    assert getattr(replica_config(cluster, T0), field) == before
    cluster.check()


def test_a_topic_gives_up_its_own_setting_for_the_default() -> None:
    cluster = cluster_of()
    alter(cluster, {"min.insync.replicas": "2"})
    assert replica_config(cluster, U0).min_insync_replicas == 1
    cluster.write(*set_config_operations("u", NO_OWN_SETTINGS))
    cluster.run()
    assert replica_config(cluster, U0).min_insync_replicas == 2


def test_settings_that_are_written_again_are_not_sent_again() -> None:
    cluster = cluster_of()
    alter(cluster, {"min.insync.replicas": "2"})
    cluster.sent.clear()
    cluster.write(*set_config_operations("t", NO_OWN_SETTINGS))
    alter(cluster, {"min.insync.replicas": "2"})
    assert cluster.sent == []


def test_a_lower_default_ends_eligibility_before_the_leader_hears_of_it() -> None:
    cluster = cluster_of()
    alter(cluster, {"min.insync.replicas": "2"})
    cluster.brokers[2].stop()
    cluster.run()
    assert cluster.state(T0).elr == (2,)
    cluster.sent.clear()
    alter(cluster, {"min.insync.replicas": "1"})
    assert cluster.state(T0).elr == ()
    for send in cluster.sent:
        for state in getattr(send.request, "partitions", ()):
            assert state.config.min_insync_replicas > 1 or not state.state.elr
    cluster.check()


def test_f19_the_default_allows_unclean_elections_of_partitions_without_a_leader() -> None:
    cluster = cluster_of()
    for broker in (2, 1):
        cluster.brokers[broker].stop()
        cluster.run()
    cluster.brokers[2].start()
    cluster.run()
    assert [cluster.state(partition).leader for partition in (T0, U0)] == [NO_LEADER, NO_LEADER]
    cluster.unclean_allowed = True
    alter(cluster, {"unclean.leader.election.enable": "true"})
    assert [(election.partition, election.leader) for election in cluster.unclean] == [(T0, 2)]
    assert [cluster.state(partition).leader for partition in (T0, U0)] == [2, NO_LEADER]


def test_a_default_of_flush_messages_begins_a_leader_epoch() -> None:
    cluster = cluster_of()
    before = cluster.state(T0).leader_epoch
    alter(cluster, {"log.flush.interval.messages": "1"})
    assert (cluster.state(T0).leader_epoch, cluster.state(T0).flush_every_record) == (before + 1, True)
    assert not cluster.state(U0).flush_every_record
    alter(cluster, {})
    assert (cluster.state(T0).leader_epoch, cluster.state(T0).flush_every_record) == (before + 2, False)
    cluster.check()


def test_settings_are_not_made_again_under_the_same_defaults() -> None:
    context = ControllerContext(1, 1, 1)
    context.put_topic_defaults((("log.flush.interval.ms", "8"),))
    held = context.config("t")
    assert context.put_topic_defaults((("log.flush.interval.ms", "8"), ("log.retention.ms", "5"))) == []
    assert context.config("t") is held


def test_altered_configs_without_an_effect_on_topics_elect_no_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of()
    sent: list[list[str]] = []

    def send(machines: object, topics: list[str]) -> Steps[None]:
        sent.append(topics)
        yield from ()

    monkeypatch.setattr(broker_changes, "send_settings", send)
    alter(cluster, {"log.retention.ms": "5"})
    assert sent == []
    assert [line for _, line in cluster.log if "dynamic configs" in line] == [
        "the dynamic configs of brokers 1, 2, 3 have changed"
    ]
    requests = [send.request for send in cluster.sent if isinstance(send.request, UpdateMetadataRequest)]
    assert {request.configs.default for request in requests} == {(("log.retention.ms", "5"),)}
    alter(cluster, {"min.insync.replicas": "2"})
    assert sent == [["t"]]


def test_altered_defaults_are_logged_without_brokers_where_none_has_other_configs() -> None:
    cluster = cluster_of()
    for broker in (1, 2, 3):
        cluster.brokers[broker].stop()
    cluster.run()
    cluster.log.clear()
    cluster.brokers[1].start()
    alter(cluster, {"min.insync.replicas": "2"})
    assert [line for _, line in cluster.log if "defaults of topics are now" in line]
    assert not [line for _, line in cluster.log if "dynamic configs" in line]


@pytest.mark.parametrize(("dynamic", "expected"), [({}, 3), ({"min.insync.replicas": "2"}, 2)])
def test_metadata_in_the_store_have_the_defaults_that_a_controller_would_send(
    dynamic: dict[str, str], expected: int
) -> None:
    cluster = cluster_of()
    alter(cluster, dynamic)
    steps, answer = store_reader.metadata(TopicConfig(min_insync_replicas=3)), None
    try:
        while True:
            answer = cluster.box.apply(steps.send(answer))
    except StopIteration as end:
        _, states = end.value
    assert {state.partition: state.config.min_insync_replicas for state in states} == {T0: expected, U0: 1}
