"""Racks of members: an assignment in which more members read from a replica in their own rack (KIP-881, KIP-392).

Members exchange partitions, so that each has as many as before; with the assignor `range`, as many of each topic, and
topics that are shared alike stay so. Nothing is exchanged that brings nothing, so that a member keeps what it has while
racks are as they were. Kafka's own server assignors have ignored racks since 3.8 (KAFKA-16694).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from kreplog.core.groups.assignors import Partition, Partitions

MAX_COMPARISONS = 100_000
"""Comparisons after which an assignment stays as it is by then: the event loop waits for them."""

_Unit = tuple[Partition, ...]
"""Partitions that have one owner: a single one, or those of one number in topics that are shared alike."""

_RacksOf = tuple[frozenset[str], ...]
"""The racks of each partition of a unit."""


class Racks(NamedTuple):
    """The racks of a group. members: of those that have given one. replicas: the racks of a partition's replicas."""

    members: Mapping[str, str]
    replicas: Mapping[Partition, frozenset[str]]


def localized(
    assignment: Mapping[str, Partitions], subscriptions: Mapping[str, Collection[str]], racks: Racks, *, alike: bool
) -> dict[str, Partitions]:
    """The assignment after exchanges, of which no other between two members would make more partitions local.

    subscriptions: topic ids by member. alike: a member keeps as many partitions of each topic, and topics that are
    shared alike stay so.
    """
    families = list(_shared_alike(assignment)) if alike else [_single(assignment)]
    for owners in families:
        _Exchanges(owners, subscriptions, racks).run()
    found: dict[str, set[Partition]] = {member: set() for member in assignment}
    for owners in families:
        for unit, member in owners.items():
            found[member].update(unit)
    return {member: frozenset(partitions) for member, partitions in found.items()}


def _single(assignment: Mapping[str, Partitions]) -> dict[_Unit, str]:
    """The owner of each partition."""
    owners = {partition: member for member, partitions in assignment.items() for partition in partitions}
    return {(partition,): owners[partition] for partition in sorted(owners)}


def _shared_alike(assignment: Mapping[str, Partitions]) -> Iterator[dict[_Unit, str]]:
    """For each set of topics that are shared alike, the owner of each number's partitions."""
    owners: dict[str, dict[int, str]] = {}
    for ((topic, number),), member in _single(assignment).items():
        owners.setdefault(topic, {})[number] = member
    topics_of: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for topic, numbers in owners.items():
        topics_of.setdefault(tuple(numbers.items()), []).append(topic)
    for numbered, topics in topics_of.items():
        yield {tuple((topic, number) for topic in topics): member for number, member in numbered}


class _Exchanges:
    """Exchanges units between their owners, in place. Units are found by their owner's rack and their own racks: what
    an exchange brings depends on nothing else."""

    def __init__(self, owners: dict[_Unit, str], subscriptions: Mapping[str, Collection[str]], racks: Racks) -> None:
        self._owners = owners
        self._subscriptions = subscriptions
        self._members = racks.members
        self._racks_of: dict[_Unit, _RacksOf] = {
            unit: tuple(racks.replicas.get(partition, frozenset()) for partition in unit) for unit in owners
        }
        self._found: dict[tuple[str | None, _RacksOf], dict[_Unit, None]] = {}
        for unit in owners:
            self._add(unit)
        self._left = MAX_COMPARISONS

    def run(self) -> None:
        changed = True
        while changed:
            changed = False
            for unit in list(self._owners):
                other = self._best_exchange(unit)
                if other is not None:
                    self._exchange(unit, other)
                    changed = True

    def _best_exchange(self, unit: _Unit) -> _Unit | None:
        """The unit for which it brings the most to exchange this one."""
        rack, own = self._members.get(self._owners[unit]), self._racks_of[unit]
        local = _local(rack, own)
        if local == len(own):
            return None
        self._left -= len(self._found) * len(own)
        if self._left < 0:
            return None
        gains = [
            (_local(rack, racks) + _local(other_rack, own) - local - _local(other_rack, racks), units)
            for (other_rack, racks), units in self._found.items()
        ]
        for _, units in sorted((found for found in gains if found[0] > 0), key=lambda found: -found[0]):
            for other in units:
                self._left -= 1
                if self._left < 0:
                    return None
                if self._may_own(unit, other) and self._may_own(other, unit):
                    return other
        return None

    def _may_own(self, unit: _Unit, other: _Unit) -> bool:
        """Whether the owner of `unit` is subscribed to the topics of the other."""
        subscribed = self._subscriptions[self._owners[unit]]
        return all(topic in subscribed for topic, _ in other)

    def _exchange(self, unit: _Unit, other: _Unit) -> None:
        for each in (unit, other):
            del self._found[self._key(each)][each]
        self._owners[unit], self._owners[other] = self._owners[other], self._owners[unit]
        for each in (unit, other):
            self._add(each)

    def _add(self, unit: _Unit) -> None:
        self._found.setdefault(self._key(unit), {})[unit] = None

    def _key(self, unit: _Unit) -> tuple[str | None, _RacksOf]:
        return self._members.get(self._owners[unit]), self._racks_of[unit]


def _local(rack: str | None, racks: _RacksOf) -> int:
    """The number of partitions with a replica in the rack."""
    return sum(rack in own for own in racks)
