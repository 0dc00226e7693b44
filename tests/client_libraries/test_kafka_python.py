"""kafka-python, unmodified."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from kreplog import Record
from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import (
    MEGABYTE,
    Client,
    Message,
    Scenarios,
    Sender,
    end_offset,
    made,
    states,
    wait_for_leaders,
    wait_for_replicas,
)
from tests.integration.clusters import WITHIN_S, admin_of, eventually, wait_for_topic


class KafkaPython:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap.split(",")

    @contextmanager
    def producer(self, acks: str = "all", idempotent: bool = False, codec: str = "none") -> Iterator[Sender]:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec,
            batch_size=2000,
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
        )

        def send(topic: str, messages: Sequence[Message]) -> None:
            sent = [
                producer.send(topic, message.value, message.key, list(message.headers), partition=message.partition)
                for message in messages
            ]
            producer.flush(WITHIN_S)
            for future in sent:
                future.get(WITHIN_S)

        try:
            yield send
        finally:
            producer.close()

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int | None = None, since_ms: int | None = None
    ) -> list[Record]:
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, auto_offset_reset="none")
        here = TopicPartition(topic, partition)
        consumer.assign([here])
        if offset is not None:
            consumer.seek(here, offset)
        elif since_ms is not None:
            consumer.seek(here, consumer.offsets_for_times({here: since_ms})[here].offset)
        else:
            consumer.seek_to_beginning(here)
        found: list[Any] = []
        deadline = time.monotonic() + WITHIN_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            found += consumer.poll(500, count - len(found)).get(here, ())
        consumer.close()
        return [
            Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in found
        ]


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Client:
    return KafkaPython(cluster.bootstrap())


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Any]:
    with admin_of(cluster.bootstrap()) as made:
        yield made


class TestKafkaPython(Scenarios):
    unable = frozenset({"nothing"})


def test_a_record_that_is_too_large_is_refused(cluster: LocalCluster, client: Client) -> None:
    topic = made(cluster)
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap().split(","), max_request_size=4 * MEGABYTE, enable_idempotence=False
    )
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, bytes(2 * MEGABYTE), partition=0).get(WITHIN_S)
    producer.send(topic, b"small", partition=0).get(WITHIN_S)
    producer.close()
    assert [record.value for record in client.read(topic, 1)] == [b"small"]


def test_topics_are_made_described_grown_and_deleted(cluster: LocalCluster, admin: Any) -> None:
    admin.create_topics({"python": {"num_partitions": 2, "replication_factor": 2}}, wait_for_metadata=True)
    wait_for_topic(cluster, "python", 2)
    assert "python" in admin.list_topics()
    (result,) = admin.describe_topics(["python"])
    assert (result["name"], result["is_internal"], len(result["partitions"])) == ("python", False, 2)
    admin.create_partitions({"python": 5})
    wait_for_topic(cluster, "python", 5)
    assert all(len(state["replica_nodes"]) == 2 and state["leader_id"] >= 0 for state in states(cluster, "python"))
    admin.delete_topics(["python"])
    eventually(lambda: "python" not in admin.list_topics(), "nor of the topic's end")


def test_the_cluster_is_described(cluster: LocalCluster, admin: Any) -> None:
    result = admin.describe_cluster()
    assert sorted(broker["broker_id"] for broker in result["brokers"]) == [0, 1, 2]
    assert result["controller_id"] in (0, 1, 2)
    assert len(result["cluster_id"]) == 22


def test_offsets_are_listed(cluster: LocalCluster, client: Client, admin: Any) -> None:
    topic = made(cluster)
    with client.producer() as send:
        send(topic, [Message(b"x")] * 10)
    here = TopicPartition(topic, 0)
    assert [admin.list_partition_offsets({here: which})[here].offset for which in (-2, -1)] == [0, 10]
    assert end_offset(cluster, topic, 0) == 10


def test_replicas_are_reassigned(cluster: LocalCluster, client: Client, admin: Any) -> None:
    topic = made(cluster, replicas=1)
    with client.producer() as send:
        send(topic, [Message(b"kept")])
    here = TopicPartition(topic, 0)
    (old,) = states(cluster, topic)[0]["replica_nodes"]
    new = [(old + 1) % 3, (old + 2) % 3]
    assert admin.alter_partition_reassignments({here: new}) == {here: None}
    wait_for_replicas(cluster, topic, new)
    eventually(lambda: not admin.list_partition_reassignments(), "it does not end")
    assert [record.value for record in client.read(topic, 1)] == [b"kept"]


def test_preferred_leaders_are_elected(cluster: LocalCluster, admin: Any) -> None:
    topic = made(cluster)
    first, *others = states(cluster, topic)[0]["replica_nodes"]
    assert states(cluster, topic)[0]["leader_id"] == first
    admin.alter_partition_reassignments({TopicPartition(topic, 0): [*others, first]})
    wait_for_replicas(cluster, topic, [*others, first])
    assert states(cluster, topic)[0]["leader_id"] == first
    admin.elect_leaders(0, {topic: [0]})
    wait_for_leaders(cluster, topic, others[:1])


def test_records_are_deleted(cluster: LocalCluster, client: Client, admin: Any) -> None:
    topic = made(cluster)
    with client.producer() as send:
        send(topic, [Message(b"%d" % number) for number in range(100)])
    here = TopicPartition(topic, 0)
    assert admin.delete_records({here: 60})[here]["low_watermark"] == 60
    assert admin.list_partition_offsets({here: -2})[here].offset == 60
    assert [record.value for record in client.read(topic, 40)] == [b"%d" % number for number in range(60, 100)]
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({here: 1000})


def test_settings_are_described_and_altered(cluster: LocalCluster, admin: Any) -> None:
    topic = made(cluster)

    def settings() -> dict[str, Any]:
        requested = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = admin.describe_configs([requested], config_filter="all")["topic"][topic]
        return {name: entry["value"] for name, entry in found.items()}

    before = settings()
    changes = {"retention.ms": "3600000", "min.insync.replicas": "1"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changes)])
    eventually(lambda: settings() == {**before, **changes}, "the settings do not change")
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(changes))])
    eventually(lambda: settings() == before, "the settings do not change back")
    refused = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "soon"})])
    assert "InvalidConfig" in str(refused)
    assert settings() == before


def test_configs_of_a_group_are_described_altered_and_listed(admin: Any) -> None:
    group, name = "configured", "consumer.heartbeat.interval.ms"

    def entry() -> tuple[str, str]:
        requested = ConfigResource(ConfigResourceType.GROUP, group)
        found = admin.describe_configs([requested], config_filter="all")["group"][group][name]
        return found["value"], found["config_source"]

    before = entry()
    admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, {name: "15000"})])
    eventually(lambda: entry()[0] == "15000", "the configs do not change")
    eventually(lambda: group in str(admin.list_config_resources([ConfigResourceType.GROUP])), "no group is listed")
    refused = admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, {name: "15001"})])
    assert "InvalidConfig" in str(refused)
    admin.reset_configs([ConfigResource(ConfigResourceType.GROUP, group, {name: None})])
    eventually(lambda: entry() == before, "the configs do not change back")


def test_settings_of_a_broker_are_described(admin: Any) -> None:
    result = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all")["broker"][
        "1"
    ]
    assert result["broker.id"]["value"] == "1"
    types = {
        "broker.id": "INT",
        "log.retention.ms": "LONG",
        "allow.plaintext.remote": "BOOLEAN",
        "log.dirs": "LIST",
        "log.cleaner.min.cleanable.ratio": "DOUBLE",
        "coordination": "STRING",
    }
    assert {name: result[name]["config_type"] for name in types} == types
