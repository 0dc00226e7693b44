"""Three brokers of ours beside three of a real Apache Kafka: the same clients, the same records, in turns.

    python -m benchmarks.bench_cluster [--repetitions N] [--quick] [--idle-partitions N] [--directory DIR] [--out FILE]
                                       [--only PART]... [--against CHECKOUT]

In each repetition either cluster lives one life, alone on the machine: started, idle, loaded, read, queried for its
latency, its leader killed, a follower left behind and brought back, stopped. Numbers are medians over the repetitions;
a ratio is that of kreplog's number to Kafka's in the same repetition, so what is good is more than 1 for rates and less
than 1 for times and memory. Needs Java 17 or newer and Maven, which gets Kafka. What was sent is counted when read.
--against: in place of Kafka another checkout of kreplog with its extensions built, as the commit before a change.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks import clusters
from benchmarks.clusters import QUIET, CheckoutCluster, Cluster, KafkaCluster, KreplogCluster
from benchmarks.data import Pool
from kreplog import Log
from tests.interop.jvm import PRODUCER_PERF, Kafka, Unavailable

PARTITIONS = 6
ANSWER_S = 120.0
SETTLE_S = 3.0
GOES_ON_S = 2.0
GO_ON_WITH = 20
"""Records after a failover; the first may still be what was acknowledged before it."""
IDLE_S = 10.0
COPIES = 3
OURS, THEIRS = KreplogCluster.name, KafkaCluster.name
PROBE_S = 0.001
"""Pause of the quiet client after each response."""
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work. `paced`: records whose latency is taken, at 500 a second."""

    small: int = 1_000_000
    large: int = 200_000
    paced: int = 2500
    kills: int = 3
    behind: int = 500_000
    idle_partitions: int = 1000


QUICK = Scale(small=5000, large=2000, paced=200, kills=1, behind=2000, idle_partitions=20)


@dataclass(frozen=True, slots=True)
class Measure:
    """One row. better: "more" or "less". must: the ratio to Kafka's number that it is to reach."""

    name: str
    title: str
    unit: str
    better: str
    must: float | None = None


MEASURES = (
    Measure("start", "from start to a cluster that accepts writes", "s", "less", 0.2),
    Measure("idle_mb", "resident memory of a broker, idle", "MiB", "less", 0.2),
    Measure("all_small", "produce acks=all, 100 B", "rec/s", "more", 1.0),
    Measure("all_large", "produce acks=all, 1 KiB", "rec/s", "more", 1.0),
    Measure("one_small", "produce acks=1, 100 B", "rec/s", "more", 1.0),
    Measure("one_large", "produce acks=1, 1 KiB", "rec/s", "more", 1.0),
    Measure("java_all_small", "produce acks=all, 100 B, Kafka's ProducerPerformance", "rec/s", "more", 1.0),
    Measure("consume_small", "consume, 100 B", "rec/s", "more", 1.5),
    Measure("consume_large", "consume, 1 KiB", "rec/s", "more", 1.5),
    Measure("cpu_us", "CPU of all brokers per record produced and consumed", "µs", "less"),
    Measure("loaded_mb", "resident memory of a broker, under load", "MiB", "less", 0.2),
    Measure("p50_ms", "produce acks=all at 500 records/s, p50", "ms", "less", 0.5),
    Measure("p99_ms", "produce acks=all at 500 records/s, p99", "ms", "less", 0.5),
    Measure("failover_ms", "kill -9 of a leader until a waiting producer goes on, median", "ms", "less", 0.1),
    Measure("catch_up", "a follower's catching up, against reading, checking and writing alone", "", "more"),
    Measure("catch_up_cpu", "CPU of a follower that catches up", "s/GiB", "less"),
    Measure("quiet_p99_ms", "a quiet client of a follower that catches up, p99", "ms", "less"),
    Measure("quiet_max_ms", "its longest wait", "ms", "less"),
    Measure("leader_p99_ms", "a quiet client of the leader that a follower catches up with, p99", "ms", "less"),
    Measure("leader_max_ms", "its longest wait", "ms", "less"),
    Measure("idle_cpu", "CPU per idle partition and second, all brokers", "µs", "less", 1.0),
)


class Life:
    """One life of a cluster, and what was measured in it."""

    def __init__(self, cluster: Cluster, scale: Scale, pools: dict[str, Pool], kafka: Kafka | None) -> None:
        self.cluster = cluster
        self.scale = scale
        self.pools = pools
        self.kafka = kafka
        self.found: dict[str, float] = {}

    def run(self, step: Callable[[str], None], only: Sequence[str] = ()) -> dict[str, float]:
        for part in (self._start, self._load, self._latency, self._failover, self._catch_up, self._idle):
            name = part.__name__.strip("_").replace("_", "-")
            if part == self._start or not only or name in only:
                step(f"{self.cluster.name}: {name}")
                part()
        return self.found

    def _start(self) -> None:
        started = time.perf_counter()
        self.cluster.spawn()
        clusters.create_topic(self.cluster, "first", 1)
        self._produce("first", [b"first"], acks="all")
        self.found["start"] = time.perf_counter() - started
        time.sleep(SETTLE_S)  # what starts late is idle then
        self.found["idle_mb"] = clusters.resident_mb(self.cluster)

    def _load(self) -> None:
        before = clusters.cpu_s(self.cluster)
        records = 0
        for size, count in (("small", self.scale.small), ("large", self.scale.large)):
            values = list(self.pools[size].first(count))
            for acks, name in (("all", f"all_{size}"), ("1", f"one_{size}")):
                clusters.create_topic(self.cluster, name, PARTITIONS)
                clusters.wait_in_sync(self.cluster, name)
                self.found[name] = count / self._produce(name, values, acks)
                records += count
            self.found[f"consume_{size}"] = count / self._consume(f"all_{size}", count)
            records += count
        self.found["cpu_us"] = (clusters.cpu_s(self.cluster) - before) / records * 1e6
        self.found["loaded_mb"] = clusters.resident_mb(self.cluster)
        if self.kafka is not None:
            clusters.create_topic(self.cluster, "java", PARTITIONS)
            clusters.wait_in_sync(self.cluster, "java")
            self.found["java_all_small"] = self._java_produce(self.kafka, "java", self.scale.small)

    def _producer(self, **settings: Any) -> Producer:
        return Producer({"bootstrap.servers": self.cluster.bootstrap, "linger.ms": 5, **QUIET, **settings})

    def _produce(self, topic: str, values: Sequence[bytes], acks: str) -> float:
        """Seconds until the last one is acknowledged. Raises AssertionError where one is not."""
        producer = self._producer(acks=acks, **{"queue.buffering.max.messages": 2_000_000})
        refused: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(str(error))

        send = producer.produce
        started = time.perf_counter()
        for number, value in enumerate(values):
            send(topic, value, on_delivery=delivered)
            if number % 1000 == 0:
                producer.poll(0)
        left = producer.flush(ANSWER_S)
        taken = time.perf_counter() - started
        if left or refused:
            raise AssertionError(
                f"{self.cluster.name}: {left} records of {topic} unacknowledged, refused {refused[:3]}"
            )
        return taken

    def _consume(self, topic: str, count: int) -> float:
        """Seconds until all are read, from the first on. Neither the half second after which librdkafka looks up where
        to begin, nor the whole one for which it stops to fetch when its queue is full, is any broker's."""
        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": "bench", "enable.auto.commit": False}
        room = {"queued.min.messages": 2 * count, "queued.max.messages.kbytes": 2_000_000}
        consumer = Consumer({**settings, **room, **QUIET})
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        seen, started, deadline = 0, 0.0, time.monotonic() + ANSWER_S
        while seen < count:
            found = consumer.consume(min(10_000, count - seen) if seen else 1, timeout=1.0)
            seen += sum(message.error() is None for message in found)
            if seen and not started:
                started = time.perf_counter()
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.cluster.name}: {seen} of {count} records of {topic} in {ANSWER_S} s")
        taken = time.perf_counter() - started
        consumer.close()
        return taken

    def _java_produce(self, kafka: Kafka, topic: str, count: int) -> float:
        """Its own rate, without the time that Java takes to start."""
        properties = (f"bootstrap.servers={self.cluster.bootstrap}", "acks=all")
        said = kafka.run(
            PRODUCER_PERF,
            *("--topic", topic, "--num-records", str(count), "--record-size", "100", "--throughput", "-1"),
            *("--producer-props", *properties),
        )
        rates = re.findall(rf"{count} records sent, ([0-9.]+) records/sec", said)
        return float(rates[-1])

    def _latency(self) -> None:
        """One record every two milliseconds, each sent at once; the time from sending to its acknowledgement."""
        clusters.create_topic(self.cluster, "paced", 1)
        clusters.wait_in_sync(self.cluster, "paced")
        producer = self._producer(acks="all", **{"linger.ms": 0})
        taken: list[float] = []
        value = next(self.pools["small"].first(1))

        def send() -> None:
            sent = time.perf_counter()
            producer.produce("paced", value, on_delivery=lambda error, _: taken.append(_since(sent, error)))

        start = time.perf_counter()
        for number in range(self.scale.paced):
            send()
            while (wait := start + (number + 1) / 500 - time.perf_counter()) > 0:
                producer.poll(wait)
        producer.flush(ANSWER_S)
        counted = sorted(taken[self.scale.paced // 10 :])
        self.found["p50_ms"] = counted[len(counted) // 2] * 1e3
        self.found["p99_ms"] = counted[len(counted) * 99 // 100] * 1e3

    def _failover(self) -> None:
        """A producer sends one record after another, each when the one before is acknowledged; its leader is killed."""
        clusters.create_topic(self.cluster, "failing", 1)
        times = []
        for _ in range(self.scale.kills):
            leader, _ = clusters.wait_in_sync(self.cluster, "failing")[0]
            times.append(self._longest_wait(leader) * 1e3)
            self.cluster.spawn([leader])
        clusters.wait_in_sync(self.cluster, "failing")
        self.found["failover_ms"] = statistics.median(times)

    def _longest_wait(self, leader: int) -> float:
        """For an acknowledgement, in s, while `leader` is killed."""
        producer = self._producer(acks="all", **{"linger.ms": 0, "retry.backoff.ms": 10, "retry.backoff.max.ms": 50})
        acknowledged: list[float] = []
        enough = threading.Event()

        def send() -> None:
            while not enough.is_set():
                self._send_one(producer)
                acknowledged.append(time.perf_counter())

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send)
            time.sleep(GOES_ON_S)  # what a client does when it begins is over then
            killed = time.perf_counter()
            clusters.kill(self.cluster, leader)
            wanted = len(acknowledged) + GO_ON_WITH
            while len(acknowledged) < wanted and not sending.done():
                time.sleep(clusters.POLL_S)  # the other thread is about its own work
            enough.set()
            sending.result()
        return max(after - before for before, after in pairwise(acknowledged) if after > killed)

    def _send_one(self, producer: Producer) -> None:
        done = threading.Event()
        producer.produce("failing", b"one", on_delivery=lambda error, _: done.set() if error is None else None)
        deadline = time.monotonic() + ANSWER_S
        while not done.is_set():
            producer.poll(0.01)
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.cluster.name}: no acknowledgement in {ANSWER_S} s")

    def _catch_up(self) -> None:
        """From the follower's first move until it is in sync, in bytes a second, against a copy by our own log; then,
        with an empty log, once more beside quiet clients of both."""
        clusters.create_topic(self.cluster, "behind", 1)
        leader, isr = clusters.wait_in_sync(self.cluster, "behind")[0]
        follower = next(broker_id for broker_id in isr if broker_id != leader)
        clusters.kill(self.cluster, follower)
        self._produce("behind", list(self.pools["large"].first(self.scale.behind)), acks="all")
        os.sync()  # after an hour the disk has all of it, and its writing takes no time from anybody
        size, taken = self._catch_up_with(leader, follower, lambda: clusters.wait_in_sync(self.cluster, "behind"))
        self.found["catch_up"] = size / taken / _copy_rate(self.cluster.data(leader) / "behind-0")
        clusters.kill(self.cluster, follower)
        clusters.wait_in_sync(self.cluster, "behind", len(isr) - 1)
        shutil.rmtree(self.cluster.data(follower) / "behind-0")
        probes = {"quiet": follower, "leader": leader}

        def probe_both() -> None:
            done = threading.Event()
            with ThreadPoolExecutor(len(probes)) as pool:
                waits = {name: pool.submit(self._probe, broker, done) for name, broker in probes.items()}
                try:
                    clusters.wait_in_sync(self.cluster, "behind")
                finally:
                    done.set()
                for name, found in waits.items():
                    counted = sorted(found.result())
                    self.found[f"{name}_p99_ms"] = counted[len(counted) * 99 // 100] * 1e3
                    self.found[f"{name}_max_ms"] = counted[-1] * 1e3

        self._catch_up_with(leader, follower, probe_both)

    def _catch_up_with(self, leader: int, follower: int, wait: Callable[[], object]) -> tuple[int, float]:
        """The bytes that a follower fetches after its start, and its seconds. wait: returns when it is in sync."""
        where = self.cluster.data(follower) / "behind-0"
        missing = _bytes(self.cluster.data(leader) / "behind-0")
        before = _bytes(where)
        memory = _memory_at_hand(missing - before)
        self.cluster.spawn([follower])
        deadline = time.monotonic() + clusters.READY_S
        while _bytes(where) <= before:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.cluster.name}: broker {follower} fetches nothing in {clusters.READY_S} s")
            time.sleep(clusters.POLL_S)  # another process's file grows, which no event reports
        began, before = time.perf_counter(), _bytes(where)
        cpu_s = clusters.cpu_s(self.cluster, [follower])
        memory.close()
        wait()
        size, taken = max(missing - before, 1), time.perf_counter() - began
        self.found["catch_up_cpu"] = (clusters.cpu_s(self.cluster, [follower]) - cpu_s) / size * (1 << 30)
        return size, taken

    def _probe(self, broker: int, done: threading.Event) -> list[float]:
        """Seconds that a broker takes for each of the requests of a client that sends one at a time."""
        host, port = self.cluster.bootstrap.split(",")[broker].rsplit(":", 1)
        waits: list[float] = []
        with _connected(host, int(port)) as client, client.makefile("rb") as responses:
            while not done.is_set() or not waits:
                sent = time.perf_counter()
                client.sendall(API_VERSIONS)
                (size,) = struct.unpack(">i", responses.read(4))
                responses.read(size)
                waits.append(time.perf_counter() - sent)
                time.sleep(PROBE_S)  # it is a quiet client
        return waits

    def _idle(self) -> None:
        for number in range(0, self.scale.idle_partitions, 100):
            clusters.create_topic(self.cluster, f"idle-{number}", min(100, self.scale.idle_partitions - number))
        time.sleep(SETTLE_S)  # what a new topic makes brokers do is done then
        before, started = clusters.cpu_s(self.cluster), time.perf_counter()
        time.sleep(IDLE_S)  # nothing happens, and that is measured
        taken = clusters.cpu_s(self.cluster) - before
        self.found["idle_cpu"] = taken / (time.perf_counter() - started) / self.scale.idle_partitions * 1e6


def _connected(host: str, port: int) -> socket.socket:
    """A connection to a broker, which may fetch as a follower before it accepts any."""
    deadline = time.monotonic() + clusters.READY_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=ANSWER_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(clusters.POLL_S)  # nothing reports that another process listens


def _since(sent: float, error: KafkaError | None) -> float:
    if error is not None:
        raise AssertionError(f"a paced record was refused: {error}")
    return time.perf_counter() - sent


def _bytes(partition: Path) -> int:
    """Blocks in use: sizes are those of preallocated files."""
    return sum(segment.stat().st_blocks * 512 for segment in partition.glob("*.log"))


def _memory_at_hand(size: int) -> mmap.mmap:
    """Memory that whoever writes next gets when this is closed.

    A virtual machine may have to get from its host what it has not used lately, which takes several times as long as to
    write it, and gives it back again within seconds."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages takes longer to free it
        memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, size, mmap.PAGESIZE):
        memory[page] = 1
    return memory


def _copy_rate(partition: Path) -> float:
    """Bytes a second of one process that reads the log, checks each batch and appends it to another: the ceiling.

    The best of COPIES in a row, each gone before the next, so that it is written to memory at hand."""
    return max(_copy(partition) for _ in range(COPIES))


def _copy(partition: Path) -> float:
    with tempfile.TemporaryDirectory(dir=partition.parent.parent) as folder:
        source, target = Log.open(partition, read_only=True), Log.open(Path(folder) / "copy-0")
        with source, target:
            started, at, total = time.perf_counter(), source.log_start_offset, 0
            while at < source.log_end_offset:
                fetched = source.fetch(at, max_bytes=1 << 20, isolation="log_end")
                target.append_as_follower(fetched.data)
                total += len(fetched.data)
                at = fetched.next_offset
            return total / (time.perf_counter() - started)


def _clusters(root: Path, against: Path | None) -> tuple[Kafka | None, list[Callable[[Path], Cluster]]]:
    """Kafka's tools, if there are any, and the makers of the clusters of a repetition. Raises Unavailable."""
    if against is not None:
        return None, [KreplogCluster, lambda folder: CheckoutCluster(folder, against)]
    return Kafka(root), [KreplogCluster, KafkaCluster]


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Lives of either cluster.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    idle_partitions: Annotated[int, typer.Option(min=1, help="Partitions without traffic.")] = 1000,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for every sample.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="load, latency, failover, catch-up or idle.")] = None,
    against: Annotated[Path | None, typer.Option(help="Another checkout, in place of Apache Kafka.")] = None,
) -> None:
    """kreplog's cluster against Apache Kafka's, or against that of another checkout."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    scale = QUICK if quick else Scale(idle_partitions=idle_partitions)
    pools = {"small": Pool(100, 10_000, 1), "large": Pool(1024, 2000, 1)}
    samples: dict[str, list[dict[str, float]]] = {}
    root = Path(tempfile.mkdtemp(prefix="kreplog-clusters-", dir=directory))
    try:
        kafka, kinds = _clusters(root, against)
        for repetition in range(repetitions):
            for number in (0, 1) if repetition % 2 == 0 else (1, 0):
                folder = root / f"{repetition}-{number}"
                cluster = kinds[number](folder)
                try:
                    life = Life(cluster, scale, pools, kafka)
                    found = life.run(lambda text: console.print(text, highlight=False), only or ())
                    samples.setdefault(cluster.name, []).append(found)
                    if out is not None:
                        out.write_text(json.dumps(samples, indent=1) + "\n")
                finally:
                    cluster.stop()
                    shutil.rmtree(folder)
    except Unavailable as error:
        console.print(f"no Apache Kafka to compare with: {error}", highlight=False)
        raise typer.Exit(1) from None
    finally:
        shutil.rmtree(root)
    show(console, samples, MEASURES)


def show(console: Console, samples: dict[str, list[dict[str, float]]], measures: Sequence[Measure]) -> None:
    (ours_name, ours_lives), (theirs_name, theirs_lives) = samples.items()
    table = Table(
        "measure", "unit", ours_name, theirs_name, "ratio (range)", "must", "reached", title="three brokers each"
    )
    for measure in measures:
        if measure.name not in ours_lives[0]:
            continue
        ours, theirs = ([life[measure.name] for life in lives] for lives in (ours_lives, theirs_lives))
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ratios)
        sign = ">=" if measure.better == "more" else "<="
        must = measure.must if theirs_name == THEIRS else None
        good = must is None or (ratio >= must if measure.better == "more" else ratio <= must)
        table.add_row(
            measure.title,
            measure.unit,
            f"{statistics.median(ours):,.3g}",
            f"{statistics.median(theirs):,.3g}",
            f"{ratio:.2f} ({min(ratios):.2f}..{max(ratios):.2f})",
            "" if must is None else f"{sign} {must}",
            "" if must is None else "yes" if good else "NO",
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
