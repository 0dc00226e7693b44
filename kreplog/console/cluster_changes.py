"""Changes between two snapshots of a cluster, as the events of a time line. Values alone, no I/O.

An event has a `kind` and a `text` in words. One about partitions has `partitions`, their numbers by topic: what happens
to thousands at once, as in a failover, is one event. One about a topic has `topic`; the others are about brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kreplog.console.snapshot import ClusterSnapshot, PartitionRow
from kreplog.types import NO_EPOCH

RANGES = 12
"""Ranges of partition numbers that a text names at most."""

TOPICS = 4
"""Topics that a text names at most."""

_KINDS = ("leader", "leader epoch", "ISR shrinks", "ISR grows", "ISR changes", "replicas", "partition added")
"""Of events about partitions, in the order in which they are listed."""


def differences(before: ClusterSnapshot, after: ClusterSnapshot) -> list[dict[str, Any]]:
    """Events that lead from one snapshot to the next: elections, ISR changes, brokers and topics that come and go."""
    gone, live = before.brokers.keys() - after.brokers.keys(), after.brokers.keys() - before.brokers.keys()
    silent = before.silent & after.brokers.keys()
    found = [
        {"kind": kind, "text": f"broker {broker} {words}"}
        for kind, words, brokers in (
            ("broker gone", "is gone", gone),
            ("broker live", "is live", live),
            ("broker silent", "does not respond", after.silent - silent),
            ("broker responds", "responds again", silent - after.silent),
        )
        for broker in sorted(brokers)
    ]
    if after.controller != before.controller:
        epoch = "" if after.controller_epoch is None else f", epoch {after.controller_epoch}"
        found.append({"kind": "controller", "text": f"controller {_turn(before.controller, after.controller)}{epoch}"})
    changes = _PartitionChanges()
    internal = {name for topics in (before.topics, after.topics) for name in topics if topics[name].internal}
    for name in sorted(before.topics.keys() | after.topics.keys(), key=lambda name: (name in internal, name)):
        old, new = before.topics.get(name), after.topics.get(name)
        if old is None or new is None:
            kind = "topic created" if old is None else "topic deleted"
            found.append({"kind": kind, "text": kind, "topic": name})
        elif old.partitions != new.partitions:
            changes.add(name, old.partitions, new.partitions)
    return [*found, *changes.events()]


def concerns(event: Mapping[str, Any], topic: str) -> bool:
    """Whether an event is about this topic, or about brokers."""
    return topic in event["partitions"] if "partitions" in event else bool(event.get("topic", topic) == topic)


def where(event: Mapping[str, Any]) -> str:
    """The partitions or the topic of an event, in words; "" where it is about brokers."""
    partitions = event.get("partitions")
    if partitions is None:
        return str(event.get("topic", ""))
    named = [f"{topic} {ranges(numbers)}" for topic, numbers in list(partitions.items())[:TOPICS]]
    more = len(partitions) - TOPICS
    return "; ".join(named) + (f"; and {more:,} more topic{'s' if more > 1 else ''}" if more > 0 else "")


def ranges(numbers: list[int]) -> str:
    """Numbers that ascend, such as 0-3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found[:RANGES]]
    return ", ".join([*texts, *(["..."] if len(found) > RANGES else [])])


@dataclass(slots=True)
class _Change:
    """A change of some partitions. epochs: the leader epochs that these have now."""

    partitions: dict[str, list[int]] = field(default_factory=dict)
    epochs: set[int] = field(default_factory=set)


class _PartitionChanges:
    """Changes of partitions, by kind and text."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Change] = {}

    def add(self, topic: str, before: Mapping[int, PartitionRow], after: Mapping[int, PartitionRow]) -> None:
        for number, new in after.items():
            old = before.get(number)
            if old is None:
                self._note("partition added", "partition added", topic, number)
            elif old != new:
                if old.leader != new.leader:
                    self._note("leader", f"leader {_turn(old.leader, new.leader)}", topic, number, new.leader_epoch)
                elif old.leader_epoch != new.leader_epoch:
                    self._note("leader epoch", "the leader stays", topic, number, new.leader_epoch)
                left, joined = set(old.isr) - set(new.isr), set(new.isr) - set(old.isr)
                if left or joined:
                    kind = "ISR changes" if left and joined else "ISR shrinks" if left else "ISR grows"
                    words = [_brokers(left, "leaves", "leave"), _brokers(joined, "joins", "join")]
                    self._note(kind, f"{kind}: {', '.join(filter(None, words))}", topic, number)
                if old.replicas != new.replicas:
                    removed, added = set(old.replicas) - set(new.replicas), set(new.replicas) - set(old.replicas)
                    words = [_brokers(removed, "removed", "removed"), _brokers(added, "added", "added")]
                    text = ", ".join(filter(None, words)) or "in another order"
                    self._note("replicas", f"replicas: {text}", topic, number)

    def _note(self, kind: str, text: str, topic: str, number: int, epoch: int = NO_EPOCH) -> None:
        change = self._found.setdefault((kind, text), _Change())
        change.partitions.setdefault(topic, []).append(number)
        if epoch != NO_EPOCH:
            change.epochs.add(epoch)

    def events(self) -> list[dict[str, Any]]:
        return [
            {"kind": kind, "text": text + _epochs(change.epochs), "partitions": change.partitions}
            for (kind, text), change in sorted(self._found.items(), key=lambda item: _KINDS.index(item[0][0]))
        ]


def _epochs(epochs: set[int]) -> str:
    if not epochs:
        return ""
    low, high = min(epochs), max(epochs)
    return f", epoch {low}" if low == high else f", epochs {low} to {high}"


def _turn(before: int, after: int) -> str:
    """From one broker to another; a negative id is none."""
    return " → ".join("none" if broker < 0 else str(broker) for broker in (before, after))


def _brokers(brokers: set[int], singular: str, plural: str) -> str:
    """Brokers and what they do; "" for none. singular, plural: the verb."""
    if not brokers:
        return ""
    names = ", ".join(map(str, sorted(brokers)))
    return f"broker {names} {singular}" if len(brokers) == 1 else f"brokers {names} {plural}"
