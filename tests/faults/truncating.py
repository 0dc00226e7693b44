"""Driver: readers in other processes while a writer truncates what they read, thousands of times.

Arguments: directory, seconds, seed. The log is not replicated, so that readers see records until the moment in which
they are truncated: the hardest case for what they have mapped. Every way of reading is used, on a log that is as old as
the reader's process and on one opened now and then. A record may have been truncated since, but it was written once.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from kreplog import Log, LogConfig, errors
from kreplog._native import batch
from tests.faults import content
from tests.faults.forked import start
from tests.faults.readers import HAS_ARROW

READERS = 3
CONFIG = LogConfig(segment_bytes=128 << 10, index_interval_bytes=2048, batch_bytes=4096, retention_bytes=1 << 20)
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
TRANSIENT = (errors.OffsetOutOfRangeError,)
"""What a reader may be refused by: the offset that it wants is truncated or deleted by now."""


def write(log: Log, rng: random.Random, generation: int) -> Log:
    """One operation of the writer."""
    way = rng.random()
    end = log.log_end_offset
    if way < 0.5:
        count = rng.choice((1, 20, 300, 900))
        values = [content.value(offset, generation) for offset in range(end, end + count)]
        log.append_many(values, timestamps_ms=list(range(end, end + count)))
    elif way < 0.9:
        log.truncate_to(rng.randint(max(log.log_start_offset, end - rng.choice((10, 500, 5000))), end))
    elif way < 0.93:
        log.roll()
    elif way < 0.96:
        log.delete_records_before(rng.randint(log.log_start_offset, log.high_watermark))
    elif way < 0.98:
        log.enforce_retention()
    else:
        log.close()
        return Log.open(log.path, CONFIG)
    return log


class Reader:
    """All ways of reading, in a random order. looks: how often each came to its end; records: how many were checked."""

    def __init__(self, path: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._path = path
        self._logs = [Log.open(path, CONFIG, read_only=True) for _ in range(2)]
        self._ways: list[Callable[[Log, int], None]] = [
            self._records, self._values, self._fetch, self._timestamp, self._segments, self._verify, self._ranges,
        ]  # fmt: skip
        if HAS_ARROW:
            self._ways.append(self._arrow)
        self.looks = self.records = 0

    def look(self) -> None:
        rng = self._rng
        if rng.random() < 0.05:
            self._logs[1].close()
            self._logs[1] = Log.open(self._path, CONFIG, read_only=True)
        log = rng.choice(self._logs)
        start, end = log.log_start_offset, log.high_watermark
        way = rng.choice(self._ways)
        with contextlib.suppress(*TRANSIENT):
            way(log, rng.randint(min(start, end), end))
            self.looks += 1

    def _check(self, offset: int, value: bytes | None) -> None:
        content.generation_of(value, offset)
        self.records += 1

    def _records(self, log: Log, at: int) -> None:
        for record in log.read(at):
            self._check(record.offset, record.value)

    def _values(self, log: Log, at: int) -> None:
        for value in log.values(at):
            self._check(content.offset_of(value), value)

    def _fetch(self, log: Log, at: int) -> None:
        fetched = log.fetch(at, max_bytes=self._rng.choice((1, 10_000, 1 << 20)))
        for record in batch.decode(fetched.data):
            self._check(record.offset, record.value)

    def _timestamp(self, log: Log, at: int) -> None:
        found = log.offset_for_timestamp(at)
        assert found is None or found >= at, f"{found} for timestamp {at}"

    def _segments(self, log: Log, at: int) -> None:
        listed = log.segments
        assert all(first.next_offset == second.base_offset for first, second in pairwise(listed)), listed

    def _verify(self, log: Log, at: int) -> None:
        report = log.verify()
        assert not report.damages, report.damages

    def _ranges(self, log: Log, at: int) -> None:
        ranges = log.offset_ranges(at, max(at, log.high_watermark), 50_000)
        assert all(first.stop == second.start for first, second in pairwise(ranges)), ranges

    def _arrow(self, log: Log, at: int) -> None:
        for rows in log.to_arrow(at, columns=["offset", "value"]):
            for offset, value in zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True):
                self._check(offset, value)


def read(path: Path, seed: int, until: float, pipe: int) -> None:
    reader = Reader(path, seed)
    while time.monotonic() < until:
        reader.look()
    os.write(pipe, struct.pack("<qq", reader.looks, reader.records))


def main(directory: Path, seconds: float, seed: int) -> None:
    print(f"seed {seed}")
    path = directory / "read-0"
    rng = random.Random(seed)
    log = Log.open(path, CONFIG)
    until = time.monotonic() + seconds
    readers = [start(partial(read, path, seed + n, until)) for n in range(1, READERS + 1)]
    truncations = 0
    generation = 0
    while time.monotonic() < until and all(os.waitid(os.P_PID, pid, ENDED) is None for pid, _ in readers):
        generation += 1
        before = log.log_end_offset
        log = write(log, rng, generation)
        truncations += log.log_end_offset < before
    ends = [(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.read(pipe, 16)) for pid, pipe in readers]
    assert all(code == 0 for code, _ in ends), f"readers ended with {[code for code, _ in ends]}"
    looks, records = map(sum, zip(*(struct.unpack("<qq", counts) for _, counts in ends), strict=True))
    print(f"truncations={truncations} looks={looks} records={records}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
