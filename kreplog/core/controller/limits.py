"""How many partitions there may be, in the cluster and on each broker (KIP-578).

Every broker counts by the metadata that it has and by what it has itself created since, so requests that several
brokers take at the same moment may together go beyond a limit: each broker by what there was room for.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kreplog.errors import InvalidPartitionsError

EXPECTED_FOR_MS = 60_000
"""So long is counted what was created and the metadata lacks: it never has what is deleted first."""


class _Created(NamedTuple):
    """first: number of the first of these partitions of the topic. assignments: the replicas of each."""

    topic: str
    first: int
    assignments: list[Sequence[int]]
    until_ms: int


class PartitionLimits:
    """Partitions of the cluster and replicas of its brokers, as one broker counts them. max_partitions: of the cluster.
    max_broker_partitions: replicas of one broker."""

    def __init__(self, max_partitions: int, max_broker_partitions: int) -> None:
        self._max_partitions = max_partitions
        self._max_broker_partitions = max_broker_partitions
        self._partitions = 0
        self._replicas: Counter[int] = Counter()
        self._created: dict[int, _Created] = {}
        self._numbers = itertools.count()

    def recount(self, existing: Mapping[str, Sequence[Sequence[int]]], now_ms: int) -> None:
        """existing: the replicas of each partition of each topic that the metadata has."""
        self._partitions = 0
        self._replicas.clear()
        for assignments in existing.values():
            self._count(assignments)
        for number, created in list(self._created.items()):
            last = created.first + len(created.assignments) - 1
            if len(existing.get(created.topic, ())) > last or now_ms >= created.until_ms:
                del self._created[number]
            else:
                self._count(created.assignments)

    def add(self, topic: str, first: int, assignments: Iterable[Sequence[int]], now_ms: int) -> int:
        """Count new partitions of a topic, from number `first` on, before they are created; what is returned withdraws
        them. Raises InvalidPartitionsError, with nothing counted."""
        new = list(assignments)
        more = Counter(broker for replicas in new for broker in replicas)
        if self._partitions + len(new) > self._max_partitions:
            raise InvalidPartitionsError(
                f"{len(new)} new partitions and the {self._partitions} that there are would be more than the "
                f"{self._max_partitions} of max.partitions: delete topics, or raise it on every broker"
            )
        for broker, count in sorted(more.items()):
            if self._replicas[broker] + count > self._max_broker_partitions:
                raise InvalidPartitionsError(
                    f"{count} new replicas and the {self._replicas[broker]} that broker {broker} has would be more "
                    f"than the {self._max_broker_partitions} of max.broker.partitions: add brokers, or raise it"
                )
        self._count(new)
        number = next(self._numbers)
        self._created[number] = _Created(topic, first, new, now_ms + EXPECTED_FOR_MS)
        return number

    def withdraw(self, number: int) -> None:
        """What `add` returned this number for was not created."""
        created = self._created.pop(number, None)
        if created is not None:
            self._partitions -= len(created.assignments)
            for replicas in created.assignments:
                self._replicas.subtract(replicas)

    def _count(self, assignments: Iterable[Sequence[int]]) -> None:
        for replicas in assignments:
            self._partitions += 1
            self._replicas.update(replicas)
