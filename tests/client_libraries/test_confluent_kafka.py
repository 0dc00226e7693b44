"""confluent-kafka, which is librdkafka, unmodified."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import kafka
import pytest

from kreplog import Record
from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import (
    Client,
    Message,
    Scenarios,
    Sender,
    made,
    states,
    wait_for_leaders,
    wait_for_replicas,
)
from tests.integration.clusters import WITHIN_S, admin_of, eventually, wait_for_topic

confluent: Any = pytest.importorskip("confluent_kafka")
library: Any = pytest.importorskip("confluent_kafka.admin")


class ConfluentKafka:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @contextmanager
    def producer(self, acks: str = "all", idempotent: bool = False, codec: str = "none") -> Iterator[Sender]:
        producer = confluent.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": acks,
                "enable.idempotence": idempotent,
                "compression.type": codec,
                "batch.size": 2000,
                "message.max.bytes": 1048588,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
            }
        )

        def send(topic: str, messages: Sequence[Message]) -> None:
            failed: list[Any] = []
            for message in messages:
                producer.produce(
                    topic,
                    message.value,
                    message.key,
                    message.partition,
                    lambda error, _: failed.append(error) if error else None,
                    headers=list(message.headers),
                )
            assert producer.flush(WITHIN_S) == 0
            assert not failed

        yield send
        producer.flush(WITHIN_S)

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int | None = None, since_ms: int | None = None
    ) -> list[Record]:
        consumer = confluent.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "none", "enable.auto.commit": False}
        )
        start = confluent.TopicPartition(topic, partition, confluent.OFFSET_BEGINNING if offset is None else offset)
        if since_ms is not None:
            (start,) = consumer.offsets_for_times([confluent.TopicPartition(topic, partition, since_ms)], WITHIN_S)
        consumer.assign([start])
        found: list[Any] = []
        deadline = time.monotonic() + WITHIN_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} came"
            found += consumer.consume(count - len(found), 0.5)
        consumer.close()
        assert not any(record.error() for record in found)
        return [
            Record(record.offset(), record.timestamp()[1], record.key(), record.value(), tuple(record.headers() or ()))
            for record in found
        ]


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Client:
    return ConfluentKafka(cluster.bootstrap())


@pytest.fixture
def admin(cluster: LocalCluster) -> Any:
    return library.AdminClient({"bootstrap.servers": cluster.bootstrap()})


def done(futures: dict[Any, Any]) -> Any:
    """The result of the only future."""
    (future,) = futures.values()
    return future.result(WITHIN_S)


class TestConfluentKafka(Scenarios):
    """All that every client does."""


def test_topics_are_made_described_grown_and_deleted(cluster: LocalCluster, admin: Any) -> None:
    done(admin.create_topics([library.NewTopic("confluent", 2, 2)]))
    wait_for_topic(cluster, "confluent", 2)
    assert "confluent" in admin.list_topics(timeout=WITHIN_S).topics
    result = done(admin.describe_topics(confluent.TopicCollection(["confluent"])))
    assert [(partition.id, len(partition.replicas), len(partition.isr)) for partition in result.partitions] == [
        (0, 2, 2),
        (1, 2, 2),
    ]
    done(admin.create_partitions([library.NewPartitions("confluent", 5)]))
    wait_for_topic(cluster, "confluent", 5)
    done(admin.delete_topics(["confluent"]))
    eventually(lambda: "confluent" not in admin.list_topics(timeout=WITHIN_S).topics, "nor of the topic's end")


def test_the_cluster_is_described(admin: Any) -> None:
    result = admin.describe_cluster().result(WITHIN_S)
    assert sorted(node.id for node in result.nodes) == [0, 1, 2]
    assert result.controller.id in (0, 1, 2)
    assert result.cluster_id == admin.cluster_id(timeout=WITHIN_S)


def test_offsets_are_listed(cluster: LocalCluster, admin: Any) -> None:
    topic = made(cluster)
    producer = confluent.Producer({"bootstrap.servers": cluster.bootstrap()})
    for timestamp in (5000, 9000, 7000):
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(WITHIN_S) == 0
    requested = (
        library.OffsetSpec.earliest(),
        library.OffsetSpec.latest(),
        library.OffsetSpec.max_timestamp(),
        library.OffsetSpec.for_timestamp(6000),
    )
    assert [done(admin.list_offsets({confluent.TopicPartition(topic, 0): which})).offset for which in requested] == [
        0,
        3,
        1,
        1,
    ]


def test_records_are_deleted(cluster: LocalCluster, client: Client, admin: Any) -> None:
    topic = made(cluster)
    with client.producer() as send:
        send(topic, [Message(b"%d" % number) for number in range(100)])
    assert done(admin.delete_records([confluent.TopicPartition(topic, 0, 60)])).low_watermark == 60
    assert [record.value for record in client.read(topic, 40)] == [b"%d" % number for number in range(60, 100)]


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
@pytest.mark.parametrize("call", ["alter_configs", "incremental_alter_configs"])
def test_settings_of_a_topic_are_described_and_altered(cluster: LocalCluster, admin: Any, call: str) -> None:
    topic = made(cluster)

    def settings() -> dict[str, str]:
        found = done(admin.describe_configs([library.ConfigResource(library.ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in found.items()}

    before = settings()
    changes = {"retention.ms": "3600000", "min.insync.replicas": "1"}
    resource = library.ConfigResource(library.ResourceType.TOPIC, topic)
    for name, value in changes.items():
        if call == "alter_configs":
            resource.set_config(name, value)
        else:
            operation = library.AlterConfigOpType.SET
            resource.add_incremental_config(library.ConfigEntry(name, value, incremental_operation=operation))
    done(getattr(admin, call)([resource]))
    eventually(lambda: settings() == {**before, **changes}, "the settings do not change")


def test_configs_of_a_group_are_described_and_altered(admin: Any) -> None:
    group, name = "configured", "consumer.session.timeout.ms"
    operations = library.AlterConfigOpType

    def described() -> list[tuple[str, int]]:
        found = done(admin.describe_configs([library.ConfigResource(library.ResourceType.GROUP, group)]))[name]
        return [(found.value, found.source), *((each.value, each.source) for each in found.synonyms.values())]

    def alter(value: str | None, operation: Any) -> None:
        entry = library.ConfigEntry(name, value, incremental_operation=operation)
        resource = library.ConfigResource(library.ResourceType.GROUP, group, incremental_configs=[entry])
        done(admin.incremental_alter_configs([resource]))

    (default, source), *_ = before = described()
    assert (default, source) == ("45000", library.ConfigSource.DEFAULT_CONFIG.value)
    alter("50000", operations.SET)
    own = ("50000", library.ConfigSource.GROUP_CONFIG.value)
    eventually(lambda: described()[:2] == [own, own], "the configs do not change")
    with pytest.raises(confluent.KafkaException, match="must be within"):
        alter("60001", operations.SET)
    alter(None, operations.DELETE)
    eventually(lambda: described() == before, "the configs do not change back")


def test_lists_are_appended_to_and_throttles_of_brokers_deleted(cluster: LocalCluster, admin: Any) -> None:
    topic, throttled = made(cluster), "leader.replication.throttled.replicas"
    operations = library.AlterConfigOpType

    def alter(kind: Any, name: str, *changes: tuple[str, str | None, Any]) -> None:
        entries = [library.ConfigEntry(key, text, incremental_operation=operation) for key, text, operation in changes]
        done(admin.incremental_alter_configs([library.ConfigResource(kind, name, incremental_configs=entries)]))

    def described() -> str:
        return str(
            done(admin.describe_configs([library.ConfigResource(library.ResourceType.TOPIC, topic)]))[throttled].value
        )

    for items, operation, expected in (
        ("0:1,0:2", operations.APPEND, "0:1,0:2"),
        ("0:1", operations.SUBTRACT, "0:2"),
        (None, operations.DELETE, ""),
    ):
        alter(library.ResourceType.TOPIC, topic, (throttled, items, operation))
        eventually(partial(lambda expected: described() == expected, expected), "the list does not change")
    rate = "leader.replication.throttled.rate"
    alter(library.ResourceType.BROKER, "1", (rate, "1000", operations.SET))
    alter(library.ResourceType.BROKER, "1", (rate, None, operations.DELETE))
    alter(library.ResourceType.BROKER, "1", ("num.io.threads", None, operations.DELETE))
    with pytest.raises(confluent.KafkaException) as refused:
        alter(library.ResourceType.BROKER, "1", ("num.io.threads", "1000", operations.SET))
    assert refused.value.args[0].code() == confluent.KafkaError.INVALID_REQUEST


def test_preferred_leaders_are_elected(cluster: LocalCluster, admin: Any) -> None:
    topic = made(cluster)
    first, *others = states(cluster, topic)[0]["replica_nodes"]
    with admin_of(cluster.bootstrap()) as other:  # librdkafka does not reassign
        other.alter_partition_reassignments({kafka.TopicPartition(topic, 0): [*others, first]})
    wait_for_replicas(cluster, topic, [*others, first])
    here = confluent.TopicPartition(topic, 0)
    assert admin.elect_leaders(confluent.ElectionType.PREFERRED, [here]).result(WITHIN_S) == {here: None}
    wait_for_leaders(cluster, topic, others[:1])
    errors = admin.elect_leaders(confluent.ElectionType.UNCLEAN, [here]).result(WITHIN_S)
    assert errors[here].code() == confluent.KafkaError.ELECTION_NOT_NEEDED  # it has a leader, which stays
