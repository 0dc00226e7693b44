"""Compaction of one log, beside Kafka's cleaner on the same segments and RocksDB's compaction of the same records.

    python -m benchmarks.bench_compaction                  # 1 GB of records of 100 B, a tenth of which survive
    python -m benchmarks.bench_compaction --megabytes 100
    python -m benchmarks.bench_compaction --quick          # tiny: shows that it works, not how fast it is

A rate is bytes of the segments that are compacted by CPU time: of this process, or of the cleaner's thread in Kafka,
which is a process with its own JVM options and cleaner's buffers. RocksDB takes the records unsorted into files of its
level 0, which is not measured, and then compacts them into one level; it does not compress. What is left is checked
against a dict before the rate counts.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, ClassVar, NamedTuple

import typer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.clusters import KAFKA_JVM, TICKS
from benchmarks.harness import quiet
from kreplog import Log, LogConfig
from tests.interop.jvm import Broker, Kafka, Unavailable

VALUE_SIZE = 84
KEY = b"key %012d"
BATCH = 1000
SEGMENTS = 10
"""Segments that are compacted; the newest, which is not, has one batch."""

TOPIC = "prices"
POLL_S = 0.1
CLEANED_S = 600
MUST = 150
AIM = 400


class Made(NamedTuple):
    """A log that is closed, not compacted; size: of its sealed segments, which have `records` records."""

    path: Path
    size: int
    records: int
    newest: dict[bytes, bytes]


class Run(NamedTuple):
    """Megabytes a second: by the clock, 0 where that says nothing, and of CPU time."""

    wall: float
    core: float


class Compactor(ABC):
    """Prepares in a folder of its own, and compacts once."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, made: Made, folder: Path) -> Run: ...


class Kreplog(Compactor):
    name = "kreplog, Log.compact"

    def run(self, made: Made, folder: Path) -> Run:
        path = folder / made.path.name
        shutil.copytree(made.path, path)
        with Log.open(path, LogConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)) as log:
            with quiet():
                start, cpu = perf_counter(), process_time()
                log.compact()
                seconds, cpu_seconds = perf_counter() - start, process_time() - cpu
            check(self.name, made, log)
        return Run(made.size / 1e6 / seconds, made.size / 1e6 / max(cpu_seconds, 1e-9))


class KafkaCleaner(Compactor):
    """A real broker on a copy of the same segments, whose indexes it makes again. Raises Unavailable."""

    name = "Apache Kafka, its cleaner"

    def run(self, made: Made, folder: Path) -> Run:
        kafka = Kafka(folder, jvm=KAFKA_JVM)
        broker = Broker(kafka, folder, "log.cleaner.dedupe.buffer.size=134217728\nlog.cleaner.io.buffer.size=524288\n")
        partition = broker.partition(TOPIC)
        try:
            broker.start()
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
            for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values():
                future.result()
            broker.stop()
            for segment in made.path.glob("*.log"):
                shutil.copy(segment, partition / segment.name)
            broker.start()
            cpu_seconds = self._cleaned(broker, made)
        finally:
            broker.kill()
        with Log.open(partition, read_only=True) as log:
            check(self.name, made, log)
        return Run(0.0, made.size / 1e6 / cpu_seconds)

    def _cleaned(self, broker: Broker, made: Made) -> float:
        """CPU seconds of the cleaner's thread until its checkpoint shows that it is through. Raises TimeoutError."""
        done = f"{TOPIC} 0 {made.records}"
        checkpoint = broker.data / "cleaner-offset-checkpoint"
        deadline = time.monotonic() + CLEANED_S
        while not checkpoint.exists() or done not in checkpoint.read_text().splitlines():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is not through after {CLEANED_S} s: {broker.words()}")
            time.sleep(POLL_S)  # Kafka reports its cleaner's progress in that file alone
        return sum(
            (int(fields[11]) + int(fields[12])) / TICKS
            for task in Path(f"/proc/{broker.pid}/task").iterdir()
            if (task / "comm").read_text().startswith("kafka-log-clean")
            for fields in [(task / "stat").read_text().rpartition(")")[2].split()]
        )


class RocksDB(Compactor):
    name = "RocksDB, compact_range"

    def run(self, made: Made, folder: Path) -> Run:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.set_disable_auto_compactions(True)
        options.set_level_zero_slowdown_writes_trigger(1 << 20)
        options.set_level_zero_stop_writes_trigger(1 << 20)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        db = rocksdict.Rdict(str(folder / "db"), options)
        try:
            for pairs in _batches(made):
                batch = rocksdict.WriteBatch(raw_mode=True)
                for key, value in pairs:
                    batch.put(key, value)
                db.write(batch)
            db.flush()
            with quiet():
                start, cpu = perf_counter(), process_time()
                db.compact_range(None, None)
                seconds, cpu_seconds = perf_counter() - start, process_time() - cpu
            if dict(db.items()) != made.newest:
                raise ValueError(f"{self.name}: other values than those of the newest records are left")
        finally:
            db.close()
        return Run(made.size / 1e6 / seconds, made.size / 1e6 / max(cpu_seconds, 1e-9))


COMPACTORS: tuple[type[Compactor], ...] = (Kreplog, KafkaCleaner, RocksDB)


def check(name: str, made: Made, log: Log) -> None:
    """Raises ValueError where the log has not just the newest record of each key below its newest segment."""
    left = {record.key: record.value for record in log.read(log.log_start_offset, made.records)}
    count = sum(1 for _ in log.values(log.log_start_offset, made.records))
    if left != made.newest or count != len(left):
        raise ValueError(f"{name}: {count} records are left of {made.records}, which have {len(made.newest)} keys")


def _batches(made: Made) -> Iterator[list[tuple[bytes, bytes]]]:
    with Log.open(made.path, read_only=True) as log:
        for start in range(0, made.records, BATCH):
            yield [(record.key or b"", record.value or b"") for record in log.read(start, start + BATCH)]


def make(path: Path, records: int, keys: int, seed: int) -> Made:
    """In batches of 1,000 records with keys drawn evenly, and one that stays in the newest segment."""
    draw = random.Random(seed)
    filling = draw.randbytes(VALUE_SIZE)
    newest: dict[bytes, bytes] = {}
    with Log.open(path, LogConfig(segment_bytes=max(1 << 17, records * 108 // SEGMENTS))) as log:
        for start in range(0, records, BATCH):
            pairs = [
                (KEY % draw.randrange(keys), (b"%d " % number + filling)[:VALUE_SIZE])
                for number in range(start, start + BATCH)
            ]
            newest.update(pairs)
            log.append_many([value for _, value in pairs], keys=[key for key, _ in pairs])
        log.roll()
        size = log.size
        log.append(b"", key=b"newest segment")
    return Made(path, size, records, newest)


def main(
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the log.")] = 1000,
    repetitions: Annotated[int, typer.Option(min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of keys and values.")] = 1,
    kafka: Annotated[bool, typer.Option(help="Beside a real Apache Kafka, which needs Java 17 and Maven.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
) -> None:
    """Megabytes a second of CPU time that kreplog and others compact."""
    if quick:
        megabytes, repetitions = 1, 1
    console = Console(width=140)
    kinds = [kind for kind in COMPACTORS if kind is not KafkaCleaner or kafka]
    if not importlib.util.find_spec("rocksdict"):
        kinds.remove(RocksDB)
        console.print(f"{RocksDB.name} is left out: rocksdict is not installed", highlight=False)
    runs: dict[type[Compactor], list[Run]] = {kind: [] for kind in kinds}
    records = max(BATCH, megabytes * 1_000_000 // 108 // BATCH * BATCH)
    with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=directory) as parent:
        made = make(Path(parent) / f"{TOPIC}-0", records, records // 10, seed)
        for repetition in range(repetitions):
            turn = repetition % len(kinds)
            for kind in kinds[turn:] + kinds[:turn]:
                with tempfile.TemporaryDirectory(dir=parent) as folder:
                    try:
                        runs[kind].append(kind().run(made, Path(folder)))
                    except Unavailable as error:
                        console.print(f"{kind.name} is left out: {error}", highlight=False)
    _show(console, {kind: done for kind, done in runs.items() if done})
    console.print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, seed {seed}, {repetitions} repetitions of "
        f"{made.size / 1e6:.0f} MB in {records} records, {len(made.newest)} keys",
        highlight=False,
    )


def _show(console: Console, runs: dict[type[Compactor], list[Run]]) -> None:
    """Medians; the ratios are those of one repetition, above 1 where kreplog takes less CPU time."""
    table = Table(title=f"Compaction (kreplog must {MUST}, aims at {AIM} MB a second of CPU time)")
    for heading in ("compactor", "MB/s", "MB/s a core", "kreplog / it, a core"):
        table.add_column(heading, justify="left" if heading == "compactor" else "right")
    for kind, done in runs.items():
        ratios = [ours.core / theirs.core for ours, theirs in zip(runs[Kreplog], done, strict=False)]
        wall = statistics.median(run.wall for run in done)
        table.add_row(
            kind.name,
            f"{wall:,.0f}" if wall else "",
            f"{statistics.median(run.core for run in done):,.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})",
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
