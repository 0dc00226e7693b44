"""Spark with kreplog against a Python source that has nothing to do, and against Spark's own Kafka connector.

    python -m benchmarks.bench_spark [--records N] [--repetitions N] [--only PARTS] [--quick] [--directory DIR]

ceiling     Scans of partition directories beside those of a source whose batches lie ready-made in mapped Arrow files,
            written beforehand by kreplog's own tasks: both hand Spark the same bytes in the same tasks.
connector   Scans of the same records beside spark-sql-kafka-0-10 with the PySpark that it is made for: out of a kreplog
            broker (its directory, and over the network) and out of a real Kafka.
sink        The rows of Parquet files, written by kreplog, by a writer that only counts them, and by the connector.
plan        CPU time in the driver that it takes to plan a read, and a micro-batch.

Contestants take turns in every repetition; ratios are of the same repetition, more than 1 meaning that kreplog is
faster. CPU seconds are those of everything: Java, Python workers, brokers. Wants a directory in memory, lest the disk
decides.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any
from unittest import mock

import typer
from rich.console import Console
from rich.table import Table

import kreplog
from benchmarks import spark_stores as stores
from benchmarks.connector_worker import COLUMNS, QUERIES, SETTINGS
from benchmarks.data import Pool
from benchmarks.spark_contest import HEADINGS, Comparison, Contestant, in_turns, spread
from benchmarks.spark_sources import SCHEMA, ReadyMade
from kreplog.small_log import open_to_plan
from kreplog.types import TopicPartition
from pyspark_kreplog import plan as planning
from pyspark_kreplog import session
from pyspark_kreplog.options import ReadOptions, parse_batch, parse_stream
from pyspark_kreplog.plan import Task
from pyspark_kreplog.stream_planner import StreamPlanner
from tests.interop.jvm import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parent.parent
PARTS = ("ceiling", "connector", "sink", "plan")
GOALS = {"none": (0.90, 0.95), "lz4": (0.80, 0.85), "zstd": (0.70, 0.85)}
PLANNED_PARTITIONS = 1000
BATCH_PARTITIONS = 100


@dataclass(frozen=True)
class Scale:
    records: int
    repetitions: int
    seed: int

    @property
    def pool(self) -> Pool:
        return Pool(100, max(1000, min(100_000, self.records // 20) // 1000 * 1000), self.seed)


def main(
    records: Annotated[int, typer.Option(min=2000, help="Records of 100 B in all.")] = 4_000_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Turns that count; two more warm up.")] = 5,
    only: Annotated[str, typer.Option(help="Parts, by comma.")] = ",".join(PARTS),
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where the data goes; /dev/shm if there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the records.")] = 1,
) -> None:
    """Rates of Spark with kreplog, as ratios to a ceiling and to Spark's own Kafka connector."""
    parts = only.split(",")
    if unknown := set(parts) - set(PARTS):
        raise typer.BadParameter(f"{', '.join(unknown)}: there are {', '.join(PARTS)}", param_hint="--only")
    scale = Scale(20_000, 1, seed) if quick else Scale(records, repetitions, seed)
    console = Console(width=None if sys.stdout.isatty() else 220)
    memory = Path("/dev/shm")
    parent = directory or (memory if memory.is_dir() else None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "spark"), str(ROOT)])
    with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=parent) as scratch, ExitStack() as stack:
        console.print(f"seed {seed}, {scale.records} records in {scratch}, {os.cpu_count()} cores", highlight=False)
        if set(parts) - {"plan"}:
            settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
            spark = session("kreplog benchmark", "local[*]", **settings)
            stack.callback(spark.stop)
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(ReadyMade)
        if "ceiling" in parts:
            _print(console, "Scans against ready-made batches", ceilings(spark, Path(scratch, "ceiling"), scale))
        if {"connector", "sink"} & set(parts):
            beside = _Beside(console, Path(scratch, "beside"), scale, stack)
            if "connector" in parts:
                _print(console, "Scans against Spark's connector", scans(spark, beside, scale))
            if "sink" in parts:
                _print(console, "Sinks", sinks(spark, beside, scale, Path(scratch, "sinks")))
        if "plan" in parts:
            _print_plans(console, Path(scratch, "plans"), quick)


def _print(console: Console, title: str, comparisons: Iterator[Comparison]) -> None:
    table = Table(*HEADINGS, title=title)
    for comparison in comparisons:
        table.add_row(*comparison.cells())
    console.print(table)


# Scans against the ceiling


def ceilings(
    spark: SparkSession, where: Path, scale: Scale, codecs: Collection[str] = tuple(GOALS)
) -> Iterator[Comparison]:
    for codec in codecs:
        must, aim = GOALS[codec]
        stores.write_logs(where / codec, codec, scale.pool, scale.records, COLUMNS)
        for query in QUERIES:
            costs = in_turns(
                [
                    _scan("kreplog", query, partial(_load_path, spark, where / codec)),
                    _scan("ready-made", query, partial(_load_ready_made, spark, where / codec)),
                ],
                _expected(query, scale.records),
                scale.repetitions,
            )
            yield Comparison(f"{codec}, {query}", scale.records, "kreplog", "ready-made", costs, must, aim)
        if codec == "none":
            yield _offsets_alone(spark, where / codec, scale)
        shutil.rmtree(where / codec)


def _offsets_alone(spark: SparkSession, where: Path, scale: Scale) -> Comparison:
    narrow, wide = "offset alone", "all five columns"
    scans = [
        _scan(narrow, "noop", partial(_load_path, spark, where, "offset bigint")),
        _scan(wide, "noop", partial(_load_path, spark, where)),
    ]
    costs = in_turns(scans, None, scale.repetitions)
    return Comparison("none, noop", scale.records, narrow, wide, costs, 2.5)


def _load_path(spark: SparkSession, where: Path, schema: str = SCHEMA) -> DataFrame:
    return spark.read.format("kreplog").schema(schema).options(**stores.log_options(where)).load()


def _load_ready_made(spark: SparkSession, where: Path) -> DataFrame:
    return spark.read.format("readymade").load(str(where / "arrow"))


def _scan(name: str, query: str, load: Callable[[], DataFrame], pids: tuple[int, ...] = ()) -> Contestant:
    """A contestant that runs the query over what `load` returns. pids: of the brokers that are read."""
    return Contestant(name, (os.getpid(), *pids), lambda: lambda: QUERIES[query](load()))


def _expected(query: str, records: int) -> int | None:
    return {"count": records, "sum(length(value))": 100 * records, "noop": None}[query]


# Beside the connector


class _Beside:
    """The brokers with the records, and the connector: what can be had of them, and why not the others."""

    def __init__(self, console: Console, where: Path, scale: Scale, stack: ExitStack) -> None:
        made = stores.tables(scale.pool, scale.records)
        self.parquet = where / "parquet"
        stores.write_parquet(self.parquet, made)
        self.kreplog = stack.enter_context(stores.kreplog_broker(where / "kreplog"))
        self.kreplog.fill(made)
        self.kafka: stores.Brokers | None = None
        self.connector: stores.Connector | None = None
        try:
            self.connector = stack.enter_context(stores.connector())
            console.print(f"Spark's connector runs in PySpark {self.connector.version}", highlight=False)
            self.kafka = stack.enter_context(stores.kafka_broker(where / "kafka"))
            self.kafka.fill(made)
        except Unavailable as error:
            console.print(f"Left out, for want of it: {error}", highlight=False)

    @property
    def brokers(self) -> list[stores.Brokers]:
        return [brokers for brokers in (self.kreplog, self.kafka) if brokers is not None]

    @property
    def pids(self) -> set[int]:
        """Ids of the processes of the connector and of the brokers, which are not part of our Spark."""
        connector = set() if self.connector is None else {self.connector.pid}
        return connector.union(*(brokers.pids for brokers in self.brokers))


def scans(spark: SparkSession, beside: _Beside, scale: Scale) -> Iterator[Comparison]:
    if beside.connector is None:
        return
    assert beside.kreplog.data is not None
    path = {"path": str(beside.kreplog.data)}
    for query in QUERIES:
        contestants = [_scan("path", query, partial(_load, spark, path), beside.kreplog.pids)]
        for brokers in beside.brokers:
            load = partial(_load, spark, _bootstrap(brokers))
            contestants.append(_scan(f"network, {brokers.name}", query, load, brokers.pids))
            contestants.append(_connector_scan(f"connector, {brokers.name}", beside.connector, query, brokers))
        costs = in_turns(contestants, _expected(query, scale.records), scale.repetitions, beside.pids)
        first = f"connector, {beside.kreplog.name}"
        yield Comparison(query, scale.records, "path", first, costs, 4, 6, "wall")
        for brokers in beside.brokers:
            ours, theirs = f"network, {brokers.name}", f"connector, {brokers.name}"
            yield Comparison(query, scale.records, ours, theirs, costs, 2, 4, "wall")


def _bootstrap(brokers: stores.Brokers) -> dict[str, str]:
    return {"kafka.bootstrap.servers": brokers.bootstrap}


def _load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("kreplog").schema(SCHEMA).options(**options, subscribe=stores.TOPIC).load()


def _connector_scan(name: str, connector: stores.Connector, query: str, brokers: stores.Brokers) -> Contestant:
    call = partial(connector.call, bootstrap=brokers.bootstrap, topic=stores.TOPIC, query=query)
    return Contestant(name, (connector.pid, *brokers.pids), lambda: call)


# Sinks


def sinks(spark: SparkSession, beside: _Beside, scale: Scale, where: Path) -> Iterator[Comparison]:
    where.mkdir()
    counted = where / "counted"

    def write(options: dict[str, str]) -> None:
        rows = spark.read.parquet(str(beside.parquet)).write.format("kreplog").mode("append")
        rows.options(**options).save()

    def prepare_path() -> Callable[[], None]:
        shutil.rmtree(where / "log", ignore_errors=True)
        options = {"path": str(where / "log"), "topic": stores.TOPIC, "numPartitions": str(stores.PARTITIONS)}
        return partial(write, options)

    def count_rows() -> None:
        spark.read.parquet(str(beside.parquet)).write.format("readymade").mode("append").save(str(counted))

    path = Contestant("path", (os.getpid(),), prepare_path, lambda: stores.count_logs(where / "log"))
    counting = Contestant("counting", (os.getpid(),), lambda: count_rows, lambda: int(counted.read_text()))
    contestants = [path, counting]
    for brokers in beside.brokers:

        def write_to(topic: str, brokers: stores.Brokers = brokers) -> None:
            write({**_bootstrap(brokers), "topic": topic})

        contestants.append(_broker_sink(f"network, {brokers.name}", os.getpid(), write_to, brokers))
        if (connector := beside.connector) is not None:
            request = partial(connector.call, bootstrap=brokers.bootstrap, parquet=str(beside.parquet))

            def call(topic: str, request: Callable[..., object] = request) -> None:
                request(topic=topic)

            contestants.append(_broker_sink(f"connector, {brokers.name}", connector.pid, call, brokers))
    costs = in_turns(contestants, scale.records, scale.repetitions, beside.pids)
    yield Comparison("write", scale.records, "path", "counting", costs, 0.7)
    for brokers in beside.brokers:
        theirs = f"connector, {brokers.name}"
        if theirs in costs:
            yield Comparison("write", scale.records, "path", theirs, costs, 1.5, 3, "wall")
            yield Comparison("write", scale.records, f"network, {brokers.name}", theirs, costs, 1.5, 3, "wall")


_topics = (f"written-{number}" for number in count())


def _broker_sink(name: str, pid: int, write_to: Callable[[str], None], brokers: stores.Brokers) -> Contestant:
    """Each turn writes to a topic of its own."""
    topics: list[str] = []

    def prepare() -> Callable[[], None]:
        topics.append(next(_topics))
        brokers.create(topics[-1])
        return partial(write_to, topics[-1])

    return Contestant(name, (pid, *brokers.pids), prepare, lambda: brokers.count(topics[-1]))


# Plans


def _print_plans(console: Console, where: Path, quick: bool) -> None:
    partitions, batch_partitions, repetitions = (20, 5, 2) if quick else (PLANNED_PARTITIONS, BATCH_PARTITIONS, 15)
    table = Table("work", "CPU ms", "goal", title="Plans, in the driver")
    planned, opened = plans(where / "batch", partitions, repetitions)
    batched = batches(where / "stream", batch_partitions, repetitions)
    rows = [
        (f"a batch read of {partitions} partitions", 50, planned),
        (f"a micro-batch of {batch_partitions} partitions", 30, batched),
    ]
    for work, most, times in rows:
        reached = "reached" if statistics.median(times) <= most else "short"
        table.add_row(work, spread(times), f"<= {most} ms: {reached}")
    console.print(table)
    ratio = min(opened) / min(planned)
    console.print(f"Opening each log for the same plan takes {ratio:.2f} times the CPU time, by the minima of the run.")


def plans(where: Path, partitions: int, repetitions: int) -> tuple[list[float], list[float]]:
    """CPU milliseconds of each plan of a batch read, and, by turns with it, of one that opens each log."""
    for number in range(partitions):
        with kreplog.Log.open(where / f"t-{number}") as log:
            log.append_many([b"value"] * 10)
    options = parse_batch({"path": str(where), "subscribe": stores.TOPIC})
    expected = planned(options, open_log)[1]
    if sum(task.records for task in expected) != 10 * partitions:
        raise AssertionError(f"{len(expected)} tasks do not read the records of {partitions} partitions")
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions):
        for each, opener in zip(times, (open_to_plan, open_log), strict=True):
            spent, tasks = planned(options, opener)
            each.append(spent)
            if tasks != expected:
                raise AssertionError("a plan differs with how logs are opened for it")
    return times


def open_log(path: str, partition: TopicPartition, small_bytes: int) -> kreplog.Log:
    """In place of open_to_plan."""
    return kreplog.Log.open(path, read_only=True)


def planned(options: ReadOptions, opener: Callable[..., Any]) -> tuple[float, list[Task]]:
    """CPU milliseconds of a plan for which `opener` opens the logs, and its tasks."""
    with mock.patch.object(planning, "open_to_plan", opener):
        start = process_time()
        tasks = planning.plan(options, os.cpu_count() or 1)
        return (process_time() - start) * 1000, tasks


def batches(where: Path, partitions: int, repetitions: int) -> list[float]:
    """CPU milliseconds in which a stream finds the end of a micro-batch, its lag and its tasks; each partition has new
    records."""
    with ExitStack() as stack:
        logs = [stack.enter_context(kreplog.Log.open(where / f"t-{number}")) for number in range(partitions)]
        options = {"path": str(where), "subscribe": stores.TOPIC, "startingOffsets": "earliest"}
        planner = StreamPlanner(parse_stream(options))
        stack.callback(planner.close)
        start, times = planner.initial_offset(), []
        for _ in range(repetitions):
            for log in logs:
                log.append_many([b"value"] * 10)
            began = process_time()
            end = planner.end_of_batch(start, unlimited=False)
            planner.latest()
            tasks = planner.tasks(start, end, os.cpu_count() or 1)
            times.append((process_time() - began) * 1000)
            if sum(task.records for task in tasks) != 10 * partitions:
                raise AssertionError(f"{len(tasks)} tasks do not read the new records of {partitions} partitions")
            start = end
        return times


if __name__ == "__main__":
    typer.run(main)
