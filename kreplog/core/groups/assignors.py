"""Assignors: how the partitions of topics are shared among the members of a group, as pure functions.

    uniform   all members get as many partitions as each other, or one more or less; where subscriptions differ, no
              partition can move, alone or along a chain of members, to make two of them more even
    range     each topic is shared by itself, in ranges; topics with as many partitions as each other, and the same
              subscribers, are shared alike, so that records with the same key reach the same member

Both leave with its member what need not move. Racks of members come after: rack_locality.py. Source: KIP-848.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

Partition = tuple[str, int]
"""A topic's id and a partition's number."""

Partitions = frozenset[Partition]

Assignor = Callable[
    [Mapping[str, Collection[str]], Mapping[str, int], Mapping[str, Iterable[Partition]]], dict[str, Partitions]
]
"""Called with the topic ids that each member is subscribed to, the number of partitions of each topic, and what each
member has been assigned before, which is disjoint. Returns what each of the members is assigned; a topic without a
number of partitions does not exist."""

_Shares = dict[str, dict[str, set[int]]]
"""Member -> topic -> partitions."""


def assign_uniform(
    subscriptions: Mapping[str, Collection[str]],
    counts: Mapping[str, int],
    former: Mapping[str, Iterable[Partition]],
) -> dict[str, Partitions]:
    """The assignor `uniform`: as many partitions for each member as can be."""
    subscribers = _subscribers(subscriptions, counts)
    shares = _retained(subscriptions, counts, former)
    loads = {member: sum(map(len, topics.values())) for member, topics in shares.items()}
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        _hand_out(topic, counts[topic], subscribers[topic], shares, loads)
    _balance(subscribers, shares, loads, former)
    return _assignment(shares)


def assign_range(
    subscriptions: Mapping[str, Collection[str]],
    counts: Mapping[str, int],
    former: Mapping[str, Iterable[Partition]],
) -> dict[str, Partitions]:
    """The assignor `range`: ranges of each topic, with the same numbers of topics that are alike."""
    shares = _retained(subscriptions, counts, former)
    for topic, members in _subscribers(subscriptions, counts).items():
        least, extra = divmod(counts[topic], len(members))
        unfilled = []
        for member in members:
            numbers = sorted(shares[member].get(topic, ()))
            has_extra = len(numbers) > least and extra > 0
            extra -= has_extra
            shares[member][topic] = set(numbers[: least + has_extra])
            if not has_extra:
                unfilled.append(member)
        held = {number for member in members for number in shares[member][topic]}
        free = iter([number for number in range(counts[topic]) if number not in held])
        for place, member in enumerate(unfilled):
            numbers_of = shares[member][topic]
            for _ in range(least + (place < extra) - len(numbers_of)):
                numbers_of.add(next(free))
    return _assignment(shares)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By Kafka's names, which group.consumer.assignors lists."""


def _subscribers(subscriptions: Mapping[str, Collection[str]], counts: Mapping[str, int]) -> dict[str, list[str]]:
    """The members that are subscribed to each topic that exists, in the order of their ids."""
    found: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            if topic in counts:
                found.setdefault(topic, []).append(member)
    return found


def _retained(
    subscriptions: Mapping[str, Collection[str]],
    counts: Mapping[str, int],
    former: Mapping[str, Iterable[Partition]],
) -> _Shares:
    """The former assignment, without partitions that do not exist or that its member is no longer subscribed to."""
    shares: _Shares = {}
    for member in sorted(subscriptions):
        topics = shares[member] = {}
        subscribed = frozenset(subscriptions[member])
        for topic, number in former.get(member, ()):
            if topic in subscribed and number < counts.get(topic, 0):
                topics.setdefault(topic, set()).add(number)
    return shares


def _hand_out(topic: str, count: int, members: Sequence[str], shares: _Shares, loads: dict[str, int]) -> None:
    """Give each free partition of a topic to the subscriber that has the fewest."""
    held = {number for member in members for number in shares[member].get(topic, ())}
    heap = [(loads[member], place) for place, member in enumerate(members)]
    heapq.heapify(heap)
    for number in range(count):
        if number not in held:
            load, place = heap[0]
            heapq.heapreplace(heap, (load + 1, place))
            shares[members[place]].setdefault(topic, set()).add(number)
            loads[members[place]] = load + 1


def _balance(
    subscribers: Mapping[str, Sequence[str]],
    shares: _Shares,
    loads: dict[str, int],
    former: Mapping[str, Iterable[Partition]],
) -> None:
    """Move partitions along chains of members while the last of a chain has at least two fewer than the first."""
    held = {member: frozenset(partitions) for member, partitions in former.items()}
    exhausted: set[str] = set()
    while giver := max((member for member in loads if member not in exhausted), key=loads.__getitem__, default=None):
        chain = _chain(giver, subscribers, shares, loads)
        exhausted = set() if chain else exhausted | {giver}
        for source, topic, target in chain:
            own = held.get(source, frozenset())
            number = max(shares[source][topic], key=lambda number: ((topic, number) not in own, number))
            shares[source][topic].remove(number)
            shares[target].setdefault(topic, set()).add(number)
            loads[source] -= 1
            loads[target] += 1


def _chain(
    giver: str, subscribers: Mapping[str, Sequence[str]], shares: _Shares, loads: Mapping[str, int]
) -> list[tuple[str, str, str]]:
    """The moves (source, topic, target) that take a partition from the giver to the member with the fewest that it can
    reach; none if that has not two fewer. Each member on the way passes on as many as it gets."""
    least = min(loads.values())
    reached: dict[str, tuple[str, str]] = {giver: ("", "")}
    queue, visited, receiver = [giver], set[str](), giver
    if loads[giver] - least < 2:
        return []
    for member in queue:
        for topic in sorted(topic for topic, numbers in shares[member].items() if numbers and topic not in visited):
            visited.add(topic)
            for other in subscribers[topic]:
                if other not in reached:
                    reached[other] = member, topic
                    queue.append(other)
                    receiver = min(receiver, other, key=loads.__getitem__)
        if loads[receiver] == least:
            break
    chain = []
    if loads[giver] - loads[receiver] >= 2:
        while receiver != giver:
            member, topic = reached[receiver]
            chain.append((member, topic, receiver))
            receiver = member
    return chain


def _assignment(shares: _Shares) -> dict[str, Partitions]:
    return {
        member: frozenset((topic, number) for topic, numbers in topics.items() for number in numbers)
        for member, topics in shares.items()
    }


def most_preferred(preferences: Iterable[str | None], default: str) -> str:
    """The assignor that most members prefer; the first by name among equals, and the default if no member has a
    preference."""
    votes = Counter(name for name in preferences if name is not None)
    return min(votes, key=lambda name: (-votes[name], name), default=default)
