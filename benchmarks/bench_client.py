"""The bulk client beside confluent-kafka and Arrow clients written in Rust: the same brokers and records, in turns.

    python -m benchmarks.bench_client [--records N] [--repetitions N] [--size BYTES] [--bootstrap HOST:PORT] [--quick]

Reads: from the beginning of every partition to its end. Ours hands over Arrow columns (offset, timestamp, key, value,
headers); confluent's `consume` hands over lists of messages, and in a second row these become an Arrow array of values.
Writes: acknowledged by all in-sync replicas; ours from an Arrow table, confluent's by `produce` for each record, with
its defaults and idempotence. The Rust clients (arrow_peers.py) are optional. Three kreplog brokers on this host, or the
brokers at --bootstrap. Rates are medians over the repetitions, ratios those of the same repetition. What was read and
written is counted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import confluent_kafka
import pyarrow as pa
import typer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import arrow_peers
from benchmarks.data import Pool
from kreplog.client import Consumer, Producer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition

PARTITIONS = 3
REPLICAS = 3
WAIT_S = 60.0
QUIET: dict[str, str | int] = {"log_level": 0}


@dataclass(frozen=True, slots=True)
class Work:
    bootstrap: str
    table: pa.Table
    values: list[bytes]

    @property
    def count(self) -> int:
        return len(self.values)


def _rate(count: int, work: Callable[[], int]) -> float:
    """Records a second; `work` returns how many it handled."""
    start = time.perf_counter()
    handled = work()
    took = time.perf_counter() - start
    if handled != count:
        raise RuntimeError(f"{handled} records instead of {count}")
    return count / took


def read_bulk(work: Work, topic: str, columns: tuple[str, ...]) -> int:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(work.bootstrap, columns) as consumer:
        consumer.assign(dict.fromkeys(partitions, 0))
        rows = 0
        while rows < work.count:
            piece = consumer.fetch_arrow(WAIT_S)
            if piece is None:
                return rows
            rows += len(piece)
        return rows


def read_confluent(work: Work, topic: str, *, to_arrow: bool) -> int:
    settings = {"bootstrap.servers": work.bootstrap, "group.id": "bench", "enable.auto.commit": False, **QUIET}
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        rows = 0
        while rows < work.count:
            messages = consumer.consume(min(10_000, work.count - rows), WAIT_S)
            if not messages:
                return rows
            if to_arrow:
                pa.array([message.value() for message in messages], pa.binary())
            rows += len(messages)
        return rows
    finally:
        consumer.close()


def write_bulk(work: Work, topic: str) -> int:
    with Producer(work.bootstrap) as producer:
        return sum(piece.records for piece in producer.append_arrow(topic, work.table))


def write_confluent(work: Work, topic: str) -> int:
    done = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal done
        done += error is None

    settings = {"bootstrap.servers": work.bootstrap, "enable.idempotence": True, **QUIET}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.messages": 10_000_000})
    for number, value in enumerate(work.values):
        producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(WAIT_S)
    return done


def _peers(work: Work, registry: str, turn: int, absent: dict[str, str]) -> dict[str, tuple[str, Callable[[], int]]]:
    """By row what it runs, and the topic to make for it, "" for none. absent: gets why a client is left out."""
    rows: dict[str, tuple[str, Callable[[], int]]] = {}
    for name in (*arrow_peers.READERS, arrow_peers.WRITER):
        try:
            module = arrow_peers.find(name)
        except ImportError as error:
            absent[name] = str(error)
            continue
        if name == arrow_peers.WRITER:
            topic = f"written-{name}-{turn}"
            rows[f"write: {name}"] = (
                topic,
                partial(arrow_peers.write, module, work.bootstrap, registry, topic, work.table),
            )
        else:
            rows[f"read: {name}"] = "", partial(arrow_peers.read, module, work.bootstrap, "bench-read", work.count)
    return rows


def _make_topic(bootstrap: str, name: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    (future,) = admin.create_topics([NewTopic(name, PARTITIONS, replicas)]).values()
    future.result(WAIT_S)
    with Consumer(bootstrap, retry_timeout_s=WAIT_S) as consumer:
        consumer.end_offsets([TopicPartition(name, number) for number in range(PARTITIONS)])


@contextmanager
def _brokers(bootstrap: str | None) -> Iterator[tuple[str, int]]:
    """(bootstrap, replicas)."""
    if bootstrap is not None:
        yield bootstrap, 1
        return
    with tempfile.TemporaryDirectory(prefix="kreplog-client-") as folder:
        cluster = LocalCluster.create(Path(folder) / "cluster", [0, 1, 2], 0)
        cluster.start()
        try:
            yield cluster.bootstrap(), REPLICAS
        finally:
            cluster.stop()


def measure(
    bootstrap: str | None, records: int, size: int, repetitions: int, absent: dict[str, str] | None = None
) -> dict[str, list[float]]:
    """By row of the report its rates, one for each repetition. absent: gets the clients that are left out, and why."""
    values = Pool(size, 100_000 if records > 10_000 else 1000, seed=1).slice(0, records)
    work_rates: dict[str, list[float]] = {}
    with _brokers(bootstrap) as (servers, replicas), arrow_peers.schema_registry() as registry:
        work = Work(servers, pa.table({"value": pa.array(values, pa.binary())}), values)
        _make_topic(servers, "bench-read", replicas)
        write_bulk(work, "bench-read")
        for turn in range(repetitions):
            peers = _peers(work, registry, turn, {} if absent is None else absent)
            topics = [f"written-bulk-{turn}", f"written-confluent-{turn}", *(topic for topic, _ in peers.values())]
            for topic in filter(None, topics):
                _make_topic(servers, topic, replicas)
            rows: dict[str, Callable[[], int]] = {
                "read: Consumer.fetch_arrow": partial(read_bulk, work, "bench-read", DEFAULT),
                "read: Consumer.fetch_arrow, values alone": partial(read_bulk, work, "bench-read", ("value",)),
                "read: confluent consume": partial(read_confluent, work, "bench-read", to_arrow=False),
                "read: confluent consume to Arrow": partial(read_confluent, work, "bench-read", to_arrow=True),
                "write: Producer.append_arrow": partial(write_bulk, work, f"written-bulk-{turn}"),
                "write: confluent produce": partial(write_confluent, work, f"written-confluent-{turn}"),
            }
            rows |= {name: run for name, (_, run) in peers.items()}
            for name, run in rows.items():
                work_rates.setdefault(name, []).append(_rate(records, run))
    return work_rates


DEFAULT = ("offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio to the other's rate that ours must reach."""

    ours: str
    must: float
    aim: float | None = None

    def verdict(self, ratio: float) -> str:
        reached = "aim" if self.aim is not None and ratio >= self.aim else "must" if ratio >= self.must else "short"
        return f">= {self.must:g}{'' if self.aim is None else f', aim {self.aim:g}'}: {reached}"


GOALS = {
    "read: confluent consume": Goal("read: Consumer.fetch_arrow", 3, 10),
    "read: confluent consume to Arrow": Goal("read: Consumer.fetch_arrow, values alone", 3, 10),
    **{f"read: {name}": Goal("read: Consumer.fetch_arrow", 1) for name in arrow_peers.READERS},
    "write: confluent produce": Goal("write: Producer.append_arrow", 3),
    f"write: {arrow_peers.WRITER}": Goal("write: Producer.append_arrow", 1),
}
"""By row of another client."""


def ratios(rates: dict[str, list[float]]) -> dict[str, float]:
    """By row of another client, those that were measured, the median of our rate to its own in the same repetition."""
    return {
        theirs: statistics.median(mine / other for mine, other in zip(rates[goal.ours], rates[theirs], strict=True))
        for theirs, goal in GOALS.items()
        if theirs in rates
    }


def main(
    records: Annotated[int, typer.Option(help="How many, in all partitions together.")] = 1_000_000,
    size: Annotated[int, typer.Option(help="Bytes of a value.")] = 100,
    repetitions: Annotated[int, typer.Option(help="How often each is measured, in turns.")] = 5,
    bootstrap: Annotated[str | None, typer.Option(help="Brokers to use; three of ours are started without it.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few records, to see that it works.")] = False,
) -> None:
    """Measure the bulk client and others in turns."""
    if quick:
        records, repetitions = min(records, 6000), 1
    absent: dict[str, str] = {}
    rates = measure(bootstrap, records, size, repetitions, absent)
    against = ratios(rates)
    console = Console(width=110)
    for name, reason in absent.items():
        console.print(f"{name} is left out: {reason}", highlight=False)
    table = Table(title=f"{records} records of {size} B, {PARTITIONS} partitions, {repetitions} repetitions")
    for heading in ("", "records/s", "MB/s", "kreplog's rate to it", "goal"):
        table.add_column(heading, justify="right" if heading[-1:] in ("s", "t") else "left")
    for name, found in rates.items():
        rate = statistics.median(found)
        ratio = against.get(name)
        compared = ["", ""] if ratio is None else [f"{ratio:.1f}", GOALS[name].verdict(ratio)]
        table.add_row(name, f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}", *compared)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
