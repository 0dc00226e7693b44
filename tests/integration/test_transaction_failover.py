"""Coordinators and leaders are killed while a producer commits: transactions stay atomic over partitions."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kreplog.client import Consumer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition
from tests.integration.clusters import FAST, WITHIN_S, admin_of, eventually, kill, running, wait_for_topic

confluent: Any = pytest.importorskip("confluent_kafka")

PARTITIONS = 3
TOPIC = "transfers"
SETTINGS = (*FAST, '"transaction.state.log.num.partitions" = 3')


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("transactions"), SETTINGS) as made:
        yield made


def read_committed(cluster: LocalCluster) -> dict[int, list[tuple[str, int]]]:
    """(outcome wanted, transaction) of the records of each partition that a reader of committed ones sees."""
    found = {}
    with Consumer(cluster.bootstrap(), isolation_level="read_committed") as consumer:
        for partition in range(PARTITIONS):
            at = TopicPartition(TOPIC, partition)
            end = consumer.end_offsets([at])[at]
            values = [v for piece in consumer.read_arrow({at: (0, end)}) for v in piece.to_arrow()["value"].to_pylist()]
            found[partition] = [(value.decode().split()[0], int(value.decode().split()[1])) for value in values]
    return found


def _commits(outcomes: dict[int, str]) -> int:
    return sum(outcome == "commit" for outcome in outcomes.values())


def test_transactions_survive_their_coordinator_and_leaders(cluster: LocalCluster) -> None:
    """One after the other each broker is killed, and returns. A commit whose outcome the producer knows is seen in each
    partition, an abort in none, and one whose outcome it does not know in all or in none; nothing is seen twice."""
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({TOPIC: {"num_partitions": PARTITIONS, "replication_factor": 3}}, wait_for_metadata=True)
    wait_for_topic(cluster, TOPIC, PARTITIONS)
    settings = {"bootstrap.servers": cluster.bootstrap(), "transactional.id": "transfers", "retry.backoff.ms": 20}
    producer = confluent.Producer(settings)
    producer.init_transactions(WITHIN_S)
    numbers = itertools.count()
    outcomes: dict[int, str] = {}
    for turn, victim in enumerate(cluster.brokers, 1):
        latest = time.monotonic() + 60
        killing = threading.Timer(0.1, kill, (cluster, victim))
        killing.start()
        ends: float | None = None
        while ends is None or (
            (time.monotonic() < ends or _commits(outcomes) <= 10 * turn) and time.monotonic() < latest
        ):
            number = next(numbers)
            wanted = "commit" if number % 3 else "abort"
            try:
                producer.begin_transaction()
                for partition in range(PARTITIONS):
                    producer.produce(TOPIC, f"{wanted} {number}", partition=partition)
                if wanted == "commit":
                    producer.commit_transaction(WITHIN_S)
                else:
                    producer.flush(WITHIN_S)
                    producer.abort_transaction(WITHIN_S)
                outcomes[number] = wanted
            except confluent.KafkaException as error:
                outcomes[number] = "unknown"
                if error.args[0].txn_requires_abort():
                    producer.abort_transaction(WITHIN_S)
                    outcomes[number] = "abort"
                else:
                    producer = confluent.Producer(settings)
                    producer.init_transactions(WITHIN_S)
            if ends is None and not killing.is_alive():
                ends = time.monotonic() + 0.5
        killing.join()
        cluster.start()
    committed = {number for number, outcome in outcomes.items() if outcome == "commit"}
    eventually(lambda: committed <= {number for _, number in read_committed(cluster)[0]}, "commits are not seen")
    time_out = time.monotonic() + WITHIN_S
    found = read_committed(cluster)
    while len({tuple(sorted(seen)) for seen in found.values()}) > 1 and time.monotonic() < time_out:
        found = read_committed(cluster)  # markers of the last transactions are being written
    for seen in found.values():
        numbers_seen = [number for _, number in seen]
        assert len(set(numbers_seen)) == len(numbers_seen), "a record is seen twice"
        assert committed <= set(numbers_seen)
        assert {outcomes[number] for number in numbers_seen} <= {"commit", "unknown"}
    assert len({tuple(sorted(seen)) for seen in found.values()}) == 1
    assert len(committed) > 30
