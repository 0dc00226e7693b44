"""Job `audit`: compare all replicas of a cluster's partitions; name what differs by partition, offset and broker.

    python -m kreplog_jobs.audit --cluster my-cluster
    python -m kreplog_jobs.audit --replicas 1=/srv/broker-1/data --replicas 2=/srv/broker-2/data

Compared is what every replica of a partition holds as committed, [the highest log start, the lowest high watermark).
Tasks check the CRC of each batch and digest batch headers, CRCs included, range by range; only digests leave a task.
Where they differ, the headers of that range and then the records of the first batch that differs are digested one by
one. Also found: damaged batches, leader epochs that fall, and gaps, offsets that no batch holds, which are no fault
where a topic is compacted. The brokers may run. Exits with status 1 when replicas differ or one is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

import kreplog
from kreplog.errors import CorruptBatchError, OffsetOutOfRangeError, StorageError, UsageError
from kreplog.types import TopicPartition
from kreplog_jobs import job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES = 256 << 20


@dataclass(frozen=True)
class Task:
    """Offsets [start, stop) of one replica; start and stop are batch boundaries in every replica."""

    topic_partition: str
    broker: int
    path: str
    start: int
    stop: int


@dataclass(frozen=True)
class Result:
    """What one task found. digest: of the headers of all batches, None where the range could not be read whole."""

    task: Task
    records: int
    bytes: int
    gaps: int
    digest: str | None
    damage: str | None = None
    damage_offset: int | None = None


class Finding(NamedTuple):
    """A fault: of `broker`'s replica of `topic_partition`, at `offset` or from there on."""

    topic_partition: str
    offset: int
    broker: int
    fault: str


def main(
    cluster: Annotated[Path | None, typer.Option("--cluster", "-c", help="A cluster's directory on this host.")] = None,
    replicas: Annotated[
        list[str] | None, typer.Option("--replicas", "-r", help="ID=DIRECTORY of a broker's log directory; repeatable.")
    ] = None,
    subscribe: job.Topics = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
    master: job.Master = None,
) -> None:
    """Compare the replicas of a cluster's partitions, and name what differs by partition, offset and broker."""
    tasks, partitions = plan(_directories(cluster, replicas or []), topics_of(subscribe))
    with job.session("audit", master) as spark:
        with job.progress(spark, "audit"):
            results = _run(spark, tasks, check)
        findings = judge(spark, results)
    records = sum(result.records for result in results)
    deleted = sum(result.digest is None and result.damage is None for result in results)
    if as_json:
        report = {
            "partitions": partitions, "records": records, "bytes": sum(result.bytes for result in results),
            "gaps": sum(result.gaps for result in results), "deleted_ranges": deleted,
            "findings": [finding._asdict() for finding in findings],
        }  # fmt: skip
        print(json.dumps(report))
    else:
        for finding in findings:
            print(f"{finding.topic_partition}: offset {finding.offset}, broker {finding.broker}: {finding.fault}")
        print(f"{partitions} partitions, {records:,} records of all replicas compared: {len(findings)} faults")
        if deleted:
            print(f"{deleted} ranges were deleted by retention while they were read, and are not compared")
    if findings:
        raise typer.Exit(1)


def _directories(cluster: Path | None, replicas: Sequence[str]) -> list[tuple[int, Path]]:
    """(broker id, log directory) of every one that is named. Raises UsageError."""
    found = []
    for text in replicas:
        number, _, directory = text.partition("=")
        if not number.isdecimal() or not directory:
            raise UsageError(f"--replicas {text!r}: write ID=DIRECTORY, as in 1=/srv/broker-1/data")
        found.append((int(number), Path(directory)))
    if cluster is not None:
        homes = sorted(cluster.glob("broker-*/data"))
        if not homes:
            raise UsageError(f"{cluster} is no cluster's directory: it holds no broker-*/data", path=str(cluster))
        found += [(int(home.parent.name.removeprefix("broker-")), home) for home in homes]
    if not found:
        raise UsageError("name what to audit: --cluster DIRECTORY, or --replicas ID=DIRECTORY for each broker")
    for _, home in found:
        if not home.is_dir():
            raise UsageError(f"{home} is no directory", path=str(home))
    return found


def topics_of(text: str | None) -> list[str] | None:
    """Topics with commas between; None for all."""
    return None if text is None else [topic.strip() for topic in text.split(",") if topic.strip()]


def plan(directories: Iterable[tuple[int, Path]], topics: Sequence[str] | None) -> tuple[list[Task], int]:
    """Tasks for the offsets that all replicas of a partition hold, and how many partitions there are.

    Raises UsageError for a topic that no directory has, and where there is nothing to compare."""
    replicas: dict[TopicPartition, list[tuple[int, Path]]] = defaultdict(list)
    for broker, directory in directories:
        for path in sorted(directory.iterdir()):
            try:
                topic_partition = TopicPartition.parse(path.name)
            except kreplog.errors.InvalidTopicError:
                continue
            if path.is_dir() and (topics is None or topic_partition.topic in topics):
                replicas[topic_partition].append((broker, path))
    missing = sorted(set(topics or ()) - {topic_partition.topic for topic_partition in replicas})
    if missing:
        raise UsageError(f"--subscribe: there is no topic {', '.join(missing)} in any of the directories")
    if all(len(places) < 2 for places in replicas.values()):
        raise UsageError(
            f"there is nothing to compare: of {len(replicas)} partitions none has replicas in two of the directories"
        )
    tasks = []
    for topic_partition, places in sorted(replicas.items()):
        for start, stop in _ranges([path for _, path in places]):
            tasks += [Task(str(topic_partition), broker, str(path), start, stop) for broker, path in places]
    return tasks, len(replicas)


def _ranges(paths: Sequence[Path]) -> list[tuple[int, int]]:
    logs = [kreplog.Log.open(path, read_only=True) for path in paths]
    try:
        stop = min(log.high_watermark for log in logs)
        newest = max(logs, key=lambda log: log.log_start_offset)
        start = newest.log_start_offset
        if start >= stop:
            return []
        return [(piece.start, piece.stop) for piece in newest.offset_ranges(start, stop, RANGE_BYTES)]
    finally:
        for log in logs:
            log.close()


def check(task: Task) -> Result:
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
                    return Result(task, records, size, gaps, None, fault, at)
                digest.update(rows.tobytes())
                records += int(rows["record_count"].sum())
                size += int(rows["size"].sum())
                expected, epoch = int(rows["last_offset"][-1]) + 1, int(rows["leader_epoch"][-1])
    except OffsetOutOfRangeError:
        return Result(task, records, size, gaps, None)
    except StorageError as error:
        at = error.offset if isinstance(error, CorruptBatchError) and error.offset is not None else expected
        return Result(task, records, size, gaps, None, str(error), at)
    return Result(task, records, size, gaps, digest.hexdigest())


def judge(spark: SparkSession, results: Sequence[Result]) -> list[Finding]:
    """All faults: what tasks found damaged, and where replicas with sound batches differ."""
    findings = [
        Finding(result.task.topic_partition, result.damage_offset or 0, result.task.broker, result.damage)
        for result in results
        if result.damage is not None
    ]
    by_range: dict[tuple[str, int], list[Result]] = defaultdict(list)
    for result in results:
        if result.digest is not None:
            by_range[result.task.topic_partition, result.task.start].append(result)
    differing = [group for group in by_range.values() if len({result.digest for result in group}) > 1]
    for group in differing:
        headers = dict(_run(spark, [result.task for result in group], batch_digests))
        for broker, (base, stop) in _first_differences(headers).items():
            task = next(result.task for result in group if result.task.broker == broker)
            tasks = [Task(task.topic_partition, r.task.broker, r.task.path, base, stop) for r in group]
            records = dict(_run(spark, tasks, record_digests))
            offset = _first_differences(records).get(broker, (base, stop))[0]
            others = [str(r.task.broker) for r in group if headers[r.task.broker] != headers[broker]]
            fault = f"differs from broker{'s' if len(others) > 1 else ''} {', '.join(others)}, its CRC being right"
            findings.append(Finding(task.topic_partition, offset, broker, fault))
    return sorted(findings)


def batch_digests(task: Task) -> tuple[int, dict[tuple[int, int], bytes]]:
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


def record_digests(task: Task) -> tuple[int, dict[tuple[int, int], bytes]]:
    """(broker, digest of each record by its offsets [offset, offset + 1)); none of a batch that cannot be read."""
    try:
        with kreplog.Log.open(task.path, read_only=True) as log:
            return task.broker, {
                (record.offset, record.offset + 1): hashlib.blake2b(repr(tuple(record)).encode()).digest()
                for record in log.read(task.start, task.stop)
            }
    except (StorageError, OffsetOutOfRangeError):
        return task.broker, {}


def _first_differences(digests: dict[int, dict[tuple[int, int], bytes]]) -> dict[int, tuple[int, int]]:
    """The first range in which a broker differs from most others; of two brokers that differ, of both."""
    found: dict[int, tuple[int, int]] = {}
    for span in sorted({span for spans in digests.values() for span in spans}):
        values = {broker: spans.get(span) for broker, spans in digests.items()}
        counts = Counter(values.values())
        for broker, value in values.items():
            if counts[value] <= len(values) / 2 and len(counts) > 1:
                found.setdefault(broker, span)
    return found


def _run(spark: SparkSession, tasks: Sequence[Task], function: Any) -> list[Any]:
    if not tasks:
        return []
    return spark.sparkContext.parallelize(tasks, len(tasks)).map(function).collect()


if __name__ == "__main__":
    job.run(main)
