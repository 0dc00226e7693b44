"""Ranges of offsets to tasks of a good size, for batch reads and streams alike.

The ends are fixed here, once, and never lie past the high watermark; read.py then reads exactly the planned offsets.
Files are opened for their offsets and indexes alone. Nothing here knows of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

import kreplog
from kreplog.errors import OffsetOutOfRangeError
from kreplog.small_log import open_to_plan
from kreplog.types import TopicPartition
from pyspark_kreplog.bounds import is_offset, range_of, require_every_partition
from pyspark_kreplog.kafka_options import DEFAULTS, ConsumerSettings
from pyspark_kreplog.leader_epochs import epoch_before
from pyspark_kreplog.log_directory import IdentifiedLog, partition_path, subscribed_partitions, topic_id_of
from pyspark_kreplog.network import ClusterReader
from pyspark_kreplog.options import ReadOptions
from pyspark_kreplog.whole_jobs import Ends, read_whole_jobs

MIN_TASK_BYTES = 32 << 20  # a task costs some 85 ms of CPU, whatever it reads
MAX_TASK_BYTES = 256 << 20
TASKS_PER_CORE = 2
COMPRESSED_WEIGHT = 3  # bytes that a compressed byte counts for

_PIECES_PER_TASK = 4  # at least, in a smallest task, so that the tasks of a partition come out even


@dataclass(frozen=True, slots=True)
class ReplicaFence:
    """The leader epoch of the last record before `offset` in the leader's log: a replica with that record has the same
    records before it."""

    leader_epoch: int
    offset: int


class Task(NamedTuple):
    """Offsets [start, stop) of the partition in directory `path`, or of the cluster at `bootstrap`; plain data, so that
    it can go to another process, and a tuple, since a plan makes thousands.

    local_log_dirs, fence: where a replica may be read on the host of the task, and which; fence None is none.
    """

    path: str
    bootstrap: str | None
    topic: str
    partition: int
    topic_id: str | None
    start: int
    stop: int
    fail_on_data_loss: bool
    stream: bool = False
    local_log_dirs: tuple[str, ...] = ()
    fence: ReplicaFence | None = None
    consumer: ConsumerSettings = DEFAULTS
    incarnation_id: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def records(self) -> int:
        """Offsets to read; fewer records where compaction or control batches left gaps."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Pruning:
    """The part that filters leave to be read: a superset of the rows that pass them."""

    start: int = 0
    stop: int = 2**63 - 1
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None

    def excludes(self, partition: TopicPartition) -> bool:
        return (self.topics is not None and partition.topic not in self.topics) or (
            self.partitions is not None and partition.partition not in self.partitions
        )


class RangedLog(IdentifiedLog, Protocol):
    """A log that knows where it can be cut."""

    def offset_ranges(self, start: int, stop: int, max_bytes: int) -> Sequence[kreplog.OffsetRange]: ...


def plan(options: ReadOptions, cores: int, pruning: Pruning | None = None) -> list[Task]:
    """The tasks of a batch read, in order of topic, partition and offset; empty ones left out.

    cores: how many the job may use; the number of tasks aims at TASKS_PER_CORE for each.
    Raises UsageError naming the topic, the partition, the offset and the option to change.
    """
    pruning = pruning or Pruning()
    with ExitStack() as stack:
        cluster = None if options.bootstrap is None else stack.enter_context(ClusterReader(options))
        partitions = subscribed_partitions(options) if cluster is None else cluster.subscribed()
        for bound in (options.starting, options.ending):
            require_every_partition(bound, partitions)
        read = [partition for partition in partitions if not pruning.excludes(partition)]
        if cluster is not None:
            logs = cluster.logs(read)
            ranges = [_pruned(logs[each], each, pruning, options) for each in read if each in logs]
            return cut(ranges, options, cores)

    def ranges_before(ends: Ends) -> list[PartitionRange]:
        ranges = []
        for partition in read:
            with open_to_plan(partition_path(options, partition), partition, _piece_bytes()) as log:
                bounded = pruning
                if partition in ends and not is_offset(options.ending, partition):
                    bounded = replace(pruning, stop=min(pruning.stop, ends[partition]))
                ranges.append(_pruned(log, partition, bounded, options))
        return ranges

    return cut(read_whole_jobs(options.path, ranges_before), options, cores)


def _pruned(log: RangedLog, partition: TopicPartition, pruning: Pruning, options: ReadOptions) -> PartitionRange:
    start, stop = range_of(log, partition, options)
    return PartitionRange.of(log, partition, max(start, pruning.start), min(stop, pruning.stop), options)


def cut(ranges: Sequence[PartitionRange], options: ReadOptions, cores: int) -> list[Task]:
    """Ranges of partitions to tasks of a good size, within minPartitions and maxRecordsPerPartition."""
    weight = sum(each.weight for each in ranges)
    target = min(max(weight // (TASKS_PER_CORE * cores), MIN_TASK_BYTES), MAX_TASK_BYTES)
    tasks = [task for each in ranges for task in each.cut(target)]
    tasks = _at_most(tasks, options.max_records_per_partition)
    return _at_least(tasks, options.min_partitions)


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets of one partition that are read, as one Task; pieces: where it may be cut, contiguous ranges of a few
    MiB, each its end with its weight."""

    whole: Task | None
    pieces: tuple[tuple[int, int], ...]

    @property
    def weight(self) -> int:
        return sum(weight for _, weight in self.pieces)

    @classmethod
    def of(
        cls,
        log: RangedLog,
        partition: TopicPartition,
        start: int,
        stop: int,
        options: ReadOptions,
    ) -> PartitionRange:
        """[start, stop), below the high watermark, of the open `log`; compressed bytes weigh more."""
        if start >= stop:
            return cls(None, ())
        whole = Task(
            path=partition_path(options, partition) if options.bootstrap is None else "",
            bootstrap=options.bootstrap,
            topic=partition.topic,
            partition=partition.partition,
            topic_id=topic_id_of(log),
            incarnation_id=log.incarnation_id,
            start=start,
            stop=stop,
            fail_on_data_loss=options.fail_on_data_loss,
            stream=options.stream,
            local_log_dirs=options.local_log_dirs,
            consumer=options.consumer,
            fence=_fence(log, stop) if options.reads_local_replicas else None,
        )
        pieces = tuple(
            (piece.stop, max(1, piece.bytes) * (COMPRESSED_WEIGHT if piece.compressed else 1))
            for piece in _pieces(log, start, stop)
        )
        return cls(whole, pieces)

    def cut(self, target: int) -> Iterator[Task]:
        """Join pieces to tasks of about equal weight: at most `target` where pieces allow, MIN_TASK_BYTES or more."""
        if self.whole is None:
            return
        total = self.weight
        tasks = max(1, min(-(-total // target), total // MIN_TASK_BYTES))
        if tasks == 1:
            yield self.whole
            return
        done, made, start = 0, 0, self.whole.start
        for stop, weight in self.pieces:
            done += weight
            if done * tasks >= total * (made + 1):
                yield self.whole._replace(start=start, stop=stop)
                made = done * tasks // total
                start = stop
        if start < self.whole.stop:
            yield self.whole._replace(start=start)


def _fence(log: RangedLog, stop: int) -> ReplicaFence | None:
    epoch = epoch_before(log.leader_epochs, stop)
    return None if epoch is None else ReplicaFence(epoch, stop)


def _piece_bytes() -> int:
    return MIN_TASK_BYTES // _PIECES_PER_TASK // COMPRESSED_WEIGHT


def _pieces(log: RangedLog, start: int, stop: int) -> Sequence[kreplog.OffsetRange]:
    """[start, stop) in pieces of about _piece_bytes. Records deleted meanwhile are one too: its task reports them."""
    while True:
        first = min(max(start, log.log_start_offset), stop)
        deleted = [kreplog.OffsetRange(start, first, 0, False)] if first > start else []
        try:
            return [*deleted, *(log.offset_ranges(first, stop, _piece_bytes()) if first < stop else ())]
        except OffsetOutOfRangeError:
            if log.log_start_offset <= first:
                raise


def _at_most(tasks: list[Task], records: int | None) -> list[Task]:
    """Split every task that has more than so many records into equal parts."""
    if records is None:
        return tasks
    return [part for task in tasks for part in _split(task, -(-task.records // records))]


def _at_least(tasks: list[Task], count: int | None) -> list[Task]:
    """Split large tasks in proportion to their records until there are about `count`; small ones stay whole."""
    if count is None or len(tasks) >= count:
        return tasks
    total = sum(task.records for task in tasks)
    small = [_share(task.records, total, count) == 1 for task in tasks]
    large_total = sum(task.records for task, whole in zip(tasks, small, strict=True) if not whole)
    large_count = max(count - sum(small), 1)
    return [
        part
        for task, whole in zip(tasks, small, strict=True)
        for part in _split(task, 1 if whole else _share(task.records, large_total, large_count))
    ]


def _share(records: int, total: int, count: int) -> int:
    return max(1, (2 * records * count + total) // (2 * total))


def _split(task: Task, parts: int) -> list[Task]:
    """Equal parts by offset; a batch that lies across a cut is read by both and shown by each in part."""
    parts = min(parts, task.records)
    cuts = [task.start + task.records * i // parts for i in range(parts + 1)]
    return [task._replace(start=a, stop=b) for a, b in pairwise(cuts)]
