"""OffsetMap: where the records of a source partition are in its mirror, in a file that survives a kill at any step.

    <checkpoint>/<topic>-<partition>.offsets      one line each of

    {"version": 1, "source_topic_id": "…", "target_topic_id": "…"}     the first line; null for a topic without an id
    run 1000 0 500         source offset, target offset, records: the record at source offset 1000 + n is at target
                           offset 0 + n, for every n below 500
    committed 1600         the target has all records below source offset 1600 that the source had

A line counts once it ends in a newline. Runs behind the last `committed` line may or may not be in the target. Where
the source has gaps, as after compaction and at the markers of transactions, a run ends and another begins; of more than
MAX_RUNS in one append only every n-th is recorded, so that offsets between them translate to an earlier record, never
to a later one. The counterpart of the offset syncs of Kafka's MirrorMaker 2 (KIP-382).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kreplog.bulk_append import atomic_write
from kreplog.errors import OffsetOutOfRangeError, StorageError, UsageError
from kreplog.types import TopicPartition

MAX_RUNS = 1000
"""Maximum of runs in one append."""

VERSION = 1

_RUN = re.compile(r"run (\d{1,19}) (\d{1,19}) (\d{1,19})")
_COMMITTED = re.compile(r"committed (\d{1,19})")
_MERGE_ABOVE = 64  # lines; a file with more, of which merged less than half are left, is rewritten


class OffsetRun(NamedTuple):
    """`records` records that are contiguous in source and target. 0: the target offset is that of an earlier record."""

    source: int
    target: int
    records: int

    @property
    def source_end(self) -> int:
        return self.source + self.records

    @property
    def target_end(self) -> int:
        return self.target + self.records


class OffsetMap:
    """The map of one partition. Reading needs no lock; `append`, `commit` and `resolve` are of the `locked` one.

    source_topic_id, target_topic_id: None for a topic without an id. position: the source offset to mirror next, None
    before the first `commit`. pending: runs of an append that may or may not be in the target."""

    def __init__(self, path: Path) -> None:
        """Read the file, which may be missing. Raises StorageError if it is damaged, UsageError for another version."""
        self.path = path
        self.exists = False
        self.source_topic_id: str | None = None
        self.target_topic_id: str | None = None
        self.position: int | None = None
        self.runs: list[OffsetRun] = []
        self.pending: list[OffsetRun] = []
        self._count = 0
        self._torn = False
        self._file: int | None = None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        self._parse(content)

    @classmethod
    @contextmanager
    def locked(cls, checkpoint: Path, partition: TopicPartition) -> Iterator[Self]:
        """The map of `partition`, for this process alone. Raises StorageError, UsageError where another has it."""
        lock = os.open(checkpoint / f"{partition}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"{partition}: another task mirrors it; wait for its end", partition=str(partition)
                ) from None
            offsets = cls(map_path(checkpoint, partition))
            try:
                yield offsets
            finally:
                offsets._close()
        finally:
            os.close(lock)

    @property
    def end(self) -> OffsetRun:
        """The last committed run; all zero before the first."""
        return self.runs[-1] if self.runs else OffsetRun(0, 0, 0)

    def translate(self, offset: int) -> int:
        """The target offset to read from, for a consumer whose next source offset is `offset`: no record that it has
        not read is skipped. Raises OffsetOutOfRangeError above `position`, which is not mirrored yet."""
        if self.position is None or offset > self.position:
            mirrored = (
                "nothing is mirrored yet" if self.position is None else f"mirrored are offsets below {self.position}"
            )
            raise OffsetOutOfRangeError(
                f"{self.path.stem}: offset {offset} is not in the target yet: {mirrored}",
                partition=self.path.stem,
                offset=offset,
            )
        if not self.runs or offset <= self.runs[0].source:
            return self.runs[0].target if self.runs else 0
        run = self.runs[bisect_right(self.runs, offset, key=lambda run: run.source) - 1]
        return run.target + min(offset - run.source, run.records)

    # Of the locked map

    def create(self, source_topic_id: str | None, target_topic_id: str | None) -> None:
        """Write a new file, durable on return."""
        self.exists = True
        self.source_topic_id, self.target_topic_id = source_topic_id, target_topic_id
        self._rewrite()

    def append(self, runs: Sequence[OffsetRun]) -> None:
        """Record runs as pending, before they are appended to the target; durable on return."""
        self._write(_lines(runs))
        self.sync()
        self.pending += runs

    def commit(self, position: int, runs: Sequence[OffsetRun] = ()) -> None:
        """Record that the pending runs, and `runs`, are in the target. Not durable before `append` or `sync`."""
        self._write(f"{_lines(runs)}committed {position}\n")
        self.position = position
        self.runs += [*self.pending, *runs]
        self.pending = []

    def resolve(self, position: int | None) -> None:
        """After a kill: `position` where the pending runs are in the target, None where they are not."""
        if position is not None:
            self.commit(position)
        if self.pending or self._torn or self._count > max(_MERGE_ABOVE, 2 * len(merged(self.runs)) + 2):
            self.pending = []
            self.runs = merged(self.runs)
            self._rewrite()

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file)

    def _write(self, text: str) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        data = text.encode()
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror}", path=str(self.path)) from error
        if written < len(data):
            raise StorageError(f"{self.path}: the disk is full", path=str(self.path))
        self._count += text.count("\n")

    def _rewrite(self) -> None:
        self._close()
        header = {
            "version": VERSION,
            "source_topic_id": self.source_topic_id,
            "target_topic_id": self.target_topic_id,
        }
        text = f"{json.dumps(header)}\n{_lines(self.runs)}"
        if self.position is not None:
            text += f"committed {self.position}\n"
        atomic_write(str(self.path), text.encode())
        self._count, self._torn = text.count("\n"), False

    def _close(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _parse(self, content: bytes) -> None:
        """Take all whole lines; a tail that a kill or a loss of power has left torn is dropped."""
        text = content.decode("ascii", errors="replace")
        header, *lines = text.split("\n")
        self._parse_header(header)
        self._torn = lines.pop() != "" if lines else True
        for number, line in enumerate(lines, 2):
            run, committed = _RUN.fullmatch(line), _COMMITTED.fullmatch(line)
            if run is not None:
                self.pending.append(OffsetRun(*map(int, run.groups())))
            elif committed is not None:
                self.position = int(committed[1])
                self.runs += self.pending
                self.pending = []
            elif any(_RUN.fullmatch(later) or _COMMITTED.fullmatch(later) for later in lines[number - 1 :]):
                raise StorageError(f"{self.path} is damaged at line {number}: restore it", path=str(self.path))
            else:
                self._torn = True
                break
            self._count = number

    def _parse_header(self, line: str) -> None:
        try:
            header = json.loads(line)
            version = header["version"]
            self.source_topic_id, self.target_topic_id = header["source_topic_id"], header["target_topic_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.path} is no map of offsets: {error}", path=str(self.path)) from error
        if version != VERSION:
            raise UsageError(f"{self.path} is of version {version}, and only {VERSION} is known", path=str(self.path))
        self.exists = True


def _lines(runs: Iterable[OffsetRun]) -> str:
    return "".join(f"run {run.source} {run.target} {run.records}\n" for run in runs)


def map_path(checkpoint: Path, partition: TopicPartition) -> Path:
    return checkpoint / f"{partition}.offsets"


def merged(runs: Iterable[OffsetRun]) -> list[OffsetRun]:
    """The same map, contiguous runs joined."""
    joined: list[OffsetRun] = []
    for run in runs:
        last = joined[-1] if joined else None
        if last is not None and (last.source_end, last.target_end) == (run.source, run.target):
            joined[-1] = OffsetRun(last.source, last.target, last.records + run.records)
        else:
            joined.append(run)
    return joined


def runs_of(sources: NDArray[np.int64], targets: Iterable[tuple[int, int]], before: int) -> list[OffsetRun]:
    """The runs of records at the offsets `sources` that were appended as (target offset, records), in this order; at
    most about MAX_RUNS, the last always among them.

    before: a target offset that precedes them all; used where a target offset is -1, unknown."""
    gaps = np.flatnonzero(np.diff(sources) != 1) + 1
    runs: list[OffsetRun] = []
    first = 0
    for target, records in targets:
        stop = first + records
        cuts = [first, *gaps[np.searchsorted(gaps, first, "right") : np.searchsorted(gaps, stop)].tolist(), stop]
        for start, end in pairwise(cuts):
            source = int(sources[start])
            known = OffsetRun(source, target + start - first, end - start)
            runs.append(known if target >= 0 else OffsetRun(source, before, 0))
        first = stop
    if len(runs) <= MAX_RUNS:
        return runs
    return [*runs[: -1 : -(-len(runs) // MAX_RUNS)], runs[-1]]
