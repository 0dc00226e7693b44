"""ClusterSnapshot: a cluster at a moment, as a Metadata response has it. Values alone, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kreplog.types import NO_LEADER, counted


class PartitionRow(NamedTuple):
    """A partition. leader: broker id, NO_LEADER for none. leader_epoch: NO_EPOCH where it is not reported."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class BrokerRow(NamedTuple):
    """A live broker."""

    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic. error: the name of the error in place of its partitions, "" for none."""

    internal: bool
    partitions: Mapping[int, PartitionRow]
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Brokers and topics. controller: broker id, -1 for none. degraded: lines about degraded partitions. silent: live
    brokers, as the metadata have it, that do not respond to the console. controller_epoch: None where it is unknown,
    since Kafka's protocol does not report it."""

    cluster_id: str = ""
    controller: int = -1
    brokers: Mapping[int, BrokerRow] = field(default_factory=dict)
    topics: Mapping[str, TopicSnapshot] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()
    silent: frozenset[int] = frozenset()
    controller_epoch: int | None = None

    @property
    def absent(self) -> set[int]:
        """Brokers that have replicas, but are not live."""
        assigned = {
            broker for topic in self.topics.values() for row in topic.partitions.values() for broker in row.replicas
        }
        return assigned - self.brokers.keys()

    def problems(self) -> list[str]:
        """Lines about what is degraded."""
        found = [f"broker {broker} is not running" for broker in sorted(self.absent)]
        found += [f"broker {broker} does not respond" for broker in sorted(self.silent)]
        if self.brokers and self.controller < 0:
            found.append("there is no controller")
        return [*found, *self.degraded]

    def health(self) -> str:
        """The health of the cluster in one sentence."""
        if problems := self.problems():
            return f"Degraded: {'; '.join(problems)}"
        partitions = sum(len(topic.partitions) for topic in self.topics.values())
        brokers = f"Healthy: {counted(len(self.brokers), 'broker')}, " if self.brokers else ""
        replicas = ", every replica in sync" if self.brokers else ""
        return f"{brokers}{counted(len(self.topics), 'topic')}, {counted(partitions, 'partition')}{replicas}."

    def overview(self) -> dict[str, Any]:
        """JSON for the page: all but partitions; of a topic its numbers of partitions, those without a leader, and
        those under-replicated."""
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller,
            "controller_epoch": self.controller_epoch,
            "health": self.health(),
            "problems": self.problems(),
            "brokers": [self._broker(broker) for broker in sorted(self.brokers.keys() | self.absent)],
            "topics": [
                {
                    "name": name,
                    "internal": topic.internal,
                    "error": topic.error,
                    "partitions": len(topic.partitions),
                    "leaderless": sum(row.leader == NO_LEADER for row in topic.partitions.values() if row.replicas),
                    "under_replicated": sum(not set(row.replicas) <= set(row.isr) for row in topic.partitions.values()),
                }
                for name, topic in sorted(self.topics.items())
            ],
        }

    def _broker(self, broker: int) -> dict[str, Any]:
        row = self.brokers.get(broker)
        if row is None:
            return {"id": broker, "host": "", "port": 0, "rack": None, "state": "not running"}
        return {**row._asdict(), "id": broker, "state": "no response" if broker in self.silent else "live"}
