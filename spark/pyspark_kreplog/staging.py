"""Staged rows: each task encodes its rows into one file below the path of the sink, where no reader of logs looks.

    <path>/.kreplog-writes/<job>/<task>-<unique>.batches

A job's name ends in the identity of the driver that runs it, so that whoever cleans up knows what nobody will commit.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from kreplog.bulk_append import PartitionedWriter
from kreplog.errors import InvalidTopicError, RecordTooLargeError, UsageError
from kreplog.types import TopicPartition, check_topic
from pyspark_kreplog.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".kreplog-writes"
FOREIGN_HOST_GRACE_S = 24 * 3600
"""How long the files of another host's driver, whose death cannot be seen from here, stay after its last write."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Whole batches of one partition: bytes [position, position + length) of a staged file."""

    file: str
    position: int
    length: int
    records: int


@dataclass
class Staged(WriterCommitMessage):
    """The rows that one task has staged; plain values. query_id, batch_id: of a stream, else None.

    topics: the number of partitions, by which rows were placed, of each topic that it wrote to.
    """

    job: str
    query_id: str | None = None
    batch_id: int | None = None
    topics: dict[str, int] = field(default_factory=dict)
    extents: dict[TopicPartition, list[Extent]] = field(default_factory=dict)


def partition_counts(path: str) -> dict[str, int]:
    """The number of partitions of each topic in the directory: the highest partition's, plus one."""
    counts: dict[str, int] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                partition = TopicPartition.parse(entry.name)
            except InvalidTopicError:
                continue
            if entry.is_dir():
                counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
    return counts


def partition_count(topic: str, present: dict[str, int], options: SinkOptions) -> int:
    """The number of partitions that the topic has, or will have once the sink creates it. Raises UsageError."""
    found, wanted = present.get(topic), options.num_partitions
    if found is not None and wanted is not None and found != wanted:
        raise UsageError(
            f"option 'numPartitions' = {wanted}, but topic {topic} in {options.path} has {found}: leave the option out"
        )
    return found or wanted or 1


def stage(options: SinkOptions, staged: Staged, task: int, batches: Iterable[pa.RecordBatch]) -> Staged:
    """Encode a task's rows into a file of its own, durable on return; the file is not there where there is no row.

    task: by which records without a key and a partition are spread. Raises UsageError for a row that cannot be
    written, RecordTooLargeError, StorageError.
    """
    encoder = _TaskEncoder(options, Path(options.path, FOLDER, staged.job), task)
    try:
        for batch in batches:
            if batch.num_rows:
                encoder.write(batch)
        extents = encoder.finish()
    except BaseException:
        encoder.discard()
        raise
    staged.topics = encoder.counts
    for partition, extent in extents:
        staged.extents.setdefault(partition, []).append(extent)
    return staged


class _TaskEncoder:
    """One task's file, opened at its first row."""

    def __init__(self, options: SinkOptions, folder: Path, task: int) -> None:
        self._options = options
        self._folder = folder
        self._task = task
        self._turn = task
        self._writer: PartitionedWriter | None = None
        self._known: dict[str, int] = {}
        self._topics: dict[str, tuple[str, int, int]] = {}
        self._destinations: list[TopicPartition] = []
        self.counts: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._open()
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        indexes, topics = None, [self._topic(self._options.topic)] if self._options.topic is not None else []
        if self._options.topic is None:
            encoded = columns["topic"].dictionary_encode()
            indexes, topics = encoded.indices, [self._topic(name) for name in encoded.dictionary.to_pylist()]
        headers = columns.get("headers")
        if headers is not None:
            entries = headers.values
            headers = headers, entries.field(0), entries.field(1)
        try:
            self._writer.write(
                columns["value"], columns.get("key"), headers, columns.get("partition"), indexes, topics, self._turn
            )
        except RecordTooLargeError as error:
            raise RecordTooLargeError(
                f"{error}: raise option 'kafka.max.request.size', and max_message_bytes where the log is opened"
            ) from error
        self._turn += 1

    def _open(self) -> PartitionedWriter:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._known = partition_counts(self._options.path)
        return PartitionedWriter(
            str(self._folder / f"{self._task}-{uuid.uuid4().hex}.batches"),
            batch_bytes=self._options.batch_bytes,
            compression=self._options.compression,
            max_message_bytes=self._options.max_message_bytes,
        )

    def _topic(self, topic: str) -> tuple[str, int, int]:
        """(topic, destination of partition 0, number of partitions). Raises UsageError."""
        assert self._writer is not None
        place = self._topics.get(topic)
        if place is None:
            try:
                check_topic(topic)
            except InvalidTopicError as error:
                raise UsageError(f"column topic: {error}") from error
            count = partition_count(topic, self._known, self._options)
            place = self._topics[topic] = topic, self._writer.add_topic(count), count
            self._destinations.extend(TopicPartition(topic, partition) for partition in range(count))
            self.counts[topic] = count
        return place

    def finish(self) -> Iterator[tuple[TopicPartition, Extent]]:
        if self._writer is None:
            return iter(())
        extents = self._writer.finish()
        name = os.path.basename(self._writer.path)
        for folder in (self._folder, self._folder.parent, self._folder.parent.parent):
            sync_folder(folder)
        return iter([
            (self._destinations[destination], Extent(name, position, length, records))
            for destination, position, length, records in extents
        ])  # fmt: skip

    def discard(self) -> None:
        if self._writer is not None:
            Path(self._writer.path).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """fsync a directory, so that the names in it are durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Jobs and the drivers that run them


def new_job() -> str:
    """A name for a batch job of this driver's."""
    return f"batch-{uuid.uuid4().hex}.{driver_identity()}"


def stream_job(query_id: str, batch_id: int, driver: str) -> str:
    """The name of a stream's batch, the same in all its tasks."""
    return f"stream-{query_id}-{batch_id}.{driver}"


def is_replay(query_id: str, batch_id: int, latest: int) -> bool:
    """Whether the batch is `latest`, the stream's last that was committed, which Spark runs again after a restart.

    latest: -1 for none. Raises UsageError for an earlier one: a checkpoint that went back plans its batches again, so
    that to take them for committed may lose rows, and to write them may double rows; or its driver has a successor."""
    if batch_id < latest:
        raise UsageError(
            f"batch {batch_id} of query {query_id} is not written: batches up to {latest} have been committed, so "
            "another driver runs the query, or its checkpoint is a copy or was put back to an earlier state. Go on "
            "with the latest checkpoint, or use a new checkpointLocation with startingOffsets after the rows that are "
            "written"
        )
    return batch_id == latest


def driver_identity() -> str:
    """Host, boot, process id and start time of the JVM that this Python process works for."""
    pid = os.getppid()
    found = pid
    while found > 1 and _command(found) not in ("java", None):
        found = _parent(found)
    if _command(found) == "java":
        pid = found
    return f"{_host()}-{_boot()}-{pid}-{_start_time(pid)}"


def is_abandoned(folder: Path, now_s: float | None = None) -> bool:
    """Whether the driver of the job with this folder has died, as far as can be seen from here."""
    host, boot, pid, start = (folder.name.rpartition(".")[2].split("-") + [""] * 4)[:4]
    if host != _host():
        newest = max((entry.stat().st_mtime for entry in (folder, *folder.iterdir())), default=0.0)
        return (time.time() if now_s is None else now_s) - newest > FOREIGN_HOST_GRACE_S
    if boot != _boot() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    state = _stat_fields(int(pid))[:1]
    return state in (["Z"], ["X"]) or _start_time(int(pid)) != start  # a killed process may not be reaped yet


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "0"


def _stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start_time(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[19] if len(fields) > 19 else "0"


def _parent(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _command(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
