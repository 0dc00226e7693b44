"""The plan of the job `audit`: ranges to compare of each replica, and faults that show before a batch is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from kreplog_jobs.audit_replicas import AuditTask, Partitions, Span, Topics, high_watermarks, ranges, starts_and_ends
from kreplog_jobs.on_hosts import LogDirectory, RunOnHosts, run_in_driver

ANY_BROKER = -1
"""The broker of a finding that does not concern a single replica."""


class Finding(NamedTuple):
    """A fault: of `broker`'s replica of `topic_partition`, at `offset` or from there on; or of ANY_BROKER's."""

    topic_partition: str
    offset: int
    broker: int
    fault: str


@dataclass
class Plan:
    """The ranges that an audit compares, and the faults that it has found already. tasks: of all ranges and replicas to
    compare. findings: faults that show before a batch is read. single: partitions with a replica in one directory
    alone. below_start: offsets that not all replicas still have."""

    partitions: int = 0
    tasks: list[AuditTask] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    single: int = 0
    below_start: int = 0


class AuditedReplica(NamedTuple):
    """One broker's replica, with its committed offsets [start, committed) and its end."""

    directory: LogDirectory
    start: int
    committed: int
    end: int

    @property
    def broker(self) -> int:
        return self.directory.broker


def plan(
    directories: Sequence[LogDirectory],
    topics: Sequence[str] | None,
    assigned: Mapping[TopicPartition, Collection[int]] | None = None,
    run: RunOnHosts = run_in_driver,
) -> Plan:
    """The ranges to compare, and the replicas that are missing. assigned: the brokers that must have a replica, where
    that is known.

    Raises UsageError for a topic that no directory has, and where there is nothing to compare; StorageError for a
    directory that cannot be read."""
    committed = run(high_watermarks, [Topics(directory, topics) for directory in directories])
    places: dict[TopicPartition, dict[int, LogDirectory]] = defaultdict(dict)
    for directory, names in zip(directories, committed, strict=True):
        for name in names:
            places[TopicPartition.parse(name)][directory.broker] = directory
    missing = sorted(set(topics or ()) - {topic_partition.topic for topic_partition in places})
    if missing:
        raise UsageError(f"--subscribe: there is no topic {', '.join(missing)} in any of the directories")
    planned = Plan(len(places), single=sum(len(found) < 2 for found in places.values()))
    brokers = {directory.broker for directory in directories}
    planned.findings += _missing(places, brokers) if assigned is None else _unassigned(places, brokers, assigned)
    if planned.single == len(places) and not planned.findings:
        raise UsageError(
            f"there is nothing to compare: of {len(places)} partitions none has replicas in two of the directories"
        )
    # The ends are read after the high watermarks: what was committed then, a replica in sync has now.
    ends = run(
        starts_and_ends,
        [Partitions(directory, list(names)) for directory, names in zip(directories, committed, strict=True)],
    )
    replicas: dict[TopicPartition, list[AuditedReplica]] = defaultdict(list)
    for directory, high_watermark, bounds in zip(directories, committed, ends, strict=True):
        for name, bound in bounds.items():
            known = high_watermark[name]
            if isinstance(known, int) and isinstance(bound, tuple):
                replicas[TopicPartition.parse(name)].append(AuditedReplica(directory, bound[0], known, bound[1]))
            else:
                error = bound if isinstance(known, int) else known
                planned.findings.append(Finding(name, 0, directory.broker, f"its replica cannot be opened: {error}"))
    _plan_ranges(planned, replicas, run)
    return planned


def _unassigned(
    found: Mapping[TopicPartition, Mapping[int, LogDirectory]],
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


def _missing(found: Mapping[TopicPartition, Mapping[int, LogDirectory]], brokers: Collection[int]) -> list[Finding]:
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


def _plan_ranges(planned: Plan, replicas: Mapping[TopicPartition, Sequence[AuditedReplica]], run: RunOnHosts) -> None:
    """Add the tasks of all partitions, and what their replicas lack."""
    spans: list[tuple[Span, Sequence[AuditedReplica]]] = []
    for topic_partition, found in sorted(replicas.items()):
        name = str(topic_partition)
        longest = max(found, key=lambda replica: replica.committed)
        planned.findings += _lacking(name, found, longest)
        filled = [replica for replica in found if replica.start < replica.committed]
        if len(filled) > 1:
            start = max(replica.start for replica in filled)
            planned.below_start += start - min(replica.start for replica in filled)
            spans += _spans(name, filled, start, longest.committed)
    for (span, group), parts in zip(spans, run(ranges, [span for span, _ in spans]), strict=True):
        for start, stop in parts:
            planned.tasks += [AuditTask(span.name, replica.directory, start, stop) for replica in group]


def _lacking(name: str, replicas: Sequence[AuditedReplica], longest: AuditedReplica) -> Iterator[Finding]:
    """The replicas that lack committed records, which `longest` has, or have none where others do."""
    oldest = min(replicas, key=lambda replica: replica.start)
    for replica in replicas:
        if replica.end < longest.committed:
            fault = f"ends here, and lacks committed records up to offset {longest.committed}, as broker "
            yield Finding(name, replica.end, replica.broker, f"{fault}{longest.broker} has them")
        elif replica.start == replica.end > oldest.start:
            fault = f"is empty, while broker {oldest.broker} has records from offset {oldest.start} on"
            yield Finding(name, replica.start, replica.broker, fault)


def _spans(
    name: str, replicas: Sequence[AuditedReplica], start: int, committed: int
) -> Iterator[tuple[Span, list[AuditedReplica]]]:
    """(span of the replica whose batch boundaries are taken, replicas that have it): of all replicas up to the lowest
    high watermark, and beyond that of those that have all records below `committed`, so that one that is too short
    hides no difference of the others."""
    newest = max(replicas, key=lambda replica: replica.start)
    stops = {min(replica.committed for replica in replicas)}
    whole = [replica for replica in replicas if replica.end >= committed]
    stops.add(min((replica.committed for replica in whole), default=0))
    for stop in sorted(stops):
        group = [replica for replica in replicas if replica.committed >= stop]
        if start < stop and len(group) > 1:
            measured = newest if newest in group else group[0]
            yield Span(measured.directory, name, start, stop), group
        start = max(start, stop)
