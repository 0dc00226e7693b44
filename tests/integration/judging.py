"""A real cluster before the simulator's checkers: their disks are the brokers' log directories, read beside them.

In the simulator the checkers see each event when it happens. Here they see all of them when the load is over: first
the committed records, then the clients' histories, then what must hold at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.effects import LogState
from kreplog.errors import KreplogError
from kreplog.log import Log
from kreplog.server.storage.directories import known_topic_id
from kreplog.sim.checks import final_checks
from kreplog.sim.checks.checkers import Checkers
from kreplog.sim.history import Event, Fail, History, Ok, Unknown
from kreplog.sim.machines.records import NativeCodec, StoredRecord, batches
from kreplog.types import TopicPartition
from tests.integration.clusters import eventually
from tests.integration.view import View, by_controller, under_replicated
from tests.integration.workload import UNKNOWN_OFFSET, Load, parse

REST_S = 60.0
"""Limit for a cluster to come to rest after its load."""


class _ByValue(NativeCodec):
    """Records under the names that their producers gave them."""

    def decode(self, records: Any) -> list[StoredRecord]:
        return [_named(record) for record in super().decode(records)]


def _named(record: StoredRecord) -> StoredRecord:
    producer, sequence = parse(record.value)
    return StoredRecord(record.offset, record.leader_epoch, producer, sequence, record.value)


class ReadLog:
    """One replica's log, all of it as it was when this was made."""

    def __init__(self, folder: Path) -> None:
        self.topic_id = known_topic_id(folder) or ""
        with Log.open(folder, read_only=True) as log:
            self.high_watermark = log.high_watermark
            self._state = LogState(log.log_end_offset, log.log_start_offset, tuple(log.leader_epochs))
            self._pieces: list[tuple[int, bytes]] = []
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                fetched = log.fetch(offset, 1 << 20, "log_end")
                self._pieces.append((offset, bytes(fetched.data)))
                offset = fetched.next_offset

    def state(self) -> LogState:
        return self._state

    def read(self, offset: int, limit: int, max_bytes: int) -> bytes:
        """Whole batches, from the piece that holds `offset` on."""
        ends = [start for start, _ in self._pieces[1:]] + [self._state.leo]
        pairs = zip(self._pieces, ends, strict=False)
        return b"".join(data for (start, data), end in pairs if end > offset and start < limit)


class ReadDisk:
    """All replicas in the log directories of one broker."""

    def __init__(self, directories: list[Path]) -> None:
        self.logs: dict[TopicPartition, ReadLog] = {}
        for directory in directories:
            for folder in _replicas(directory):
                topic, _, number = folder.name.rpartition("-")
                self.logs[TopicPartition(topic, int(number))] = ReadLog(folder)

    def log(self, partition: TopicPartition) -> ReadLog | None:
        return self.logs.get(partition)

    peek = log

    def ends(self, partition: TopicPartition, topic_id: str) -> tuple[int, int]:
        log = self.logs.get(partition)
        return (0, 0) if log is None or log.topic_id != topic_id else (log.state().leo,) * 2

    def on_disk(self) -> dict[TopicPartition, str]:
        return {partition: log.topic_id for partition, log in self.logs.items()}


class ReadDisks:
    """The log directories of all brokers, read-only, with the interface of kreplog.sim.machines.disk.Disks."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.codec = _ByValue()
        self._disks = {
            broker: ReadDisk([Path(path) for path in cluster.settings(broker).log_dirs]) for broker in cluster.brokers
        }

    def observe(self, observer: object) -> None:
        """No observer is called: the brokers are at rest and change nothing."""

    def disk(self, broker: int) -> ReadDisk:
        return self._disks[broker]

    def all(self) -> list[tuple[int, ReadDisk]]:
        return sorted(self._disks.items())

    def at_rest(self) -> bool:
        """Whether nothing was appended while they were read."""
        logs = (each for disk in self._disks.values() for each in disk.logs.items())
        return _have_one_end((partition, log.state().leo, log.high_watermark) for partition, log in logs)


class Verdict:
    """A cluster and its load, judged when the load has ended: waits until all replicas agree, then reads them; again
    where one is out of sync after that, as over a network that loses frames."""

    def __init__(self, cluster: LocalCluster, load: Load) -> None:
        with View(cluster) as view:

            def is_read() -> bool:
                for topic in view.topics():
                    view.await_replicated(topic)
                self._disks = read_at_rest(cluster)
                self._dump = view.dump()
                return not under_replicated(self._dump)

            eventually(is_read, lambda: f"do not stay in sync: {under_replicated(self._dump)}", 5 * REST_S)
        self._places: dict[tuple[TopicPartition, int, int], int] = {}

    def violations(self, events: Iterable[Event]) -> list[str]:
        """The guarantees that these events or the cluster itself violate, each as "kind: text"."""
        history = History(lambda: 0)
        disks: Any = self._disks
        checkers = Checkers(disks, history, lambda broker, partition: None)
        for grown in by_controller(self._dump):
            checkers.store(grown)
        for broker, disk in disks.all():
            for partition, log in disk.logs.items():
                checkers.committed(broker, partition, log, 0)
        for event in events:
            history.add(self._with_offset(event))
        found = final_checks.judge(checkers, self._dump, None, at_rest=True, context_known=False)
        return [f"{violation.kind}: {violation.text}" for violation in found]

    def new_epochs(self) -> list[tuple[int, int]]:
        """(producer id, epoch) of the batches whose producer had bumped its epoch. A producer then numbers and sends
        again what has no response, so that a duplicate record may lie under two epochs."""
        found: set[Any] = set()
        for _, disk in self._disks.all():
            for log in disk.logs.values():
                data = log.read(0, log.high_watermark, 1 << 40)
                found |= {header[9:11] for _, _, header in batches(data) if header[10] > 0}
        return sorted(found)

    def _with_offset(self, event: Event) -> Event:
        """The event, with the offset at which its record is found if the acknowledgement had no offset."""
        if not isinstance(event, Ok) or event.base_offset != UNKNOWN_OFFSET:
            return event
        if not self._places:
            for _, disk in self._disks.all():
                for partition, log in disk.logs.items():
                    for record in self._disks.codec.decode(log.read(0, log.high_watermark, 1 << 40)):
                        self._places[partition, record.producer_id, record.sequence] = record.offset
        place = self._places.get((event.partition, event.producer_id, event.sequence), UNKNOWN_OFFSET)
        return replace(event, base_offset=place)


def judge(cluster: LocalCluster, load: Load) -> Verdict:
    """Fail if a guarantee was violated, a record was not acknowledged, or the load was too small to test anything."""
    verdict = Verdict(cluster, load)
    violations = verdict.violations(load.history.events)
    assert not violations, "\n".join([*violations, f"producers' new epochs: {verdict.new_epochs()}"])
    failed = [event for event in load.history.events if isinstance(event, Fail | Unknown)]
    assert not failed, f"{len(failed)} records were not acknowledged, such as {failed[0]}"
    counts = Counter(type(event).__name__ for event in load.history.events)
    assert counts["Ok"] and counts["Read"] >= counts["Ok"] and counts["Watermark"]
    return verdict


def read_at_rest(cluster: LocalCluster, within_s: float = REST_S) -> ReadDisks:
    """All disks as they are at one time; fails unless the replicas agree then. A broker may append still: sessions of
    members that were killed expire later than the load ends."""
    disks: list[ReadDisks] = []

    def agree() -> bool:
        disks[:] = [ReadDisks(cluster)] if _settled(cluster) else []
        return bool(disks) and disks[0].at_rest()

    eventually(agree, "the replicas do not come to the same end, all of it committed", within_s)
    return disks[0]


def _settled(cluster: LocalCluster) -> bool:
    """Whether the replicas agree, by their ends alone."""
    ends: list[tuple[str, int, int]] = []
    for broker in cluster.brokers:
        for path in cluster.settings(broker).log_dirs:
            for folder in _replicas(Path(path)):
                try:
                    with Log.open(folder, read_only=True) as log:
                        ends.append((folder.name, log.log_end_offset, log.high_watermark))
                except KreplogError:
                    return False
    return _have_one_end(ends)


def _have_one_end(replicas: Iterable[tuple[Hashable, int, int]]) -> bool:
    """Whether all replicas of each partition have one log end offset, and their high watermarks have reached it.
    replicas: by partition, their log end offsets and high watermarks."""
    ends: dict[Hashable, set[int]] = {}
    for partition, *own in replicas:
        ends.setdefault(partition, set()).update(own)
    return all(len(end) == 1 for end in ends.values())


def _replicas(directory: Path) -> list[Path]:
    """The folders of those in a log directory."""
    return [path for path in sorted(directory.iterdir()) if path.name.rpartition("-")[2].isdigit()]
