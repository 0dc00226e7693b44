"""DeletedPartitions: removes the committed offsets of partitions that are deleted, a few groups in each step.

A controller announces a deletion when it begins, to all brokers. What no coordinator hears of, because the controller
or the coordinator fails at that moment, stays until its retention is over, as in Kafka.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from kreplog.core.effects import Steps
from kreplog.core.groups.committed_offsets import CommittedOffsets
from kreplog.core.groups.group import Group
from kreplog.core.groups.shard import GroupShard
from kreplog.core.timers import Deadline, Timers
from kreplog.types import TopicPartition

GROUPS_PER_STEP = 100
"""Groups that one step looks at."""


class DeletedPartitions:
    """Removes the committed offsets of deleted partitions. is_led: whether this broker still leads a shard."""

    def __init__(self, offsets: CommittedOffsets, timers: Timers, is_led: Callable[[GroupShard], bool]) -> None:
        self._offsets = offsets
        self._timers = timers
        self._is_led = is_led
        self._next = Deadline(self._check)
        self._to_check: deque[tuple[GroupShard, Iterator[Group], frozenset[TopicPartition]]] = deque()

    def deleted(self, shards: Iterable[GroupShard], partitions: frozenset[TopicPartition], now_ms: int) -> None:
        """The partitions are deleted; a shard that is loading is looked at once it has loaded."""
        for shard in shards:
            shard.deleted |= partitions
            if shard.active:
                self.loaded(shard, now_ms)

    def loaded(self, shard: GroupShard, now_ms: int) -> None:
        if shard.deleted:
            self._to_check.append((shard, iter(list(shard.groups.values())), shard.deleted))
            shard.deleted = frozenset()
            self._timers.set(self._next, now_ms)

    def _check(self, now_ms: int) -> Steps[None]:
        remaining = GROUPS_PER_STEP
        while remaining > 0 and self._to_check:
            shard, groups, partitions = self._to_check[0]
            taken = list(islice(groups, remaining)) if self._is_led(shard) else []
            for group in taken:
                if shard.groups.get(group.group_id) is group:
                    yield from self._offsets.forget(shard, group, partitions)
            if len(taken) < remaining:
                self._to_check.popleft()
            remaining -= len(taken)
        if self._to_check:
            self._timers.set(self._next, now_ms + 1)  # in a step of its own
