"""ClusterSnapshot: a cluster at a moment, as a Metadata response has it. Values alone, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kreplog.types import NO_EPOCH, NO_LEADER, counted


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

    def out_of_sync(self) -> dict[int, int]:
        """Number of partitions that have a replica on a broker out of sync, by its id."""
        rows = (row for topic in self.topics.values() for row in topic.partitions.values())
        return dict(sorted(Counter(broker for row in rows for broker in {*row.replicas} - {*row.isr}).items()))

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
            "out_of_sync": self.out_of_sync(),
            "brokers": [
                {**row._asdict(), "id": broker, "state": "no response" if broker in self.silent else "live"}
                for broker, row in sorted(self.brokers.items())
            ]
            + [{"id": broker, "host": "", "port": 0, "rack": None, "state": "not running"} for broker in self.absent],
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


def differences(before: ClusterSnapshot, after: ClusterSnapshot) -> list[dict[str, Any]]:
    """Events that lead from one snapshot to the next: elections, ISR changes, brokers and topics that come and go.

    Each has a `kind`, and `topic` and `partition` where it is about one."""
    gone, live = before.brokers.keys() - after.brokers.keys(), after.brokers.keys() - before.brokers.keys()
    found: list[dict[str, Any]] = [{"kind": "broker gone", "broker": broker} for broker in sorted(gone)]
    found += [{"kind": "broker live", "broker": broker} for broker in sorted(live)]
    silent = before.silent & after.brokers.keys()
    found += [{"kind": "broker silent", "broker": broker} for broker in sorted(after.silent - silent)]
    found += [{"kind": "broker responds", "broker": broker} for broker in sorted(silent - after.silent)]
    if after.controller != before.controller:
        found.append(
            {
                "kind": "controller",
                "from": before.controller,
                "to": after.controller,
                "epoch": after.controller_epoch,
            }
        )
    for name in sorted(before.topics.keys() | after.topics.keys()):
        old, new = before.topics.get(name), after.topics.get(name)
        if old is None or new is None:
            found.append({"kind": "topic created" if old is None else "topic deleted", "topic": name})
        elif old.partitions != new.partitions:
            found += _partition_events(name, old.partitions, new.partitions)
    return found


def _partition_events(
    topic: str, before: Mapping[int, PartitionRow], after: Mapping[int, PartitionRow]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, new in after.items():
        old = before.get(number)
        at = {"topic": topic, "partition": number}
        if old is None:
            found.append({"kind": "partition added", **at})
        elif old != new:
            if (old.leader, old.leader_epoch) != (new.leader, new.leader_epoch):
                epoch = None if new.leader_epoch == NO_EPOCH else new.leader_epoch
                found.append({"kind": "leader", **at, "from": old.leader, "to": new.leader, "epoch": epoch})
            if set(old.isr) != set(new.isr):
                kind = _isr_change(set(old.isr), set(new.isr))
                found.append({"kind": kind, **at, "from": list(old.isr), "to": list(new.isr)})
            if old.replicas != new.replicas:
                found.append({"kind": "replicas", **at, "from": list(old.replicas), "to": list(new.replicas)})
    return found


def _isr_change(before: set[int], after: set[int]) -> str:
    if after < before:
        return "ISR shrinks"
    return "ISR grows" if before < after else "ISR changes"
