"""Consumers of real clients that name a rack read from the follower there (KIP-392), and from the leader again when it
dies or stops: without a gap, and nothing twice. The traffic that each broker counts shows where records came from.
Members of a group get partitions that have a replica in their rack (KIP-881)."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import aiokafka
import kafka
import pytest

from kreplog.client import Consumer
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.config import RACK_AWARE_SELECTOR
from kreplog.types import TopicPartition
from tests.client.brokers import table
from tests.client_libraries.members import Member
from tests.client_libraries.scenarios import made, states
from tests.integration import clusters
from tests.integration.clusters import WITHIN_S, eventually, kill, pid_of
from tests.integration.view import View

confluent: Any = pytest.importorskip("confluent_kafka")

RACKS = {0: "rack-0", 1: "rack-1", 2: "rack-2"}
BATCH = 300
SETTINGS = (
    *clusters.GROUPS,
    f'"replica.selector.class" = "{RACK_AWARE_SELECTOR}"',
    '"replica.lag.time.max.ms" = 1000',
    '"broker.session.timeout.ms" = 1500',
    '"group.consumer.min.heartbeat.interval.ms" = 200',
    '"group.consumer.heartbeat.interval.ms" = 200',
)

Read = Callable[[str, str, str, int], list[bytes]]
"""From bootstrap servers, topic, rack and the number of records to the values, from the beginning on."""


@pytest.fixture(scope="module")
def racked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers, each in a rack of its own, with metrics."""
    cluster = LocalCluster.create(tmp_path_factory.mktemp("racks"), list(RACKS), 0, SETTINGS, RACKS)
    for broker, port in zip(RACKS, free_ports(len(RACKS)), strict=True):
        with open(cluster.home(broker) / "broker.toml", "a") as settings:
            settings.write(f'\n"metrics.listener" = "127.0.0.1:{port}"\n')
    try:
        cluster.start()
        yield cluster
    finally:
        clusters.end(cluster)


@pytest.fixture
def topic(racked: LocalCluster) -> Iterator[str]:
    """A topic of one partition with a replica on each broker, all in sync; at the end, stopped brokers run again."""
    name = made(racked)
    wait_until_in_sync(racked, name)
    yield name
    racked.start()


def wait_until_in_sync(cluster: LocalCluster, topic: str) -> None:
    eventually(lambda: {*states(cluster, topic)[0]["isr_nodes"]} == {*RACKS}, "not all replicas are in sync")


def leader_and_follower(cluster: LocalCluster, topic: str) -> tuple[int, int]:
    (state,) = states(cluster, topic)
    leader = int(state["leader_id"])
    return leader, next(broker for broker in RACKS if broker != leader)


def consumed_bytes(cluster: LocalCluster, broker: int, topic: str) -> int:
    """Bytes of the topic's batches that consumers have fetched from a broker."""
    listener = cluster.settings(broker).metrics_listener
    assert listener is not None
    with urllib.request.urlopen(f"http://{listener.host}:{listener.port}/metrics", timeout=WITHIN_S) as response:
        text = response.read().decode()
    name = r"kafka_server_brokertopicmetrics_bytesout_total"
    return sum(int(size) for size in re.findall(rf'^{name}{{topic="{topic}"}} (\d+)$', text, re.MULTILINE))


def written(bootstrap: str, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Produce with acks=all; returns the values."""
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    values = [b"%d" % number for number in range(first, first + count)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WITHIN_S) == 0
    return values


def with_confluent(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    with confluent_consumer(bootstrap, topic, rack) as consumer:
        return taken(consumer, count)


def with_kafka_python(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), client_rack=rack)
    with closing(consumer):
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return [record.value for record in itertools.islice(consumer, count)]


def with_aiokafka(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, client_rack=rack)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read(), WITHIN_S))


def with_bulk_client(bootstrap: str, topic: str, rack: str, count: int) -> list[bytes]:
    with Consumer(bootstrap, rack=rack) as consumer:
        batches = consumer.read_arrow({TopicPartition(topic, 0): (0, count)})
        return list(table(list(batches))["value"].to_pylist())


@contextmanager
def confluent_consumer(bootstrap: str, topic: str, rack: str, **settings: Any) -> Iterator[Any]:
    """Reads from the beginning on; notices a broker without a response after a few seconds."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "client.rack": rack,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "socket.timeout.ms": 2000,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 1000,
            "reconnect.backoff.max.ms": 500,
            **settings,
        }
    )
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    try:
        yield consumer
    finally:
        consumer.close()


def taken(consumer: Any, count: int, within_s: float = 3 * WITHIN_S) -> list[bytes]:
    """The values of the next `count` records."""
    found: list[bytes] = []
    deadline = time.monotonic() + within_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        for record in consumer.consume(count - len(found), 0.5):
            # Errors of the connection are for information; those of the topic would have the consumer lose records.
            assert record.error() is None or record.error().retriable() or record.error().code() < 0, record.error()
            if record.error() is None:
                found.append(record.value())
    return found


@pytest.mark.parametrize("read", [with_confluent, with_kafka_python, with_aiokafka, with_bulk_client])
def test_records_come_from_the_follower_in_the_rack(racked: LocalCluster, topic: str, read: Read) -> None:
    values = written(racked.bootstrap(), topic, BATCH)
    leader, follower = leader_and_follower(racked, topic)
    assert read(racked.bootstrap(), topic, RACKS[follower], BATCH) == values
    assert consumed_bytes(racked, leader, topic) == 0
    assert consumed_bytes(racked, follower, topic) > 0


def test_aborted_transactions_are_left_out_at_a_follower(racked: LocalCluster, topic: str) -> None:
    producer = confluent.Producer({"bootstrap.servers": racked.bootstrap(), "transactional.id": topic})
    producer.init_transactions(WITHIN_S)
    values = []
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(WITHIN_S)
        if number % 2:
            producer.abort_transaction(WITHIN_S)
        else:
            producer.commit_transaction(WITHIN_S)
            values.append(b"%d" % number)
    leader, follower = leader_and_follower(racked, topic)
    with confluent_consumer(
        racked.bootstrap(), topic, RACKS[follower], **{"isolation.level": "read_committed"}
    ) as consumer:
        assert taken(consumer, len(values)) == values
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        producer.flush(WITHIN_S)
        assert consumer.consume(1, 1.0) == [], "of a transaction that is open"
        producer.commit_transaction(WITHIN_S)
        assert taken(consumer, 1) == [b"open"]
    assert consumed_bytes(racked, leader, topic) == 0 < consumed_bytes(racked, follower, topic)


@pytest.mark.parametrize("end", ["killed", "paused"])
def test_the_leader_serves_when_the_follower_does_not(racked: LocalCluster, topic: str, end: str) -> None:
    """A paused broker leaves the ISR, and its registration ends: neither must the consumer wait for it, nor get twice
    what it had from it."""
    leader, follower = leader_and_follower(racked, topic)
    values = written(racked.bootstrap(), topic, BATCH)
    with confluent_consumer(racked.bootstrap(), topic, RACKS[follower]) as consumer:
        found = taken(consumer, BATCH)
        assert consumed_bytes(racked, leader, topic) == 0
        paused = pid_of(racked, follower)
        if end == "killed":
            kill(racked, follower)
        else:
            os.kill(paused, signal.SIGSTOP)
        try:
            values += written(racked.bootstrap(), topic, BATCH, BATCH)
            with View(racked) as view:  # a client could take the paused broker for its bootstrap
                eventually(
                    lambda: follower not in view.state(TopicPartition(topic, 0)).isr, "it does not leave the ISR"
                )
            found += taken(consumer, BATCH)
            assert consumed_bytes(racked, leader, topic) > 0
        finally:
            if end == "paused":
                os.kill(paused, signal.SIGCONT)
        racked.start()
        wait_until_in_sync(racked, topic)
        values += written(racked.bootstrap(), topic, BATCH, 2 * BATCH)
        found += taken(consumer, BATCH)
    assert found == values
    assert with_confluent(racked.bootstrap(), topic, RACKS[follower], 3 * BATCH) == values


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_read_the_partitions_of_their_rack(racked: LocalCluster, assignor: str) -> None:
    """Each rack has the only replica of two partitions out of six."""
    topic = made(racked, partitions=6, replicas=1)
    leaders = [state["leader_id"] for state in states(racked, topic)]
    producer = confluent.Producer({"bootstrap.servers": racked.bootstrap()})
    with ExitStack() as stack:
        members = {
            broker: stack.enter_context(
                Member(racked.bootstrap(), topic, topic, client_rack=rack, group_remote_assignor=assignor)
            )
            for broker, rack in RACKS.items()
        }
        local = {
            broker: [(topic, number) for number, leader in enumerate(leaders) if leader == broker] for broker in RACKS
        }
        assert {len(partitions) for partitions in local.values()} == {2}

        def assigned() -> dict[int, list[tuple[str, int]]]:
            return {broker: member.assignment for broker, member in members.items()}

        eventually(lambda: assigned() == local, lambda: f"{assigned()} are assigned, {local} are local")
        for number, leader in enumerate(leaders):
            producer.produce(topic, b"of broker %d" % leader, partition=number)
        assert producer.flush(WITHIN_S) == 0

        def values() -> dict[int, list[bytes]]:
            return {broker: member.values for broker, member in members.items()}

        eventually(lambda: all(len(found) == 2 for found in values().values()), lambda: f"{values()} came")
        assert values() == {broker: [b"of broker %d" % broker] * 2 for broker in RACKS}
        assert not any(member.failures for member in members.values())
