"""Job `audit`: compare all replicas of a cluster's partitions; name what differs by partition, offset and broker.

    python -m kreplog_jobs.audit --cluster my-cluster
    python -m kreplog_jobs.audit --replicas 1=/srv/broker-1/data --replicas 2=/srv/broker-2/data
    python -m kreplog_jobs.audit --replicas 1=host-1:/srv/data --replicas 2=host-2:/srv/data --master spark://master:7077
    python -m kreplog_jobs.audit --bootstrap host-1:9092 --command-config admin.properties --master spark://master:7077

Each log directory is read on the host that is named with it, by a Spark worker there; without one, on any. With
--bootstrap alone the brokers name their hosts and log directories.

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

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from kreplog_jobs import job
from kreplog_jobs.audit_plan import ANY_BROKER, Finding, plan
from kreplog_jobs.audit_replicas import (
    AuditResult,
    AuditTask,
    Topics,
    batch_digests,
    check,
    compacted,
    newest_by_key,
    record_digests,
)
from kreplog_jobs.on_hosts import LogDirectory, RunOnHosts, run_on_hosts
from pyspark_kreplog.kafka_options import ConsumerSettings
from pyspark_kreplog.network import connect

_LOCALITY_WAIT = "10min"
"""For a core of the host that has a log directory, before Spark runs a task where it would only notice its mistake."""

_REPLICAS = re.compile(r"(\d+)=(?:(\[[^\]]+\]|[^/:]+):(?=/))?(.+)")


def main(
    cluster: Annotated[Path | None, typer.Option("--cluster", "-c", help="A cluster's directory on this host.")] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            "--replicas", "-r", help="ID=DIRECTORY or ID=HOST:DIRECTORY of a broker's log directory; repeatable."
        ),
    ] = None,
    subscribe: job.Topics = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="host:port of running brokers: which broker must have which replica and, unless they are named, on "
            "which host and where the log directories are."
        ),
    ] = None,
    command_config: job.CommandConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
    master: job.Master = None,
) -> None:
    """Compare the replicas of a cluster's partitions, and name what differs by partition, offset and broker."""
    if command_config is not None and bootstrap is None:
        raise UsageError("--command-config has properties of connections to brokers: name them with --bootstrap")
    security = job.security_of(bootstrap or "", command_config)
    topics = topics_of(subscribe)
    assigned = assigned_by(bootstrap, topics, security)
    directories = log_directories(cluster, replicas or [], bootstrap, security)
    on_hosts = any(directory.host for directory in directories)
    planned = None if on_hosts else plan(directories, topics, assigned)
    with job.session("audit", master, spark_locality_wait=_LOCALITY_WAIT) as spark:
        run = partial(run_on_hosts, spark)
        with job.progress(spark, "audit"):
            planned = planned or plan(directories, topics, assigned, run)
            results = run(check, planned.tasks)
            findings = [*planned.findings, *judge(run, results)]
    if not cluster and not replicas:
        findings += _not_responding(assigned or {}, {directory.broker for directory in directories})
    findings.sort()
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


def log_directories(
    cluster: Path | None, replicas: Sequence[str], bootstrap: str | None, security: Mapping[str, str] | None = None
) -> list[LogDirectory]:
    """Every log directory that is named, or else those of the running brokers. Raises UsageError, UnreachableError."""
    found = []
    for text in replicas:
        named = _REPLICAS.fullmatch(text)
        if named is None:
            raise UsageError(
                f"--replicas {text!r}: write ID=DIRECTORY, as in 1=/srv/broker-1/data, or ID=HOST:DIRECTORY, as in "
                "1=host-1:/srv/data"
            )
        broker, host, path = named.groups()
        found.append(LogDirectory(int(broker), path, host))
    if cluster is not None:
        homes = sorted(cluster.glob("broker-*/data"))
        if not homes:
            raise UsageError(f"{cluster} is no cluster's directory: it holds no broker-*/data", path=str(cluster))
        found += [LogDirectory(int(home.parent.name.removeprefix("broker-")), str(home)) for home in homes]
    if not found and bootstrap is not None:
        return log_directories_of(bootstrap, security)
    if not found:
        raise UsageError(
            "name what to audit: --cluster DIRECTORY, --replicas ID=DIRECTORY for each broker, or --bootstrap HOST:PORT"
        )
    for directory in found:
        if directory.host is None and not Path(directory.path).is_dir():
            raise UsageError(f"{directory.path} is no directory", path=directory.path)
    return found


def log_directories_of(bootstrap: str, security: Mapping[str, str] | None = None) -> list[LogDirectory]:
    """The log directories of all brokers that respond, on the hosts of their listeners. Raises UnreachableError, and
    ImportError without the packages of kreplog[cluster], which `connect` names."""
    from kreplog.client.admin_client import AdminClient
    from kreplog.client.log_dirs import online_directories
    from kreplog.client.security import ClientSecurity

    with asyncio.Runner() as runner:
        admin = AdminClient(runner, bootstrap.split(","), ClientSecurity.of(security))
        admin.metadata([])
        found = online_directories(admin, admin.live)
    return [
        LogDirectory(broker, path, admin.live[broker][0]) for broker, paths in sorted(found.items()) for path in paths
    ]


def topics_of(text: str | None) -> list[str] | None:
    """Topics with commas between; None for all."""
    return None if text is None else [topic.strip() for topic in text.split(",") if topic.strip()]


def assigned_by(
    bootstrap: str | None, topics: Sequence[str] | None, security: Mapping[str, str] | None = None
) -> dict[TopicPartition, tuple[int, ...]] | None:
    """The assigned replicas of each partition, by the brokers' metadata; None without brokers. Raises KreplogError."""
    if bootstrap is None:
        return None
    with connect(bootstrap, settings=ConsumerSettings(security=security or {})) as consumer:
        found = {
            place: known for topic in topics or consumer.topics() for place, known in consumer.partitions(topic).items()
        }
    return {place: known.replicas for place, known in found.items()}


def _not_responding(assigned: Mapping[TopicPartition, Sequence[int]], responding: Collection[int]) -> list[Finding]:
    return [
        Finding(str(place), 0, broker, "its replica is not compared: the broker does not respond")
        for place, brokers in assigned.items()
        for broker in brokers
        if broker not in responding
    ]


def judge(run: RunOnHosts, results: Sequence[AuditResult]) -> list[Finding]:
    """All faults: what tasks found damaged, and where replicas with sound batches differ."""
    findings = [
        Finding(result.task.topic_partition, result.damage_offset or 0, result.task.broker, result.damage)
        for result in results
        if result.damage is not None
    ]
    by_range: dict[tuple[str, int], list[AuditResult]] = defaultdict(list)
    for result in results:
        if result.digest is not None:
            by_range[result.task.topic_partition, result.task.start].append(result)
    differing = [group for group in by_range.values() if len({result.digest for result in group}) > 1]
    directories = {result.task.directory for group in differing for result in group}
    cleaned = set().union(*run(compacted, [Topics(directory, None) for directory in sorted(directories)]))
    for name in sorted({group[0].task.topic_partition for group in differing} & cleaned):
        findings += _differing_newest(run, [result.task for group in differing for result in group], name)
    for group in differing:
        if group[0].task.topic_partition in cleaned:
            continue
        headers = dict(run(batch_digests, [result.task for result in group]))
        for broker, (base, stop) in _first_differences(headers).items():
            task = next(result.task for result in group if result.task.broker == broker)
            tasks = [replace(r.task, start=base, stop=stop) for r in group]
            records = dict(run(record_digests, tasks))
            offset = _first_differences(records).get(broker, (base, stop))[0]
            others = [str(r.task.broker) for r in group if headers[r.task.broker] != headers[broker]]
            fault = f"differs from broker{'s' if len(others) > 1 else ''} {', '.join(others)}, its CRC being right"
            findings.append(Finding(task.topic_partition, offset, broker, fault))
    return sorted(findings)


def _differing_newest(run: RunOnHosts, tasks: Sequence[AuditTask], name: str) -> list[Finding]:
    """The faults of one compacted partition, whose replicas were found to differ in the ranges of `tasks`."""
    ranges = [task for task in tasks if task.topic_partition == name]
    ends: dict[int, int] = defaultdict(int)
    for task in ranges:
        ends[task.broker] = max(ends[task.broker], task.stop)
    stop = min(ends.values())
    whole = {task.broker: replace(task, start=0, stop=stop) for task in ranges}
    newest = dict(run(newest_by_key, list(whole.values())))
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


if __name__ == "__main__":
    job.run(main)
