"""Spark scans of kreplog against a source that yields the same Arrow batches ready-made: the price of decoding.

    python -m benchmarks.bench_spark [--records N] [--repetitions N] [--quick] [--directory DIR]

The ceiling is any Python source at all: its batches lie in memory-mapped Arrow files, written beforehand by kreplog's
own tasks, so that both sides hand Spark the same bytes in the same tasks. They take turns in every repetition; ratios
are of the same repetition, more than 1 meaning that kreplog is faster. CPU seconds are those of this process and all
below it (JVM, Python workers), read from /proc. Wants a directory in memory, lest the page cache decides.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.table import Table

import kreplog
from benchmarks.data import CHUNK, Pool
from pyspark_kreplog import session
from pyspark_kreplog.options import parse_batch as parse
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROOT = Path(__file__).parent.parent
SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
COLUMNS = ("key", "value", "partition", "offset", "timestamp")
PARTITIONS = 2
START_MS = 1_760_000_000_000
GOALS = {"none": 0.80, "lz4": 0.70}

QUERIES: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    # An aggregate without groups always has its one row; the stub of head() does not know that.
    "sum(length(value))": lambda frame: frame.agg(F.sum(F.length("value"))).head()[0],  # type: ignore[index]
    "noop": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}


class ReadyMade(DataSource):
    """Yields the batches of the Arrow files in the directory `path`, a task for each file."""

    @classmethod
    def name(cls) -> str:
        return "readymade"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(self.options["path"])


class ReadyMadeReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(Path(self._path).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as source, pa.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float


def main(
    records: Annotated[int, typer.Option(min=2000, help="Records of 100 B in all.")] = 8_000_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Turns that count; one more warms up.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where the data goes; /dev/shm if there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the records.")] = 1,
) -> None:
    """Scan rate of the Spark source as a ratio to the ceiling of Python sources."""
    if quick:
        records, repetitions = 20_000, 1
    console = Console(width=None if sys.stdout.isatty() else 150)
    memory = Path("/dev/shm")
    parent = directory or (memory if memory.is_dir() else None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "spark"), str(ROOT)])
    with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=parent) as scratch:
        console.print(f"seed {seed}, {records} records in {scratch}, {os.cpu_count()} cores", highlight=False)
        spark = session("kreplog benchmark", spark_ui_enabled=False, spark_ui_showConsoleProgress=False)
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(ReadyMade)
        table = Table("codec", "query", "kreplog", "ceiling", "CPU ratio", "wall ratio", "goal", title="Spark scans")
        try:
            for codec, goal in GOALS.items():
                where = Path(scratch, codec)
                write(where, codec, Pool(100, max(1000, min(100_000, records // 20) // 1000 * 1000), seed), records)
                for query in QUERIES:
                    costs = measure(spark, where, query, records, repetitions)
                    table.add_row(codec, query, *_cells(costs, records, goal))
        finally:
            spark.stop()
        console.print(table)


def write(where: Path, codec: str, pool: Pool, records: int) -> None:
    """The topic in `where`/log, and what each of its tasks yields in a file of `where`/arrow."""
    config = kreplog.LogConfig(compression_type=codec)
    keys = [b"key %08d" % number for number in range(CHUNK)]
    for partition in range(PARTITIONS):
        with kreplog.Log.open(where / "log" / f"t-{partition}", config) as log:
            for number, chunk in enumerate(pool.chunks(records // PARTITIONS)):
                log.append_many(chunk, keys[: len(chunk)], [START_MS + number] * len(chunk))
    (where / "arrow").mkdir()
    for number, task in enumerate(plan(parse(_options(where)), os.cpu_count() or 1)):
        batches = read(task, COLUMNS)
        first = next(batches)
        with pa.ipc.new_file(str(where / "arrow" / f"{number:04}"), first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(batch)


def measure(spark: SparkSession, where: Path, query: str, records: int, repetitions: int) -> dict[str, list[Cost]]:
    """Both sides in every repetition, taking turns at going first; each answer is checked."""
    frames = {
        "kreplog": lambda: spark.read.format("kreplog").schema(SCHEMA).options(**_options(where)).load(),
        "ceiling": lambda: spark.read.format("readymade").load(str(where / "arrow")),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in frames}
    expected = {"count": records, "sum(length(value))": 100 * records, "noop": None}[query]
    for repetition in range(-1, repetitions):
        for name in sorted(frames, reverse=repetition % 2 == 0):
            cpu, wall = cpu_seconds(), perf_counter()
            answer = QUERIES[query](frames[name]())
            cost = Cost(perf_counter() - wall, cpu_seconds() - cpu)
            if answer != expected:
                raise AssertionError(f"{name}, {query}: {answer}, which should be {expected}")
            if repetition >= 0:
                costs[name].append(cost)
    return costs


def cpu_seconds() -> float:
    """User and system time of this process and everything below it, the dead included that were waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, open_ = 0, [os.getpid()]
    while open_:
        pid = open_.pop()
        total += ticks.get(pid, 0)
        open_ += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def _options(where: Path) -> dict[str, str]:
    return {"path": str(where / "log"), "subscribe": "t"}


def _cells(costs: dict[str, list[Cost]], records: int, goal: float) -> list[str]:
    def rate(name: str) -> str:
        wall = statistics.median(cost.wall_s for cost in costs[name])
        cpu = statistics.median(cost.cpu_s for cost in costs[name])
        return f"{records / wall / 1e6:.2f} M rows/s, {cpu / records * 1e6:.3f} CPU us a row"

    pairs = list(zip(costs["kreplog"], costs["ceiling"], strict=True))
    cpu = [ceiling.cpu_s / ours.cpu_s for ours, ceiling in pairs]
    wall = [ceiling.wall_s / ours.wall_s for ours, ceiling in pairs]
    reached = "reached" if statistics.median(cpu) >= goal else "short"
    return [rate("kreplog"), rate("ceiling"), _spread(cpu), _spread(wall), f">= {goal:.2f} of CPU: {reached}"]


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


if __name__ == "__main__":
    typer.run(main)
