"""Job `audit`: compare all replicas of a cluster's partitions; name what differs by partition, offset and broker.

    python -m kreplog_jobs.audit --cluster my-cluster
    python -m kreplog_jobs.audit --replicas 1=/srv/broker-1/data --replicas 2=/srv/broker-2/data

Compared is what every replica of a partition holds as committed, [the highest log start, the lowest high watermark).
Tasks check the CRC of each batch and digest batch headers, CRCs included, range by range; only digests leave a task.
Where they differ, the headers of that range and then the records of the first batch that differs are digested one by
one. Partitions that brokers compact, each its own replica, as their cleaner-offset-checkpoint says, are compared by the
newest record of each key instead; records without a key are not compared there. Also found: damaged batches, leader
epochs that fall, and gaps, offsets that no batch holds, which are no fault where a topic is compacted; replicas that
are missing, empty, or end below the highest high watermark of the partition, and so lack committed records. The brokers
may run; a follower that is not in sync is such a replica. Exits with status 1 when replicas differ, or one is damaged
or lacks records.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

import kreplog
from kreplog.errors import CorruptBatchError, OffsetOutOfRangeError, StorageError, UsageError
from kreplog.types import TopicPartition
from kreplog_jobs import job
from pyspark_kreplog.network import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RANGE_BYTES = 256 << 20

ANY_BROKER = -1
"""Of a finding that is not of one broker's replica."""


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
    """A fault: of `broker`'s replica of `topic_partition`, at `offset` or from there on; or of ANY_BROKER's."""

    topic_partition: str
    offset: int
    broker: int
    fault: str


@dataclass
class Plan:
    """What an audit compares, and what it has found already. tasks: of all ranges and replicas to compare. findings:
    faults that show before a batch is read. single: partitions with a replica in one directory alone. below_start:
    offsets that not all replicas still have."""

    partitions: int = 0
    tasks: list[Task] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    single: int = 0
    below_start: int = 0


def main(
    cluster: Annotated[Path | None, typer.Option("--cluster", "-c", help="A cluster's directory on this host.")] = None,
    replicas: Annotated[
        list[str] | None, typer.Option("--replicas", "-r", help="ID=DIRECTORY of a broker's log directory; repeatable.")
    ] = None,
    subscribe: job.Topics = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(help="host:port of running brokers, whose metadata say which broker must have which replica."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
    master: job.Master = None,
) -> None:
    """Compare the replicas of a cluster's partitions, and name what differs by partition, offset and broker."""
    topics = topics_of(subscribe)
    planned = plan(_directories(cluster, replicas or []), topics, assigned_by(bootstrap, topics))
    with job.session("audit", master) as spark:
        with job.progress(spark, "audit"):
            results = _run(spark, planned.tasks, check)
        findings = sorted([*planned.findings, *judge(spark, results)])
    records = sum(result.records for result in results)
    deleted = sum(result.digest is None and result.damage is None for result in results)
    if as_json:
        report = {
            "partitions": planned.partitions, "records": records, "bytes": sum(result.bytes for result in results),
            "gaps": sum(result.gaps for result in results), "deleted_ranges": deleted,
            "single_replicas": planned.single, "offsets_below_start": planned.below_start,
            "findings": [finding._asdict() for finding in findings],
        }  # fmt: skip
        print(json.dumps(report))
    else:
        for finding in findings:
            broker = f", broker {finding.broker}" if finding.broker != ANY_BROKER else ""
            print(f"{finding.topic_partition}: offset {finding.offset}{broker}: {finding.fault}")
        print(f"{planned.partitions} partitions, {records:,} records of all replicas compared: {len(findings)} faults")
        for number, remark in (
            (planned.single, "partitions have a replica in one of the directories alone, and are not compared"),
            (planned.below_start, "offsets are below the log start of a replica, and are not compared"),
            (deleted, "ranges were deleted by retention while they were read, and are not compared"),
        ):
            if number:
                print(f"{number:,} {remark}")
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


def assigned_by(bootstrap: str | None, topics: Sequence[str] | None) -> dict[TopicPartition, tuple[int, ...]] | None:
    """The assigned replicas of each partition, by the brokers' metadata; None without brokers. Raises KreplogError."""
    if bootstrap is None:
        return None
    with connect(bootstrap) as consumer:
        found = {
            place: known for topic in topics or consumer.topics() for place, known in consumer.partitions(topic).items()
        }
    return {place: known.replicas for place, known in found.items()}


def plan(
    directories: Iterable[tuple[int, Path]],
    topics: Sequence[str] | None,
    assigned: Mapping[TopicPartition, Collection[int]] | None = None,
) -> Plan:
    """What to compare, and what is missing. assigned: the brokers that must have a replica, where that is known.

    Raises UsageError for a topic that no directory has, and where there is nothing to compare."""
    found: dict[TopicPartition, dict[int, Path]] = defaultdict(dict)
    brokers = set()
    for broker, directory in directories:
        brokers.add(broker)
        for path in sorted(directory.iterdir()):
            try:
                topic_partition = TopicPartition.parse(path.name)
            except kreplog.errors.InvalidTopicError:
                continue
            if path.is_dir() and (topics is None or topic_partition.topic in topics):
                found[topic_partition][broker] = path
    missing = sorted(set(topics or ()) - {topic_partition.topic for topic_partition in found})
    if missing:
        raise UsageError(f"--subscribe: there is no topic {', '.join(missing)} in any of the directories")
    planned = Plan(len(found), single=sum(len(places) < 2 for places in found.values()))
    planned.findings += _missing(found, brokers) if assigned is None else _unassigned(found, brokers, assigned)
    if planned.single == len(found) and not planned.findings:
        raise UsageError(
            f"there is nothing to compare: of {len(found)} partitions none has replicas in two of the directories"
        )
    for topic_partition, places in sorted(found.items()):
        _plan_partition(planned, str(topic_partition), places)
    return planned


def _unassigned(
    found: Mapping[TopicPartition, Mapping[int, Path]],
    brokers: Collection[int],
    assigned: Mapping[TopicPartition, Collection[int]],
) -> list[Finding]:
    """The replicas that brokers must have, and have no directory of."""
    return [
        Finding(str(place), 0, broker, "its replica is missing: there is no directory of it")
        for place, replicas in assigned.items()
        for broker in replicas
        if broker in brokers and broker not in found.get(place, {})
    ]


def _missing(found: Mapping[TopicPartition, Mapping[int, Path]], brokers: Collection[int]) -> list[Finding]:
    """The replicas that are missing, judged by the other partitions of their topic, which have as many replicas."""
    findings = []
    for topic in {place.topic for place in found}:
        present = {place.partition: places for place, places in found.items() if place.topic == topic}
        usual = max(len(places) for places in present.values())
        for partition in range(max(present) + 1):
            places = present.get(partition, {})
            absent = sorted(set(brokers) - places.keys())
            if len(places) == usual or not absent:
                continue
            name = f"{topic}-{partition}"
            if usual == len(brokers):
                fault = "its replica is missing: there is no directory of it"
                findings += [Finding(name, 0, broker, fault) for broker in absent]
            else:
                fault = (
                    f"{len(places)} of the directories have a replica, and {usual} have one of other partitions of the "
                    f"topic: it is missing on {usual - len(places)} of brokers {', '.join(map(str, absent))}"
                )
                findings.append(Finding(name, 0, ANY_BROKER, fault))
    return findings


class Replica(NamedTuple):
    """One broker's log, open to be read, with its committed offsets [start, committed) and its end."""

    broker: int
    log: kreplog.Log
    start: int
    committed: int
    end: int


def _plan_partition(planned: Plan, name: str, places: Mapping[int, Path]) -> None:
    """Add the tasks of one partition, and what its replicas lack."""
    with ExitStack() as stack:
        logs = {}
        for broker, path in places.items():
            try:
                logs[broker] = stack.enter_context(kreplog.Log.open(path, read_only=True))
            except StorageError as error:
                planned.findings.append(Finding(name, 0, broker, f"its replica cannot be opened: {error}"))
        # The ends are read after the high watermarks: what was committed then, a replica in sync has now.
        committed = {broker: log.high_watermark for broker, log in logs.items()}
        replicas = [
            Replica(broker, log, log.log_start_offset, committed[broker], log.log_end_offset)
            for broker, log in logs.items()
        ]
        if not replicas:
            return
        longest = max(replicas, key=lambda replica: replica.committed)
        oldest = min(replicas, key=lambda replica: replica.start)
        for replica in replicas:
            if replica.end < longest.committed:
                fault = f"ends here, and lacks committed records up to offset {longest.committed}, as broker "
                planned.findings.append(Finding(name, replica.end, replica.broker, f"{fault}{longest.broker} has them"))
            elif replica.start == replica.end > oldest.start:
                fault = f"is empty, while broker {oldest.broker} has records from offset {oldest.start} on"
                planned.findings.append(Finding(name, replica.start, replica.broker, fault))
        filled = [replica for replica in replicas if replica.start < replica.committed]
        if len(filled) > 1:
            start = max(replica.start for replica in filled)
            planned.below_start += start - min(replica.start for replica in filled)
            for first, stop, group in _ranges(filled, start, longest.committed):
                planned.tasks += [Task(name, replica.broker, replica.log.path, first, stop) for replica in group]


def _ranges(replicas: Sequence[Replica], start: int, committed: int) -> Iterator[tuple[int, int, list[Replica]]]:
    """(start, stop, replicas that have them): of all replicas up to the lowest high watermark, and beyond that of those
    that have all records below `committed`, so that one that is too short hides no difference of the others."""
    newest = max(replicas, key=lambda replica: replica.start)
    stops = {min(replica.committed for replica in replicas)}
    whole = [replica for replica in replicas if replica.end >= committed]
    stops.add(min((replica.committed for replica in whole), default=0))
    for stop in sorted(stops):
        group = [replica for replica in replicas if replica.committed >= stop]
        if start < stop and len(group) > 1:
            log = newest.log if newest in group else group[0].log
            yield from ((piece.start, piece.stop, group) for piece in log.offset_ranges(start, stop, RANGE_BYTES))
        start = max(start, stop)


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
        lost = _lost_segment(task, expected)
        return Result(task, records, size, gaps, None, lost, None if lost is None else expected)
    except StorageError as error:
        at = error.offset if isinstance(error, CorruptBatchError) and error.offset is not None else expected
        return Result(task, records, size, gaps, None, str(error), at)
    return Result(task, records, size, gaps, digest.hexdigest())


def _lost_segment(task: Task, offset: int) -> str | None:
    """Why a replica cannot be read at `offset`, where that is not because retention has moved the log start there."""
    try:
        with kreplog.Log.open(task.path, read_only=True) as log:
            if log.log_start_offset > offset:
                return None
            return f"has no segment with this offset, although its log starts at offset {log.log_start_offset}"
    except StorageError as error:
        return str(error)


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
    compacted = _compacted({Path(result.task.path).parent for result in results})
    for name in sorted({group[0].task.topic_partition for group in differing} & compacted):
        findings += _differing_newest(spark, [result.task for group in differing for result in group], name)
    for group in differing:
        if group[0].task.topic_partition in compacted:
            continue
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


def _compacted(directories: Iterable[Path]) -> set[str]:
    """The partitions that a broker of these log directories has compacted."""
    found = set()
    for directory in directories:
        try:
            lines = (directory / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
        except OSError:
            continue
        found |= {"-".join(line.split()[:2]) for line in lines}
    return found


def _differing_newest(spark: SparkSession, tasks: Sequence[Task], name: str) -> list[Finding]:
    """The faults of one compacted partition, whose replicas were found to differ in the ranges of `tasks`."""
    ranges = [task for task in tasks if task.topic_partition == name]
    ends: dict[int, int] = defaultdict(int)
    for task in ranges:
        ends[task.broker] = max(ends[task.broker], task.stop)
    stop = min(ends.values())
    whole = {task.broker: Task(name, task.broker, task.path, 0, stop) for task in ranges}
    newest = dict(_run(spark, list(whole.values()), newest_by_key))
    digests: dict[int, dict[tuple[int, int], bytes]] = {broker: {} for broker in newest}
    for key in {key for found in newest.values() for key in found}:
        last = max(found[key] for found in newest.values() if key in found)
        if last[0] < stop:  # else it is superseded by what not all of them have
            for broker, found in newest.items():
                record = found.get(key, last if last[2] else None)  # a tombstone goes from each at its own time
                if record is not None:
                    digests[broker][record[0], record[0] + 1] = record[1]
    return [
        Finding(name, offset, broker, "differs from other brokers in the newest record of a key")
        for broker, (offset, _) in _first_differences(digests).items()
    ]


def newest_by_key(task: Task) -> tuple[int, dict[bytes, tuple[int, bytes, bool]]]:
    """(broker, by digest of each key: offset and digest of its newest committed record, and whether it is a tombstone),
    also of those past the task's range."""
    found: dict[bytes, tuple[int, bytes, bool]] = {}
    with kreplog.Log.open(task.path, read_only=True) as log:
        for record in log.read():
            if record.key is not None:
                key = hashlib.blake2b(record.key, digest_size=16).digest()
                found[key] = record.offset, hashlib.blake2b(repr(tuple(record)).encode()).digest(), record.value is None
    return task.broker, found


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
