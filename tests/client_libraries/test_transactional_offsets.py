"""Real clients commit the offsets of a group with their transactions (KIP-98, KIP-447)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from kafka.structs import OffsetAndMetadata

from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.test_transactions import PARTITIONS, create, values
from tests.integration.clusters import WITHIN_S, eventually

confluent: Any = pytest.importorskip("confluent_kafka")

RECORDS = 150
KILLS = 3


def with_confluent(bootstrap: str, topic: str, offset: int, committed: bool) -> None:
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    offsets = [confluent.TopicPartition(topic, 0, offset)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WITHIN_S)
    (producer.commit_transaction if committed else producer.abort_transaction)(WITHIN_S)
    consumer.close()


def with_kafka_python(bootstrap: str, topic: str, offset: int, committed: bool) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"x", partition=0)
    offsets = {kafka.TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
    producer.send_offsets_to_transaction(offsets, topic)
    (producer.commit_transaction if committed else producer.abort_transaction)()
    producer.close()


def with_aiokafka(bootstrap: str, topic: str, offset: int, committed: bool) -> None:
    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await producer.start()
        try:
            await producer.begin_transaction()
            await producer.send(topic, b"x", partition=0)
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition(topic, 0): offset}, topic)
            await (producer.commit_transaction if committed else producer.abort_transaction)()
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(work(), WITHIN_S))


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    """As librdkafka reads it, which requires that no transaction may change it."""
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([confluent.TopicPartition(topic, 0)], WITHIN_S)
    consumer.close()
    return int(found.offset)


@pytest.mark.parametrize("client", [with_confluent, with_kafka_python, with_aiokafka])
def test_offsets_are_committed_with_the_transaction(cluster: LocalCluster, client: Any) -> None:
    topic, bootstrap = f"offsets-{client.__name__.replace('_', '-')}", cluster.bootstrap()
    create(cluster, topic)
    for offset, committed, wanted in ((3, True, 3), (5, False, 3), (7, True, 7)):
        client(bootstrap, topic, offset, committed)
        assert committed_offset(bootstrap, topic, topic) == wanted


def test_a_read_process_write_loop_that_is_killed_writes_nothing_twice(cluster: LocalCluster) -> None:
    source, target, bootstrap = "loop-source", "loop-target", cluster.bootstrap()
    for topic in (source, target):
        create(cluster, topic)
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    wanted: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    for number in range(RECORDS):
        wanted[number % PARTITIONS].append(b"%d" % number)
        producer.produce(source, b"%d" % number, partition=number % PARTITIONS)
    producer.flush(WITHIN_S)
    program = Path(__file__).with_name("read_process_write.py")

    def written() -> dict[int, list[bytes]]:
        return values(bootstrap, target, "read_committed")

    def count() -> int:
        return sum(map(len, written().values()))

    def goes_on(before: int) -> None:
        eventually(lambda: count() > before or count() == RECORDS, lambda: f"{count()} records are written")

    def run() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(program), bootstrap, source, target, "loop"])

    process = run()
    try:
        for _ in range(KILLS):
            goes_on(count())
            process.kill()
            process.wait()
            process = run()
        eventually(lambda: count() >= RECORDS, lambda: f"{count()} of {RECORDS} records are written")
    finally:
        process.kill()
        process.wait()
    assert written() == wanted
