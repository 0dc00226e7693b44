"""Topics that real clients create by producing to them; consumers that forbid it create none; impossible names fail."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from kafka.errors import InvalidTopicError

from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import Message, states
from tests.client_libraries.test_aiokafka import AioKafka
from tests.client_libraries.test_confluent_kafka import ConfluentKafka
from tests.client_libraries.test_kafka_python import KafkaPython
from tests.client_libraries.test_kcat import Kcat
from tests.integration.clusters import WITHIN_S, admin_of, eventually

confluent: Any = pytest.importorskip("confluent_kafka")

NEEDS_KCAT = pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat: apt-get install kcat")
CLIENTS = [
    pytest.param(KafkaPython, "python"),
    pytest.param(ConfluentKafka, "confluent"),
    pytest.param(AioKafka, "aio"),
    pytest.param(Kcat, "kcat", marks=NEEDS_KCAT),
]


@pytest.fixture
def topics(cluster: LocalCluster) -> Iterator[Any]:
    """A function that lists the topics of the cluster."""
    with admin_of(cluster.bootstrap()) as admin:
        yield lambda: set(admin.list_topics())


@pytest.mark.parametrize(("client", "name"), CLIENTS)
def test_a_producer_creates_the_topic(cluster: LocalCluster, client: Any, name: str) -> None:
    topic = f"automatic-{name}"
    with client(cluster.bootstrap()).producer() as send:
        send(topic, [Message(b"value")])
    (record,) = client(cluster.bootstrap()).read(topic, 1)
    assert record.value == b"value"
    (partition,) = states(cluster, topic)
    assert sorted(partition["replica_nodes"]) == [0, 1, 2]


def test_a_consumer_that_forbids_it_creates_nothing(cluster: LocalCluster, topics: Any) -> None:
    """librdkafka's default; kafka-python 3.0 sends requests that allow it whatever its setting."""
    consumer = confluent.Consumer({"bootstrap.servers": cluster.bootstrap(), "group.id": "automatic"})
    consumer.subscribe(["never"])

    def is_refused() -> bool:
        message = consumer.poll(0.1)
        return message is not None and message.error().code() == confluent.KafkaError.UNKNOWN_TOPIC_OR_PART

    eventually(is_refused, "the consumer finds no unknown topic")
    consumer.close()
    assert "never" not in topics()


def test_a_consumer_that_allows_it_creates_the_topic(cluster: LocalCluster, topics: Any) -> None:
    consumer = kafka.KafkaConsumer("looked-for", bootstrap_servers=cluster.bootstrap().split(","))

    def is_created() -> bool:
        consumer.poll(20)
        return "looked-for" in topics()

    eventually(is_created, "the topic is not created")
    consumer.close()


def test_a_name_that_no_topic_can_have_fails_the_producer_at_once(cluster: LocalCluster, topics: Any) -> None:
    """Not by its time-out."""
    failed: list[Any] = []
    producer = confluent.Producer({"bootstrap.servers": cluster.bootstrap(), "message.timeout.ms": 300_000})
    producer.produce("foo#bar", b"value", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(WITHIN_S) == 0
    assert failed[0].code() in (confluent.KafkaError.TOPIC_EXCEPTION, confluent.KafkaError._UNKNOWN_TOPIC)
    assert topics().isdisjoint({"foo#bar"})


def test_impossible_names_are_refused_by_kafka_python_too(cluster: LocalCluster) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), max_block_ms=300_000)
    with pytest.raises((InvalidTopicError, AssertionError, ValueError)):
        producer.send("foo#bar", b"value").get(WITHIN_S)
    producer.close(0)


@NEEDS_KCAT
def test_an_impossible_name_fails_kcat(cluster: LocalCluster) -> None:
    command = ["kcat", "-b", cluster.bootstrap(), "-P", "-t", "foo#bar"]
    ended = subprocess.run(command, input=b"value\n", capture_output=True, timeout=WITHIN_S)
    assert ended.returncode != 0
