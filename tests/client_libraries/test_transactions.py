"""Producers of real clients commit and abort transactions over partitions of three brokers, and are fenced (KIP-98)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiokafka
import kafka
import pytest

from kreplog.client import Consumer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition
from tests.integration.clusters import WITHIN_S, admin_of, eventually, wait_for_topic

confluent: Any = pytest.importorskip("confluent_kafka")

PARTITIONS = 3
Turn = tuple[bool, Sequence[tuple[int, bytes]]]
"""Whether a transaction is committed, and its records: (partition, value)."""

TURNS: list[Turn] = [
    (turn % 2 == 0, [(number % PARTITIONS, b"%d-%d" % (turn, number)) for number in range(2 * PARTITIONS)])
    for turn in range(5)
]


def with_confluent(bootstrap: str, topic: str) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(WITHIN_S)
    for committed, records in TURNS:
        producer.begin_transaction()
        for partition, value in records:
            producer.produce(topic, value, partition=partition)
        producer.flush(WITHIN_S)
        (producer.commit_transaction if committed else producer.abort_transaction)(WITHIN_S)


def with_kafka_python(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), transactional_id=topic)
    producer.init_transactions()
    for committed, records in TURNS:
        producer.begin_transaction()
        for partition, value in records:
            producer.send(topic, value, partition=partition)
        producer.flush(WITHIN_S)
        (producer.commit_transaction if committed else producer.abort_transaction)()
    producer.close()


def with_aiokafka(bootstrap: str, topic: str) -> None:
    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await producer.start()
        for committed, records in TURNS:
            await producer.begin_transaction()
            for partition, value in records:
                await producer.send_and_wait(topic, value, partition=partition)
            await (producer.commit_transaction if committed else producer.abort_transaction)()
        await producer.stop()

    asyncio.run(work())


def create(cluster: LocalCluster, topic: str) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": PARTITIONS, "replication_factor": 3}}, wait_for_metadata=True)
    wait_for_topic(cluster, topic, PARTITIONS)


def values(bootstrap: str, topic: str, isolation_level: str) -> dict[int, list[bytes]]:
    """By partition, up to the end that this reader may see."""
    found: dict[int, list[bytes]] = {}
    with Consumer(bootstrap, isolation_level=isolation_level) as consumer:
        for partition in range(PARTITIONS):
            at = TopicPartition(topic, partition)
            end = consumer.end_offsets([at])[at]
            pieces = consumer.read_arrow({at: (0, end)})
            found[partition] = [value for piece in pieces for value in piece.to_arrow()["value"].to_pylist()]
    return found


def seen(bootstrap: str, topic: str, isolation_level: str, wanted: dict[int, list[bytes]]) -> None:
    """Producers do not wait until the markers of their transactions are committed."""
    eventually(
        lambda: values(bootstrap, topic, isolation_level) == wanted,
        lambda: f"{isolation_level}: {values(bootstrap, topic, isolation_level)} in the place of {wanted}",
    )


@pytest.mark.parametrize("produce", [with_confluent, with_kafka_python, with_aiokafka])
def test_committed_and_aborted(cluster: LocalCluster, produce: Any) -> None:
    topic, bootstrap = produce.__name__.replace("_", "-"), cluster.bootstrap()
    create(cluster, topic)
    produce(bootstrap, topic)
    for level in ("read_committed", "read_uncommitted"):
        wanted = {
            partition: [
                value
                for committed, records in TURNS
                for at, value in records
                if at == partition and (committed or level == "read_uncommitted")
            ]
            for partition in range(PARTITIONS)
        }
        seen(bootstrap, topic, level, wanted)


def test_a_second_producer_fences_the_first(cluster: LocalCluster) -> None:
    topic, bootstrap = "fenced", cluster.bootstrap()
    create(cluster, topic)
    first, second = (confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic}) for _ in range(2))
    first.init_transactions(WITHIN_S)
    first.begin_transaction()
    first.produce(topic, b"of the first", partition=0)
    first.flush(WITHIN_S)
    second.init_transactions(WITHIN_S)
    second.begin_transaction()
    second.produce(topic, b"of the second", partition=0)
    second.commit_transaction(WITHIN_S)
    with pytest.raises(confluent.KafkaException) as error:
        first.commit_transaction(WITHIN_S)
    assert error.value.args[0].fatal()
    seen(bootstrap, topic, "read_committed", {0: [b"of the second"], 1: [], 2: []})


def test_a_transaction_ends_after_its_time(cluster: LocalCluster) -> None:
    """Its producer has gone without a word: others read on all the same."""
    topic, bootstrap = "abandoned", cluster.bootstrap()
    create(cluster, topic)
    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "transaction.timeout.ms": 1000}
    )
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce(topic, b"never ended", partition=0)
    producer.flush(WITHIN_S)
    after = confluent.Producer({"bootstrap.servers": bootstrap})
    after.produce(topic, b"after", partition=0)
    after.flush(WITHIN_S)
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "abandoned"})
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    message = consumer.poll(WITHIN_S)
    assert message is not None and message.value() == b"after"
    consumer.close()
