"""Work queues beside other embedded queues: jobs of 100 B put, then taken and acknowledged, per second.

    python -m benchmarks.bench_queue [--jobs N] [--repetitions N] [--quick] [--directory DIR]

Each row names what a put and an acknowledgement survive: `process`, a kill of the process; `power`, a loss of power,
with an fsync for each. Contestants of a row do the same in one run, in an order that rotates; each job that comes back
is compared with that which was put. All take one by one, and kreplog 100 at once, too, which it acknowledges in one
call, or in 100 tasks. Streams are read in turn as well: a cursor of a topic commits its place, the consumer of a Redis
stream acknowledges, for each record or for 100. CPU time has that of redis-server in it. The others: pip install -e
'.[bench,bench-queues]', and redis-server.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness import quiet
from benchmarks.redis_server import RedisServer
from kreplog import DeliveredRecord, Topic
from kreplog.topic import TopicRecord

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

    def server_cpu_s(self) -> float:
        """CPU time of processes that work for it."""
        return 0.0

    @abstractmethod
    def close(self) -> None: ...

    @classmethod
    def missing(cls) -> str:
        """Why it cannot take part here; empty if it can."""
        return "" if importlib.util.find_spec(cls.package) else f"{cls.package} is not installed"


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


class KreplogCursor(Queue):
    """The records of a topic read in turn by a cursor, which commits its place after `commit_every` of them."""

    name = "kreplog, cursor"
    commit_every: ClassVar[int] = 1

    def __init__(self, folder: Path, power: bool) -> None:
        self._power = power
        self._topic = Topic.open(folder / "jobs", 1)
        self._cursor = self._topic.cursor("workers")
        self._records: Iterator[TopicRecord] = iter(())
        self._read = 0

    def put(self, job: bytes) -> None:
        self._topic.append(job)
        if self._power:
            self._topic.flush()

    def take(self) -> bytes:
        record = next(self._records, None)
        if record is None:  # all that there were then
            self._records = iter(self._cursor)
            record = next(self._records)
        self._read += 1
        if self._read % self.commit_every == 0:
            self._cursor.commit(durable=self._power)
        return bytes(record.value)

    def close(self) -> None:
        self._cursor.close()
        self._topic.close()


class KreplogCursorTogether(KreplogCursor):
    name = "kreplog, cursor, commit for 100"
    commit_every = 100


class RedisStream(Queue):
    """A stream and a consumer group. redis-server writes each command to its append-only file before it replies, and
    with `power` syncs that. At most `at_once` records come, and are acknowledged, with one command."""

    name = "Redis stream"
    at_once: ClassVar[int] = 1

    def __init__(self, folder: Path, power: bool) -> None:
        self._server = RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always" if power else "no")
        self._client = RedisServer.client(folder)
        self._client.xgroup_create("jobs", "workers", id="0", mkstream=True)
        self._taken: list[tuple[bytes, dict[bytes, bytes]]] = []
        self._returned = 0

    @classmethod
    def missing(cls) -> str:
        return RedisServer.missing()

    def put(self, job: bytes) -> None:
        self._client.xadd("jobs", {"value": job})

    def take(self) -> bytes:
        if self._returned == len(self._taken):
            ((_, self._taken),) = self._client.xreadgroup("workers", "worker", {"jobs": ">"}, count=self.at_once)
            self._returned = 0
        _, fields = self._taken[self._returned]
        self._returned += 1
        if self._returned == len(self._taken):
            self._client.xack("jobs", "workers", *(entry for entry, _ in self._taken))
        return fields[b"value"]

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def close(self) -> None:
        self._client.close()
        self._server.close()


class RedisStreamTogether(RedisStream):
    name = "Redis stream, 100 at once"
    at_once = 100


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


QUEUES: tuple[type[Queue], ...] = (
    Kreplog, KreplogTogether, KreplogTasks, KreplogCursor, KreplogCursorTogether,
    RedisStream, RedisStreamTogether, LiteQueue, PersistQueue, DiskCache,
)  # fmt: skip


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
            cpu, start = time.process_time() + queue.server_cpu_s(), time.perf_counter()
            for job in data:
                queue.put(job)
            put = time.perf_counter()
            for job in data:
                if queue.take() != job:
                    raise ValueError(f"{kind.name}: another job came than {job!r}")
            end = time.perf_counter()
            cpu = time.process_time() + queue.server_cpu_s() - cpu
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
    kinds = [kind for kind in QUEUES if not kind.missing()]
    for kind in QUEUES:
        if kind not in kinds:
            console.print(f"without {kind.name}: {kind.missing()}", style="yellow", highlight=False)
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
