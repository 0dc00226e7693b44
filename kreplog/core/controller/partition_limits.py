"""Partition limits: the maximum of partitions of the cluster and of replicas of each broker (KIP-578).

Each broker counts the partitions in its metadata plus those that it has created and that are not in the metadata yet.
So several brokers that handle requests at the same moment may exceed a limit together, each of them by what was free.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kreplog.errors import InvalidPartitionsError

EXPECTED_FOR_MS = 60_000
"""How long partitions that were created here count while the metadata lacks them: it never gets those of a topic that
was deleted at once."""


class _Created(NamedTuple):
    """New partitions of a topic that the metadata lacks. first: number of the first. assignments: replicas of each."""

    topic: str
    first: int
    assignments: list[Sequence[int]]
    until_ms: int


class PartitionLimits:
    """Counts partitions of the cluster and replicas of its brokers, and refuses those beyond the limits.

    max_partitions: of the cluster. max_broker_partitions: replicas of any one broker."""

    def __init__(self, max_partitions: int, max_broker_partitions: int) -> None:
        self._max_partitions = max_partitions
        self._max_broker_partitions = max_broker_partitions
        self._partitions = 0
        self._replicas: Counter[int] = Counter()
        self._created: dict[int, _Created] = {}
        self._numbers = itertools.count()

    def recount(self, existing: Mapping[str, Sequence[Sequence[int]]], now_ms: int) -> None:
        """Count all again. existing: by topic in the metadata, the replicas of each partition."""
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
        """Count partitions of a topic, from number `first` on, that are about to be created; return a handle for
        `withdraw`. Raises InvalidPartitionsError, with nothing counted."""
        new = list(assignments)
        more = Counter(broker for replicas in new for broker in replicas)
        if self._partitions + len(new) > self._max_partitions:
            raise InvalidPartitionsError(
                f"{len(new)} new partitions and the {self._partitions} existing ones would exceed the "
                f"{self._max_partitions} of max.partitions: delete topics, or raise it on every broker"
            )
        for broker, count in sorted(more.items()):
            if self._replicas[broker] + count > self._max_broker_partitions:
                raise InvalidPartitionsError(
                    f"{count} new replicas and the {self._replicas[broker]} that broker {broker} has would exceed "
                    f"the {self._max_broker_partitions} of max.broker.partitions: add brokers, or raise it"
                )
        self._count(new)
        number = next(self._numbers)
        self._created[number] = _Created(topic, first, new, now_ms + EXPECTED_FOR_MS)
        return number

    def withdraw(self, number: int) -> None:
        """Uncount partitions that were not created after all. number: returned by `add`."""
        created = self._created.pop(number, None)
        if created is not None:
            self._partitions -= len(created.assignments)
            for replicas in created.assignments:
                self._replicas.subtract(replicas)

    def _count(self, assignments: Iterable[Sequence[int]]) -> None:
        for replicas in assignments:
            self._partitions += 1
            self._replicas.update(replicas)
