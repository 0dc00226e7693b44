"""Work queues beside other embedded queues: jobs of 100 B put, then taken and acknowledged, per second.

    python -m benchmarks.bench_queue [--jobs N] [--repetitions N] [--quick] [--directory DIR]

Each row names what a put and an acknowledgement survive: `process`, a kill of the process; `power`, a loss of power,
with an fsync for each. Contestants of a row do the same in one run, in an order that rotates; each job that comes back
is compared with that which was put. All take one by one, and kreplog 100 at once, too, which it acknowledges in one
call, or in 100 tasks. The others: pip install -e '.[bench-queues]'.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness import quiet
from kreplog import DeliveredRecord, Topic

SIZE = 100


class Queue(ABC):
    """A queue in an empty folder of its own. power: a put and an acknowledgement that returned survive its loss."""

    name: ClassVar[str]
    package: ClassVar[str] = "kreplog"
    durabilities: ClassVar[tuple[str, ...]] = ("process", "power")

    @abstractmethod
    def __init__(self, folder: Path, power: bool) -> None: ...

    @abstractmethod
    def put(self, job: bytes) -> None: ...

    @abstractmethod
    def take(self) -> bytes:
        """Take the next job and acknowledge it."""

    @abstractmethod
    def close(self) -> None: ...


class Kreplog(Queue):
    name = "kreplog"

    def __init__(self, folder: Path, power: bool) -> None:
        self._power = power
        self._topic = Topic.open(folder / "jobs", 1)
        self._queue = self._topic.work_queue("workers")

    def put(self, job: bytes) -> None:
        self._topic.append(job)
        if self._power:
            self._topic.flush()

    def take(self) -> bytes:
        (record,) = self._queue.take()
        self._queue.ack(record, durable=self._power)
        return bytes(record.value)

    def close(self) -> None:
        self._queue.close()
        self._topic.close()


class KreplogTogether(Kreplog):
    """The jobs are taken, and acknowledged, up to 100 at once, in a commit each."""

    name = "kreplog, 100 at once"

    def __init__(self, folder: Path, power: bool) -> None:
        super().__init__(folder, power)
        self._taken: list[DeliveredRecord] = []
        self._returned = 0

    def take(self) -> bytes:
        if self._returned == len(self._taken):
            self._taken, self._returned = self._queue.take(100), 0
        record = self._taken[self._returned]
        self._returned += 1
        if self._returned == len(self._taken):
            self._ack()
        return bytes(record.value)

    def _ack(self) -> None:
        self._queue.ack(*self._taken, durable=self._power)


class KreplogTasks(KreplogTogether):
    """100 jobs are taken at once, and each is acknowledged by an asyncio task of its own."""

    name = "kreplog, 100 tasks ack"

    def __init__(self, folder: Path, power: bool) -> None:
        super().__init__(folder, power)
        self._loop = asyncio.new_event_loop()

    def _ack(self) -> None:
        self._loop.run_until_complete(self._acks())

    async def _acks(self) -> None:
        await asyncio.gather(*(self._queue.ack_async(record, durable=self._power) for record in self._taken))

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        super().close()


class PersistQueue(Queue):
    name = "persist-queue, SQLiteAckQueue"
    package = "persistqueue"

    def __init__(self, folder: Path, power: bool) -> None:
        self._queue = importlib.import_module(self.package).SQLiteAckQueue(str(folder), auto_commit=True)
        for connection in (self._queue._conn, self._queue._putter, self._queue._getter):
            _set_synchronous(connection, power)

    def put(self, job: bytes) -> None:
        self._queue.put(job)

    def take(self) -> bytes:
        job = self._queue.get()
        self._queue.ack(job)
        return bytes(job)

    def close(self) -> None:
        self._queue.close()


class LiteQueue(Queue):
    name = "litequeue"
    package = "litequeue"

    def __init__(self, folder: Path, power: bool) -> None:
        self._queue = importlib.import_module(self.package).LiteQueue(str(folder / "queue.sqlite"))
        _set_synchronous(self._queue.conn, power)

    def put(self, job: bytes) -> None:
        self._queue.put(job.decode())

    def take(self) -> bytes:
        message = self._queue.pop()
        self._queue.done(message.message_id)
        return bytes(message.data.encode())

    def close(self) -> None:
        self._queue.close()


class DiskCache(Queue):
    """It has no acknowledgement: what was taken is gone when its worker dies."""

    name = "diskcache, Deque (no ack)"
    package = "diskcache"

    def __init__(self, folder: Path, power: bool) -> None:
        module = importlib.import_module(self.package)
        cache = module.Cache(str(folder), eviction_policy="none", sqlite_synchronous=2 if power else 1)
        self._deque: Any = module.Deque.fromcache(cache)

    def put(self, job: bytes) -> None:
        self._deque.append(job)

    def take(self) -> bytes:
        return bytes(self._deque.popleft())

    def close(self) -> None:
        self._deque.cache.close()


QUEUES: tuple[type[Queue], ...] = (Kreplog, KreplogTogether, KreplogTasks, LiteQueue, PersistQueue, DiskCache)


def _set_synchronous(connection: sqlite3.Connection, power: bool) -> None:
    """In WAL mode, which these queues use, NORMAL survives the process and FULL a loss of power."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if power else 'NORMAL'}")


class Rates(NamedTuple):
    """Jobs per second; CPU microseconds of a job that is put, taken and acknowledged."""

    put: float
    take: float
    cpu_us: float


def rates(kind: type[Queue], folder: Path, power: bool, jobs: int) -> Rates:
    """Raises ValueError where another job comes back than was put."""
    queue = kind(folder, power)
    data = [b"%0*d" % (SIZE, number) for number in range(jobs)]
    try:
        queue.put(b"first" * 20)  # what makes files is not counted
        queue.take()
        with quiet():
            cpu, start = time.process_time(), time.perf_counter()
            for job in data:
                queue.put(job)
            put = time.perf_counter()
            for job in data:
                if queue.take() != job:
                    raise ValueError(f"{kind.name}: another job came than {job!r}")
            end = time.perf_counter()
            cpu = time.process_time() - cpu
    finally:
        queue.close()
    return Rates(jobs / (put - start), jobs / (end - put), cpu / jobs * 1e6)


def main(
    jobs: Annotated[int, typer.Option(min=1, help="Jobs in each repetition; a fifth of them with fsyncs.")] = 1000,
    repetitions: Annotated[int, typer.Option(min=1, help="Turns of each contestant.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
) -> None:
    """Jobs put, and taken and acknowledged, per second, beside other embedded queues."""
    if quick:
        jobs, repetitions = 10, 1
    console = Console(width=None if sys.stdout.isatty() else 170)
    kinds = [kind for kind in QUEUES if importlib.util.find_spec(kind.package) is not None]
    for kind in QUEUES:
        if kind not in kinds:
            console.print(f"without {kind.name}: {kind.package} is not installed", style="yellow", highlight=False)
    table = Table("survives", "queue", "put/s", "ratio (range)", "take + ack/s", "ratio (range)", "CPU us", "ratio")
    for durability in ("process", "power"):
        measured: dict[type[Queue], list[Rates]] = {kind: [] for kind in kinds}
        count = jobs if durability == "process" else max(1, jobs // 5)
        for repetition in range(repetitions):
            turn = repetition % len(kinds)
            for kind in kinds[turn:] + kinds[:turn]:
                with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=directory) as folder:
                    measured[kind].append(rates(kind, Path(folder), durability == "power", count))
        for kind, runs in measured.items():
            table.add_row(durability, kind.name, *_cells(runs, measured[Kreplog]))
    console.print(table)
    console.print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {repetitions} repetitions of {jobs} jobs of {SIZE} B",
        highlight=False,
    )


def _cells(runs: list[Rates], ours: list[Rates]) -> list[str]:
    """The medians, each with kreplog's against it in the same repetition; above 1, kreplog is better."""
    pairs = list(zip(runs, ours, strict=True))
    puts = [our.put / run.put for run, our in pairs]
    takes = [our.take / run.take for run, our in pairs]
    cpu = [run.cpu_us / our.cpu_us for run, our in pairs]
    return [
        f"{statistics.median(run.put for run in runs):,.0f}",
        _ratio(puts),
        f"{statistics.median(run.take for run in runs):,.0f}",
        _ratio(takes),
        f"{statistics.median(run.cpu_us for run in runs):,.0f}",
        _ratio(cpu),
    ]


def _ratio(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


if __name__ == "__main__":
    typer.run(main)
