"""Space: bytes on disk per record, index included, and memory beyond mapped pages while appending and reading."""

from __future__ import annotations

import itertools
import multiprocessing
import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.data import Pool
from benchmarks.harness import Bench, Contestant, Goal, Scale, workload
from benchmarks.peers import AiokafkaFile, Lmdb, RawFile, Rocks, Sqlite
from benchmarks.stores import Ceiling, Kreplog, KreplogLz4, Store, available

STATUS = Path("/proc/self/status")


def _once(scale: Scale) -> int:
    return 1


@workload(
    "W8",
    "bytes on disk per record of 100 B, index included",
    "B",
    Goal(None, 110.5),
    less_is_better=True,
    repetitions=_once,
)
def disk(bench: Bench) -> Sequence[Contestant]:
    return _disk(
        bench, bench.small, bench.scale.small_records, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile
    )


@workload(
    "W8k",
    "bytes on disk per record of 1 KiB, index included",
    "B",
    Goal(None, 1036.0),
    less_is_better=True,
    repetitions=_once,
)
def disk_large(bench: Bench) -> Sequence[Contestant]:
    return _disk(
        bench, bench.large, bench.scale.large_records, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile
    )


@workload(
    "W8z",
    "bytes on disk per record of 100 B with lz4",
    "B",
    Goal(None, None, 46.0),
    less_is_better=True,
    repetitions=_once,
)
def disk_lz4(bench: Bench) -> Sequence[Contestant]:
    return _disk(bench, bench.small, bench.scale.small_records, KreplogLz4, Rocks)


@workload(
    "M",
    "memory beyond mapped pages while appending and reading 200 MB",
    "MB",
    Goal(None, 16.0, 6.0),
    less_is_better=True,
)
def memory(bench: Bench) -> Sequence[Contestant]:
    if not STATUS.exists():
        raise NotImplementedError(f"{STATUS} is not there: anonymous memory is only measured on Linux")
    return [Contestant("kreplog", "kreplog", partial(_memory_growth, bench))]


def _disk(bench: Bench, pool: Pool, count: int, *kinds: type[Store]) -> list[Contestant]:
    return [
        Contestant(kind.name, kind.role, partial(_bytes_per_record, bench, kind, pool, count))
        for kind in available(bench, *kinds)
    ]


def _bytes_per_record(bench: Bench, kind: type[Store], pool: Pool, count: int) -> float:
    with bench.folder() as folder:
        with kind(folder) as store:
            for chunk in pool.chunks(count):
                store.append_many(chunk)
            store.finish()
        size = store.disk_bytes()
        with kind(folder) as store:
            bench.digests[kind.name] = pool.expect(store.values(), count, kind.name)
    return size / count


def _memory_growth(bench: Bench) -> float:
    """Megabytes by which a fresh process's anonymous memory grew at most over its start."""
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    with bench.folder() as folder:
        arguments = (folder, bench.scale.distinct, bench.seed, bench.scale.memory_mb * 1_000_000, sender)
        child = processes.Process(target=_append_and_read, args=arguments)
        child.start()
        sender.close()
        growth: int
        growth, bench.digests["kreplog"] = receiver.recv()
        child.join()
    return growth / 1e6


def _append_and_read(folder: Path, distinct: int, seed: int, size: int, sender: Connection) -> None:
    """The child: its records exist before the start is taken, so only the log's own memory is counted."""
    pool = Pool(100, distinct, seed)
    chunks = pool.chunks(size // pool.size)
    start = peak = _anonymous_bytes()
    with Kreplog(folder) as store:
        for number, chunk in enumerate(chunks):
            (store.append_many if number % 2 else store.append)(chunk)
            store.finish()
            peak = max(peak, _anonymous_bytes())
        values = store.values()
        while deque(itertools.islice(values, 10_000), 1):
            peak = max(peak, _anonymous_bytes())
        store.scan()
        peak = max(peak, _anonymous_bytes())
        sender.send((peak - start, pool.expect(store.values(), size // pool.size, "kreplog")))


def _anonymous_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
