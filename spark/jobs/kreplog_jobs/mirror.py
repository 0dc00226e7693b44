"""Job `mirror`: topics of one cluster into another, with offsets translated; what is new since the last run.

    python -m kreplog_jobs.mirror kafka-1:9092,kafka-2:9092 copy --checkpoint mirror
    python -m kreplog_jobs.mirror data kafka-1:9092 --checkpoint mirror --target-config target.properties
    python -m kreplog_jobs.mirror --checkpoint mirror --translate orders:0:1700

Source and target are brokers, kreplog's or Apache Kafka's, or a directory of <topic>-<partition> folders. Runs until
the target has what was committed in the source at its start, and goes on from there the next time, also after a kill at
any step. Topics keep their names, and records their partitions, order, keys, values, headers and timestamps; offsets
are new. The directory of --checkpoint maps source offsets to target offsets, in files that the module offset_map
documents. The driver and all workers need it, and directories that are read or written, under the same path.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import sys
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer

import kreplog
from kreplog.bulk_append import atomic_write
from kreplog.errors import InvalidTopicError, KreplogError, OffsetOutOfRangeError, UsageError
from kreplog.types import Codec, TopicPartition, check_partition
from kreplog_jobs import job
from kreplog_jobs.mirror_target import BrokersTarget, DirectoryTarget, Target, TargetPartition
from kreplog_jobs.offset_map import OffsetMap, map_path
from pyspark_kreplog import plan
from pyspark_kreplog.bounds import end_offset
from pyspark_kreplog.log_directory import PartitionSnapshot, partition_path, subscribed_partitions, topic_id_of
from pyspark_kreplog.network import ClusterReader
from pyspark_kreplog.options import ReadOptions, parse_batch
from pyspark_kreplog.read import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_BYTES = 16 << 20
"""About so much, as Arrow columns, is appended and recorded at a time."""

_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_EPOCH = pa.scalar(0, pa.timestamp("us", "UTC"))


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One partition to copy, up to the end of `source`; where it begins, the map of offsets says under its lock."""

    mirror: str
    checkpoint: str
    source: plan.Task
    target: Target


def main(
    source: Annotated[
        str | None,
        typer.Argument(help="Brokers as host:port,host:port, or a directory of <topic>-<partition> folders."),
    ] = None,
    target: Annotated[str | None, typer.Argument(help="Brokers or a directory likewise.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Directory of the mirror's offsets; made if it is missing. Required.")
    ] = None,
    subscribe: job.Topics = None,
    compression: Annotated[Codec, typer.Option(help="What record batches are compressed with.")] = Codec.lz4,
    replication_factor: Annotated[
        int, typer.Option(min=-1, help="Of topics that are created on brokers; -1: the brokers' default.")
    ] = -1,
    append: Annotated[
        bool, typer.Option("--append", help="Also into partitions that have records which are not this mirror's.")
    ] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Leave out records of open and aborted transactions.")
    ] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on where the source has deleted records that are not mirrored yet.")
    ] = False,
    translate: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:PARTITION:OFFSET", help="Print topic,partition,offset of the target; repeatable."),
    ] = None,
    translate_file: Annotated[
        Path | None,
        typer.Option(help="Print the same for a file of topic,partition,offset lines, as kafka-consumer-groups has."),
    ] = None,
    source_config: Annotated[
        Path | None,
        typer.Option(help="Properties of the connections to SOURCE, such as security.protocol=SASL_SSL."),
    ] = None,
    target_config: Annotated[Path | None, typer.Option(help="The same of the connections to TARGET.")] = None,
    master: job.Master = None,
) -> None:
    """Mirror topics of one cluster into another, each run what is new; or translate offsets of the source."""
    if checkpoint is None:
        raise UsageError("name the directory of the mirror's offsets with --checkpoint")
    if translate or translate_file is not None:
        if source is not None or target is not None:
            raise UsageError("--translate reads the checkpoint alone: leave SOURCE and TARGET out")
        print_translated(checkpoint, [*parse_offsets(translate or ()), *_offsets_in(translate_file)])
        return
    if source is None or target is None:
        raise UsageError("name SOURCE and TARGET: brokers as host:port, or a directory")
    security = job.security_of(source, source_config, "--source-config")
    target_security = job.security_of(target, target_config, "--target-config")
    options = source_options(source, subscribe, skip_lost, read_committed, security)
    if options.path and not job.is_brokers(target) and os.path.realpath(options.path) == os.path.realpath(target):
        raise UsageError(f"{source} is what is read: choose another target")
    destination: Target = (
        BrokersTarget(target, compression.value, replication_factor, target_security)
        if job.is_brokers(target)
        else DirectoryTarget(os.path.abspath(target), compression.value)
    )
    with locked(checkpoint) as mirror:
        partitions = snapshots(options)
        tasks = prepare(mirror, checkpoint, options, partitions, destination, append=append)
        records = 0
        if tasks:
            with job.session("mirror", master) as spark, job.progress(spark, "mirror"):
                records = sum(copy_all(spark, tasks))
    print(f"{target}: {records:,} records of {len(partitions)} partitions mirrored; offsets are in {checkpoint}")


def source_options(
    source: str,
    topics: str | None,
    skip_lost: bool,
    read_committed: bool = False,
    security: Mapping[str, str] | None = None,
) -> ReadOptions:
    """The options of a batch read of the source. Raises UsageError."""
    place = job.place(source if job.is_brokers(source) else os.path.abspath(source), security or {})
    if read_committed:
        place["isolationLevel"] = "read_committed"
    return parse_batch(
        {**place, **job.subscription(topics), "failOnDataLoss": str(not skip_lost).lower(), "includeHeaders": "true"}
    )


@contextmanager
def locked(checkpoint: Path) -> Iterator[str]:
    """The id of the mirror with this checkpoint, which is made if it is new; one run at a time. Raises UsageError."""
    if checkpoint.exists() and not checkpoint.is_dir():
        raise UsageError(f"{checkpoint} is no directory", path=str(checkpoint))
    checkpoint.mkdir(parents=True, exist_ok=True)
    lock = os.open(checkpoint / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{checkpoint}: another mirror runs with it; wait for its end") from None
        identity = checkpoint / "mirror.json"
        if not identity.exists():
            atomic_write(str(identity), json.dumps({"version": 1, "id": uuid.uuid4().hex}).encode())
        try:
            mirror = str(json.loads(identity.read_text())["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{identity} names no mirror ({error}): restore it", path=str(identity)) from error
        yield mirror
    finally:
        os.close(lock)


def snapshots(options: ReadOptions) -> dict[TopicPartition, PartitionSnapshot]:
    """The partitions of the source, each with its committed offsets now. Raises UsageError for a missing topic."""
    if options.bootstrap is not None:
        with ClusterReader(options) as cluster:
            return cluster.states(cluster.subscribed())
    found = {}
    for partition in subscribed_partitions(options):
        with kreplog.Log.open(partition_path(options, partition), read_only=True) as log:
            end = end_offset(log, options.consumer.isolation_level)
            found[partition] = PartitionSnapshot(log.log_start_offset, end, topic_id_of(log), (), log.incarnation_id)
    return found


def prepare(
    mirror: str,
    checkpoint: Path,
    options: ReadOptions,
    partitions: Mapping[TopicPartition, PartitionSnapshot],
    target: Target,
    *,
    append: bool,
) -> list[CopyTask]:
    """A task for each partition with records that are not mirrored yet, after all that can be checked has been; the
    target then has every partition of the source. Raises KreplogError: nothing was changed."""
    counts: dict[str, int] = {}
    for partition in partitions:
        counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
    existing = target.describe(counts)
    tasks = []
    for partition, state in sorted(partitions.items()):
        offsets = OffsetMap(map_path(checkpoint, partition))
        _check_target(partition, state, offsets, existing.get(partition), append=append)
        start = _start(partition, state, offsets, options)
        if start < state.end_offset:
            path = "" if options.bootstrap is not None else partition_path(options, partition)
            task = plan.Task(
                path=path,
                bootstrap=options.bootstrap,
                topic=partition.topic,
                partition=partition.partition,
                topic_id=state.topic_id,
                start=start,
                stop=state.end_offset,
                fail_on_data_loss=options.fail_on_data_loss,
                consumer=options.consumer,
                incarnation_id=state.incarnation_id,
            )
            tasks.append(CopyTask(mirror, str(checkpoint.absolute()), task, target))
    target.create(counts)
    return tasks


def _check_target(
    partition: TopicPartition,
    state: PartitionSnapshot,
    offsets: OffsetMap,
    existing: TargetPartition | None,
    *,
    append: bool,
) -> None:
    """Raise UsageError where the records of the partition would be doubled, or appended to another topic."""
    name = str(partition)
    if offsets.exists:
        if offsets.source_topic_id != state.topic_id:
            raise UsageError(
                f"{name}: the topic was deleted and created again in the source: its topic id was "
                f"{offsets.source_topic_id} and is now {state.topic_id}; mirror it into an empty topic with another "
                "checkpoint",
                partition=name,
            )
        found = None if existing is None else existing.topic_id
        if existing is None or offsets.target_topic_id != found:
            raise UsageError(
                f"{name}: the target is not that of the checkpoint: its topic id was {offsets.target_topic_id}, and is "
                f"{'that of no topic' if existing is None else found} now; use another checkpoint",
                partition=name,
            )
    elif existing is not None:
        if existing.topic_id is not None and existing.topic_id == state.topic_id:
            raise UsageError(f"{name}: source and target are the same topic", partition=name)
        if not existing.empty and not append:
            raise UsageError(
                f"{name}: the target has records that this mirror did not write: if they are of another mirror of the "
                "same source, use its checkpoint; --append mirrors behind them",
                partition=name,
            )


def _start(partition: TopicPartition, state: PartitionSnapshot, offsets: OffsetMap, options: ReadOptions) -> int:
    """The source offset to go on from. Raises OffsetOutOfRangeError where records are lost."""
    position = offsets.position
    if position is None:
        return state.start_offset
    if position > state.end_offset:
        raise OffsetOutOfRangeError(
            f"{partition}: offsets below {position} are mirrored, and the source ends at {state.end_offset}: it lost "
            "records, and gives their offsets to others; mirror it again with another checkpoint",
            partition=str(partition),
            offset=position,
        )
    if position < state.start_offset and options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{partition}: offsets {position} to {state.start_offset} were deleted in the source before they were "
            "mirrored; --skip-lost goes on behind them",
            partition=str(partition),
            offset=position,
        )
    return max(position, state.start_offset)


def copy_all(spark: SparkSession, tasks: Collection[CopyTask]) -> list[int]:
    """Run the tasks; the number of records of each."""
    return spark.sparkContext.parallelize(tasks, len(tasks)).map(copy).collect()


def copy(task: CopyTask) -> int:
    """Append what the target lacks of one partition, chunk by chunk; the number of records. Runs in a worker.

    Raises KreplogError; what was appended before is recorded, so that the next run goes on behind it."""
    partition, copied = task.source.topic_partition, 0
    with (
        OffsetMap.locked(Path(task.checkpoint), partition) as offsets,
        task.target.open(task.mirror, partition) as target,
    ):
        if not offsets.exists:
            offsets.create(task.source.topic_id, target.topic_id)
        elif offsets.target_topic_id != target.topic_id:
            raise KreplogError(f"{partition}: the target was deleted and created again", partition=str(partition))
        target.resume(offsets)
        position = max(task.source.start, offsets.position or 0)
        for rows in chunks(_from(task.source, position)):
            position = rows["offset"][-1].as_py() + 1
            target.append(offsets, rows, position)
            copied += rows.num_rows
        if position < task.source.stop:  # no record is left, as behind the marker of a transaction
            offsets.commit(task.source.stop)
    return copied


def _from(task: plan.Task, position: int) -> Iterator[pa.RecordBatch]:
    if position >= task.stop:
        return iter(())
    return read(task._replace(start=position), _COLUMNS)


def chunks(batches: Iterable[pa.RecordBatch], chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.Table]:
    """Joined to tables of about chunk_bytes; without empty ones. A negative timestamp, as of a record that has none,
    becomes null."""
    pieces: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            pieces.append(batch)
            size += batch.nbytes
            if size >= chunk_bytes:
                yield _table(pieces)
                pieces, size = [], 0
    if pieces:
        yield _table(pieces)


def _table(pieces: list[pa.RecordBatch]) -> pa.Table:
    rows = pa.Table.from_batches(pieces)
    times = rows["timestamp"]
    if pc.any(pc.less(times, _EPOCH)).as_py():
        index = rows.schema.get_field_index("timestamp")
        null = pa.scalar(None, times.type)
        rows = rows.set_column(index, "timestamp", pc.if_else(pc.less(times, _EPOCH), null, times))
    return rows


# Translation


def parse_offsets(texts: Iterable[str]) -> list[tuple[TopicPartition, int]]:
    """Partitions and offsets from texts such as topic:partition:offset, or with commas. Raises UsageError."""
    parsed = []
    for text in texts:
        found = re.fullmatch(r'"?([^:,"]+)"?[:,](\d{1,10})[:,](\d{1,19})', text.strip())
        try:
            if found is None:
                raise UsageError("it has other parts")
            parsed.append((check_partition(TopicPartition(found[1], int(found[2]))), int(found[3])))
        except (UsageError, InvalidTopicError) as error:
            raise UsageError(f"{text!r}: write topic:partition:offset, as in orders:0:1700 ({error})") from None
    return parsed


def _offsets_in(file: Path | None) -> list[tuple[TopicPartition, int]]:
    if file is None:
        return []
    return parse_offsets(line for line in file.read_text().splitlines() if line.strip())


def print_translated(checkpoint: Path, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
    """topic,partition,offset of the target, in the same order, which kafka-consumer-groups takes with --from-file."""
    found = [translated(checkpoint, partition, offset) for partition, offset in offsets]
    csv.writer(sys.stdout, lineterminator="\n").writerows(found)


def translated(checkpoint: Path, partition: TopicPartition, offset: int) -> tuple[str, int, int]:
    """(topic, partition, offset) of the target. Raises UsageError for a partition that is not mirrored,
    OffsetOutOfRangeError for an offset that is not yet."""
    offsets = OffsetMap(map_path(checkpoint, partition))
    if not offsets.exists:
        raise UsageError(f"{partition}: {checkpoint} has no offsets of it", partition=str(partition))
    return partition.topic, partition.partition, offsets.translate(offset)


if __name__ == "__main__":
    job.run(main)
