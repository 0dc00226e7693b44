"""The coordination stores: the writes of a controller that fails over 10,000 partitions, and how soon a death is seen.

    python -m benchmarks.bench_coord [--partitions N] [--repetitions N] [--timeout-ms N] [--quick] [--directory DIR]

All partitions' states are written conditionally, with the version that was read, and read back after each repetition.
`embedded` does it in one multi, and so does the ceiling, the same updates by hand on a bare sqlite3 connection.
`zookeeper` does it in multis of 500, and in one, on a server whose jute.maxbuffer was raised for that; it is left out,
and said so, where java or Debian's zookeeper package is missing. Contestants take turns. Wants a directory on a real
disk: everything here is synced.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness import quiet, timed
from kreplog.coord.base import Session
from kreplog.coord.embedded import EmbeddedStore
from kreplog.coord.memory import MemoryStore
from kreplog.types import Create, SetData, WatchEvent
from tests.coord.puppet import Puppet
from tests.coord.servers import MISSING, ZooKeeperServer

TIMEOUT_MS = 20_000
BATCH = 500
JUTE_BYTES = 16 << 20
STATE = '{"version":1,"leader":%d,"leader_epoch":%d,"isr":[1,2,3],"controller_epoch":1}'


class Partitions:
    """The partition states of one store, written by `multi_size` at a time; None for all in one multi."""

    def __init__(self, session: Session, count: int, multi_size: int | None) -> None:
        self.session = session
        self.paths = [f"/topics/topic-{number // 10}-{number % 10}-leaderAndISR" for number in range(count)]
        self._size = multi_size or count
        self.version = 0
        session.create("/topics")
        for start in range(0, count, BATCH):
            session.multi([Create(path, self._state()) for path in self.paths[start : start + BATCH]])

    def fail_over(self) -> float:
        """Seconds to write them all once; they are read back after that."""
        operations = [SetData(path, self._state(self.version + 1), self.version) for path in self.paths]
        batches = [operations[start : start + self._size] for start in range(0, len(operations), self._size)]
        seconds = timed(lambda: [self.session.multi(batch) for batch in batches])
        self.version += 1
        self.check()
        return seconds

    def check(self) -> str:
        """Digest of what the store holds. Raises when that is not what was written."""
        digest = hashlib.sha256()
        for path, node in zip(self.paths, self.session.get_many(self.paths), strict=True):
            if node is None or (node.data, node.stat.version) != (self._state(self.version), self.version):
                raise ValueError(f"{path} holds {node}, not version {self.version}")
            digest.update(node.data)
        return digest.hexdigest()[:12]

    def _state(self, version: int = 0) -> bytes:
        return (STATE % (version % 3 + 1, version)).encode()


class Bare:
    """The ceiling: one conditional UPDATE a partition, in one transaction of a sqlite3 connection."""

    def __init__(self, directory: Path, count: int) -> None:
        self._connection = sqlite3.connect(directory / "bare.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE nodes (path TEXT PRIMARY KEY, data BLOB, version INTEGER) WITHOUT ROWID")
        self._paths = [f"/topics/topic-{number // 10}-{number % 10}-leaderAndISR" for number in range(count)]
        rows = [(path, (STATE % (1, 0)).encode()) for path in self._paths]
        self._connection.executemany("INSERT INTO nodes VALUES (?, ?, 0)", rows)
        self.version = 0

    def fail_over(self) -> float:
        """Seconds to write them all once. Raises when one was not written."""
        state = (STATE % ((self.version + 1) % 3 + 1, self.version + 1)).encode()

        def write() -> int:
            self._connection.execute("BEGIN IMMEDIATE")
            rows = [(state, path, self.version) for path in self._paths]
            sql = "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ? AND version = ?"
            written = self._connection.executemany(sql, rows).rowcount
            self._connection.execute("COMMIT")
            return written

        with quiet():
            start = perf_counter()
            written = write()
            seconds = perf_counter() - start
        if written != len(self._paths):
            raise ValueError(f"{written} of {len(self._paths)} written")
        self.version += 1
        return seconds

    def close(self) -> None:
        self._connection.close()


def single_writes(session: Session, count: int) -> list[float]:
    """Seconds of each of `count` conditional writes of one node."""
    session.create("/one")
    samples = []
    for version in range(count):
        start = perf_counter()
        session.set_data("/one", b"state", version)
        samples.append(perf_counter() - start)
    return samples


def _signal(gone: threading.Event, _: WatchEvent) -> None:
    gone.set()


def kills(session: Session, address: str, timeout_ms: int, count: int) -> list[float]:
    """Seconds from SIGKILL of a process to the call of a watch on its ephemeral node, `count` times."""
    samples = []
    for _ in range(count):
        puppet, gone = Puppet(address, timeout_ms), threading.Event()
        puppet("create", "/killed", b"", ephemeral=True)
        session.get("/killed", partial(_signal, gone))
        start = perf_counter()
        puppet.process.kill()
        if not gone.wait(60):
            raise TimeoutError("the ephemeral node of a killed process is still there after a minute")
        samples.append(perf_counter() - start)
        puppet.kill()
    return samples


def main(
    partitions: Annotated[int, typer.Option(min=1, help="Partition states to write.")] = 10_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Times that everything is written.")] = 7,
    writes: Annotated[int, typer.Option(min=1, help="Single conditional writes.")] = 500,
    deaths: Annotated[int, typer.Option(min=1, help="Processes to kill; ZooKeeper's take seconds each.")] = 20,
    timeout_ms: Annotated[int, typer.Option(min=1, help="Session timeout of those that are killed.")] = 6000,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
) -> None:
    """The coordination stores: 10,000 conditional writes, a single one, and the death of a process."""
    if quick:
        partitions, repetitions, writes, deaths, timeout_ms = 1200, 2, 10, 1, 1000
    console = Console(width=None if sys.stdout.isatty() else 150)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=directory)))
        embedded = EmbeddedStore(folder / "embedded")
        stack.callback(embedded.close)
        session = embedded.connect(TIMEOUT_MS)
        bare = stack.enter_context(closing(Bare(folder, partitions)))
        stores = {
            "embedded, one multi": Partitions(session, partitions, None),
            "memory, one multi": Partitions(MemoryStore().connect(TIMEOUT_MS), partitions, None),
        }
        singles: dict[str, tuple[Session, str]] = {"embedded": (session, f"embedded:{folder / 'embedded'}")}
        if MISSING:
            console.print(f"without ZooKeeper: {MISSING}", style="yellow", highlight=False)
        else:
            for name, (ensemble, address, size) in _ensembles(stack, folder / "zookeeper").items():
                stores[f"zookeeper, {name}"] = Partitions(ensemble, partitions, size)
                singles["zookeeper"] = ensemble, address
        measures: dict[str, Callable[[], float]] = {"ceiling: bare sqlite3": bare.fail_over}
        measures |= {name: store.fail_over for name, store in stores.items()}
        samples: dict[str, list[float]] = {name: [] for name in measures}
        for repetition in range(repetitions):
            for name in sorted(measures, key=lambda name: (list(measures).index(name) + repetition) % len(measures)):
                samples[name].append(measures[name]())
        table = Table("operation", "store", "median ms", "min", "p99 or max", title="coordination stores")
        for name, seconds in samples.items():
            _add(table, f"{partitions:,} conditional writes", name, seconds)
        for name, (writer, _) in singles.items():
            _add(table, "a conditional write", name, single_writes(writer, writes))
        for name, (writer, address) in singles.items():
            count = deaths if name == "embedded" else min(deaths, 3)
            _add(table, f"SIGKILL to watch, {timeout_ms} ms session", name, kills(writer, address, timeout_ms, count))
        console.print(table)
        digests = {store.check() for store in stores.values()}
        console.print(
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {repetitions} repetitions, in {folder.parent}; "
            f"digest {' '.join(digests)}",
            highlight=False,
        )
        if len(digests) > 1:
            raise typer.Exit(1)


def _ensembles(stack: ExitStack, folder: Path) -> dict[str, tuple[Session, str, int | None]]:
    """A ZooKeeper server: session, address, and writes in a multi, by what they are called."""
    from kreplog.coord.zookeeper import ZooKeeperStore

    folder.mkdir()
    server = ZooKeeperServer(folder, f"-Djute.maxbuffer={JUTE_BYTES}")
    stack.callback(server.kill)
    found: dict[str, tuple[Session, str, int | None]] = {}
    for name, root, size in ((f"multis of {BATCH}", "batches", BATCH), ("one multi", "one", None)):
        store = ZooKeeperStore(f"{server.hosts}/{root}", max_multi_bytes=JUTE_BYTES)
        stack.callback(store.close)
        found[name] = store.connect(TIMEOUT_MS), f"zookeeper:{server.hosts}/{root}", size
    return found


def _add(table: Table, operation: str, store: str, seconds: Sequence[float]) -> None:
    ordered = sorted(value * 1000 for value in seconds)
    worst = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    table.add_row(operation, store, f"{statistics.median(ordered):.2f}", f"{ordered[0]:.2f}", f"{worst:.2f}")


if __name__ == "__main__":
    typer.run(main)
