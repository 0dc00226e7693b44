"""Recording: the events of a replay in memory, its bounds, and its lines. The format is that of `kreplog.replay`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMAT = "kreplog-replay 1"

MAX_EVENTS = 20_000
"""Events of a page: some 5 MB, which a browser opens in a second."""

MAX_TEXT = 400
"""Characters of an event's text."""


@dataclass(slots=True)
class RecordedEvent:
    """An event of a replay: its fields are those of the format. broker: -1 for none. until: -1 for lost."""

    at: int
    kind: str
    actor: str = ""
    text: str = ""
    partitions: tuple[str, ...] = ()
    broker: int = -1
    label: str = ""
    source: str = ""
    target: str = ""
    until: int = -1
    idle: bool = False
    changes: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Its fields but those that have no value."""
        found: dict[str, Any] = {"at": self.at, "kind": self.kind}
        for name in ("actor", "label", "source", "target", "text", "partitions", "idle", "changes"):
            value = getattr(self, name)
            if value:
                found[name] = value
        for name in ("broker", "until"):
            value = getattr(self, name)
            if value >= 0:
                found[name] = value
        return found


@dataclass(slots=True)
class Recording:
    """A recorded run. guarantees: meaning by name. began: the time of day of microsecond 0, as ISO 8601; "" for virtual
    time."""

    title: str
    about: str
    command: str
    brokers: Sequence[int]
    partitions: Sequence[str]
    guarantees: Mapping[str, str]
    events: list[RecordedEvent]
    notes: list[str] = field(default_factory=list)
    began: str = ""

    def lines(self) -> Iterator[str]:
        """The replay file, line by line."""
        yield _json(
            {
                "format": FORMAT,
                "title": self.title,
                "about": self.about,
                "command": self.command,
                "began": self.began,
                "brokers": list(self.brokers),
                "partitions": list(self.partitions),
                "guarantees": dict(self.guarantees),
                "notes": self.notes,
            }
        )
        for event in self.events:
            yield _json(event.as_json())

    def limit(self, most: int = MAX_EVENTS) -> None:
        """Leave out events until there are at most `most`: idle ones first, then the earliest. Their changes stay, with
        the next event that remains; a note says what is missing."""
        if len(self.events) > most:
            idle = sum(event.idle for event in self.events)
            self._leave_out([not event.idle for event in self.events])
            if idle:
                self.notes.append(f"{idle:,} events of polling that changes nothing are left out.")
        if len(self.events) > most:
            early = len(self.events) - most
            began_s = self.events[early].at / 1_000_000
            self._leave_out([index >= early for index in range(len(self.events))])
            self.notes.append(f"The first {early:,} events, until {began_s:.3f} s, are left out.")

    def start_at(self, at_us: int) -> None:
        """Leave out the events before `at_us`; their changes stay, with the first event that remains."""
        self._leave_out([event.at >= at_us for event in self.events])

    def _leave_out(self, stays: Sequence[bool]) -> None:
        """Drop each event whose flag is False."""
        remaining: list[RecordedEvent] = []
        pending: list[dict[str, Any]] = []
        for event, remains in zip(self.events, stays, strict=True):
            if remains:
                event.changes = pending + event.changes
                remaining.append(event)
                pending = []
            else:
                pending += event.changes
        if remaining:
            remaining[-1].changes += pending
        self.events = remaining


def shortened(text: str, most: int) -> str:
    """The text, or its beginning if it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
