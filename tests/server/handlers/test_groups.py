"""Groups and transactions are not there: clients that want them hear so at once, others are left in peace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kafka
from kafka.errors import IncompatibleBrokerVersion, KafkaError

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import WITHIN_S, admin_of, end

TOPIC = "topic"
LATEST_WORD_S = 5.0


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one broker, which has a topic with one record."""
    cluster = LocalCluster.create(tmp_path_factory.mktemp("groups") / "c", [0], 0)
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap())
        producer.send(TOPIC, b"value").get(WITHIN_S)
        producer.close()
        yield cluster.bootstrap()
    finally:
        end(cluster)


def test_kafka_python_is_told(bootstrap: str) -> None:
    consumer = kafka.KafkaConsumer(TOPIC, group_id="group", bootstrap_servers=bootstrap, consumer_timeout_ms=20_000)
    with pytest.raises(IncompatibleBrokerVersion, match="JoinGroup"):
        next(consumer)
    consumer.close()


def test_kafka_python_assigns(bootstrap: str) -> None:
    """With a group id too: nothing is committed, so the consumer starts at auto.offset.reset."""
    for group in (None, "group"):
        consumer = kafka.KafkaConsumer(
            group_id=group,
            bootstrap_servers=bootstrap,
            consumer_timeout_ms=20_000,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        assert next(consumer).value == b"value"
        consumer.close()


def test_kafka_python_has_no_transactions(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id="transactional")
    with pytest.raises(KafkaError, match="UnsupportedVersion"):
        producer.init_transactions()
    producer.close(0)


def test_aiokafka_is_told(bootstrap: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(TOPIC, group_id="group", bootstrap_servers=bootstrap)
        try:
            await consumer.start()
        finally:
            await consumer.stop()

    with pytest.raises(aiokafka.errors.UnsupportedVersionError):
        asyncio.run(asyncio.wait_for(run(), WITHIN_S))


def test_librdkafka_is_told(bootstrap: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "group"})
    consumer.subscribe([TOPIC])
    result = consumer.poll(LATEST_WORD_S)
    assert result is not None
    assert "JoinGroup failed: Local: Required feature not supported by broker" in result.error().str()
    consumer.close()


@pytest.mark.parametrize("offset", ["stored", "first"])
def test_librdkafka_assigns(bootstrap: str, offset: str) -> None:
    """librdkafka requires a group id. With stored offsets requested, it starts at auto.offset.reset."""
    confluent = pytest.importorskip("confluent_kafka")
    consumer = confluent.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "group", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent.TopicPartition(TOPIC, 0, confluent.OFFSET_STORED if offset == "stored" else 0)])
    deadline = time.monotonic() + WITHIN_S
    found = None
    while found is None and time.monotonic() < deadline:
        found = consumer.poll(0.5)
    assert found is not None
    assert (found.error(), found.value()) == (None, b"value")
    consumer.close()
