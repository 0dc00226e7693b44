"""Brokers whose descriptors run out: replicas that do not fit are refused, no directory fails, and all recovers."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
from kafka.admin import NewTopic
from kafka.errors import InvalidPartitionsError

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.server.storage.open_files import OpenFiles
from tests.faults.forked import result_of
from tests.integration import clusters

confluent_kafka: Any = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of other processes are set on Linux")

LIMIT = 400
FIT = OpenFiles(LIMIT).replicas
SETTINGS = (*clusters.FAST, '"log.segment.bytes" = 2000')
"""So small that all partitions roll a segment at about the same time."""


def start_limited(cluster: LocalCluster) -> None:
    """Start its brokers under LIMIT, which they cannot raise."""

    def start() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        cluster.start()

    result_of(start)


@contextmanager
def limited(root: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create(root, [0, 1, 2], 0, SETTINGS)
    try:
        start_limited(made)
        yield made
    finally:
        clusters.end(made)


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    with clusters.admin_of(cluster.bootstrap()) as admin:
        admin.create_topics([NewTopic(topic, partitions, 3)])
    clusters.wait_for_topic(cluster, topic, partitions)


class Client:
    """Produces numbered records under acks=all, and reads what was acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.bootstrap = cluster.bootstrap()
        self.acknowledged: set[tuple[str, int, bytes]] = set()
        self.failed: list[Any] = []
        self._sent = 0
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "delivery.timeout.ms": 60_000,
                "linger.ms": 5,
                "batch.num.messages": 5,  # so that a batch fits in a segment
            }
        )

    def produce(self, topic: str, partitions: int, each: int) -> None:
        for _ in range(each):
            for partition in range(partitions):
                self._sent += 1
                value = b"%d " % self._sent + b"." * 300
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add((message.topic(), message.partition(), message.value()))
        else:
            self.failed.append(error)

    def flush(self) -> None:
        assert self._producer.flush(90) == 0
        assert self.failed == []

    def unread(self) -> set[tuple[str, int, bytes]]:
        """Acknowledged records that a consumer does not find."""
        missing = set(self.acknowledged)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False}
        )
        try:
            places = {(topic, partition) for topic, partition, _ in missing}
            consumer.assign([confluent_kafka.TopicPartition(*place, 0) for place in sorted(places)])
            deadline = time.monotonic() + 30
            while missing and time.monotonic() < deadline:
                messages = consumer.consume(1000, timeout=0.1)
                missing -= {
                    (message.topic(), message.partition(), message.value())
                    for message in messages
                    if message.error() is None
                }
        finally:
            consumer.close()
        return missing


def failures(cluster: LocalCluster) -> list[str]:
    """Lines of the brokers' logs that speak of a failed log or directory."""
    found = []
    for broker in cluster.brokers:
        for name in ("server.log", "state-change.log"):
            path = cluster.home(broker) / "logs" / name
            lines = path.read_text().splitlines() if path.exists() else []
            found += [line for line in lines if "has failed" in line or "go offline" in line or "goes offline" in line]
    return found


def test_a_cluster_serves_what_fits_and_refuses_the_rest(tmp_path: Path) -> None:
    with limited(tmp_path / "c") as cluster:
        made = 0
        for number in range(10):  # 500 partitions
            try:
                create(cluster, f"t{number}", 50)
            except InvalidPartitionsError as refusal:
                assert "max.broker.partitions" in str(refusal)
                break
            made += 1
        assert made == FIT // 50
        client = Client(cluster)
        for number in range(made):
            client.produce(f"t{number}", 50, 12)
        client.flush()
        assert client.unread() == set()
        assert failures(cluster) == []
        assert {status.state for status in cluster.status()} == {"serving"}


def test_replicas_beyond_a_lowered_limit_are_refused_until_it_is_raised(tmp_path: Path) -> None:
    with clusters.running(tmp_path / "c", SETTINGS) as cluster:
        create(cluster, "many", 240)
        client = Client(cluster)
        client.produce("many", 240, 1)
        client.flush()
        cluster.stop()
        start_limited(cluster)
        served = [number for number in range(240) if number in first_of("many", 240)]
        client.produce("many", 1, 1)
        client.flush()
        everything, client.acknowledged = (
            client.acknowledged,
            {record for record in client.acknowledged if record[1] in served},
        )
        assert client.unread() == set()
        (line, *_) = [
            line
            for line in (cluster.home(0) / "logs" / "server.log").read_text().splitlines()
            if "replicas: raise it" in line
        ]
        assert f"the limit on open files, {LIMIT}" in line and "ulimit -n" in line
        cluster.stop()
        cluster.start()
        client.acknowledged = everything
        assert client.unread() == set()
        assert failures(cluster) == []


def first_of(topic: str, partitions: int) -> set[int]:
    """The partitions that are opened at the start where not all fit."""
    return set(range(min(partitions, FIT)))


def test_brokers_without_a_descriptor_recover_by_themselves(tmp_path: Path) -> None:
    """Their limits are lowered to what they have open, while clients write on."""
    with clusters.running(tmp_path / "c", SETTINGS) as cluster:
        create(cluster, "events", 6)
        client = Client(cluster)
        client.produce("events", 6, 4)
        client.flush()
        pids = [clusters.pid_of(cluster, broker) for broker in cluster.brokers]
        limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids]
        for pid, (_, hard) in zip(pids, limits, strict=True):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, hard))
        try:
            client.produce("events", 6, 40)
            clusters.eventually(lambda: refusals(cluster), "no broker was short of descriptors")
        finally:
            for pid, limit in zip(pids, limits, strict=True):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
        client.flush()
        assert client.unread() == set()
        assert failures(cluster) == []


def refusals(cluster: LocalCluster) -> bool:
    return any(
        os.strerror(24) in (cluster.home(broker) / "logs" / "state-change.log").read_text()
        for broker in cluster.brokers
        if (cluster.home(broker) / "logs" / "state-change.log").exists()
    )


def test_a_thousand_connections_leave_a_broker_its_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip(f"a thousand connections need more than the {hard} files that this process may open")
    with limited(tmp_path / "c") as cluster, ExitStack() as stack:
        create(cluster, "events", 30)
        client = Client(cluster)
        client.produce("events", 30, 4)
        client.flush()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for broker in cluster.brokers:
            host, port = cluster.bootstrap().split(",")[broker].split(":")
            for _ in range(334):
                stack.enter_context(socket.create_connection((host, int(port))))
        client.produce("events", 30, 12)
        client.flush()
        assert client.unread() == set()
        assert failures(cluster) == []
        counts = [len(os.listdir(f"/proc/{clusters.pid_of(cluster, broker)}/fd")) for broker in cluster.brokers]
        assert max(counts) < LIMIT
