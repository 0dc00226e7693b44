"""Timeline: the last events of a cluster, numbered, so that a page fetches those that it lacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from kreplog.console.cluster_changes import concerns

MAX_EVENTS = 10_000
MAX_SENT = 500
"""Events in one response."""

MAX_PARTITIONS = 200_000
"""Partitions in all events together: the oldest go where there are more."""


class Timeline:
    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._events: deque[dict[str, Any]] = deque()
        self._partitions = 0
        self.end = 0

    def add(self, time_ms: int, events: Iterable[dict[str, Any]]) -> None:
        """Append events. time_ms: milliseconds since 1970 at which they were seen."""
        for event in events:
            self._events.append({"number": self.end, "time_ms": time_ms, **event})
            self._partitions += _partitions(event)
            self.end += 1
            while len(self._events) > self._max_events or (self._partitions > MAX_PARTITIONS and len(self._events) > 1):
                self._partitions -= _partitions(self._events.popleft())

    def since(self, number: int) -> list[dict[str, Any]]:
        """The oldest MAX_SENT events from `number` on, oldest first."""
        start = max(0, number - (self.end - len(self._events)))
        return list(islice(self._events, start, start + MAX_SENT))

    def before(self, number: int, topic: str | None = None) -> list[dict[str, Any]]:
        """The newest MAX_SENT events with a lower number, oldest first. topic: only those that concern it."""
        found = (
            event
            for event in reversed(self._events)
            if event["number"] < number and (topic is None or concerns(event, topic))
        )
        return list(islice(found, MAX_SENT))[::-1]


def _partitions(event: dict[str, Any]) -> int:
    return sum(map(len, event.get("partitions", {}).values()))
