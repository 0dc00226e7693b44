"""Coordinators of groups are killed while consumers commit: no acknowledged offset is lost or goes back."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.structs import OffsetAndMetadata

from kreplog.client.broker_client import BrokerClient
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.connecting import admin_client
from kreplog.wire.versions import ApiKey
from tests.client_libraries.polling import Polled
from tests.integration.clusters import FAST, WITHIN_S, admin_of, eventually, kill, running, wait_for_topic

ROUNDS = 4
SETTINGS = (*FAST, '"offsets.topic.num.partitions" = 4', '"group.initial.rebalance.delay.ms" = 0')
QUICK = {"retry_backoff_ms": 20, "reconnect_backoff_ms": 20, "metadata_max_age_ms": 1000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("groups"), SETTINGS) as made:
        yield made


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 3}}, wait_for_metadata=True)
    wait_for_topic(cluster, topic, partitions)


def coordinator_of(cluster: LocalCluster, group: str) -> int:
    """The broker that coordinates the group, by what the brokers say."""

    async def found(_: int, client: BrokerClient) -> int:
        response = await client.request(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=[group], key_type=0)
        return int(response.coordinators[0].node_id)

    with admin_client(cluster.directory, None) as admin:

        def agreed() -> int:
            admin.metadata([])
            answers = set(admin.request_each(admin.live, found).values())
            return answers.pop() + 1 if len(answers) == 1 and answers != {-1} else 0

        eventually(agreed, f"no coordinator of {group}")
        return agreed() - 1


def members_of(cluster: LocalCluster, group: str) -> list[str]:
    """The ids of its members; none while a broker that has just started refuses kafka-python, which does not retry."""
    try:
        with admin_of(cluster.bootstrap()) as admin:
            described = admin.describe_groups([group])[group]
    except KafkaConnectionError:
        return []
    return sorted(member["member_id"] for member in described["members"])


def committed_offset(consumer: Any, partition: Any) -> int:
    """The committed offset, -1 for none; kafka-python gives up if it looks for the coordinator at a killed broker."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            found = consumer.committed(partition, timeout_ms=WITHIN_S * 1000)
            return -1 if found is None else int(found)
        except KafkaConnectionError:
            if time.monotonic() > deadline:
                raise


def test_commits_survive_the_coordinator(cluster: LocalCluster) -> None:
    create(cluster, "committed", 1)
    here = kafka.TopicPartition("committed", 0)
    bootstrap = cluster.bootstrap().split(",")

    def consumer_of() -> Any:
        made = kafka.KafkaConsumer(group_id="simple", bootstrap_servers=bootstrap, enable_auto_commit=False, **QUICK)
        made.assign([here])
        return made

    writer, reader = consumer_of(), consumer_of()
    acknowledged, offset = 0, 0
    for _ in range(ROUNDS):
        victim = coordinator_of(cluster, "simple")
        killing = threading.Timer(0.05, kill, (cluster, victim))
        killing.start()
        ends = None
        while ends is None or time.monotonic() < ends:
            offset += 1
            try:
                writer.commit({here: OffsetAndMetadata(offset, "", -1)}, WITHIN_S * 1000)
            except KafkaError:
                continue  # it may have been committed all the same
            acknowledged = offset
            assert acknowledged <= committed_offset(reader, here) <= offset
            if ends is None and not killing.is_alive():
                ends = time.monotonic() + 0.5
        killing.join()
        assert coordinator_of(cluster, "simple") != victim
        cluster.start()
    for consumer in (writer, reader):
        consumer.close()
    assert acknowledged > 50


def test_members_stay_through_a_failover(cluster: LocalCluster) -> None:
    """The group is loaded with its members and their assignments: they go on in the same generation."""
    create(cluster, "shared", 4)
    bootstrap = cluster.bootstrap().split(",")
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(
                Polled(
                    kafka.KafkaConsumer(
                        "shared", group_id="members", bootstrap_servers=bootstrap, auto_offset_reset="earliest", **QUICK
                    )
                )
            )
            for _ in range(2)
        ]
        _fail_over_beneath(cluster, consumers)


def _fail_over_beneath(cluster: LocalCluster, consumers: Sequence[Polled]) -> None:
    bootstrap = cluster.bootstrap().split(",")

    def shared() -> bool:
        return sorted(len(consumer.assignment) for consumer in consumers) == [2, 2]

    eventually(shared, "the partitions are not shared")
    assignments = [consumer.assignment for consumer in consumers]
    eventually(lambda: len(members_of(cluster, "members")) == 2, "the group is not described with both members")
    members = members_of(cluster, "members")
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=False, **QUICK)
    producer.send("shared", b"first", partition=0).get(WITHIN_S)
    kill(cluster, coordinator_of(cluster, "members"))
    sent = [b"first", *(b"%d" % number for number in range(40))]
    for number, value in enumerate(sent[1:]):
        producer.send("shared", value, partition=number % 4)
    producer.flush(WITHIN_S)

    def found() -> list[bytes]:
        return [value for consumer in consumers for value in consumer.values]

    eventually(lambda: len(found()) >= len(sent), lambda: f"{len(found())} of {len(sent)} came")
    assert sorted(found()) == sorted(sent), "none came twice"
    assert [consumer.assignment for consumer in consumers] == assignments
    cluster.start()
    eventually(lambda: members_of(cluster, "members") == members, "the members are others")
    producer.close()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat: apt-get install kcat")
def test_kcat_consumes_as_a_group(cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "kcat", 2)
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","))
    for number in range(10):
        producer.send("kcat", b"%d" % number, partition=number % 2)
    producer.close()
    command = ["kcat", "-b", cluster.bootstrap(), "-G", "cats", "-q", "-c", "10", "kcat"]
    settings = ["-X", "auto.offset.reset=earliest"]
    ended = subprocess.run([*command[:4], "cats", *settings, *command[5:]], capture_output=True, timeout=WITHIN_S)
    assert sorted(map(int, ended.stdout.split())) == list(range(10)), ended.stderr
    with admin_of(cluster.bootstrap()) as admin:
        offsets = admin.list_group_offsets({"cats": None})["cats"]
    assert {partition.partition: value.offset for partition, value in offsets.items()} == {0: 5, 1: 5}
