"""Opening: after SIGKILL, with all or only the tail of the log unflushed, and cleanly with many segments.

For each sample a child process appends, reports how far it got, and kills itself with SIGKILL. Then the time of
`Log.open` alone is measured; afterwards every record that the child was promised must be there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import kreplog
from benchmarks import ceiling
from benchmarks.data import Pool
from benchmarks.harness import CEILING, Bench, Contestant, Goal, timed, workload

MIB = 1 << 20
SEGMENT_BYTES = 16_384


@workload("W7", "reopen after SIGKILL, 50 MB unflushed", "ms", Goal(None, 20.0), less_is_better=True)
def reopen(bench: Bench) -> Sequence[Contestant]:
    return [Contestant("kreplog", "kreplog", partial(_reopen_time, bench, 0, bench.scale.unclean_mb))]


@workload(
    "W7g", "reopen after SIGKILL, 1 GiB unflushed, against map + CRC", "ms", Goal(CEILING, 0.70), less_is_better=True
)
def reopen_large(bench: Bench) -> Sequence[Contestant]:
    unclean = bench.scale.unclean_large_mb
    return [
        Contestant("kreplog", "kreplog", partial(_reopen_time, bench, 0, unclean)),
        Contestant(CEILING, "ceiling", partial(_check_time, bench, unclean)),
    ]


@workload(
    "W7t",
    "reopen after SIGKILL, 1 GiB of which the last 50 MB unflushed",
    "ms",
    Goal(None, None, 20.0),
    less_is_better=True,
)
def reopen_tail(bench: Bench) -> Sequence[Contestant]:
    unclean = bench.scale.unclean_mb
    clean = bench.scale.unclean_large_mb - unclean
    return [Contestant("kreplog", "kreplog", partial(_reopen_time, bench, clean, unclean))]


@workload("W7o", "clean open of 1,000 segments", "ms", Goal(None, 30.0, 10.0), less_is_better=True)
def open_segments(bench: Bench) -> Sequence[Contestant]:
    path = bench.directory / "bench-0"
    config = kreplog.LogConfig(segment_bytes=SEGMENT_BYTES, batch_bytes=SEGMENT_BYTES // 2)
    with kreplog.Log.open(path, config=config) as log:
        while len(log.segments) < bench.scale.segments:
            log.append_many(bench.small.slice(log.log_end_offset, 100))
        end = log.log_end_offset

    def open_time() -> float:
        opened: list[kreplog.Log] = []
        seconds = timed(lambda: opened.append(kreplog.Log.open(path, config=config)))
        with opened[0] as log:
            if log.log_end_offset != end or len(log.segments) < bench.scale.segments:
                raise AssertionError(f"opened at {log.log_end_offset} with {len(log.segments)} segments, not at {end}")
            bench.digests["kreplog"] = bench.small.expect(log.values(), end, "kreplog")
        return seconds * 1e3

    return [Contestant("kreplog", "kreplog", open_time)]


def _reopen_time(bench: Bench, flushed_mb: int, unflushed_mb: int) -> float:
    """Milliseconds of `Log.open` on a directory whose writer was killed; every promised record is read back."""
    with bench.folder() as folder:
        path, promised = _killed(bench, folder, flushed_mb, unflushed_mb)
        opened: list[kreplog.Log] = []
        seconds = timed(lambda: opened.append(kreplog.Log.open(path)))
        with opened[0] as log:
            bench.digests["kreplog"] = bench.small.expect(log.values(), promised, "kreplog")
    return seconds * 1e3


def _check_time(bench: Bench, unflushed_mb: int) -> float:
    """Milliseconds to map every segment of such a directory and check the CRC of every batch."""
    with bench.folder() as folder:
        path, _ = _killed(bench, folder, 0, unflushed_mb)
        return timed(lambda: [ceiling.Reader(segment).check() for segment in sorted(path.glob("*.log"))]) * 1e3


def _killed(bench: Bench, folder: Path, flushed_mb: int, unflushed_mb: int) -> tuple[Path, int]:
    """A partition directory left by a killed writer, and the next offset that it was promised."""
    path = folder / "bench-0"
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    arguments = (path, bench.scale.distinct, bench.seed, flushed_mb * MIB, unflushed_mb * MIB, sender)
    child = processes.Process(target=_append_and_die, args=arguments)
    child.start()
    sender.close()
    promised: int = receiver.recv()
    child.join()
    if child.exitcode != -signal.SIGKILL:
        raise AssertionError(f"the writer ended with {child.exitcode} instead of SIGKILL")
    return path, promised


def _append_and_die(path: Path, distinct: int, seed: int, flushed: int, unflushed: int, sender: Connection) -> None:
    """The child: append `flushed` bytes, flush, append `unflushed` more, report the next offset, be killed."""
    pool = Pool(100, distinct, seed)
    log = kreplog.Log.open(path)
    for bytes_wanted in (flushed, flushed + unflushed):
        log.flush()
        while log.size < bytes_wanted:
            log.append_many(pool.slice(log.log_end_offset, 1000))
    sender.send(log.log_end_offset)
    os.kill(os.getpid(), signal.SIGKILL)
