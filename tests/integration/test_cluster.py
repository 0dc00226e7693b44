"""Three broker processes over the embedded store, and clients as people use them: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaConnectionError, TopicAlreadyExistsError

import kreplog
from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import WITHIN_S, admin_of, eventually, kill, wait_for_topic


def create(cluster: LocalCluster, name: str, partitions: int = 1, replicas: int = 3) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({name: {"num_partitions": partitions, "replication_factor": replicas}})
    wait_for_topic(cluster, name, partitions)


def state_of(cluster: LocalCluster, topic: str, partition: int = 0) -> dict[str, Any]:
    """The partition in Metadata; retried, since kafka-python gives up if a listed broker has just been killed."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            with admin_of(cluster.bootstrap()) as admin:
                (result,) = admin.describe_topics([topic])
            break
        except KafkaConnectionError:
            assert time.monotonic() < deadline, f"no metadata of {topic}"
    found: dict[str, Any] = next(entry for entry in result["partitions"] if entry["partition_index"] == partition)
    return found


def produce(cluster: LocalCluster, topic: str, values: list[bytes], **settings: Any) -> list[int]:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), **{"acks": "all", **settings})
    sent = [producer.send(topic, value, partition=0) for value in values]
    offsets = [future.get(WITHIN_S).offset for future in sent]
    producer.close()
    return offsets


def consume(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    """The values of partition 0 from its start: `count` records, and any beyond them."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap().split(","), consumer_timeout_ms=500)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    values: list[bytes] = []
    deadline = time.monotonic() + WITHIN_S
    while len(values) < count and time.monotonic() < deadline:
        values += [record.value for record in consumer]
    consumer.close()
    return values


def test_a_cluster_says_who_lives_and_who_controls(cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "kreplog", "cluster", "status", "--json", str(cluster.directory)]
    result = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)
    assert [broker["id"] for broker in result["brokers"]] == [0, 1, 2]
    assert all(broker["alive"] and broker["pid"] > 1 and broker["port"] for broker in result["brokers"])
    assert sum(broker["controller"] for broker in result["brokers"]) == 1


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_what_is_produced_is_consumed(cluster: LocalCluster, acks: Any) -> None:
    topic = f"plain-{acks}"
    create(cluster, topic)
    values = [b"%d" % number for number in range(500)]
    produce(cluster, topic, values, acks=acks, enable_idempotence=acks == "all")
    assert consume(cluster, topic, len(values)) == values


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_compressed(cluster: LocalCluster, codec: str) -> None:
    create(cluster, codec)
    values = [b"the same again and again %d" % (number // 100) for number in range(1000)]
    produce(cluster, codec, values, compression_type=codec)
    assert consume(cluster, codec, len(values)) == values


def test_aiokafka(cluster: LocalCluster) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    create(cluster, "aio")

    async def run() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap(), acks="all", enable_idempotence=True)
        await producer.start()
        for number in range(100):
            await producer.send_and_wait("aio", b"%d" % number)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap(), auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition("aio", 0)])
        values = [(await consumer.getone()).value for _ in range(100)]
        await consumer.stop()
        return values

    assert asyncio.run(asyncio.wait_for(run(), WITHIN_S)) == [b"%d" % number for number in range(100)]


def test_confluent_kafka(cluster: LocalCluster) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    create(cluster, "confluent")
    producer = confluent.Producer({"bootstrap.servers": cluster.bootstrap(), "enable.idempotence": True})
    for number in range(1000):
        producer.produce("confluent", b"%d" % number, partition=0)
    assert producer.flush(WITHIN_S) == 0
    consumer = confluent.Consumer(
        {"bootstrap.servers": cluster.bootstrap(), "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([confluent.TopicPartition("confluent", 0, 0)])
    values: list[bytes] = []
    while len(values) < 1000:
        found = consumer.consume(1000, 5)
        assert found, f"only {len(values)} came"
        values += [message.value() for message in found]
    consumer.close()
    assert values == [b"%d" % number for number in range(1000)]


def test_offsets_by_time(cluster: LocalCluster) -> None:
    create(cluster, "timed")
    bootstrap = cluster.bootstrap().split(",")
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(10):
        producer.send("timed", b"x", partition=0, timestamp_ms=1000 + number * 10).get(WITHIN_S)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    here = TopicPartition("timed", 0)
    found = consumer.offsets_for_times({here: 1035})[here]
    assert (found.offset, found.timestamp) == (4, 1040)
    assert consumer.offsets_for_times({here: 5000})[here] is None
    assert consumer.beginning_offsets([here]) == {here: 0}
    assert consumer.end_offsets([here]) == {here: 10}
    consumer.close()


def recreated(cluster: LocalCluster, name: str) -> bool:
    """Clients hear of a topic's end as soon as its replicas go; it can be made again when the last of them has gone."""
    try:
        create(cluster, name)
    except TopicAlreadyExistsError:
        return False
    return True


def test_topics_are_made_grown_described_and_deleted(cluster: LocalCluster) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({"admin": {"num_partitions": 2, "replication_factor": 2}})
        eventually(lambda: "admin" in admin.list_topics(), "not all brokers hear of the topic")
        admin.create_partitions({"admin": 4})

        def grown() -> bool:
            """By the metadata of a broker; another broker may not have it yet."""
            (result,) = admin.describe_topics(["admin"])
            partitions = result["partitions"]
            all_there = sorted(partition["partition_index"] for partition in partitions) == [0, 1, 2, 3]
            return all_there and all(
                len(partition["isr_nodes"]) == 2 and partition["leader_id"] >= 0 for partition in partitions
            )

        eventually(grown, "or of its partitions")
        admin.delete_topics(["admin"])
        eventually(lambda: "admin" not in admin.list_topics(), "or of its end")
        with pytest.raises(Exception, match="InvalidReplicationFactor"):
            admin.create_topics({"admin": {"num_partitions": 1, "replication_factor": 9}})
    eventually(lambda: recreated(cluster, "admin"), "a topic that is deleted cannot be made again")
    produce(cluster, "admin", [b"new"])
    assert consume(cluster, "admin", 1) == [b"new"]


def test_garbage_costs_its_own_connection_only(cluster: LocalCluster) -> None:
    address = cluster.status()[0]
    for garbage in (
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1) + bytes(64),
        struct.pack(">ihhi", 12, 18, 3, 1) + b"\xff" * 4,
        struct.pack(">ihhih", 14, 0, 9, 1, -1) + b"\0\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((address.host, address.port), timeout=5) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert all(status.alive and status.registered for status in cluster.status())


class Writer(threading.Thread):
    """Produces numbers until it is stopped. acked: the acknowledged ones, in order."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        super().__init__()
        self._producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap().split(","),
            acks="all",
            enable_idempotence=True,
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
        )
        self._topic = topic
        self._stop_now = threading.Event()
        self.acked: list[int] = []

    def run(self) -> None:
        number = 0
        while not self._stop_now.is_set():
            self._producer.send(self._topic, b"%d" % number, partition=0).get(WITHIN_S)
            self.acked.append(number)
            number += 1

    def stop(self) -> None:
        self._stop_now.set()
        self.join()
        self._producer.close()


def test_the_leader_is_killed_and_nothing_acknowledged_is_lost(cluster: LocalCluster) -> None:
    create(cluster, "killed")
    writer = Writer(cluster, "killed")
    writer.start()
    for _ in range(2):
        eventually(lambda: len(writer.acked) > 50, "nothing is acknowledged")
        leader = state_of(cluster, "killed")["leader_id"]
        kill(cluster, leader)
        before = len(writer.acked)
        eventually(lambda seen=before: len(writer.acked) > seen + 50, "the producer does not go on")  # type: ignore[misc]
        assert state_of(cluster, "killed")["leader_id"] != leader
        cluster.start([leader])
        eventually(lambda: len(state_of(cluster, "killed")["isr_nodes"]) == 3, "it does not join again")
    writer.stop()
    values = consume(cluster, "killed", len(writer.acked))
    assert values == [b"%d" % number for number in writer.acked]
    eventually(lambda: len({log_bytes(cluster, broker, "killed-0") for broker in cluster.brokers}) == 1, "they differ")


def log_bytes(cluster: LocalCluster, broker: int, partition: str) -> bytes:
    """All record batches of a replica, read beside its broker."""
    with kreplog.Log.open(cluster.home(broker) / "data" / partition, read_only=True) as log:
        pieces, offset = [], log.log_start_offset
        while offset < log.log_end_offset:
            fetched = log.fetch(offset, isolation="log_end")
            pieces.append(bytes(fetched.data))
            offset = fetched.next_offset
        return b"".join(pieces)


def test_stopped_cleanly_and_started_again(cluster: LocalCluster) -> None:
    create(cluster, "kept")
    values = [b"%d" % number for number in range(200)]
    produce(cluster, "kept", values)
    cluster.stop()
    marks = [cluster.home(broker) / "data" / ".kafka_cleanshutdown" for broker in cluster.brokers]
    assert all(mark.exists() for mark in marks)
    checkpoints = [mark.parent / "replication-offset-checkpoint" for mark in marks]
    assert all(
        any(line.startswith("kept 0 ") for line in checkpoint.read_text().splitlines()) for checkpoint in checkpoints
    )
    cluster.start()
    assert not any(mark.exists() for mark in marks)
    assert consume(cluster, "kept", len(values)) == values
    eventually(lambda: len(state_of(cluster, "kept")["isr_nodes"]) == 3, "not all come back into the ISR")
