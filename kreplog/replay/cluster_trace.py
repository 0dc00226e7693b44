"""ClusterTrace: what clients of a running cluster see of it, moment by moment, as a recording.

Between two moments lies what no client sees, such as a leader that was elected and gone again: the log files of the
brokers have that, and `merge` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kreplog.replay.recording import RecordedEvent, Recording

MAX_CHANGES = 200_000
"""Changes in memory: some 100 MB. A trace ends there."""


class TracedPartition(NamedTuple):
    """The state of a partition. leader: -1 for none."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


class TracedReplica(NamedTuple):
    """The offsets of a replica. role: leader or follower."""

    role: str
    leader_epoch: int
    start: int
    end: int
    high_watermark: int


class ClusterMoment(NamedTuple):
    """A cluster at a time. at_ms: since 1970. brokers: whether each responds, by id. controller: -1 for none.
    replicas: by broker and partition."""

    at_ms: int
    brokers: Mapping[int, bool]
    controller: int
    partitions: Mapping[str, TracedPartition]
    replicas: Mapping[tuple[int, str], TracedReplica]


class ClusterTrace:
    """A trace of some partitions, to which moments are added."""

    def __init__(self, partitions: Sequence[str]) -> None:
        self._partitions = partitions
        self._brokers: set[int] = set()
        self._events: list[RecordedEvent] = []
        self._changes = 0
        self._began_ms = -1
        self._last = ClusterMoment(-1, {}, -1, {}, {})

    @property
    def full(self) -> bool:
        return self._changes >= MAX_CHANGES

    def add(self, moment: ClusterMoment) -> None:
        """Note what is different from the moment before."""
        if self._began_ms < 0:
            self._began_ms = moment.at_ms
        before, self._last = self._last, moment
        self._brokers |= moment.brokers.keys()
        for broker in sorted(before.brokers.keys() | moment.brokers.keys()):
            responds = moment.brokers.get(broker, False)
            if responds != before.brokers.get(broker, False) or broker not in before.brokers:
                text = "responds" if responds else "does not respond"
                self._note("admin", text, {"broker": broker, "status": "up" if responds else "down"}, broker)
        if moment.controller != before.controller:
            text = (
                "there is no controller" if moment.controller < 0 else f"broker {moment.controller} is the controller"
            )
            self._note("broker", text, {"controller": moment.controller}, moment.controller)
        for name, state in moment.partitions.items():
            if before.partitions.get(name) != state:
                self._note("broker", _words(name, state), _state(name, state), state.leader, name)
        for broker in sorted(moment.brokers):
            moved = {
                name: offsets
                for (of, name), offsets in moment.replicas.items()
                if of == broker and before.replicas.get((of, name)) != offsets
            }
            if moved:
                text = "; ".join(
                    f"{name} end {each.end}, high watermark {each.high_watermark}" for name, each in moved.items()
                )
                event = self._event("broker", text, broker, tuple(moved))
                event.idle = all((broker, name) in before.replicas for name in moved)  # seen first, it is shown
                event.changes = [
                    {"broker": broker, "partition": name, **offsets._asdict()} for name, offsets in moved.items()
                ]
                self._changes += len(moved)

    def _note(self, kind: str, text: str, change: dict[str, Any], broker: int, *partitions: str) -> None:
        self._event(kind, text, broker, partitions).changes = [change]
        self._changes += 1

    def _event(self, kind: str, text: str, broker: int, partitions: tuple[str, ...]) -> RecordedEvent:
        at_us = 1000 * (self._last.at_ms - self._began_ms)
        event = RecordedEvent(at_us, kind, f"b{broker}" if broker >= 0 else "", text, partitions, broker)
        self._events.append(event)
        return event

    def recording(self) -> Recording:
        began = datetime.fromtimestamp(max(0, self._began_ms) / 1000, UTC)
        seconds = (self._last.at_ms - self._began_ms) / 1000
        about = f"From {began:%Y-%m-%d %H:%M:%S} UTC for {seconds:.0f} s, as clients see the cluster."
        notes = [f"The trace ended at {MAX_CHANGES:,} changes."] if self.full else []
        brokers, stamp = sorted(self._brokers), began.isoformat(timespec="milliseconds")
        return Recording("What a trace saw", about, "", brokers, list(self._partitions), {}, self._events, notes, stamp)


def merge(trace: Recording, logs: Recording) -> None:
    """Add the events of the brokers' log files to those of a trace, by their time; of the partitions traced alone."""
    shift = (datetime.fromisoformat(logs.began) - datetime.fromisoformat(trace.began)) // timedelta(microseconds=1)
    for event in logs.events:
        event.at += shift
        event.until += shift if event.until >= 0 else 0
        if event.partitions and not set(event.partitions) & set(trace.partitions):
            event.idle = True
        event.changes = [change for change in event.changes if change.get("partition") in (None, *trace.partitions)]
    trace.events = sorted(
        [*trace.events, *(event for event in logs.events if event.at >= 0)], key=lambda event: event.at
    )
    trace.about += " With what the brokers logged."
    trace.notes += logs.notes


def _state(name: str, state: TracedPartition) -> dict[str, Any]:
    return {"partition": name, **state._asdict(), "isr": list(state.isr), "elr": []}


def _words(name: str, state: TracedPartition) -> str:
    leader = "none" if state.leader < 0 else state.leader
    return f"{name}: leader {leader}, epoch {state.leader_epoch}, isr {' '.join(map(str, state.isr))}"
