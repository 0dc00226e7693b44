"""Reading: all as bytes, as Records, as Arrow, without objects, compressed, and 1,000 records at a random offset.

Every store is filled once per workload and opened again for each sample, outside the time measured, so each sample pays
for its own mapping and page faults but not for the disk: files just written are in the page cache.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.bench_append import LZ4_ALONE, batch_payloads
from benchmarks.harness import BEST_PEER, CEILING, Bench, Contestant, Goal, quiet, timed, workload
from benchmarks.peers import AiokafkaFile, Lmdb, RawFile, Rocks, Sqlite
from benchmarks.stores import Ceiling, Kreplog, KreplogLz4, Store, available

COLUMNS_CEILING = "ceiling, columns filled"
UNCOMPRESSED = "kreplog, uncompressed"
COLUMNS = ["offset", "timestamp", "key", "value"]
SEEK_RECORDS = 1000


@workload("W5", "read all into bytes, 100 B", "rec/s", Goal(CEILING, 0.75, 0.90), Goal(BEST_PEER, 2.5))
def read_values(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile)
    return [
        Contestant(store.name, store.role, partial(_values_rate, bench, store, _filled(bench, store), store.name))
        for store in stores
    ]


@workload("W5r", "read all as Record, 100 B", "rec/s", Goal(CEILING, 0.35, 0.50))
def read_records(bench: Bench) -> Sequence[Contestant]:
    folder, count = _filled(bench, Kreplog), bench.scale.small_records

    def records_rate() -> float:
        with Kreplog(folder) as store:
            seconds = timed(lambda: deque(store.records(), 0))
            bench.digests[store.name] = bench.small.expect(
                (record.value for record in store.records()), count, store.name
            )
        return count / seconds

    return [
        Contestant("kreplog", "kreplog", records_rate),
        Contestant(CEILING, "ceiling", partial(_values_rate, bench, Ceiling, _filled(bench, Ceiling), CEILING)),
    ]


@workload("W6", "scan without Python objects, 100 B", "rec/s", Goal(CEILING, 0.80, 0.90), Goal(BEST_PEER, 5.0))
def scan(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, Sqlite, AiokafkaFile)
    return [
        Contestant(store.name, store.role, partial(_scan_rate, bench, store, _filled(bench, store))) for store in stores
    ]


@workload(
    "WA",
    "to Arrow columns (offset, timestamp, key, value), 100 B",
    "rec/s",
    Goal(CEILING, 0.40, 0.60),
    Goal(COLUMNS_CEILING),
)
def to_arrow(bench: Bench) -> Sequence[Contestant]:
    folder, count = _filled(bench, Kreplog), bench.scale.small_records
    plain = _filled(bench, Ceiling)

    def arrow_rate() -> float:
        with Kreplog(folder) as store:
            seconds = timed(lambda: deque(store.log.to_arrow(columns=COLUMNS), 0))
            values = (value for batch in store.log.to_arrow(columns=COLUMNS) for value in batch["value"].to_pylist())
            bench.digests[store.name] = bench.small.expect(values, count, store.name)
        return count / seconds

    def columns_rate() -> float:
        with Ceiling(plain) as store:
            found: list[int] = []
            seconds = timed(lambda: found.append(store.columns()))
            if found != [count]:
                raise AssertionError(f"the ceiling has columns of {found[0]} records; written were {count}")
        return count / seconds

    return [
        Contestant("kreplog", "kreplog", arrow_rate),
        Contestant(CEILING, "ceiling", partial(_scan_rate, bench, Ceiling, plain)),
        Contestant(COLUMNS_CEILING, "reference", columns_rate),
    ]


@workload(
    "R",
    "seek to a random offset, then 1,000 records of 100 B, p50",
    "µs",
    Goal(CEILING, 1 / 1.4, 1 / 1.15),
    Goal(BEST_PEER, 2.5),
    less_is_better=True,
)
def seek(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile)
    source = random.Random(bench.seed)
    offsets = [source.randrange(bench.scale.small_records - SEEK_RECORDS) for _ in range(bench.scale.seeks)]
    return [
        Contestant(store.name, store.role, partial(_seek_time, bench, store, _filled(bench, store), offsets))
        for store in stores
    ]


@workload("W5z", "read all into bytes, lz4, 100 B", "rec/s", Goal(UNCOMPRESSED, 0.55, 0.70), Goal(LZ4_ALONE))
def read_lz4(bench: Bench) -> Sequence[Contestant]:
    import lz4.frame

    count = bench.scale.small_records
    plain = batch_payloads(_filled(bench, Ceiling) / "ceiling.log")
    frames = [lz4.frame.compress(payload, store_size=False) for payload in plain]

    def lz4_rate() -> float:
        return count / timed(lambda: deque(map(lz4.frame.decompress, frames), 0))

    return [
        Contestant(
            "kreplog", "kreplog", partial(_values_rate, bench, KreplogLz4, _filled(bench, KreplogLz4), "kreplog")
        ),
        Contestant(
            UNCOMPRESSED, "reference", partial(_values_rate, bench, Kreplog, _filled(bench, Kreplog), UNCOMPRESSED)
        ),
        Contestant(LZ4_ALONE, "reference", lz4_rate),
    ]


def _filled(bench: Bench, kind: type[Store]) -> Path:
    """A folder in the workspace that holds a closed store of `small_records` records."""
    folder = bench.directory / kind.__name__
    folder.mkdir()
    with kind(folder) as store:
        for chunk in bench.small.chunks(bench.scale.small_records):
            store.append_many(chunk)
        store.finish()
    return folder


def _values_rate(bench: Bench, kind: type[Store], folder: Path, name: str) -> float:
    """Records a second as bytes objects, each dropped when the next one comes. Verified by a second pass."""
    count = bench.scale.small_records
    with kind(folder) as store:
        seconds = timed(lambda: deque(store.values(), 0))
        bench.digests[name] = bench.small.expect(store.values(), count, name)
    return count / seconds


def _scan_rate(bench: Bench, kind: type[Store], folder: Path) -> float:
    count = bench.scale.small_records
    with kind(folder) as store:
        found: list[int] = []
        seconds = timed(lambda: found.append(store.scan()))
        if found != [count]:
            raise AssertionError(f"{store.name}: the scan found {found[0]} records; written were {count}")
    return count / seconds


def _seek_time(bench: Bench, kind: type[Store], folder: Path, offsets: list[int]) -> float:
    """Median microseconds of a seek, after one that is not counted. Each one's records are verified afterwards."""
    with kind(folder) as store:
        read: Callable[[int], list[bytes | None]] = partial(store.seek, count=SEEK_RECORDS)
        read(0)
        times = []
        with quiet():
            for offset in offsets:
                start = perf_counter()
                read(offset)
                times.append(perf_counter() - start)
        for offset in offsets:
            if read(offset) != bench.small.slice(offset, SEEK_RECORDS):
                raise AssertionError(f"{store.name}: wrong records at offset {offset}")
    return statistics.median(times) * 1e6
