"""Loading a table, in memory and in an LMDB file, beside a dict, LMDB and RocksDB that a program fills by itself.

    python -m benchmarks.bench_tables                      # a million records, half of which have keys that come again
    python -m benchmarks.bench_tables --records 20000000 --keys 10000000
    python -m benchmarks.bench_tables --quick              # tiny: shows that it works, not how fast it is

kreplog's tables load from the log. So does the dict beside them, by `Topic.read`; the others take the same records from
lists in memory, which is the least that they could do. A core's rate is by the CPU time of the process with all its
threads. Each store is checked against the dict before its rate counts.
"""

from __future__ import annotations

import importlib.util
import os
import random
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, ClassVar, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness import quiet
from kreplog import Topic

VALUE_SIZE = 100
AT_ONCE = 10_000
"""Records of a transaction of LMDB, and of a write batch of RocksDB."""
CHECKED = 1000


class Records(NamedTuple):
    """The records that are loaded, as a topic of one partition and as lists, and the result."""

    topic: Topic
    keys: list[bytes]
    values: list[bytes]
    newest: dict[bytes, bytes]


class Store(ABC):
    """Filled in an empty folder of its own."""

    name: ClassVar[str]
    package: ClassVar[str] = "kreplog"

    @abstractmethod
    def load(self, records: Records, folder: Path) -> None: ...

    @abstractmethod
    def get(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def close(self) -> None: ...


class InMemory(Store):
    name = "kreplog, table()"

    def load(self, records: Records, folder: Path) -> None:
        self._table = records.topic.table()

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._table.get(key)
        return value

    def close(self) -> None:
        self._table.close()


class InFile(InMemory):
    name = "kreplog, table(path=...)"
    package = "lmdb"

    def load(self, records: Records, folder: Path) -> None:
        self._table = records.topic.table(path=folder)


class DictOfLog(Store):
    name = "dict, by Topic.read"

    def load(self, records: Records, folder: Path) -> None:
        self._newest: dict[bytes, bytes] = {}
        for record in records.topic.read():
            self._newest[record.key] = record.value

    def get(self, key: bytes) -> bytes | None:
        return self._newest.get(key)

    def close(self) -> None:
        self._newest.clear()


class DictOfLists(DictOfLog):
    name = "dict, from lists"

    def load(self, records: Records, folder: Path) -> None:
        self._newest = {}
        for key, value in zip(records.keys, records.values, strict=True):
            self._newest[key] = value


class Lmdb(Store):
    """Not synced, as RocksDB is not."""

    name = "lmdb, put, from lists"
    package = "lmdb"

    def load(self, records: Records, folder: Path) -> None:
        import lmdb

        self._env = lmdb.open(str(folder), map_size=1 << 40, sync=False, metasync=False)
        for start in range(0, len(records.keys), AT_ONCE):
            with self._env.begin(write=True) as transaction:
                put = transaction.put
                for at in range(start, min(start + AT_ONCE, len(records.keys))):
                    put(records.keys[at], records.values[at])

    def get(self, key: bytes) -> bytes | None:
        with self._env.begin() as transaction:
            return transaction.get(key)

    def close(self) -> None:
        self._env.close()


class Rocks(Store):
    name = "rocksdict, put, from lists"
    package = "rocksdict"

    def load(self, records: Records, folder: Path) -> None:
        import rocksdict

        self._db = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True))
        for start in range(0, len(records.keys), AT_ONCE):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for at in range(start, min(start + AT_ONCE, len(records.keys))):
                batch.put(records.keys[at], records.values[at])
            self._db.write(batch)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def close(self) -> None:
        self._db.close()


STORES: tuple[type[Store], ...] = (InMemory, InFile, DictOfLog, DictOfLists, Lmdb, Rocks)


class Rate(NamedTuple):
    """Records a second, and records a second of CPU time."""

    wall: float
    core: float


def rate(kind: type[Store], records: Records, folder: Path) -> Rate:
    """Raises ValueError where the store has other values than the dict."""
    store = kind()
    with quiet():
        start, cpu = perf_counter(), process_time()
        store.load(records, folder)
        seconds, cpu_seconds = perf_counter() - start, process_time() - cpu
    try:
        _check(store, records.newest)
    finally:
        store.close()
    return Rate(len(records.keys) / seconds, len(records.keys) / max(cpu_seconds, 1e-9))


def _check(store: Store, newest: Mapping[bytes, bytes]) -> None:
    for key in [b"no such key", *random.Random(1).sample(sorted(newest), min(CHECKED, len(newest)))]:
        if store.get(key) != newest.get(key):
            raise ValueError(f"{store.name}: another value than that of the newest record of {key!r}")


def make(folder: Path, records: int, keys: int, seed: int) -> Records:
    """In batches of 1,000 records, with keys drawn evenly."""
    draw = random.Random(seed)
    drawn = [b"key %012d" % draw.randrange(keys) for _ in range(records)]
    filling = draw.randbytes(VALUE_SIZE)
    values = [(b"%d " % number + filling)[:VALUE_SIZE] for number in range(records)]
    topic = Topic.open(folder / "prices", 1)
    for start in range(0, records, 1000):
        topic.append_many(values[start : start + 1000], drawn[start : start + 1000])
    return Records(topic, drawn, values, dict(zip(drawn, values, strict=True)))


def main(
    records: Annotated[int, typer.Option(min=1, help="Records in the log.")] = 1_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Different keys that they may have.")] = 700_000,
    repetitions: Annotated[int, typer.Option(min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of keys and values.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
) -> None:
    """Records a second that tables and others load."""
    if quick:
        records, keys, repetitions = 3000, 2000, 1
    console = Console(width=140)
    kinds = [kind for kind in STORES if importlib.util.find_spec(kind.package)]
    for kind in STORES:
        if kind not in kinds:
            console.print(f"{kind.name} is left out: {kind.package} is not installed", highlight=False)
    rates: dict[type[Store], list[Rate]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=directory) as parent:
        made = make(Path(parent), records, keys, seed)
        with made.topic:
            for repetition in range(repetitions):
                turn = repetition % len(kinds)
                for kind in kinds[turn:] + kinds[:turn]:
                    with tempfile.TemporaryDirectory(dir=parent) as folder:
                        rates[kind].append(rate(kind, made, Path(folder)))
    _show(console, rates)
    console.print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, seed {seed}, {repetitions} repetitions of {records} "
        f"records of {VALUE_SIZE} B, {len(made.newest)} keys",
        highlight=False,
    )


def _show(console: Console, rates: dict[type[Store], list[Rate]]) -> None:
    """Medians; the ratios are those of one repetition, above 1 where kreplog's table is faster."""
    table = Table(title="Loading the newest value of each key")
    for heading in ("store", "rec/s", "rec/s a core", "table() / it, a core", "table(path) / it, a core"):
        table.add_column(heading, justify="left" if heading == "store" else "right")
    for kind, runs in rates.items():
        table.add_row(
            kind.name,
            f"{statistics.median(run.wall for run in runs):,.0f}",
            f"{statistics.median(run.core for run in runs):,.0f}",
            *(_ratio(rates.get(ours, []), runs) for ours in (InMemory, InFile)),
        )
    console.print(table)


def _ratio(ours: list[Rate], theirs: list[Rate]) -> str:
    ratios = [our.core / their.core for our, their in zip(ours, theirs, strict=False)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})" if ratios else ""


if __name__ == "__main__":
    typer.run(main)
