"""Nine real brokers with 30,000 partitions of three replicas: what they take while idle, and a broker that dies."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import FAST, eventually, kill, pid_of, running
from tests.integration.view import View

pytestmark = pytest.mark.long

TOPICS = ("one", "two", "three")
PARTITIONS = 10_000
"""Of each topic; a request may not have more."""

BROKERS = 9
"""So that each has 10,000 replicas, for which the usual hard limit of descriptors is enough."""

DESCRIPTORS = 17_000
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
WITHIN_S = 1200.0
"""Limit for each step beside another test, on slow processors too."""
IDLE_S = 30.0
WRITTEN = range(0, PARTITIONS, 500)


@pytest.mark.skipif(
    HARD < DESCRIPTORS, reason=f"brokers with 10,000 replicas need {DESCRIPTORS:,} descriptors: {HARD:,}"
)
def test_thirty_thousand_partitions(folder: Path, figure: Callable[[str], None]) -> None:
    with running(folder / "cluster", FAST, brokers=range(BROKERS)) as cluster, View(cluster) as view:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap(), "socket.timeout.ms": 300_000})
        began = time.monotonic()
        for topic in TOPICS:
            admin.create_topics([NewTopic(topic, PARTITIONS, 3)], request_timeout=WITHIN_S)[topic].result()
            await_in_sync(view, topic)
        figure(
            f"{len(TOPICS) * PARTITIONS:,} partitions of 3 replicas made and in sync in "
            f"{time.monotonic() - began:.0f} s"
        )
        write(cluster, b"first")
        time.sleep(IDLE_S)  # background work of the creation and of the writes, which sends no event
        pids = [pid_of(cluster, broker) for broker in cluster.brokers]
        before, at = [cpu_s(pid) for pid in pids], time.monotonic()
        time.sleep(IDLE_S)  # the time that is measured, in which nothing is sent
        idle_s = time.monotonic() - at
        used = [100 * (cpu_s(pid) - earlier) / idle_s for pid, earlier in zip(pids, before, strict=True)]
        figure(
            f"idle: each broker at most {max(used):.1f} % of a core, and {max(map(resident_mib, pids)):,.0f} MiB of "
            "resident memory"
        )
        victim = next(broker for broker in cluster.brokers if broker != view.controller())
        kill(cluster, victim)
        killed = time.monotonic()
        write(cluster, b"second")
        figure(
            f"a killed broker: {len(TOPICS) * len(WRITTEN)} partitions all accept records after "
            f"{time.monotonic() - killed:.2f} s"
        )
        cluster.start([victim], WITHIN_S)
        for topic in TOPICS:
            await_in_sync(view, topic)
        figure(f"it is back in all ISRs {time.monotonic() - killed:.0f} s after its death")
        assert read(cluster) == {(topic, number): [b"first", b"second"] for topic in TOPICS for number in WRITTEN}


def await_in_sync(view: View, topic: str) -> None:
    eventually(lambda: not view.under_replicated(topic), f"{topic} is not in sync", WITHIN_S)


def write(cluster: LocalCluster, value: bytes) -> None:
    """A record to each of some partitions of each topic, acknowledged by all in sync."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap(), "acks": "all", "log_level": 0})
    for topic in TOPICS:
        for number in WRITTEN:
            producer.produce(topic, value, partition=number)
    assert producer.flush(WITHIN_S) == 0


def read(cluster: LocalCluster) -> dict[tuple[str, int], list[bytes]]:
    """The values in those partitions."""
    found: dict[tuple[str, int], list[bytes]] = {}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap(), "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic in TOPICS for number in WRITTEN])
    for message in consumer.consume(2 * len(TOPICS) * len(WRITTEN), WITHIN_S):
        topic, number, value = message.topic(), message.partition(), message.value()
        assert message.error() is None and topic is not None and number is not None and value is not None
        found.setdefault((topic, number), []).append(value)
    consumer.close()
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024
