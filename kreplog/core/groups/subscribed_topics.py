"""SubscribedTopics: the topics that a group reads, by its coordinator's copy of the cluster's metadata.

Metadata may lack topics for a moment: a new controller sends them in parts, and a broker that has just started has
none. So a topic that is missing, or has fewer partitions, counts only once that has lasted; a new one, and one that
grows, at once. Source: KIP-848; KIP-1101 for the hash, which has no racks here: those of brokers that are down are
unknown, and no group is rebalanced for that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import NamedTuple, Protocol

from kreplog.core.groups.assignors import Partition
from kreplog.core.messages import PartitionState
from kreplog.types import TopicPartition

LOSS_MS = 1500
"""How long a topic has to be missing."""


class ClusterTopics(Protocol):
    """The cluster's metadata as a broker has them. partitions: known ones. topics_version: another number whenever a
    topic or partition appears or disappears. has_source: whether there are any metadata yet."""

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionState]: ...

    @property
    def topics_version(self) -> int: ...

    @property
    def has_source(self) -> bool: ...

    def partition_count(self, topic: str) -> int:
        """0 for an unknown topic."""

    def topics(self) -> Collection[str]:
        """The names of all."""

    def rack_of(self, broker_id: int) -> str | None:
        """The rack of a registered broker; None if it has none."""


class SubscribedTopic(NamedTuple):
    topic_id: str
    partitions: int


class SubscribedTopics:
    """The topics of one group as far as they are known.

    known: by name. metadata_hash: of those, 64 bits, signed; 0 for none.
    """

    def __init__(self) -> None:
        self.known: dict[str, SubscribedTopic] = {}
        self.metadata_hash = 0
        self._certain_ms = 0
        self._lost_until_ms: dict[str, int] = {}
        self._seen: tuple[int, Collection[str]] | None = None

    def loaded(self, now_ms: int) -> None:
        """The group has just been loaded: topics may be missing although none was known here before."""
        self._certain_ms = now_ms + LOSS_MS

    def is_certain(self, now_ms: int) -> bool:
        return now_ms >= self._certain_ms

    def refresh(self, names: frozenset[str], cluster: ClusterTopics, now_ms: int) -> None:
        """Take the topics of these names from the metadata."""
        seen = cluster.topics_version, names
        if not cluster.has_source or (seen == self._seen and not self._lost_until_ms):
            return
        self._seen = seen
        found = {name: topic for name in names if (topic := topic_of(name, cluster)) is not None}
        lost = {name: topic for name, topic in self.known.items() if name in names and _is_less(found.get(name), topic)}
        until_ms = {name: self._lost_until_ms.get(name, now_ms + LOSS_MS) for name in lost}
        self._lost_until_ms = {name: at_ms for name, at_ms in until_ms.items() if now_ms < at_ms}
        found |= {name: lost[name] for name in self._lost_until_ms}
        self.known, self.metadata_hash = found, _hash(found)

    def counts(self) -> dict[str, int]:
        """Partitions by topic id."""
        return {topic.topic_id: topic.partitions for topic in self.known.values()}

    def racks(self, cluster: ClusterTopics) -> dict[Partition, frozenset[str]]:
        """The racks of each partition's replicas on registered brokers."""
        found = {}
        for name, topic in self.known.items():
            for number in range(topic.partitions):
                state = cluster.partitions.get(TopicPartition(name, number))
                if state is not None and state.topic_id == topic.topic_id:
                    racks = map(cluster.rack_of, state.replicas)
                    found[topic.topic_id, number] = frozenset(rack for rack in racks if rack is not None)
        return found


def _hash(topics: Mapping[str, SubscribedTopic]) -> int:
    if not topics:
        return 0
    text = "\n".join(f"{name} {topic.topic_id} {topic.partitions}" for name, topic in sorted(topics.items()))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def topic_of(name: str, cluster: ClusterTopics) -> SubscribedTopic | None:
    first = cluster.partitions.get(TopicPartition(name, 0))  # every topic has a partition 0
    return None if first is None else SubscribedTopic(first.topic_id, cluster.partition_count(name))


def _is_less(found: SubscribedTopic | None, known: SubscribedTopic) -> bool:
    return found is None or (found.topic_id == known.topic_id and found.partitions < known.partitions)
