"""Recorder: observes a simulated cluster, and makes a recording of what its cores, its messages and its logs do.

It only reads, so the seed takes the same course with it. The state of a broker is compared with the last recorded one
at each event of that broker, and that of all brokers whenever virtual time has moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from kreplog.core.replication.partition import Partition
from kreplog.replay.guarantees import GUARANTEES
from kreplog.replay.recording import MAX_TEXT, RecordedEvent, Recording, shortened
from kreplog.sim.brokers.broker import Machine
from kreplog.sim.cluster import Cluster
from kreplog.sim.descriptions import describe
from kreplog.sim.history import Violation
from kreplog.sim.machines.disk import DiskLog
from kreplog.sim.trace import CHECKER, TraceLine, is_idle, partitions_of
from kreplog.types import LeaderAndIsr, TopicPartition

MAX_VALUE = 40
"""Characters of a record's value."""

_OF_BROKER = re.compile(r".* (\d+)|b(\d+)")
_KINDS = {"fault": "fault", "admin": "admin", CHECKER: "client"}


class _Known(NamedTuple):
    """A replica as it was last recorded. end: of its log."""

    role: str
    leader_epoch: int
    start: int
    end: int
    high_watermark: int


class Recorder:
    """Records one run; the caller adds what comes from outside by `add`, and then takes the recording by `finish`."""

    def __init__(self, cluster: Cluster) -> None:
        self.events: list[RecordedEvent] = []
        self._cluster = cluster
        self._status: dict[int, str] = {}
        self._replicas: dict[tuple[int, TopicPartition], _Known] = {}
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._partitions: dict[TopicPartition, None] = {}
        self._controller = -1
        self._transaction = -1
        self._violated: set[str] = set()
        self._messages: dict[tuple[int, bool], RecordedEvent] = {}
        self._labels: dict[int, str] = {}
        self._last_text: dict[tuple[str, str, str], str] = {}
        cluster.trace.listener = self._noted
        cluster.network.observer = self

    def add(self, event: RecordedEvent) -> None:
        """Add an event, with the changes of state that it has brought, or that came before it unnoticed."""
        event.text = shortened(event.text, MAX_TEXT)
        brokers = list(self._cluster.machines)
        if event.broker in brokers and self.events:
            if event.at != self.events[-1].at:
                self.events[-1].changes += self._changes(broker for broker in brokers if broker != event.broker)
            brokers = [event.broker]
        event.changes += self._changes(brokers)
        event.changes += self._store_changes()
        violated = self._newly_violated([*self._cluster.failures, *self._cluster.checkers.violations])
        if violated:
            event.kind = "violation"
            event.changes += violated
        self.events.append(event)

    def finish(self, title: str, about: str, command: str, violations: Iterable[Violation] = ()) -> Recording:
        """The recording of the run, with the violations that were found at its end."""
        for violation in violations:
            if violation.kind not in self._violated:
                text = f"{violation.kind}: {violation.text}"
                partitions = tuple(map(str, violation.partitions))
                self.add(RecordedEvent(self._cluster.scheduler.now_us, "violation", CHECKER, text, partitions))
                self.events[-1].changes += self._newly_violated([violation])
        checked = dict.fromkeys(self._violated, "") | GUARANTEES
        names = [str(partition) for partition in sorted(self._partitions)]
        return Recording(title, about, command, sorted(self._cluster.machines), names, checked, self.events)

    def named_in(self, text: str) -> tuple[str, ...]:
        """The partitions whose names are in a text."""
        words = {word.strip(":;,()") for word in text.split()}
        return tuple(str(partition) for partition in self._partitions if str(partition) in words)

    # Trace and network

    def _noted(self, line: TraceLine) -> None:
        found = _OF_BROKER.fullmatch(line.actor)
        broker = int(found[1] or found[2]) if found is not None else -1
        kind = _KINDS.get(line.actor, "broker" if broker >= 0 else "client")
        partitions = tuple(map(str, line.partitions))
        idle = kind in ("broker", "client") and is_idle(line)
        self.add(RecordedEvent(line.at_us, kind, line.actor, line.text, partitions, broker, idle=idle))

    def sent(self, number: int, answers: bool, source: str, destination: str, message: Any) -> None:
        """A message is on its way (kreplog.sim.machines.network.MessageObserver)."""
        if answers:
            label = f"{self._labels.pop(number, type(message).__name__)} response"
        else:
            label = self._labels[number] = type(message).__name__.removesuffix("Request")
        text = describe(message)
        route = (source, destination, label)
        found = _OF_BROKER.fullmatch(source)
        event = RecordedEvent(
            self._cluster.scheduler.now_us,
            "message",
            source,
            text,
            tuple(map(str, dict.fromkeys(partitions_of(message)))),
            int(found[2]) if found is not None and found[2] else -1,
            label,
            source,
            destination,
            idle=self._last_text.get(route) == text,
        )
        self._last_text[route] = text
        self._messages[number, answers] = event
        self.add(event)

    def arrived(self, number: int, answers: bool) -> None:
        """It has arrived."""
        event = self._messages.pop((number, answers), None)
        if event is not None:
            event.until = self._cluster.scheduler.now_us

    # State

    def _changes(self, brokers: Iterable[int]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for broker in brokers:
            machine = self._cluster.machines[broker]
            status = _status(machine)
            if self._status.get(broker) != status:
                self._status[broker] = status
                found.append({"broker": broker, "status": status})
            found += self._replica_changes(machine)
        return found

    def _replica_changes(self, machine: Machine) -> list[dict[str, Any]]:
        found = []
        on_disk = machine.disk.on_disk()
        process = machine.process
        replicas = {} if process is None else process.manager.partitions
        for partition, topic_id in on_disk.items():
            key = machine.id, partition
            before = self._replicas.get(key)
            log = machine.disk.log(partition)
            if log is None:
                end = machine.disk.ends(partition, topic_id)[0]
                known = before or _Known("", -1, 0, 0, 0)
                now = _Known("closed", -1, min(known.start, end), end, min(known.high_watermark, end))
            else:
                now = _of_log(log, replicas.get(partition))
            if now != before:
                self._partitions[partition] = None
                self._replicas[key] = now
                found.append(self._replica_change(*key, before, now, log))
        for key in [key for key in self._replicas if key[0] == machine.id and key[1] not in on_disk]:
            del self._replicas[key]
            found.append({"broker": machine.id, "partition": str(key[1]), "role": "none"})
        return found

    def _replica_change(
        self,
        broker: int,
        partition: TopicPartition,
        before: _Known | None,
        now: _Known,
        log: DiskLog | None,
    ) -> dict[str, Any]:
        known = max(now.start, before.end if before is not None else 0)
        change = {"broker": broker, "partition": str(partition), **now._asdict()}
        if log is not None and now.end > known:
            is_text = not partition.topic.startswith("__")  # the values of coordinators are no texts
            change["records"] = [
                [record.leader_epoch, _value(record.value) if is_text else ""]
                for record in self._cluster.disks.codec.decode(log.read(known, now.end, 1 << 40))
                if known <= record.offset < now.end
            ]
        return change

    def _store_changes(self) -> list[dict[str, Any]]:
        cluster = self._cluster
        if cluster.store.store.transaction == self._transaction:
            return []
        self._transaction = cluster.store.store.transaction
        found: list[dict[str, Any]] = []
        controller = cluster.controller()
        if controller != self._controller:
            self._controller = controller
            found.append({"controller": controller})
        states = {partition: state for partition in cluster.partitions() if (state := cluster.state_of(partition))}
        for partition, state in states.items():
            if self._states.get(partition) != state:
                self._partitions[partition] = None
                found.append(
                    {
                        "partition": str(partition),
                        "leader": state.leader,
                        "leader_epoch": state.leader_epoch,
                        "isr": list(state.isr),
                        "elr": list(state.elr),
                    }
                )
        found += [{"partition": str(gone), "deleted": True} for gone in self._states if gone not in states]
        self._states = states
        return found

    def _newly_violated(self, violations: Iterable[Violation]) -> list[dict[str, Any]]:
        kinds = dict.fromkeys(violation.kind for violation in violations if violation.kind not in self._violated)
        self._violated.update(kinds)
        return [{"violation": kind} for kind in kinds]


def _status(machine: Machine) -> str:
    process = machine.process
    status = "down" if process is None else "paused" if process.paused else "up"
    return f"{status}, disk failed" if machine.disk.failed else status


def _of_log(log: DiskLog, replica: Partition | None) -> _Known:
    state = log.state()
    role, epoch = ("closed", -1) if replica is None else (replica.role.name.lower(), replica.leader_epoch)
    return _Known(role, epoch, state.log_start, state.leo, log.high_watermark)


def _value(value: bytes) -> str:
    return shortened(value.decode(errors="backslashreplace"), MAX_VALUE)
