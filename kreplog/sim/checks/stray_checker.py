"""The checker of strays: replicas of a broker that a controller no longer assigned to it.

stray lost   for log.stray.retention.ms a stray is on its broker's disk, so that one that is assigned again is restored;
             unless a StopReplica named it, or the disk was replaced   while it is a stray, and as it is assigned again
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kreplog.types import TopicPartition


class StrayChecker:
    """Checks the strays of all brokers of one run. violate: takes the kind and the text of a violation. Times are of
    one clock."""

    def __init__(self, retention_ms: int, violate: Callable[[str, str], None]) -> None:
        self._retention_ms = retention_ms
        self._violate = violate
        self._since_ms: dict[tuple[int, TopicPartition, str], int] = {}

    def set_aside(self, broker: int, partition: TopicPartition, topic_id: str, now_ms: int) -> None:
        self._since_ms[broker, partition, topic_id] = now_ms

    def deleted(self, broker: int, partition: TopicPartition, topic_id: str) -> None:
        """A StopReplica that names it has deleted it."""
        self._since_ms.pop((broker, partition, topic_id), None)

    def disk_replaced(self, broker: int) -> None:
        self._since_ms = {key: since_ms for key, since_ms in self._since_ms.items() if key[0] != broker}

    def assigned_again(
        self, broker: int, partition: TopicPartition, topic_id: str, now_ms: int, *, restored: bool
    ) -> None:
        """Note that a stray replica is assigned to its broker again. restored: it was still there."""
        since_ms = self._since_ms.pop((broker, partition, topic_id), None)
        if not restored and since_ms is not None:
            self._check_expired(broker, partition, now_ms - since_ms)

    def on_disk(self, broker: int, strays: Collection[tuple[TopicPartition, str]], now_ms: int) -> None:
        """Check that no stray is gone too early. strays: partition and topic id of those that the broker's disk has."""
        for (of, partition, topic_id), since_ms in self._since_ms.items():
            if of == broker and (partition, topic_id) not in strays:
                self._check_expired(broker, partition, now_ms - since_ms)

    def _check_expired(self, broker: int, partition: TopicPartition, age_ms: int) -> None:
        """A stray is gone."""
        if age_ms < self._retention_ms:
            text = f"broker {broker} has no stray of {partition} {age_ms} ms after it was set aside"
            self._violate("stray lost", f"{text}; strays are kept for {self._retention_ms} ms")
