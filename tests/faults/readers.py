"""Driver: readers in other processes while a writer appends, rolls, truncates, deletes and starts again.

Arguments: directory, operations of the writer, seed. What is below the high watermark never changes, so the writer
publishes, in shared memory and before it moves the high watermark, which generation holds each committed offset; a
reader that gets anything else, or anything past what was published, has seen what it must not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import random
import struct
import sys
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kreplog import Fetched, Log, LogConfig, errors
from kreplog._native import batch
from tests.faults import content
from tests.faults.forked import start

READERS = 3
CAPACITY = 1 << 20
CONFIG = LogConfig(replicated=True, segment_bytes=3000, index_interval_bytes=200, retention_bytes=30_000)
HAS_ARROW = importlib.util.find_spec("pyarrow") is not None


class Published:
    """Shared between the processes: the end of what may be seen, whether to stop, and who wrote each offset."""

    _HEAD = struct.Struct("<qq")
    _GENERATION = struct.Struct("<I")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._HEAD.size + CAPACITY * self._GENERATION.size)

    @property
    def end(self) -> int:
        return int(self._HEAD.unpack_from(self._memory)[0])

    @end.setter
    def end(self, offset: int) -> None:
        self._memory[:8] = struct.pack("<q", offset)

    @property
    def stopped(self) -> bool:
        return bool(self._memory[8])

    def stop(self) -> None:
        self._memory[8] = 1

    def put(self, offset: int, generation: int) -> None:
        self._GENERATION.pack_into(self._memory, self._HEAD.size + offset * self._GENERATION.size, generation)

    def generation(self, offset: int) -> int:
        position = self._HEAD.size + offset * self._GENERATION.size
        return int(self._GENERATION.unpack_from(self._memory, position)[0])


class Writer:
    """Owns the log; appends single-record batches, so that a truncation cuts exactly at the given offset."""

    def __init__(self, path: Path, published: Published, rng: random.Random) -> None:
        self._path, self._published, self._rng = path, published, rng
        self._log = Log.open(path, CONFIG)
        self._generation = 1
        self._owners: dict[int, int] = {}

    def one_operation(self) -> None:
        rng, log = self._rng, self._log
        way = rng.random()
        if way < 0.5:
            for _ in range(rng.randrange(1, 30)):
                offset = log.append(
                    content.value(log.log_end_offset, self._generation), timestamp_ms=log.log_end_offset
                )
                self._owners[offset] = self._generation
        elif way < 0.75:
            self._commit(rng.randint(log.high_watermark, log.log_end_offset))
        elif way < 0.9:
            assert log.truncate_to(rng.randint(log.high_watermark, log.log_end_offset)) == log.log_end_offset
            self._generation += 1
        elif way < 0.94:
            log.delete_records_before(rng.randint(log.log_start_offset, log.high_watermark))
        elif way < 0.97:
            log.enforce_retention()
        elif way < 0.985:
            log.close()
            self._log = Log.open(self._path, CONFIG)
        else:
            offset = log.log_end_offset + rng.randrange(20)
            self._published.end = offset
            log.truncate_fully_and_start_at(offset)
            self._generation += 1

    def _commit(self, offset: int) -> None:
        for committed in range(self._log.high_watermark, offset):
            self._published.put(committed, self._owners[committed])
        self._published.end = max(self._published.end, offset)
        self._log.advance_high_watermark(offset)


class Reader:
    """Opens the directory read-only and checks all it is given, old fetched views included."""

    def __init__(self, path: Path, published: Published, rng: random.Random) -> None:
        self._path, self._published, self._rng = path, published, rng
        self._log = Log.open(path, CONFIG, read_only=True)
        self._held: deque[Fetched] = deque(maxlen=8)
        self._high_watermark = 0
        self.seen = 0

    def one_look(self) -> None:
        rng = self._rng
        if rng.random() < 0.05:
            self._log.close()
            self._log = Log.open(self._path, CONFIG, read_only=True)
        high_watermark = self._log.high_watermark
        assert self._high_watermark <= high_watermark, f"it moved back from {self._high_watermark} to {high_watermark}"
        assert high_watermark <= self._published.end, f"{high_watermark} was never the high watermark"
        self._high_watermark = high_watermark
        low = self._log.log_start_offset
        from_ = rng.choice((low, max(low, high_watermark - rng.randrange(200))))
        if rng.random() < 0.5:
            from_ = rng.randint(min(low, high_watermark), high_watermark)
        with contextlib.suppress(errors.OffsetOutOfRangeError):
            self._look(from_)
        for fetched in self._held:
            if rng.random() < 0.1:
                self._check((r.offset, r.value) for r in batch.decode(fetched.data))

    def _look(self, from_: int) -> None:
        way = self._rng.random()
        if way < 0.3:
            self._check(((r.offset, r.value) for r in self._log.read(from_)), from_)
        elif way < 0.5:
            self._check(((content.offset_of(value), value) for value in self._log.values(from_)), from_)
        elif way < 0.85:
            fetched = self._log.fetch(from_, max_bytes=self._rng.choice((1, 500, 1 << 20)))
            self._check((r.offset, r.value) for r in batch.decode(fetched.data))
            self._held.append(fetched)
        elif way < 0.9 and HAS_ARROW:
            for rows in self._log.to_arrow(from_, columns=["offset", "value"]):
                self._check(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))
        else:
            found = self._log.offset_for_timestamp(from_)
            assert found is None or found >= from_, f"{found} for timestamp {from_}"

    def _check(self, records: Iterable[tuple[int, bytes | None]], from_: int | None = None) -> None:
        previous = None if from_ is None else from_ - 1
        for offset, value in records:
            assert previous is None or offset == previous + 1, f"{offset} after {previous}"
            previous = offset
            generation = content.generation_of(value, offset)
            assert offset < self._published.end, f"{offset} was never below the high watermark"
            known = self._published.generation(offset)
            assert generation == known, f"{offset} was committed by {known}, read as {generation}"
            self.seen += 1


def read(path: Path, published: Published, seed: int, pipe: int) -> None:
    reader = Reader(path, published, random.Random(seed))
    while not published.stopped:
        reader.one_look()
    os.write(pipe, struct.pack("<q", reader.seen))


def main(directory: Path, operations: int, seed: int) -> None:
    print(f"seed {seed}")
    path, published = directory / "read-0", Published()
    writer = Writer(path, published, random.Random(seed))
    readers = [start(partial(read, path, published, seed + n)) for n in range(1, READERS + 1)]
    try:
        for _ in range(operations):
            writer.one_operation()
    finally:
        published.stop()
        ends = [(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.read(pipe, 8)) for pid, pipe in readers]
    assert all(code == 0 for code, _ in ends), f"readers ended with {[code for code, _ in ends]}"
    print(f"committed={published.end} seen={sum(struct.unpack('<q', seen)[0] for _, seen in ends)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
