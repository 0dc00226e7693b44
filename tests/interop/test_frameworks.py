"""Kafka Streams and Kafka Connect, unmodified, over three of kreplog's brokers."""

from __future__ import annotations

import json
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import confluent_kafka
import pytest

from kreplog.client import Consumer
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition
from tests.integration.clusters import FAST, admin_of, eventually, kill, running
from tests.interop.jvm import Kafka, skipped_where_unavailable

pytestmark = pytest.mark.interop

FRAMEWORKS = Path(__file__).parent / "frameworks"
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
WITHIN_S = 180
WORDS = ("apple", "pear", "plum")
LINES = 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (*FAST, '"offsets.topic.num.partitions" = 3', '"transaction.state.log.num.partitions" = 3')
    with running(tmp_path_factory.mktemp("cluster"), settings) as made:
        yield made


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    with skipped_where_unavailable():
        return Kafka(tmp_path_factory.mktemp("frameworks"), pom=FRAMEWORKS / "pom.xml")


@contextmanager
def started(java: Kafka, main: str | Path, *arguments: str | Path, log: Path) -> Iterator[Popen[bytes]]:
    """A program until the end of the block, where it is killed; what it printed is in the report of a failed test."""
    process = java.start(main, *arguments, log=log)
    try:
        yield process
    except BaseException:
        print(log.read_text(errors="replace")[-8000:])
        raise
    finally:
        process.kill()
        process.wait()


def committed(cluster: LocalCluster, topic: str, partitions: int) -> list[tuple[str, str]]:
    """Keys and values that readers of committed records get, partition by partition."""
    found = []
    with Consumer(cluster.bootstrap(), isolation_level="read_committed") as consumer:
        for number in range(partitions):
            at = TopicPartition(topic, number)
            end = consumer.end_offsets([at])[at]
            for piece in consumer.read_arrow({at: (0, end)}):
                rows = piece.to_arrow().to_pylist()
                found += [((row["key"] or b"").decode(), (row["value"] or b"").decode()) for row in rows]
    return found


def counts_of(cluster: LocalCluster) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for word, count in committed(cluster, "counts", 2):
        found[word].append(int(count))
    return found


def test_kafka_streams_counts_each_word_once(java: Kafka, cluster: LocalCluster, tmp_path: Path) -> None:
    """exactly_once_v2, killed twice as it works, once with its state lost, beside a broker that is killed."""
    with admin_of(cluster.bootstrap()) as admin:
        wanted = {name: {"num_partitions": 2, "replication_factor": 3} for name in ("lines", "counts")}
        admin.create_topics(wanted, wait_for_metadata=True)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap(), "acks": "all"})

    def produce() -> None:
        for number in range(LINES):
            producer.produce("lines", " ".join(WORDS), key=str(number))
        assert producer.flush(WITHIN_S) == 0

    def counted(least: int) -> None:
        eventually(
            lambda: min(len(counts_of(cluster)[word]) for word in WORDS) >= least,
            lambda: f"of {least}: { {word: len(found) for word, found in counts_of(cluster).items()} }",
            WITHIN_S,
        )

    program, log = FRAMEWORKS / "WordCount.java", tmp_path / "streams.log"
    for turn, state in enumerate(("one", "one", "another")):
        produce()
        with started(java, program, cluster.bootstrap(), tmp_path / state, log=log):
            counted(turn * LINES + 1)
            if turn == 1:
                kill(cluster, 2)
                cluster.start([2])
            if turn == 2:
                counted(3 * LINES)
    assert counts_of(cluster) == {word: list(range(1, 3 * LINES + 1)) for word in WORDS}


WORKER = """\
bootstrap.servers={bootstrap}
group.id=connect
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
offset.storage.partitions=2
status.storage.topic=connect-status
status.storage.partitions=1
offset.flush.interval.ms=500
exactly.once.source.support=enabled
scheduled.rebalance.max.delay.ms=1000
"""


def requested(port: int, path: str, body: Any = None) -> Any:
    """The response of a worker's REST interface."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method="PUT" if data else "GET"
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def answers(port: int) -> bool:
    try:
        requested(port, "/connectors")
    except OSError:
        return False
    return True


def runs(port: int, connector: str) -> bool:
    try:
        status = requested(port, f"/connectors/{connector}/status")
    except OSError:
        return False
    return [task["state"] for task in status["tasks"]] == ["RUNNING"]


def test_kafka_connect_copies_a_file(java: Kafka, cluster: LocalCluster, tmp_path: Path) -> None:
    """Distributed, with exactly-once support: from a file into a topic and from there into another file. The worker is
    killed and another continues."""
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({"copied": {"num_partitions": 1, "replication_factor": 3}}, wait_for_metadata=True)
    source, sink, log = tmp_path / "source.txt", tmp_path / "sink.txt", tmp_path / "connect.log"
    connectors = {
        "read": {"connector.class": "FileStreamSource", "topic": "copied", "file": str(source)},
        "write": {"connector.class": "FileStreamSink", "topics": "copied", "file": str(sink)},
    }
    lines: list[str] = []

    def copied() -> bool:
        return sink.exists() and set(lines) <= set(sink.read_text().split("\n"))

    for life in range(2):
        (port,) = free_ports(1)
        settings = tmp_path / f"worker-{life}.properties"
        settings.write_text(WORKER.format(bootstrap=cluster.bootstrap(), port=port))
        with started(java, CONNECT, settings, log=log):
            eventually(partial(answers, port), "the worker does not answer", WITHIN_S)
            for name, config in connectors.items() if life == 0 else ():
                requested(port, f"/connectors/{name}/config", {**config, "tasks.max": "1"})
            for name in connectors:
                eventually(partial(runs, port, name), f"{name} does not run", WITHIN_S)
            more = [f"line {life} {number}" for number in range(LINES)]
            lines += more
            with open(source, "a") as file:
                file.write("".join(f"{line}\n" for line in more))
            eventually(copied, "not copied", WITHIN_S)
    assert [value for _, value in committed(cluster, "copied", 1)] == lines
