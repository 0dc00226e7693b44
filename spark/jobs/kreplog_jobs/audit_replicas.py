"""What the job `audit` reads of replicas: functions that run where a log directory is, and return offsets, counts and
digests alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import kreplog
from kreplog.errors import CorruptBatchError, InvalidTopicError, OffsetOutOfRangeError, StorageError
from kreplog.types import TopicPartition
from kreplog_jobs.on_hosts import LogDirectory

RANGE_BYTES = 256 << 20


class Topics(NamedTuple):
    """A log directory, of which these topics matter; None: all."""

    directory: LogDirectory
    topics: Sequence[str] | None


class Partitions(NamedTuple):
    """Partitions of a log directory, by name."""

    directory: LogDirectory
    names: Sequence[str]


class Span(NamedTuple):
    """Offsets [start, stop) of a log directory's replica of a partition, by name."""

    directory: LogDirectory
    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class AuditTask:
    """Offsets [start, stop) of one replica; start and stop are batch boundaries in every replica."""

    topic_partition: str
    directory: LogDirectory
    start: int
    stop: int

    @property
    def broker(self) -> int:
        return self.directory.broker

    @property
    def path(self) -> str:
        return os.path.join(self.directory.path, self.topic_partition)


@dataclass(frozen=True)
class AuditResult:
    """The findings of one task. digest: of the headers of all batches, None where the range could not be read whole."""

    task: AuditTask
    records: int
    bytes: int
    gaps: int
    digest: str | None
    damage: str | None = None
    damage_offset: int | None = None


def high_watermarks(request: Topics) -> dict[str, int | str]:
    """The high watermarks of these topics by partition, or why the replica cannot be opened. Raises StorageError."""
    broker, path, _ = request.directory
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise StorageError(f"log directory {path} of broker {broker} cannot be read: {error}", path=path) from error
    found: dict[str, int | str] = {}
    for name in names:
        try:
            topic = TopicPartition.parse(name).topic
        except InvalidTopicError:
            continue
        if request.topics is None or topic in request.topics:
            try:
                with kreplog.Log.open(os.path.join(path, name), read_only=True) as log:
                    found[name] = log.high_watermark
            except StorageError as error:
                found[name] = str(error)
    return found


def starts_and_ends(request: Partitions) -> dict[str, tuple[int, int] | str]:
    """The log start offset and log end offset by partition, or why the replica cannot be opened."""
    found: dict[str, tuple[int, int] | str] = {}
    for name in request.names:
        try:
            with kreplog.Log.open(os.path.join(request.directory.path, name), read_only=True) as log:
                found[name] = log.log_start_offset, log.log_end_offset
        except StorageError as error:
            found[name] = str(error)
    return found


def ranges(request: Span) -> list[tuple[int, int]]:
    """The span in ranges of RANGE_BYTES that begin at batch boundaries of this replica; whole if it cannot be opened or
    retention has deleted its start meanwhile, which the task finds that reads it."""
    try:
        with kreplog.Log.open(os.path.join(request.directory.path, request.name), read_only=True) as log:
            return [(part.start, part.stop) for part in log.offset_ranges(request.start, request.stop, RANGE_BYTES)]
    except (StorageError, OffsetOutOfRangeError):
        return [(request.start, request.stop)]


def compacted(request: Topics) -> set[str]:
    """The partitions that the broker of this log directory has compacted."""
    try:
        with open(os.path.join(request.directory.path, "cleaner-offset-checkpoint")) as file:
            lines = file.read().splitlines()[2:]
    except OSError:
        return set()
    return {"-".join(line.split()[:2]) for line in lines}


def check(task: AuditTask) -> AuditResult:
    """Read the range once: CRCs, order of epochs, gaps, and the digest of all headers."""
    digest = hashlib.blake2b(digest_size=16)
    records = size = gaps = 0
    expected, epoch = task.start, -1
    try:
        with kreplog.Log.open(task.path, read_only=True) as log:
            for rows in log.batches(task.start, task.stop):
                ends = np.concatenate(([expected - 1], rows["last_offset"]))
                gaps += int(np.count_nonzero(rows["base_offset"] > ends[:-1] + 1))
                epochs = np.concatenate(([epoch], rows["leader_epoch"]))
                falls = np.flatnonzero(np.diff(epochs) < 0)
                if len(falls):
                    at = int(rows["base_offset"][falls[0]])
                    fault = f"leader epoch {epochs[falls[0] + 1]} follows epoch {epochs[falls[0]]}"
                    return AuditResult(task, records, size, gaps, None, fault, at)
                digest.update(rows.tobytes())
                records += int(rows["record_count"].sum())
                size += int(rows["size"].sum())
                expected, epoch = int(rows["last_offset"][-1]) + 1, int(rows["leader_epoch"][-1])
    except OffsetOutOfRangeError:
        lost = _lost_segment(task, expected)
        return AuditResult(task, records, size, gaps, None, lost, None if lost is None else expected)
    except StorageError as error:
        at = error.offset if isinstance(error, CorruptBatchError) and error.offset is not None else expected
        return AuditResult(task, records, size, gaps, None, str(error), at)
    return AuditResult(task, records, size, gaps, digest.hexdigest())


def _lost_segment(task: AuditTask, offset: int) -> str | None:
    """Why a replica cannot be read at `offset`, where that is not because retention has moved the log start there."""
    try:
        with kreplog.Log.open(task.path, read_only=True) as log:
            if log.log_start_offset > offset:
                return None
            return f"has no segment with this offset, although its log starts at offset {log.log_start_offset}"
    except StorageError as error:
        return str(error)


def newest_by_key(task: AuditTask) -> tuple[int, dict[bytes, tuple[int, bytes, bool]]]:
    """(broker, by digest of each key: offset and digest of its newest committed record, and whether it is a tombstone),
    also of those past the task's range."""
    found: dict[bytes, tuple[int, bytes, bool]] = {}
    with kreplog.Log.open(task.path, read_only=True) as log:
        for record in log.read():
            if record.key is not None:
                key = hashlib.blake2b(record.key, digest_size=16).digest()
                found[key] = record.offset, hashlib.blake2b(repr(tuple(record)).encode()).digest(), record.value is None
    return task.broker, found


def batch_digests(task: AuditTask) -> tuple[int, dict[tuple[int, int], bytes]]:
    """(broker, each batch's header by its offsets [base, stop)); none where retention deleted the range meanwhile."""
    try:
        with kreplog.Log.open(task.path, read_only=True) as log:
            return task.broker, {
                (int(row["base_offset"]), int(row["last_offset"]) + 1): row.tobytes()
                for rows in log.batches(task.start, task.stop)
                for row in rows
            }
    except (StorageError, OffsetOutOfRangeError):
        return task.broker, {}


def record_digests(task: AuditTask) -> tuple[int, dict[tuple[int, int], bytes]]:
    """(broker, digest of each record by its offsets [offset, offset + 1)); none of a batch that cannot be read."""
    try:
        with kreplog.Log.open(task.path, read_only=True) as log:
            return task.broker, {
                (record.offset, record.offset + 1): hashlib.blake2b(repr(tuple(record)).encode()).digest()
                for record in log.read(task.start, task.stop)
            }
    except (StorageError, OffsetOutOfRangeError):
        return task.broker, {}
