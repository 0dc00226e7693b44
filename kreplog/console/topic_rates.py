"""TopicRates: records a second that each topic receives, by the log ends of its partitions' leaders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kreplog.client.replica_states import log_ends
from kreplog.console.client_threads import ThreadClients
from kreplog.console.snapshot import TopicSnapshot
from kreplog.types import NO_LEADER, TopicPartition

MIN_AGE_S = 1.0
"""Those who look at the same time share the result."""

SHARE = 0.005
"""The most of a processor that reading the log ends takes: a topic with many partitions has many. A leader takes more
for them than the thread here, and the metadata are read besides."""


class TopicRates:
    """Runs in one thread."""

    def __init__(self) -> None:
        self._next_read = 0.0
        self._time = 0.0
        self._ends: Mapping[TopicPartition, int] = {}
        self._rates: dict[str, float] = {}

    def read(self, clients: ThreadClients, topics: Mapping[str, TopicSnapshot]) -> dict[str, Any]:
        """{"topics": {name: records a second since the last time}}, without topics whose leaders did not report their
        log ends twice. Raises UnreachableError."""
        began, cpu = time.monotonic(), time.thread_time()
        if began >= self._next_read:
            led: dict[int, list[TopicPartition]] = {}
            for name, topic in topics.items():
                for number, row in topic.partitions.items():
                    if row.leader != NO_LEADER:
                        led.setdefault(row.leader, []).append(TopicPartition(name, number))
            if not led.keys() <= clients.admin.live.keys():
                clients.admin.metadata(())
            ends = log_ends(clients.admin, led)
            self._rates = rates(self._ends, ends, began - self._time)
            self._time, self._ends = began, ends
            self._next_read = began + max(MIN_AGE_S, (time.thread_time() - cpu) / SHARE)
        return {"topics": self._rates}


def rates(before: Mapping[TopicPartition, int], now: Mapping[TopicPartition, int], seconds: float) -> dict[str, float]:
    """Records a second by topic, of the partitions that have a log end in both. A log that became shorter counts 0."""
    added: dict[str, int] = {}
    for at, end in now.items():
        if at in before:
            added[at.topic] = added.get(at.topic, 0) + max(0, end - before[at])
    return {topic: records / seconds for topic, records in added.items()}
