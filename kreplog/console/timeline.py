"""Timeline: the last events of a cluster, numbered, so that a page fetches those that it lacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

MAX_EVENTS = 10_000
MAX_SENT = 500
"""Events in one response, the newest."""


class Timeline:
    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=max_events)
        self.end = 0

    def add(self, time_ms: int, events: Iterable[dict[str, Any]]) -> None:
        """time_ms: milliseconds since 1970 at which they were seen."""
        for event in events:
            self._events.append({"number": self.end, "time_ms": time_ms, **event})
            self.end += 1

    def since(self, number: int, topic: str | None = None, before: int | None = None) -> list[dict[str, Any]]:
        """The newest MAX_SENT events from `number` on, oldest first. topic: only those about it, and about brokers.
        before: only those with a lower number."""
        found: list[dict[str, Any]] = []
        for event in islice(reversed(self._events), len(self._events)):
            if event["number"] < number or len(found) == MAX_SENT:
                break
            if before is not None and event["number"] >= before:
                continue
            if topic is None or event.get("topic", topic) == topic:
                found.append(event)
        return found[::-1]
