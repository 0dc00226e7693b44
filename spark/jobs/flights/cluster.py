"""Three broker processes: one is killed and comes back; their replicas, and what a client gets from them."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import kreplog
from flights.source import PARTITIONS, TOPIC, DemoError, Event, check, compare_records
from kreplog.cluster.deferred_signals import deferred_signals
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file

BROKERS = (0, 1, 2)
SETTINGS = ('"min.insync.replicas" = 2',)
QUIET: dict[str, Any] = {"log_level": 2}
"""librdkafka reports every broken connection on stderr, and here a broker is killed on purpose."""

POLL_S = 0.02
WITHIN_S = 60


@contextmanager
def running_brokers(directory: Path) -> Iterator[LocalCluster]:
    """Three brokers that serve, on ports that are free. Whatever ends the block, none of them outlives it."""
    cluster = LocalCluster.create(directory, BROKERS, 0, SETTINGS)
    try:
        cluster.start()
        yield cluster
    finally:
        with deferred_signals():  # a second Ctrl-C would leave brokers
            for broker in BROKERS:
                if read_pid_file(cluster.home(broker))[0]:
                    kill(cluster, broker)


def kill(cluster: LocalCluster, broker: int) -> None:
    """SIGKILL; returns when the process is gone."""
    pid, _, _ = read_pid_file(cluster.home(broker))
    check(pid > 1, f"broker {broker} does not run: see {cluster.home(broker)}/logs")
    os.kill(pid, signal.SIGKILL)
    cluster.wait_until_gone(broker)


def make_topic(cluster: LocalCluster) -> list[str]:
    topic = NewTopic(TOPIC, PARTITIONS, len(BROKERS))
    admin = _admin(cluster)
    for future in admin.create_topics([topic]).values():
        future.result(WITHIN_S)
    controller = next((status.id for status in cluster.status() if status.controller), None)
    return [
        f"brokers {_listed(BROKERS)} serve, {controller} is the controller",
        f"topic {TOPIC}: {PARTITIONS} partitions, {len(BROKERS)} replicas of each; 2 must be in sync for acks=all",
    ]


class Partition(NamedTuple):
    """A partition's leader and in-sync replicas, in the metadata of clients."""

    leader: int
    isr: tuple[int, ...]


def partitions(cluster: LocalCluster) -> list[Partition]:
    found = _admin(cluster).list_topics(TOPIC, WITHIN_S).topics[TOPIC].partitions
    return [Partition(found[number].leader, tuple(sorted(found[number].isrs))) for number in sorted(found)]


def _admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap(), **QUIET})


def kill_leader(cluster: LocalCluster) -> tuple[int, str]:
    """SIGKILL to the leader of the first partition. Returns its id, and a sentence of it."""
    leaders = [partition.leader for partition in partitions(cluster)]
    led = [number for number, leader in enumerate(leaders) if leader == leaders[0]]
    kill(cluster, leaders[0])
    return leaders[0], f"broker {leaders[0]}, leader of {_named(led)}, was killed"


def wait_for_failover(cluster: LocalCluster, victim: int) -> None:
    """Wait until the survivors lead all partitions and are in sync."""
    survivors = tuple(broker for broker in BROKERS if broker != victim)
    _wait_until(
        lambda: all(partition.leader != victim and partition.isr == survivors for partition in partitions(cluster)),
        f"the metadata of clients still names broker {victim}, which is gone",
    )


def consume_and_compare(cluster: LocalCluster, sent: Iterable[Event]) -> None:
    """Compare the records that a Kafka client gets from the brokers with the events sent."""
    with ExitStack() as stack:
        compare_records([_consumed(cluster, number, stack) for number in range(PARTITIONS)], sent)


def _consumed(cluster: LocalCluster, partition: int, stack: ExitStack) -> Iterator[kreplog.Record]:
    """Up to what is the partition's end when it gets there."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap(),
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 4096,
            **QUIET,
        }
    )
    stack.callback(consumer.close)
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
    while True:
        found = consumer.poll(WITHIN_S)
        if found is None:
            raise DemoError(f"{TOPIC}-{partition}: the brokers send no more")
        error = found.error()
        if error is not None:
            check(error.code() == KafkaError._PARTITION_EOF, f"{TOPIC}-{partition}: {error}")
            return
        yield kreplog.Record(found.offset() or 0, found.timestamp()[1], found.key(), found.value())


def restart(cluster: LocalCluster, broker: int, total: int) -> list[str]:
    """Start it again; it must catch up and be in sync everywhere, and its readers see all records."""
    started = time.perf_counter()
    cluster.start([broker])
    up_s = time.perf_counter() - started
    _wait_until(
        lambda: all(partition.isr == BROKERS for partition in partitions(cluster)),
        f"broker {broker} does not join the ISR",
    )
    joined_s = time.perf_counter() - started
    _wait_until(lambda: _committed(cluster, broker) == total, f"broker {broker} does not know what is committed")
    return [
        f"broker {broker} is up in {up_s:.1f} s, and {joined_s:.1f} s after its start in sync on all partitions again"
    ]


def _committed(cluster: LocalCluster, broker: int) -> int:
    """The records of the topic that readers of this broker's files see."""
    watermarks = []
    for path in replica_paths(cluster, broker):
        with kreplog.Log.open(path, read_only=True) as log:
            watermarks.append(log.high_watermark)
    return sum(watermarks)


def compare_replicas(cluster: LocalCluster, brokers: Sequence[int]) -> list[str]:
    """All record batches of each partition must be the same on each of these brokers, byte for byte."""
    size = 0
    for paths in zip(*(replica_paths(cluster, broker) for broker in brokers), strict=True):
        (digest, length), *others = map(_digest, paths)
        check(
            all(other == (digest, length) for other in others),
            f"{paths[0].name} differs between brokers {_listed(brokers)}",
        )
        size += length
    return [f"the replicas of brokers {_listed(brokers)} are byte-identical: {size:,} bytes of record batches each"]


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with kreplog.Log.open(path, read_only=True) as log:
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            fetched = log.fetch(offset, isolation="log_end")
            digest.update(fetched.data)
            size += len(fetched.data)
            offset = fetched.next_offset
    return digest.hexdigest(), size


def data_directory(cluster: LocalCluster, broker: int) -> Path:
    return cluster.home(broker) / "data"


def replica_paths(cluster: LocalCluster, broker: int) -> list[Path]:
    return [data_directory(cluster, broker) / f"{TOPIC}-{number}" for number in range(PARTITIONS)]


def _wait_until(true: Callable[[], bool], failed: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not true():
        check(time.monotonic() < deadline, failed)
        time.sleep(POLL_S)  # the protocol has no notification of leaders and replicas


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _named(numbers: Iterable[int]) -> str:
    return " and ".join(f"{TOPIC}-{number}" for number in numbers)
