"""Options to tasks: which partitions, which offsets of each, and how they are cut into pieces of a good size.

The ends are settled here, once, and never lie past the high watermark; read.py then reads exactly what was planned.
Files are opened only to be asked for offsets. Nothing here knows of Spark.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import kreplog
from kreplog.errors import InvalidTopicError, UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog.options import EARLIEST, LATEST, Bound, Options

MIN_TASK_BYTES = 32 << 20  # a task costs some 85 ms of CPU, whatever it reads
MAX_TASK_BYTES = 256 << 20
TASKS_PER_CORE = 2
COMPRESSED_WEIGHT = 3  # bytes that a compressed byte counts for

_PIECES_PER_TASK = 4  # pieces a smallest task is put together from, so that tasks of a partition come out even
_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
_ATTRIBUTES_AT = 22  # low byte of a record batch's attributes
_CODEC_MASK = 7

_log = logging.getLogger("pyspark_kreplog")


@dataclass(frozen=True, slots=True)
class Task:
    """Offsets [start, stop) of the partition in directory `path`; plain data, so that it can go to another process."""

    path: str
    topic: str
    partition: int
    topic_id: str | None
    start: int
    stop: int
    fail_on_data_loss: bool

    @property
    def records(self) -> int:
        """Offsets to read; fewer records where compaction or control batches left gaps."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Pruning:
    """What filters leave to be read: a superset of the rows that pass them."""

    start: int = 0
    stop: int = 2**63 - 1
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None


def plan(options: Options, cores: int, pruning: Pruning | None = None) -> list[Task]:
    """The tasks of a read, in order of topic, partition and offset; empty ones left out.

    cores: how many the job may use; the number of tasks aims at TASKS_PER_CORE for each.
    Raises UsageError naming the topic, the partition, the offset and the option to change.
    """
    pruning = pruning or Pruning()
    ranges = []
    partitions = choose(options)
    for bound in (options.starting, options.ending):
        _require_all(bound, partitions)
    for partition in partitions:
        if pruning.topics is not None and partition.topic not in pruning.topics:
            continue
        if pruning.partitions is not None and partition.partition not in pruning.partitions:
            continue
        ranges.append(_Range.of(options, partition, pruning))
    weight = sum(each.weight for each in ranges)
    target = min(max(weight // (TASKS_PER_CORE * cores), MIN_TASK_BYTES), MAX_TASK_BYTES)
    tasks = [task for each in ranges for task in each.cut(target)]
    tasks = _at_most(tasks, options.max_records_per_partition)
    return _at_least(tasks, options.min_partitions)


def choose(options: Options) -> list[TopicPartition]:
    """The partitions that the options name and that have a directory, sorted."""
    found = _discover(options.path)
    topics = {partition.topic for partition in found}
    if options.pattern is not None:
        wanted = {topic for topic in topics - _INTERNAL_TOPICS if re.search(options.pattern, topic)}
        return [partition for partition in found if partition.topic in wanted]
    option = "subscribe" if options.topics is not None else "assign"
    named = options.topics or sorted({partition.topic for partition in options.assigned or ()})
    missing = [topic for topic in named if topic not in topics]
    if missing:
        raise UsageError(
            f"option '{option}': there is no topic {', '.join(missing)} in {options.path}; it holds "
            f"{', '.join(sorted(topics)) or 'no topic at all'}"
        )
    if options.assigned is None:
        return [partition for partition in found if partition.topic in named]
    unknown = sorted(set(options.assigned) - set(found))
    if unknown:
        _log.warning("option 'assign': there is no partition %s in %s", ", ".join(map(str, unknown)), options.path)
    return [partition for partition in options.assigned if partition in found]


def _discover(path: str) -> list[TopicPartition]:
    """Every <topic>-<partition> directory in `path`, sorted; whatever else lies there is none of ours."""
    if not os.path.isdir(path):
        raise UsageError(f"option 'path' = {path!r} is no directory", path=path)
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                partition = TopicPartition.parse(entry.name)
            except InvalidTopicError:
                continue
            if entry.is_dir():
                found.append(partition)
    if not found and any(name.endswith(".log") for name in os.listdir(path)):
        raise UsageError(
            f"option 'path' = {path!r} is the directory of one partition: give its parent, {os.path.dirname(path)!r}, "
            "and name the partition with subscribe or assign",
            path=path,
        )
    return sorted(found)


def _require_all(bound: Bound, partitions: Collection[TopicPartition]) -> None:
    """Offsets and times by partition must name exactly the partitions that are read, as in Spark's Kafka source."""
    if not isinstance(bound.value, dict) or bound.value.keys() == set(partitions):
        return
    differing = [
        f"{text} {', '.join(map(str, sorted(names)))}"
        for text, names in (
            ("it lacks", set(partitions) - bound.value.keys()),
            ("not read are", bound.value.keys() - set(partitions)),
        )
        if names
    ]
    raise UsageError(
        f"option '{bound.option}' must name every partition that is read and no other: {'; '.join(differing)}"
        + ("" if bound.by_time else " (-2 stands for earliest, -1 for latest)")
    )


@dataclass(frozen=True, slots=True)
class _Range:
    """What is read of one partition: contiguous pieces of a few MiB, each a Task with the bytes it counts for."""

    pieces: tuple[tuple[Task, int], ...]

    @property
    def weight(self) -> int:
        return sum(weight for _, weight in self.pieces)

    @classmethod
    def of(cls, options: Options, partition: TopicPartition, pruning: Pruning) -> _Range:
        path = os.path.join(options.path, str(partition))
        with kreplog.Log.open(path, read_only=True) as log:
            start, stop = _resolve(log, partition, options)
            start, stop = max(start, pruning.start), min(stop, pruning.stop)
            if start >= stop:
                return cls(())
            topic_id = None if log.topic_id is None else str(log.topic_id)
            whole = Task(
                os.path.abspath(path), partition.topic, partition.partition, topic_id, start, stop,
                options.fail_on_data_loss,
            )  # fmt: skip
            factor = COMPRESSED_WEIGHT if _is_compressed(log, start) else 1
            piece_bytes = MIN_TASK_BYTES // _PIECES_PER_TASK // factor
            return cls(
                tuple(
                    (replace(whole, start=piece.start, stop=piece.stop), max(1, piece.bytes) * factor)
                    for piece in _pieces(log, start, stop, piece_bytes)
                )
            )

    def cut(self, target: int) -> Iterator[Task]:
        """Join pieces to tasks of about equal weight: at most `target` where pieces allow, MIN_TASK_BYTES or more."""
        if not self.pieces:
            return
        tasks = max(1, min(-(-self.weight // target), self.weight // MIN_TASK_BYTES))
        done, made, first = 0, 0, self.pieces[0][0]
        for piece, weight in self.pieces:
            done += weight
            if done * tasks >= self.weight * (made + 1):
                yield replace(first, stop=piece.stop)
                made = done * tasks // self.weight
                first = replace(first, start=piece.stop)
        if first.start < self.pieces[-1][0].stop:
            yield replace(first, stop=self.pieces[-1][0].stop)


def _pieces(log: kreplog.Log, start: int, stop: int, piece_bytes: int) -> Sequence[kreplog.OffsetRange]:
    """[start, stop) in pieces of about that size. What is deleted meanwhile is a piece too: its task tells of it."""
    while True:
        kept = min(max(start, log.log_start_offset), stop)
        gone = [kreplog.OffsetRange(start, kept, 0)] if kept > start else []
        try:
            return [*gone, *(log.offset_ranges(kept, stop, piece_bytes) if kept < stop else ())]
        except kreplog.errors.OffsetOutOfRangeError:
            if log.log_start_offset <= kept:
                raise


def _is_compressed(log: kreplog.Log, offset: int) -> bool:
    """Whether the batch at `offset` is; a topic seldom changes. One deleted meanwhile is for its task to tell."""
    try:
        data = log.fetch(offset, max_bytes=1).data
    except kreplog.errors.OffsetOutOfRangeError:
        return False
    return len(data) > _ATTRIBUTES_AT and bool(data[_ATTRIBUTES_AT] & _CODEC_MASK)


def _resolve(log: kreplog.Log, partition: TopicPartition, options: Options) -> tuple[int, int]:
    """The offsets [start, stop) asked for, within what is there and committed right now."""
    first, end = log.log_start_offset, log.high_watermark
    stop = _offset_of(log, partition, options.ending, options, first, end)
    start = _offset_of(log, partition, options.starting, options, first, end)
    if start > stop and (start != first or options.fail_on_data_loss):
        raise UsageError(
            f"{partition}: the read would begin at offset {start} ({options.starting.option}) and end before it, at "
            f"{stop} ({options.ending.option}): change one of the two options",
            partition=str(partition),
            offset=start,
        )
    return start, stop


def _offset_of(
    log: kreplog.Log, partition: TopicPartition, bound: Bound, options: Options, first: int, end: int
) -> int:
    value = bound.value[partition] if isinstance(bound.value, dict) else bound.value
    if bound.by_time:
        offset = log.offset_for_timestamp(value)
        if offset is not None and offset < end:
            return offset
        if bound is options.starting and not options.latest_if_no_start:
            raise UsageError(
                f"{partition}: no committed record has a timestamp of {value} or later, which {bound.option} asks for: "
                "choose an earlier time, or set startingOffsetsByTimestampStrategy to latest to read nothing of it",
                partition=str(partition),
            )
        return end
    if value == EARLIEST:
        return first
    if value == LATEST:
        return end
    if first <= value <= end or (bound is options.ending and value < first):
        return value
    why = f"the log now starts at {first}" if value < first else f"only what is below {end} is committed"
    found = min(max(value, first), end)
    lost = f"{partition}: offset {value}, which {bound.option} asks for, is not there: {why}"
    if options.fail_on_data_loss:
        raise UsageError(
            f"{lost}. Set {bound.option} to {found}, or failOnDataLoss to false to go on from what is there",
            partition=str(partition),
            offset=value,
        )
    _log.warning("%s; going on with %d", lost, found)
    return found


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
    return [replace(task, start=a, stop=b) for a, b in pairwise(cuts)]
