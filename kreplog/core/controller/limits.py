"""How many partitions there may be, in the cluster and on each broker (KIP-578).

Every broker counts by the metadata that it has, so requests that several brokers take at the same moment may together
go beyond a limit by what one of them creates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kreplog.errors import InvalidPartitionsError


class PartitionCounts:
    """Partitions of the cluster and replicas of its brokers. max_partitions: of the cluster. max_broker_partitions:
    replicas of one broker."""

    def __init__(self, existing: Iterable[Sequence[int]], max_partitions: int, max_broker_partitions: int) -> None:
        self._max_partitions = max_partitions
        self._max_broker_partitions = max_broker_partitions
        self._partitions = 0
        self._replicas: Counter[int] = Counter()
        self._count(existing)

    def add(self, assignments: Iterable[Sequence[int]]) -> None:
        """Count new partitions, given as their replicas. Raises InvalidPartitionsError, with nothing counted."""
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

    def _count(self, assignments: Iterable[Sequence[int]]) -> None:
        for replicas in assignments:
            self._partitions += 1
            self._replicas.update(replicas)
