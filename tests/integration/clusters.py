"""Clusters of real broker processes for tests, and helpers that the tests share."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka.admin import KafkaAdminClient

from kreplog.client.admin_client import METADATA_VERSION
from kreplog.client.broker_client import BrokerClient
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from kreplog.cluster.tls_files import client_properties
from kreplog.commands.connecting import admin_client
from kreplog.wire.versions import ApiKey
from tests.coord.servers import ZooKeeperServer

WITHIN_S = 20.0

START_S = 120.0
"""In which a cluster starts on a machine that is busy with other tests."""

FAST = ('"log.flush.offset.checkpoint.interval.ms" = 500', '"min.insync.replicas" = 2')

GROUPS = (
    *FAST,
    '"group.initial.rebalance.delay.ms" = 0',
    '"offsets.topic.num.partitions" = 5',
    '"transaction.state.log.num.partitions" = 5',
)
"""For tests of groups and transactions that are not about these: a new group does not wait 3 s for more members, and
its coordinator loads few partitions. The pages of the docs run with the defaults."""


def eventually(true: Callable[[], Any], kind: str | Callable[[], str], within_s: float = WITHIN_S) -> None:
    """Wait until `true()`; fail with `what` after within_s."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, kind if isinstance(kind, str) else kind()
        time.sleep(0.02)  # another process causes it, and sends no event


def tls_of(cluster: LocalCluster) -> dict[str, str]:
    """librdkafka's settings for a cluster whose listeners require certificates; none for another."""
    if not client_properties(cluster.directory).exists():
        return {}
    folder = cluster.directory / "tls"
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": f"{folder}/ca.pem",
        "ssl.certificate.location": f"{folder}/client.pem",
        "ssl.key.location": f"{folder}/client.pem",
    }


@contextmanager
def admin_of(bootstrap: str, **settings: Any) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","), **settings)
    try:
        yield admin
    finally:
        admin.close()


def wait_for_topic(cluster: LocalCluster, topic: str, partitions: int = 1) -> None:
    """Until the metadata of every broker have this many partitions of the topic, all with leaders: right after a topic
    is created, a client of another broker may hear that there is none."""

    async def led_partitions(_: int, client: BrokerClient) -> int:
        topics = [{"topic_id": None, "name": topic}]
        response = await client.request(
            ApiKey.METADATA, METADATA_VERSION, topics=topics, allow_auto_topic_creation=False
        )
        return sum(partition.error_code == 0 for partition in response.topics[0].partitions)

    with admin_client(cluster.directory, None) as admin:

        def known() -> bool:
            admin.metadata([topic])
            return set(admin.request_each(admin.live, led_partitions).values()) == {partitions}

        eventually(known, f"the metadata of some brokers lack {topic}")


def pid_of(cluster: LocalCluster, broker: int) -> int:
    """Of a broker that runs."""
    pid, _, _ = read_pid_file(cluster.home(broker))
    assert pid > 1, f"broker {broker} does not run"
    return pid


def kill(cluster: LocalCluster, *brokers: int) -> None:
    """kill -9, all at once, and wait until they are gone."""
    for pid in [pid_of(cluster, broker) for broker in brokers]:
        os.kill(pid, signal.SIGKILL)
    for broker in brokers:
        cluster.wait_until_gone(broker, 10)


def mend(cluster: LocalCluster) -> None:
    """Let brokers that are stopped go on, and start those that do not run: a test that fails half-way leaves a cluster
    that is whole for the next one."""
    dead = []
    for broker in cluster.brokers:
        pid, _, _ = read_pid_file(cluster.home(broker))
        if pid:
            os.kill(pid, signal.SIGCONT)
        else:
            dead.append(broker)
    if dead:
        cluster.start(dead, timeout_s=START_S)


def set_line(cluster: LocalCluster, broker: int, name: str, value: str) -> None:
    """In the settings of a broker, for its next start: one that is there already. value: as TOML."""
    path = cluster.home(broker) / "broker.toml"
    text, count = re.subn(rf'(?m)^"{re.escape(name)}" = .*$', f'"{name}" = {value}', path.read_text())
    assert count == 1
    path.write_text(text)


@contextmanager
def running(
    directory: Path,
    settings: Sequence[str] = FAST,
    zookeeper: ZooKeeperServer | None = None,
    brokers: Sequence[int] = (0, 1, 2),
) -> Iterator[LocalCluster]:
    """Brokers that serve, on free ports; whatever still runs at the end is killed. zookeeper: their store, each
    cluster in a node of its own; None: the embedded one."""
    made = LocalCluster.create(directory, brokers, 0, settings)
    if zookeeper is not None:
        for broker in made.brokers:
            set_line(made, broker, "coordination", json.dumps(f"zookeeper:{zookeeper.hosts}/{directory.name}"))
    try:
        made.start(timeout_s=START_S)
        yield made
    finally:
        end(made)


def end(cluster: LocalCluster) -> None:
    """Kill whatever still runs."""
    kill(cluster, *(broker for broker in cluster.brokers if read_pid_file(cluster.home(broker))[0]))
