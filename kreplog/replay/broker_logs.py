"""Broker logs: the log files of a cluster's brokers as a recording, to see what happened when a broker failed.

state-change.log has the requests of controllers and what brokers did with them; server.log has starts and stops. A line
has a time in milliseconds: the order of lines within one is that of their broker's file alone, and clocks of several
hosts may differ. Neither file has records, so replicas have a role and no log.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from kreplog.errors import UsageError
from kreplog.replay.recording import MAX_TEXT, RecordedEvent, Recording, shortened

FILES = ("state-change.log", "server.log")

MAX_LINES = 100_000
"""Lines that are read of each file, the newest: some 30 MB."""

_REQUEST = re.compile(r"(LeaderAndIsr|StopReplica|UpdateMetadata) (sent|applied|refused)")
_RECEIVED = " applied", " refused"
_CONTROLLER = re.compile(r"broker (\d+) is the controller of epoch \d+")
_STARTED = re.compile(r"broker \d+ listens on ")
_STOPPED = re.compile(r"broker \d+ has stopped")
_NAME = re.compile(r"[\w.-]+-\d+")
"""A partition in a text; many dates and addresses look so too."""


_TYPES: dict[str, type] = {
    **dict.fromkeys(("message", "level", "partition", "error"), str),
    **dict.fromkeys(("controller", "controller_epoch", "to", "leader", "leader_epoch"), int),
    **dict.fromkeys(("isr", "brokers"), list),
}
"""Types of the facts that are read, where a line has them."""

_MAX_DIGITS = 10
"""Of a partition's number."""


class Line(NamedTuple):
    """A line of a log file. at_us: microseconds since 1970. file: its name."""

    at_us: int
    broker: int
    file: str
    facts: Mapping[str, Any]

    @property
    def request(self) -> tuple[Any, ...]:
        """Equal for the lines of one request, of which each has another partition."""
        facts = self.facts
        return (
            self.at_us,
            self.broker,
            facts["message"],
            facts.get("controller_epoch"),
            facts.get("to"),
            facts.get("init"),
        )


def read(folders: Mapping[int, Path]) -> tuple[list[Line], list[str]]:
    """All lines in the order of their time, and notes about those that are left out. folders: of each broker's log
    files. Raises UsageError if none is a JSON object, as with server.log.format=text; OSError."""
    lines: list[Line] = []
    notes: list[str] = []
    other = 0
    for broker, folder in folders.items():
        for name in FILES:
            newest: deque[Line] = deque(maxlen=MAX_LINES)
            count = 0
            for text in _texts(folder, name):
                line = _parsed(text, broker, name)
                if line is None:
                    other += 1
                else:
                    count += 1
                    newest.append(line)
            lines += newest
            if count > MAX_LINES:
                notes.append(f"The first {count - MAX_LINES:,} lines of broker {broker}'s {name} are left out.")
    if other and not lines:
        raise UsageError("the log files have no JSON: set server.log.format to json, and restart the brokers")
    if other:
        notes.append(f"{other:,} lines that are no log lines are left out.")
    # Of one millisecond: sent before applied, also where the id of the controller is the higher one.
    lines.sort(key=lambda line: (line.at_us, line.facts["message"].endswith(_RECEIVED)))
    return lines, notes


def _texts(folder: Path, name: str) -> Iterator[str]:
    """The lines of a file and of those that it was rotated to, the oldest first."""
    rotated = sorted((path for path in folder.glob(f"{name}.*") if path.suffix[1:].isdigit()), key=_age, reverse=True)
    for path in (*rotated, folder / name):
        if path.exists():
            with open(path, encoding="utf-8", errors="replace") as file:
                yield from file


def _age(path: Path) -> int:
    return int(path.suffix[1:])


def _parsed(text: str, broker: int, name: str) -> Line | None:
    try:
        facts = json.loads(text)
        at_us = int(datetime.fromisoformat(facts["time"]).timestamp() * 1_000_000)
        _time(at_us)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if "message" not in facts or not all(isinstance(facts.get(field, of()), of) for field, of in _TYPES.items()):
        return None
    return Line(at_us, broker, name, facts)


def record(folders: Mapping[int, Path], since: datetime | None = None, until: datetime | None = None) -> Recording:
    """The recording of all brokers' log files between two times, in UTC; one with the year 1900 is a time of the last
    line's day. Raises UsageError if there is no line between them, and as `read` does; OSError."""
    lines, notes = read(folders)
    if not lines:
        raise UsageError(f"there are no log lines in {', '.join(str(folder) for folder in folders.values())}")
    day = _time(lines[-1].at_us)
    first, last = _bound(since, day, lines[0].at_us), _bound(until, day, lines[-1].at_us)
    lines = [line for line in lines if line.at_us <= last]
    began_us = next((line.at_us for line in lines if line.at_us >= first), None)
    if began_us is None:
        raise UsageError(f"there is no log line from {_time(first):%H:%M:%S.%f} to {_time(last):%H:%M:%S.%f} UTC")
    partitions = sorted({line.facts["partition"] for line in lines if "partition" in line.facts}, key=_by_number)
    events = list(_Events(folders, partitions).of(lines))
    for event in events:
        event.at -= began_us
        event.until -= began_us if event.until >= 0 else 0
    recording = Recording(
        "What the brokers logged",
        f"From {_time(began_us):%Y-%m-%d %H:%M:%S} to {_time(lines[-1].at_us):%H:%M:%S} UTC.",
        "",
        sorted(folders),
        partitions,
        {},
        events,
        notes,
        began=_time(began_us).isoformat(timespec="milliseconds"),
    )
    recording.start_at(0)
    return recording


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


def _bound(given: datetime | None, day: datetime, otherwise: int) -> int:
    if given is None:
        return otherwise
    if given.year == 1900:
        given = datetime.combine(day.date(), given.time())
    return int(given.replace(tzinfo=given.tzinfo or UTC).timestamp() * 1_000_000)


def _by_number(name: str) -> tuple[bool, str, int]:
    """A key that sorts partitions by number, those of the brokers' own topics last."""
    topic, _, number = name.rpartition("-")
    own = topic.startswith("__")
    return own, topic, int(number) if len(number) <= _MAX_DIGITS and number.isascii() and number.isdecimal() else -1


class _Events:
    """Makes events of lines. A request that a controller has sent is a message; it has arrived when the broker has
    applied or refused it. A broker is up from its first line, and down from when a controller leaves it out of its
    metadata; before either nothing is known of it. partitions: names to look for in texts."""

    def __init__(self, brokers: Iterable[int], partitions: Iterable[str]) -> None:
        self._status = dict.fromkeys(brokers, "unknown")
        self._partitions = frozenset(partitions)
        self._sent: dict[tuple[Any, ...], deque[RecordedEvent]] = {}
        self._states: dict[str, tuple[Any, ...]] = {}

    def of(self, lines: Sequence[Line]) -> Iterator[RecordedEvent]:
        for _, group in groupby(lines, lambda line: line.request):
            same = list(group)
            found = _REQUEST.fullmatch(same[0].facts["message"])
            if found is not None and same[0].file == FILES[0]:
                yield self._with_first_status(self._request(found[1], found[2], same))
            else:
                for line in same:
                    yield self._with_first_status(self._event(line))

    def _with_first_status(self, event: RecordedEvent) -> RecordedEvent:
        """The event, with the change that its broker is up if nothing was known of it: a broker that logs runs."""
        if self._status.get(event.broker) == "unknown":
            event.changes = self._now(event.broker, "up") + event.changes
        return event

    def _request(self, name: str, outcome: str, lines: Sequence[Line]) -> RecordedEvent:
        line = lines[0]
        facts = line.facts
        rows = [line.facts for line in lines if "partition" in line.facts]
        partitions = tuple(row["partition"] for row in rows)
        whole = "; ".join(map(_row, rows)) or "no partitions"
        text = shortened(whole, MAX_TEXT)
        key = name, facts.get("controller"), facts.get("controller_epoch"), whole
        if outcome == "sent":
            target = f"b{facts.get('to')}"
            event = RecordedEvent(
                line.at_us, "message", f"b{line.broker}", text, partitions, line.broker, name, f"b{line.broker}", target
            )
            event.changes = [change for row in rows for change in self._state(name, row)]
            if "brokers" in facts:
                for broker in self._status:
                    event.changes += self._now(broker, "up" if broker in facts["brokers"] else "down")
            self._sent.setdefault((facts.get("to"), *key), deque()).append(event)
            return event
        if sent := self._sent.get((line.broker, *key)):
            sent.popleft().until = line.at_us
        error = f" {facts.get('error')}" if outcome == "refused" else ""
        event = RecordedEvent(
            line.at_us, "broker", f"b{line.broker}", f"{name} {outcome}{error}: {text}", partitions, line.broker
        )
        if outcome == "applied":
            event.changes = [change for row in rows if "error" not in row for change in _role(line.broker, name, row)]
        return event

    def _state(self, name: str, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        partition = row["partition"]
        if row.get("deleted"):
            self._states.pop(partition, None)
            yield {"partition": partition, "deleted": True}
        elif name != "StopReplica":
            state = row.get("leader", -1), row.get("leader_epoch", -1), tuple(row.get("isr", ()))
            if self._states.get(partition) != state:
                self._states[partition] = state
                leader, epoch, isr = state
                yield {"partition": partition, "leader": leader, "leader_epoch": epoch, "isr": list(isr), "elr": []}

    def _event(self, line: Line) -> RecordedEvent:
        """An event of a line that is about no request."""
        text = line.facts["message"]
        of_states = line.file == FILES[0]
        kind = "fault" if of_states and line.facts.get("level") in ("warning", "error") else "broker"
        named = dict.fromkeys(name for name in _NAME.findall(text) if name in self._partitions)
        event = RecordedEvent(line.at_us, kind, f"b{line.broker}", shortened(text, MAX_TEXT), tuple(named), line.broker)
        if found := _CONTROLLER.fullmatch(text):
            event.changes = [{"controller": int(found[1])}]
        elif _STARTED.match(text) or _STOPPED.match(text):
            event.kind = "admin"
            event.changes = self._now(line.broker, "up" if _STARTED.match(text) else "down")
        return event

    def _now(self, broker: int, status: str) -> list[dict[str, Any]]:
        """The change of a broker's status, if it is one."""
        if self._status.get(broker) == status:
            return []
        self._status[broker] = status
        return [{"broker": broker, "status": status}]


def _role(broker: int, name: str, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    change = {"broker": broker, "partition": row["partition"]}
    if name == "LeaderAndIsr":
        role = "leader" if row.get("leader") == broker else "follower"
        yield change | {"role": role, "leader_epoch": row.get("leader_epoch", -1)}
    elif name == "StopReplica":
        yield change | {"role": "none" if row.get("delete") else "closed", "leader_epoch": -1}


def _row(row: Mapping[str, Any]) -> str:
    """A partition of a request in words, the same as it is sent and as it is applied."""
    if row.get("deleted"):
        return f"{row['partition']} is deleted"
    if "leader" not in row:
        return f"{row['partition']} {'is deleted' if row.get('delete') else 'stops'}"
    leader = row["leader"] if row["leader"] >= 0 else "none"
    isr = " ".join(map(str, row.get("isr", ())))
    return f"{row['partition']} leader {leader}, epoch {row.get('leader_epoch')}, isr {isr}"
