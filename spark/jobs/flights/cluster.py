"""Three broker processes and a Kafka client: the leader is killed half-way, others lead on, and it comes back."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.progress import Progress

import kreplog
from flights.source import PARTITIONS, TOPIC, DemoError, Event, check, compare_records, events
from flights.telling import records_bar
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file

BROKERS = (0, 1, 2)
SETTINGS = ('"min.insync.replicas" = 2',)
PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 20,
}
QUIET: dict[str, Any] = {"log_level": 2}
"""librdkafka tells standard error of every connection that breaks, and here one is broken on purpose."""

POLL_S = 0.02
WITHIN_S = 60
SERVED_EVERY = 100


@contextmanager
def running_brokers(directory: Path) -> Iterator[LocalCluster]:
    """Three brokers that serve, on ports that are free. Whatever ends the block, none of them outlives it."""
    cluster = LocalCluster.create(directory, BROKERS, 0, SETTINGS)
    try:
        cluster.start()
        yield cluster
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # one Ctrl-C is enough, a second would leave brokers
        for broker in BROKERS:
            if read_pid_file(cluster.home(broker))[0]:
                kill(cluster, broker)
        signal.signal(signal.SIGINT, before)


def kill(cluster: LocalCluster, broker: int) -> float:
    """SIGKILL. Returns the time of it."""
    pid, _, _ = read_pid_file(cluster.home(broker))
    check(pid > 1, f"broker {broker} does not run: see {cluster.home(broker)}/logs")
    os.kill(pid, signal.SIGKILL)
    killed_at = time.perf_counter()
    cluster.wait_until_gone(broker)
    return killed_at


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
    """Its leader and in-sync replicas, in the metadata of clients."""

    leader: int
    isr: tuple[int, ...]


def partitions(cluster: LocalCluster) -> list[Partition]:
    found = _admin(cluster).list_topics(TOPIC, WITHIN_S).topics[TOPIC].partitions
    return [Partition(found[number].leader, tuple(sorted(found[number].isrs))) for number in sorted(found)]


def _admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap(), **QUIET})


class Stream:
    """A Kafka producer of events. sent, acknowledged: how many are; a bar shows the latter.

    After `killed` it also knows how long each partition waited for a new leader: nobody else acknowledges what is sent
    after the kill."""

    def __init__(self, cluster: LocalCluster, total: int, bar: Progress) -> None:
        self.sent = 0
        self.acknowledged = 0
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap(), **PRODUCER, **QUIET})
        self._started = time.perf_counter()
        self._bar = bar
        self._task = bar.add_task("", total=total, rate=0.0)
        self._killed_at = 0.0
        self._waits: dict[int, float] = {}
        self._on_delivery = self._delivered

    def send(self, events: Iterable[Event]) -> None:
        for event in events:
            while not self._taken(event):
                self._serve(POLL_S)
            self.sent += 1
            if self.sent % SERVED_EVERY == 0:
                self._serve(0)

    def _taken(self, event: Event) -> bool:
        """Whether the producer has room for it."""
        try:
            self._producer.produce(
                TOPIC, event.value, event.key, timestamp=event.timestamp_ms, on_delivery=self._on_delivery
            )
        except BufferError:
            return False
        return True

    def _serve(self, wait_s: float) -> None:
        self._producer.poll(wait_s)
        self._bar.update(self._task, completed=self.acknowledged, rate=self.rate)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        check(error is None, f"a record of {TOPIC}-{partition} was not taken: {error}")
        self.acknowledged += 1

    def _delivered_after_kill(self, error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        self._waits.setdefault(message.partition() or 0, time.perf_counter() - self._killed_at)

    def killed(self, at: float) -> None:
        self._killed_at = at
        self._on_delivery = self._delivered_after_kill

    def wait_for(self, count: int) -> None:
        """Until so many are acknowledged."""
        deadline = time.monotonic() + WITHIN_S
        while self.acknowledged < count:
            check(time.monotonic() < deadline, f"{self.acknowledged:,} of {count:,} records are acknowledged, no more")
            self._serve(POLL_S)

    @property
    def rate(self) -> float:
        return self.acknowledged / (time.perf_counter() - self._started)

    def failover_s(self, led: Iterable[int]) -> float:
        """From the kill to the first record that a new leader acknowledged, of the partition that waited longest.

        led: the partitions whose leader was killed."""
        return max(self._waits.get(partition, 0.0) for partition in led)


def stream_and_kill(cluster: LocalCluster, flights: pd.DataFrame, console: Console) -> tuple[int, list[str]]:
    """Produce all flights; half-way, kill the leader of the first partition. Returns that, and what was seen."""
    total, source = len(flights), events(flights)
    with records_bar(console) as bar:
        stream = Stream(cluster, total, bar)
        stream.send(islice(source, total // 2))
        stream.wait_for(total // 4)
        before = partitions(cluster)
        victim = before[0].leader
        led = [number for number, state in enumerate(before) if state.leader == victim]
        known = stream.acknowledged
        stream.killed(kill(cluster, victim))
        stream.send(source)
        stream.wait_for(total)
    survivors = tuple(broker for broker in BROKERS if broker != victim)
    _wait_until(
        lambda: all(partition.leader != victim and partition.isr == survivors for partition in partitions(cluster)),
        f"the metadata of clients still names broker {victim}, which is gone",
    )
    return victim, [
        f"broker {victim}, leader of {_named(led)}, was killed after {known:,} acknowledged records, "
        f"{total // 2 - known:,} more on their way",
        f"{stream.failover_s(led) * 1000:.0f} ms after the kill new leaders had acknowledged records sent after it",
        *(
            f"{TOPIC}-{number}: led by {state.leader}, in sync {_listed(state.isr)}"
            for number, state in enumerate(partitions(cluster))
        ),
        f"all {total:,} records are acknowledged, {stream.rate:,.0f}/s with the kill",
    ]


def consume_and_compare(cluster: LocalCluster, flights: pd.DataFrame) -> list[str]:
    """Hold what a Kafka client gets from the brokers against the source."""
    with ExitStack() as stack:
        compare_records([_consumed(cluster, number, stack) for number in range(PARTITIONS)], flights)
    return [f"a consumer gets {len(flights):,} records: none lost, none twice, in order in each partition"]


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
        time.sleep(POLL_S)


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _named(numbers: Iterable[int]) -> str:
    return " and ".join(f"{TOPIC}-{number}" for number in numbers)
