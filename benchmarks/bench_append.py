"""Appending: one by one, visible at once, in batches, durable, compressed, and with a long log behind.

Every sample starts with a new store, stops after its time box if it is slow, and is read back through the store's own
reader: what comes back must be what was written, to the last byte.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import kreplog
from benchmarks.data import CHUNK, Pool
from benchmarks.harness import BEST_PEER, CEILING, Bench, Contestant, Goal, quiet, timed, workload
from benchmarks.peers import AiokafkaFile, Lmdb, RawFile, Rocks, Sqlite
from benchmarks.stores import BATCH_BYTES, Ceiling, Kreplog, KreplogLz4, StampedCeiling, Store, available

LZ4_ALONE = "lz4 alone"
ONE_THREAD = "kreplog, 1 thread"
EMPTY = "kreplog, empty log"
GROUP_THREADS = 8


@workload(
    "W1",
    "Appender.append, one record a call, 100 B",
    "rec/s",
    Goal(CEILING, 0.80, 0.90),
    Goal(StampedCeiling.name, 0.70, 0.85),
    Goal(BEST_PEER, 1.3, 1.8),
)
def append_one(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, StampedCeiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile)
    return _appending(bench, stores, "append", bench.small, bench.scale.small_records)


@workload(
    "W1v",
    "Log.append, each record visible on return, 100 B",
    "rec/s",
    Goal(CEILING, 0.90),
    Goal(BEST_PEER, 1.2, 6.0),
)
def append_visible(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks)
    return _appending(bench, stores, "append_visible", bench.small, bench.scale.visible_records)


@workload("W2", "append_many, 1,000 records a call, 100 B", "rec/s", Goal(CEILING, 0.80, 1.2), Goal(BEST_PEER, 1.8))
def append_many(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile)
    return _appending(bench, stores, "append_many", bench.small, bench.scale.small_records)


@workload("W3", "append_many, 1,000 records a call, 1 KiB", "rec/s", Goal(CEILING, 0.90, 1.5), Goal(BEST_PEER, 1.2))
def append_many_large(bench: Bench) -> Sequence[Contestant]:
    stores = available(bench, Kreplog, Ceiling, RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile)
    return _appending(bench, stores, "append_many", bench.large, bench.scale.large_records)


@workload(
    "W4a",
    "durable commit of 1,000 records of 100 B, p50",
    "µs",
    Goal(RawFile.name, 0.95, 1.4),
    less_is_better=True,
    repetitions=lambda scale: scale.commit_rounds,
)
def commit_many(bench: Bench) -> Sequence[Contestant]:
    return _committing(bench, bench.small.chunks(CHUNK * bench.scale.commits))


@workload(
    "W4b",
    "durable commit of one record of 100 B, p50",
    "µs",
    Goal(RawFile.name, 0.95, 1.4),
    less_is_better=True,
    repetitions=lambda scale: scale.commit_rounds,
)
def commit_one(bench: Bench) -> Sequence[Contestant]:
    return _committing(bench, [[record] for record in bench.small.first(5 * bench.scale.commits)])


@workload(
    "W4g",
    "durable appends of one record, 8 threads against 1",
    "rec/s",
    Goal(ONE_THREAD, None, 5.0),
    repetitions=lambda scale: scale.commit_rounds,
)
def commit_group(bench: Bench) -> Sequence[Contestant]:
    return [
        Contestant("kreplog", "kreplog", partial(_group_commit_rate, bench, GROUP_THREADS)),
        Contestant(ONE_THREAD, "reference", partial(_group_commit_rate, bench, 1)),
    ]


@workload("W2z", "append_many with lz4, 1,000 records a call, 100 B", "rec/s", Goal(LZ4_ALONE, 0.75, 0.90))
def append_lz4(bench: Bench) -> Sequence[Contestant]:
    pieces = _batch_payloads(bench)
    count = bench.scale.small_records

    def lz4_rate() -> float:
        from lz4.frame import compress

        return count / timed(lambda: [len(compress(piece, store_size=False)) for piece in pieces])

    return [
        *_appending(bench, [KreplogLz4], "append_many", bench.small, count),
        Contestant(LZ4_ALONE, "reference", lz4_rate),
    ]


@workload("WG", "append_many, 100 B, with --behind GB (1 by default) behind it", "rec/s", Goal(EMPTY, 0.90))
def append_behind(bench: Bench) -> Sequence[Contestant]:
    count = bench.scale.small_records
    chunks = bench.small.chunks(count)
    long_log = bench.directory / "behind"
    long_log.mkdir()
    with Kreplog(long_log) as store:
        while store.log.size < bench.scale.behind_gb * 1e9:
            _append_all(store, chunks)

    def behind() -> float:
        with Kreplog(long_log) as store:
            start = store.log.log_end_offset
            rate = count / timed(partial(_append_all, store, chunks))
            bench.digests[store.name] = bench.small.expect(store.log.values(start), count, store.name)
        return rate

    def empty() -> float:
        return _append_rate(bench, Kreplog, "append_many", bench.small, count, EMPTY)

    return [Contestant("kreplog", "kreplog", behind), Contestant(EMPTY, "reference", empty)]


def _append_all(store: Store, chunks: list[list[bytes]]) -> None:
    for chunk in chunks:
        store.append_many(chunk)


def _appending(bench: Bench, stores: Sequence[type[Store]], verb: str, pool: Pool, count: int) -> list[Contestant]:
    return [
        Contestant(store.name, store.role, partial(_append_rate, bench, store, verb, pool, count, store.name))
        for store in stores
    ]


def _append_rate(bench: Bench, kind: type[Store], verb: str, pool: Pool, count: int, name: str) -> float:
    """Records a second by `verb`, `finish` included, after a first chunk that is not timed. Verified.

    The first chunk pays for what happens once in a store's life, such as making files. Stops after `box_s` seconds.
    """
    first, *chunks = pool.chunks(CHUNK + count)
    done = len(first)
    with bench.folder() as folder:
        with kind(folder) as store:
            append = getattr(store, verb)
            append(first)
            store.finish()
            with quiet():
                start = perf_counter()
                for chunk in chunks:
                    append(chunk)
                    done += len(chunk)
                    if perf_counter() - start > bench.scale.box_s:
                        break
                store.finish()
                seconds = perf_counter() - start
        with kind(folder) as store:
            bench.digests[name] = pool.expect(store.values(), done, name)
    return (done - len(first)) / seconds


def _committing(bench: Bench, commits: list[list[bytes]]) -> list[Contestant]:
    stores = available(bench, Kreplog, RawFile, Sqlite, Lmdb, Rocks)
    return [Contestant(store.name, store.role, partial(_commit_time, bench, store, commits)) for store in stores]


def _commit_time(bench: Bench, kind: type[Store], commits: list[list[bytes]]) -> float:
    """Median microseconds of one durable commit. Verified."""
    times = []
    with bench.folder() as folder:
        with kind(folder, durable=True) as store, quiet():
            for records in commits:
                start = perf_counter()
                store.commit(records)
                times.append(perf_counter() - start)
        with kind(folder) as store:
            bench.digests[kind.name] = bench.small.expect(store.values(), sum(map(len, commits)), kind.name)
    return statistics.median(times) * 1e6


class _KreplogSynced(Kreplog):
    """Every append durable on return; concurrent ones share an fsync."""

    settings: ClassVar[dict[str, Any]] = {"flush_messages": 1}


def _group_commit_rate(bench: Bench, threads: int) -> float:
    """Records a second that `threads` threads append together, each call durable on return. Verified, order aside."""
    each = bench.scale.group_commits
    shares = [list(bench.small.slice(number * each, each)) for number in range(threads)]
    with bench.folder() as folder, _KreplogSynced(folder) as store:
        barrier = threading.Barrier(threads + 1)
        workers = [threading.Thread(target=_append_share, args=(store.log, share, barrier)) for share in shares]
        for worker in workers:
            worker.start()
        with quiet():
            barrier.wait()
            start = perf_counter()
            for worker in workers:
                worker.join()
            seconds = perf_counter() - start
        if sorted(value or b"" for value in store.values()) != sorted(record for share in shares for record in share):
            raise AssertionError("group commit: what was read back is not what the threads appended")
    return threads * each / seconds


def _append_share(log: kreplog.Log, share: list[bytes], barrier: threading.Barrier) -> None:
    barrier.wait()
    for record in share:
        log.append(record)


def _batch_payloads(bench: Bench) -> list[bytes]:
    """The uncompressed record sections of the batches that lz4 has to compress, as the ceiling formats them."""
    with bench.folder() as folder:
        with Ceiling(folder) as store:
            _append_all(store, bench.small.chunks(bench.scale.small_records))
        return batch_payloads(folder / "ceiling.log")


def batch_payloads(path: Path) -> list[bytes]:
    """The records section of every batch of a log file."""
    data, start, payloads = path.read_bytes(), 0, []
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start + 8 : start + 12])
        payloads.append(data[start + 61 : end])
        start = end
    assert all(len(payload) <= BATCH_BYTES for payload in payloads)
    return payloads
