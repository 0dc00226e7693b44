"""Consumers of groups against one broker, unmodified; transactions and writes to the internal topic are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kafka
from kafka.errors import KafkaError

from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.polling import Polled
from tests.integration.clusters import WITHIN_S, admin_of, end, eventually

TOPIC = "topic"
INTERNAL = "__consumer_offsets"
FEW = ('"offsets.topic.num.partitions" = 3', '"group.initial.rebalance.delay.ms" = 0')


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker, which has a topic with one record in the first of two partitions."""
    cluster = LocalCluster.create(tmp_path_factory.mktemp("groups") / "c", [0], 0, FEW)
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({TOPIC: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
        producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap())
        producer.send(TOPIC, b"value", partition=0).get(WITHIN_S)
        producer.close()
        yield cluster
    finally:
        end(cluster)


@pytest.fixture
def bootstrap(cluster: LocalCluster) -> str:
    return cluster.bootstrap()


def consumer_of(bootstrap: str, group: str | None, *topics: str, **settings: Any) -> Any:
    return kafka.KafkaConsumer(
        *topics,
        group_id=group,
        bootstrap_servers=bootstrap,
        consumer_timeout_ms=20_000,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **settings,
    )


def create_internal_topic(bootstrap: str) -> None:
    """By the first member of any group, unless it exists."""
    with Polled(consumer_of(bootstrap, "first", TOPIC)) as member:
        eventually(lambda: member.assignment, "the only member of a group gets no partitions")


def test_kafka_python_subscribes_and_shares(bootstrap: str) -> None:
    with Polled(consumer_of(bootstrap, "python", TOPIC)) as first:
        eventually(lambda: first.values == [b"value"], "the record does not come")
        with Polled(consumer_of(bootstrap, "python", TOPIC)) as second:
            eventually(
                lambda: [len(first.assignment), len(second.assignment)] == [1, 1],
                "both partitions stay with one member",
            )
            assert first.assignment | second.assignment == {kafka.TopicPartition(TOPIC, number) for number in (0, 1)}
        eventually(lambda: len(first.assignment) == 2, "the partition of a member that has left stays without one")


def test_committed_offsets_outlive_the_broker(cluster: LocalCluster) -> None:
    here = kafka.TopicPartition(TOPIC, 0)
    consumer = consumer_of(cluster.bootstrap(), "restart", TOPIC)
    assert next(consumer).offset == 0
    consumer.commit()
    consumer.close()
    cluster.stop()
    cluster.start()
    consumer = consumer_of(cluster.bootstrap(), "restart")
    consumer.assign([here])
    assert consumer.committed(here) == 1
    consumer.close()


def test_kafka_python_assigns(bootstrap: str) -> None:
    """With a group id too: nothing is committed, so the consumer starts at auto.offset.reset."""
    for group in (None, "assigned"):
        consumer = consumer_of(bootstrap, group)
        consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        assert next(consumer).value == b"value"
        consumer.close()


def test_nobody_but_coordinators_writes_to_the_internal_topic(bootstrap: str) -> None:
    create_internal_topic(bootstrap)
    with admin_of(bootstrap) as admin:
        (topic,) = admin.describe_topics([INTERNAL])
        assert topic["is_internal"] and len(topic["partitions"]) == 3
    confluent = pytest.importorskip("confluent_kafka")
    reports: list[Any] = []
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    producer.produce(INTERNAL, b"forged", b"key", partition=0, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(WITHIN_S) == 0
    assert [error.name() for error in reports] == ["TOPIC_EXCEPTION"]


def test_the_internal_topic_keeps_its_partitions_and_records(bootstrap: str) -> None:
    """A group belongs to one partition by the hash of its name and the number of partitions, and its offsets stay."""
    create_internal_topic(bootstrap)
    with admin_of(bootstrap) as admin:
        for count in (2, 3, 50):
            with pytest.raises(KafkaError, match="keeps its 3 partitions"):
                admin.create_partitions({INTERNAL: count})
        with pytest.raises(KafkaError, match="InvalidTopic"):
            admin.delete_records({kafka.TopicPartition(INTERNAL, 0): -1})
        (topic,) = admin.describe_topics([INTERNAL])
        assert len(topic["partitions"]) == 3


def test_aiokafka_shares_commits_and_takes_over(bootstrap: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    first_partition = aiokafka.TopicPartition(TOPIC, 0)

    def member() -> Any:
        return aiokafka.AIOKafkaConsumer(
            TOPIC,
            group_id="aio",
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )

    async def assigned(counts: list[int], *members: Any) -> None:
        """Poll until members have so many partitions."""
        while [len(each.assignment()) for each in members] != counts:
            for fetched in await asyncio.gather(*(each.getmany(timeout_ms=100) for each in members)):
                assert not fetched, "a record before the committed offset"

    async def run() -> None:
        async with member() as first:
            assert (await first.getone()).value == b"value"
            await first.commit()
            assert await first.committed(first_partition) == 1
            async with member() as second:
                await assigned([1, 1], first, second)
                assert first.assignment() | second.assignment() == {first_partition, aiokafka.TopicPartition(TOPIC, 1)}
            await assigned([2], first)

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))


def confluent_consumer(bootstrap: str, group: str) -> tuple[Any, Any]:
    confluent = pytest.importorskip("confluent_kafka")
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return confluent, confluent.Consumer(settings)


def polled(consumer: Any) -> Any:
    deadline = time.monotonic() + WITHIN_S
    found = None
    while found is None and time.monotonic() < deadline:
        found = consumer.poll(0.5)
    assert found is not None and found.error() is None
    return found


def test_librdkafka_subscribes(bootstrap: str) -> None:
    confluent, consumer = confluent_consumer(bootstrap, "rd")
    consumer.subscribe([TOPIC])
    assert polled(consumer).value() == b"value"
    consumer.commit(asynchronous=False)
    ((committed),) = consumer.committed([confluent.TopicPartition(TOPIC, 0)], WITHIN_S)
    assert committed.offset == 1
    consumer.close()


@pytest.mark.parametrize("offset", ["stored", "first"])
def test_librdkafka_assigns(bootstrap: str, offset: str) -> None:
    """librdkafka requires a group id. With stored offsets requested, it starts at auto.offset.reset."""
    confluent, consumer = confluent_consumer(bootstrap, "rd-assigned")
    consumer.assign([confluent.TopicPartition(TOPIC, 0, confluent.OFFSET_STORED if offset == "stored" else 0)])
    assert polled(consumer).value() == b"value"
    consumer.close()
