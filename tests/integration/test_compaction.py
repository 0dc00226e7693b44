"""Topics that are compacted, on three broker processes: each replica by itself, with failovers and kills meanwhile."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import InvalidRecordError

from kreplog import Log
from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters
from tests.integration.clusters import WITHIN_S, admin_of, eventually, kill, wait_for_topic

SETTINGS = (
    *clusters.FAST,
    *('"log.cleaner.backoff.ms" = 20', '"log.segment.bytes" = 4000', '"log.cleaner.min.cleanable.ratio" = 0.01'),
    *('"offsets.topic.segment.bytes" = 4000', '"offsets.topic.num.partitions" = 2'),
    '"group.initial.rebalance.delay.ms" = 0',
)
POLICY = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("cluster"), SETTINGS) as made:
        yield made


def create(cluster: LocalCluster, name: str, settings: dict[str, str]) -> TopicPartition:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 3, "configs": settings}})
    wait_for_topic(cluster, name)
    return TopicPartition(name, 0)


def produce(cluster: LocalCluster, topic: str, rounds: range) -> dict[bytes, bytes]:
    """Every key once a round; the newest value of each."""
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap().split(","), acks="all", enable_idempotence=True, batch_size=500
    )
    sent = []
    for number in rounds:
        for key in range(KEYS):
            value = b"%d of %d " % (number, key) * 5
            sent.append((b"%d" % key, value, producer.send(topic, value, b"%d" % key, partition=0)))
    producer.flush(WITHIN_S)
    assert all(future.get(WITHIN_S) for *_, future in sent)
    producer.close()
    return {key: value for key, value, _ in sent}


def read(cluster: LocalCluster, partition: TopicPartition) -> list[tuple[int, bytes, bytes]]:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap().split(","), auto_offset_reset="earliest")
    consumer.assign([partition])
    (end,) = consumer.end_offsets([partition]).values()
    found: list[tuple[int, bytes, bytes]] = []

    def done() -> bool:
        for records in consumer.poll(100).values():
            found.extend((record.offset, record.key, record.value) for record in records)
        return bool(consumer.position(partition) == end)

    eventually(done, f"the records of {partition} up to {end} do not come")
    consumer.close()
    return found


def folders(cluster: LocalCluster, partition: TopicPartition) -> list[Path]:
    return [cluster.home(broker) / "data" / f"{partition.topic}-{partition.partition}" for broker in cluster.brokers]


def records_of(folder: Path) -> list[tuple[bytes | None, bytes | None]]:
    with Log.open(folder, read_only=True) as log:
        return [(record.key, record.value) for record in log.read()]


def wait_for_content(folder: Path, newest: dict[bytes, bytes]) -> None:
    """Until a replica has these values, committed: a follower learns of the high watermark with its next fetch."""
    eventually(lambda: dict(records_of(folder)) == newest, lambda: f"{folder}: {records_of(folder)[-3:]}")


def wait_until_compacted(cluster: LocalCluster, partition: TopicPartition, produced: int) -> None:
    """Until every replica has far fewer records than were produced."""
    eventually(
        lambda: all(len(records_of(folder)) < produced / 2 for folder in folders(cluster, partition)),
        lambda: f"of {produced} records: {[len(records_of(folder)) for folder in folders(cluster, partition)]}",
    )


def test_leaders_and_followers_compact(cluster: LocalCluster) -> None:
    partition = create(cluster, "compacted", POLICY)
    newest = produce(cluster, "compacted", range(50))
    wait_until_compacted(cluster, partition, 50 * KEYS)
    found = read(cluster, partition)
    assert {key: value for _, key, value in found} == newest
    assert [offset for offset, *_ in found] == sorted(offset for offset, *_ in found)
    for folder in folders(cluster, partition):
        wait_for_content(folder, newest)
        checkpoint = (folder.parent / "cleaner-offset-checkpoint").read_text().splitlines()
        assert any(line.startswith("compacted 0 ") and int(line.split()[2]) > 0 for line in checkpoint)


def test_a_follower_without_its_log_catches_up_through_gaps(cluster: LocalCluster) -> None:
    """Also once the policy has no compact any more: what is missing stays so."""
    partition = create(cluster, "refetched", POLICY)
    newest = produce(cluster, "refetched", range(50))
    wait_until_compacted(cluster, partition, 50 * KEYS)
    alter(cluster, "refetched", {"cleanup.policy": "delete"})
    follower = follower_of(cluster, partition)
    kill(cluster, follower)
    shutil.rmtree(cluster.home(follower) / "data" / "refetched-0")
    newest |= produce(cluster, "refetched", range(50, 52))
    cluster.start([follower])
    wait_for_isr(cluster, partition)
    folder = cluster.home(follower) / "data" / "refetched-0"
    wait_for_content(folder, newest)
    assert len(records_of(folder)) < 26 * KEYS


def test_records_without_a_key_are_refused(cluster: LocalCluster) -> None:
    create(cluster, "keyed", POLICY)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all", enable_idempotence=False)
    with pytest.raises(InvalidRecordError, match="without a key"):
        producer.send("keyed", b"value").get(WITHIN_S)
    assert producer.send("keyed", b"value", b"key").get(WITHIN_S).offset == 0
    producer.close()


def alter(cluster: LocalCluster, topic: str, settings: dict[str, str]) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.alter_configs([ConfigResource("TOPIC", topic, settings)])


def state(cluster: LocalCluster, partition: TopicPartition) -> Any:
    with admin_of(cluster.bootstrap()) as admin:
        (topic,) = admin.describe_topics([partition.topic])
    return topic["partitions"][partition.partition]


def follower_of(cluster: LocalCluster, partition: TopicPartition) -> int:
    described = state(cluster, partition)
    return next(int(broker) for broker in described["replica_nodes"] if broker != described["leader_id"])


def wait_for_isr(cluster: LocalCluster, partition: TopicPartition) -> None:
    eventually(lambda: len(state(cluster, partition)["isr_nodes"]) == 3, "a replica does not join the ISR")


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.long)])
def test_brokers_killed_while_they_compact_lose_no_newest_record(cluster: LocalCluster, rounds: int) -> None:
    """Each round kills one broker at a random moment under load: leader and follower take turns, and compact on."""
    topic = f"killed-{rounds}"
    partition = create(cluster, topic, POLICY)
    rnd, newest, number = random.Random(rounds), produce(cluster, topic, range(10)), 10
    for _ in range(rounds):
        described = state(cluster, partition)
        victim = described["leader_id"] if rnd.random() < 0.5 else follower_of(cluster, partition)
        killer = threading.Timer(rnd.uniform(0, 1), kill, (cluster, victim))
        killer.start()
        newest |= produce(cluster, topic, range(number, number + 20))
        number += 20
        killer.join()
        cluster.start([victim])
        wait_for_isr(cluster, partition)
    found = read(cluster, partition)
    assert {key: value for _, key, value in found} == newest
    for folder in folders(cluster, partition):
        wait_for_content(folder, newest)
        with Log.open(folder, read_only=True) as log:
            assert not log.verify().damages
    wait_until_compacted(cluster, partition, number * KEYS)


def test_committed_offsets_are_compacted(cluster: LocalCluster) -> None:
    partition = create(cluster, "consumed", {})
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap().split(","), group_id="often", enable_auto_commit=False
    )
    consumer.assign([partition])
    for offset in range(200):
        consumer.commit({partition: OffsetAndMetadata(offset, "text " * 10, -1)})
    consumer.close()
    with admin_of(cluster.bootstrap()) as admin:
        resource = ConfigResource("TOPIC", "__consumer_offsets")
        (described,) = admin.describe_configs([resource], config_filter="all")["topic"].values()
    assert described["cleanup.policy"]["value"] == "compact"
    logs = [folder for broker in cluster.brokers for folder in cluster.home(broker).glob("data/__consumer_offsets-*")]
    sizes = {folder: len(records_of(folder)) for folder in logs}

    def compacted() -> bool:
        written = [folder for folder in logs if log_end(folder) > 100]
        return len(written) == 3 and all(len(records_of(folder)) < 80 for folder in written)

    eventually(compacted, lambda: f"of the first {sizes}, these are left: { {f: len(records_of(f)) for f in logs} }")
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap().split(","), group_id="often")
    assert consumer.committed(partition) == 199
    consumer.close()


def log_end(folder: Path) -> int:
    with Log.open(folder, read_only=True) as log:
        return log.log_end_offset
