"""topic describe and topic alter, against brokers that serve."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.admin_client import AdminClient
from kreplog.client.replica_rows import replica_rows
from kreplog.client.replica_states import ReplicaState
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands import connecting
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.commands.conftest import Kreplog
from tests.integration.clusters import eventually, kill

Described = dict[str, Any]


def described(run: Kreplog, topic: str) -> list[Described]:
    found: list[Described] = json.loads(run("topic", "describe", topic, "--json").out)["partitions"]
    return found


def test_describe_shows_the_offsets_of_every_replica(trio: LocalCluster, on_trio: Kreplog) -> None:
    on_trio("topic", "create", "described", "-r", 3)
    on_trio("produce", "described", stdin=b"1\n2\n3\n")

    def all_have_all() -> bool:
        (partition,) = described(on_trio, "described")
        return all(replica["high_watermark"] == 3 for replica in partition["replica_states"])

    eventually(all_have_all, "the high watermark does not reach every replica")
    (partition,) = described(on_trio, "described")
    assert [replica["broker"] for replica in partition["replica_states"]] == partition["replicas"]
    assert sorted(replica["state"] for replica in partition["replica_states"]) == ["in sync", "in sync", "leader"]
    assert partition["replica_states"][0]["state"] == "leader" and partition["leader"] == partition["replicas"][0]
    for replica in partition["replica_states"]:
        assert (replica["log_start_offset"], replica["log_end_offset"], replica["lag"]) == (0, 3, 0)
    follower = partition["replicas"][1]
    kill(trio, follower)
    text = on_trio("topic", "describe", "described").out.decode().splitlines()
    assert text[1].startswith(f"described-0  leader {partition['leader']}  epoch ")
    assert f"    {follower}  down" in text
    assert f"    {partition['leader']}  leader   start 0  LEO 3  HW 3  lag 0" in text
    trio.start([follower])
    eventually(lambda: len(described(on_trio, "described")[0]["isr"]) == 3, "it does not join again")


def test_states_of_replicas() -> None:
    at, none = TopicPartition("t", 0), ErrorCode.NONE
    states = {
        1: {at: ReplicaState(none, 10, 8, 0)},
        2: {at: ReplicaState(none, 7, 7, 2)},
        3: {at: ReplicaState(ErrorCode.KAFKA_STORAGE_ERROR)},
        4: {at: ReplicaState(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)},
    }
    rows = replica_rows(at, 1, [1, 2, 3, 4, 5], [1], states)
    assert [(row["state"], row["lag"]) for row in rows] == [
        ("leader", 0),
        ("lagging", 3),
        ("failed", None),
        ("missing", None),
        ("down", None),
    ]
    del states[1]
    rows = replica_rows(at, 1, [1, 2, 3, 4, 5], [1], states)
    assert [(row["state"], row["log_end_offset"], row["lag"]) for row in rows][:2] == [
        ("down", None, None),
        ("lagging", 7, None),
    ]


def test_a_new_topic_that_the_first_broker_does_not_know_yet(on_trio: Kreplog, monkeypatch: pytest.MonkeyPatch) -> None:
    on_trio("topic", "create", "young")
    request = AdminClient.request

    def late(self: AdminClient, api: ApiKey, version: int, /, **fields: Any) -> Any:
        answer = request(self, api, version, **fields)
        if api == ApiKey.METADATA:
            for topic in answer.topics:
                topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer

    monkeypatch.setattr(AdminClient, "request", late)
    (partition,) = described(on_trio, "young")
    assert partition["isr"] == [partition["leader"]]
    assert on_trio("topic", "describe", "missing").err.startswith("kreplog: topic missing: there is no such topic")


def test_without_a_login_no_request_of_its_own_checks_it(on_trio: Kreplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "AdminClient", None)
    assert on_trio("topic", "list").code == 0


def test_alter_adds_partitions_and_changes_settings(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "altered", "-p", 2, "-r", 2, "--config", "retention.ms=5000")
    outcome = on_trio("topic", "alter", "altered", "--partitions", 3, "--config", "retention.bytes=1000", "--json")
    assert json.loads(outcome.out) == {"name": "altered", "partitions": 3, "configs": {"retention.bytes": "1000"}}
    outcome = on_trio(
        "topic", "alter", "altered", "--delete-config", "retention.ms", "--config", "retention.bytes=2000"
    )
    assert outcome.out == b"altered: retention.bytes = 2000, retention.ms reset to default\n"
    assert [len(partition["replicas"]) for partition in described(on_trio, "altered")] == [2, 2, 2]
    eventually(lambda: configs(on_trio, "altered") == {"retention.bytes": "2000"}, "the settings do not change")
    assert b"\n    retention.bytes = 2000\naltered-0  leader" in on_trio("topic", "describe", "altered").out


def configs(run: Kreplog, topic: str) -> dict[str, str]:
    """Those that the topic was given."""
    found: dict[str, str] = json.loads(run("topic", "describe", topic, "--json").out)["configs"]
    return found


def test_an_alteration_is_refused_as_a_whole(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "refused", "-p", 2)
    for words, expected in (
        ([], "nothing to alter: give --partitions, --config or --delete-config"),
        (["--config", "retention.ms"], "--config 'retention.ms': give NAME=VALUE"),
        (["--config", "retention.ms=1", "--delete-config", "retention.ms"], "give each setting once"),
        (["--partitions", "1"], "topic refused has 2 partitions already: give a greater number"),
        (["--partitions", "10003"], "10,001 new partitions: at most 10,000 are allowed in a request"),
        (["--partitions", "3", "--config", "no.such=1"], "no.such"),
        (["--partitions", "2", "--config", "retention.ms=1"], "topic refused has 2 partitions already"),
    ):
        answer = on_trio("topic", "alter", "refused", *words)
        assert answer.code != 0 and expected in answer.err
        assert answer.err.startswith("kreplog: ") and answer.err.count("\n") == 1
    assert len(described(on_trio, "refused")) == 2
    assert "retention.ms" not in configs(on_trio, "refused")


def test_a_topic_of_far_too_many_partitions_harms_nobody(on_trio: Kreplog) -> None:
    answer = on_trio("topic", "create", "enormous", "-p", 100_000)
    assert answer.code == 1
    assert answer.err == ("kreplog: topic enormous: 100,000 new partitions: at most 10,000 are allowed in a request\n")
    assert "enormous" not in on_trio("topic", "list").out.decode().split()


def test_unknown_topics(on_trio: Kreplog) -> None:
    for words in (["describe", "nope"], ["alter", "nope", "-p", 2], ["alter", "nope", "--config", "retention.ms=1"]):
        answer = on_trio("topic", *words)
        assert answer.code == 1
        assert "there is no" in answer.err and "nope" in answer.err
