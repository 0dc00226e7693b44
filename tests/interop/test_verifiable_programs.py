"""Kafka's verifiable producer and consumers, and its transactional copier, as its system tests use them, unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import FAST, admin_of, eventually, running
from tests.interop.jvm import Kafka
from tests.interop.test_frameworks import committed

pytestmark = pytest.mark.interop

PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COUNT = 300
PARTITIONS = 4
WITHIN_S = 90


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (
        *(*FAST, '"offsets.topic.num.partitions" = 3', '"transaction.state.log.num.partitions" = 3'),
        '"group.initial.rebalance.delay.ms" = 0',
        '"group.consumer.min.heartbeat.interval.ms" = 200',
        '"group.consumer.heartbeat.interval.ms" = 200',
    )
    with running(tmp_path_factory.mktemp("cluster"), settings) as made:
        yield made


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]


def produce(newest: Kafka, cluster: LocalCluster, topic: str, prefix: int) -> list[str]:
    """The values of COUNT records that were acknowledged, into a topic that need not exist before."""
    output = newest.run(
        PRODUCER,
        *("--bootstrap-server", cluster.bootstrap(), "--topic", topic, "--max-messages", str(COUNT)),
        *("--acks", "-1", "--throughput", "1000", "--value-prefix", str(prefix)),
    )
    found = events(output)
    assert [event for event in found if event["name"] == "producer_send_error"] == []
    acknowledged = [event["value"] for event in found if event["name"] == "producer_send_success"]
    assert acknowledged == [f"{prefix}.{number}" for number in range(COUNT)]
    return acknowledged


def create(cluster: LocalCluster, *topics: str) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        wanted = {topic: {"num_partitions": PARTITIONS, "replication_factor": 3} for topic in topics}
        admin.create_topics(wanted, wait_for_metadata=True)


class VerifiableConsumer:
    """A member that reads, and commits what it has read, until it is ended."""

    def __init__(self, newest: Kafka, cluster: LocalCluster, topic: str, protocol: str, log: Path) -> None:
        self._log = log
        self.process: Popen[bytes] = newest.start(
            CONSUMER,
            *("--bootstrap-server", cluster.bootstrap(), "--topic", topic, "--group-id", f"of-{topic}"),
            *("--group-protocol", protocol, "--verbose"),
            log=log,
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in events(self._log.read_text(errors="replace")) if event["name"] == name]

    def assigned(self) -> set[int]:
        """The partitions that it has; an incremental assignment, and a revocation, name those that change."""
        found: set[int] = set()
        for event in events(self._log.read_text(errors="replace")):
            numbers = {partition["partition"] for partition in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                found |= numbers
            elif event["name"] == "partitions_revoked":
                found -= numbers
        return found

    def values(self) -> list[str]:
        return [event["value"] for event in self.events("record_data")]

    def errors(self) -> list[dict[str, Any]]:
        return [event for event in self.events("offsets_committed") if not event["success"]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_share_the_partitions_and_one_takes_over(
    protocol: str, newest: Kafka, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = f"verified-{protocol}"
    create(cluster, topic)
    sent = produce(newest, cluster, topic, 1)
    members = [VerifiableConsumer(newest, cluster, topic, protocol, tmp_path / f"{number}.log") for number in range(2)]
    try:

        def progress() -> str:
            return "; ".join(f"{len(member.values())} records of {member.assigned()}" for member in members)

        eventually(lambda: [len(member.assigned()) for member in members] == [2, 2], progress, WITHIN_S)
        sent += produce(newest, cluster, topic, 2)
        eventually(lambda: sum(len(member.values()) for member in members) >= len(sent), progress, WITHIN_S)
        members[0].process.terminate()
        assert members[0].process.wait(WITHIN_S) is not None
        assert members[0].events("shutdown_complete")
        eventually(lambda: len(members[1].assigned()) == PARTITIONS, progress, WITHIN_S)
        sent += produce(newest, cluster, topic, 3)
        eventually(lambda: sum(len(member.values()) for member in members) >= len(sent), progress, WITHIN_S)
    finally:
        for member in members:
            member.process.terminate()
        for member in members:
            member.process.wait(WITHIN_S)
    assert sorted(value for member in members for value in member.values()) == sorted(sent)
    assert [member.errors() for member in members] == [[], []]


def test_a_copier_that_aborts_at_random_copies_each_record_once(newest: Kafka, cluster: LocalCluster) -> None:
    create(cluster, "copied-from", "copied-to")
    sent = produce(newest, cluster, "copied-from", 1)
    output = newest.run(
        COPIER,
        *("--broker-list", cluster.bootstrap(), "--input-topic", "copied-from", "--input-partition", "-1"),
        *("--output-topic", "copied-to", "--consumer-group", "copiers", "--transactional-id", "copier"),
        *("--transaction-size", "20", "--enable-random-aborts", "--group-mode", "--use-group-metadata"),
    )
    last = events(output)[-1]
    assert int(last["remaining"]) == 0, output
    assert sorted(value for _, value in committed(cluster, "copied-to", PARTITIONS)) == sorted(sent)
