"""OutOfSync: which brokers are out of sync, in how many partitions, since when, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from kreplog.console.snapshot import ClusterSnapshot
from kreplog.types import counted

_NOT_RUNNING, _SILENT, _LIVE = "is not running", "does not respond", "runs"


@dataclass(slots=True)
class _BrokerState:
    """The state of a broker. since_ms: since 1970; None: since before the first look."""

    state: str
    since_ms: int | None


@dataclass(slots=True)
class _Count:
    """Partitions that a broker is out of sync in. since_ms: the first of them left the ISR; None: before the first
    look."""

    partitions: int
    since_ms: int | None


class OutOfSync:
    """The replicas that are not in their partitions' ISR, from look to look."""

    def __init__(self) -> None:
        self._first_ms: int | None = None
        self._since: dict[str, dict[tuple[int, int], int | None]] = {}
        self._brokers: dict[int, _BrokerState] = {}

    def update(self, now_ms: int, snapshot: ClusterSnapshot) -> None:
        """Note what is out of sync at now_ms, milliseconds since 1970."""
        seen_ms = None if self._first_ms is None else now_ms
        before, self._since = self._since, {}
        for name, topic in snapshot.topics.items():
            known = before.get(name, {})
            replicas = {
                (number, broker): known.get((number, broker), seen_ms)
                for number, row in topic.partitions.items()
                for broker in row.replicas
                if broker not in row.isr
            }
            if replicas:
                self._since[name] = replicas
        states = dict.fromkeys(snapshot.brokers, _LIVE) | dict.fromkeys(snapshot.silent, _SILENT)
        states |= dict.fromkeys(snapshot.absent, _NOT_RUNNING)
        for broker, state in states.items():
            last = self._brokers.get(broker)
            if last is None or last.state != state:
                # The metadata name a broker for a while after it has failed: it has not responded since then.
                failed = last is not None and (last.state, state) == (_SILENT, _NOT_RUNNING)
                self._brokers[broker] = _BrokerState(state, last.since_ms if last is not None and failed else seen_ms)
        if self._first_ms is None:
            self._first_ms = now_ms

    def brokers(self, topic: str | None = None) -> list[dict[str, Any]]:
        """[{"broker", "partitions", "since_ms", "text"}] by broker id. partitions: number of those that it is out of
        sync in. since_ms: since when, None for since before the first look. text: that in words, with what is known of
        the broker. topic: of this one alone."""
        counts: dict[int, _Count] = {}
        for name in self._since if topic is None else [topic]:
            for (_, broker), since_ms in self._since.get(name, {}).items():
                count = counts.get(broker)
                if count is None:
                    counts[broker] = _Count(1, since_ms)
                else:
                    count.partitions += 1
                    known = count.since_ms is not None and since_ms is not None
                    count.since_ms = min(count.since_ms or 0, since_ms or 0) if known else None
        return [
            {
                "broker": broker,
                "partitions": count.partitions,
                "since_ms": count.since_ms,
                "text": f"broker {broker} is out of sync in {counted(count.partitions, 'partition')} "
                f"{self._since_words(count.since_ms)}: {self._reason(broker)}",
            }
            for broker, count in sorted(counts.items())
        ]

    def _since_words(self, since_ms: int | None) -> str:
        return f"since before {_words(self._first_ms or 0)}" if since_ms is None else f"since {_words(since_ms)}"

    def _reason(self, broker: int) -> str:
        known = self._brokers[broker]
        since = self._since_words(known.since_ms)
        if known.state != _LIVE:
            return f"it {known.state} {since}"
        if known.since_ms is not None:
            return f"it runs again {since}, and has to catch up"
        return "it runs, and is too slow, held back by a quota, or has an offline log directory"


def _words(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(time_ms / 1000))
