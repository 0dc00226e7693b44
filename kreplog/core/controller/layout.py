"""Layout of replicas over brokers, and the balancing that topic creation and replica moves share.

`level` balances anything that brokers hold (replicas, leaderships, the place of the first follower) by shifting items
one at a time, and along chains where no single shift helps. It ends at the most even state that its options allow: the
options of a Layout, and of an order within a partition, are exchanges in a matroid, where a local optimum is global.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

Held = dict[int, dict[int, None]]
"""Items of each broker, in the order in which it got them."""

Options = Callable[[int, int, Iterable[int]], list[int]]
"""(item, the broker that holds it, brokers) -> the brokers of these that may hold it instead, the best first."""

Shift = Callable[[int, int, int], None]
"""(item, source, target): move it, in Held too."""


def racks_of(brokers: Mapping[int, str | None]) -> dict[int, str | int]:
    """The rack of each broker, by rising id; a broker without a rack counts as a rack of its own, named by its id."""
    return {broker: broker if (rack := brokers[broker]) is None else rack for broker in sorted(brokers)}


class Layout:
    """The replicas of partitions 0 to n - 1, preferred leader first, and which partitions each broker has.

    As a broker without a rack is a rack of its own, "different racks" means "different brokers" where racks are not
    configured. Replicas on brokers that are not given are ignored.
    """

    def __init__(self, brokers: Mapping[int, str | None], replicas: Iterable[Iterable[int]]) -> None:
        self.racks = racks_of(brokers)
        self.rack_count = len(set(self.racks.values()))
        self.replicas = [list(partition) for partition in replicas]
        self.held: Held = {broker: {} for broker in self.racks}
        for item, partition in enumerate(self.replicas):
            for broker in partition:
                if broker in self.held:
                    self.held[broker][item] = None

    def options(self, item: int, source: int, among: Iterable[int]) -> list[int]:
        """Brokers that may take the replica of `source`: without a replica already, and without loss of rack
        diversity."""
        replicas = self.replicas[item]
        others = {self.racks[b] for b in replicas if b != source and b in self.racks}
        wanted = min(len(replicas), self.rack_count)
        if len(others) < wanted:
            among = (b for b in among if self.racks[b] not in others)
        return [b for b in among if b not in replicas]

    def move(self, item: int, source: int, target: int) -> None:
        """Replace `source` by `target`."""
        replicas = self.replicas[item]
        replicas[replicas.index(source)] = target
        self.held[target][item] = None
        self.held.get(source, {}).pop(item, None)

    def fair(self) -> dict[int, int]:
        """The number of replicas that each broker should have: as even as racks allow, and near to what it has now.

        A rack that is small for its share gets at most one replica of each partition, and at least one where there are
        no more racks than replicas; the other racks share the rest. A hint only: `level` is correct without it.
        """
        sizes = Counter(map(len, self.replicas))
        members = Counter(self.racks.values())
        least = sum(count for rf, count in sizes.items() if rf >= self.rack_count)
        room = {
            rack: sum(
                n * (1 if rf <= self.rack_count else min(size, rf - self.rack_count + 1)) for rf, n in sizes.items()
            )
            for rack, size in members.items()
        }
        shares = dict.fromkeys(self.held, 0)
        for rack in members:
            self._deal(shares, least, room, [b for b in self.held if self.racks[b] == rack])
        self._deal(shares, sum(map(len, self.held.values())) - sum(shares.values()), room, self.held)
        return shares

    def _deal(self, shares: dict[int, int], count: int, room: dict[str | int, int], among: Iterable[int]) -> None:
        """Add `count` to the shares, always to the smallest; among equal ones to the broker that has the most now."""
        heap = [(shares[broker], -len(self.held[broker]), broker) for broker in among]
        heapq.heapify(heap)
        while count > 0 and heap:
            share, load, broker = heap[0]
            if room[self.racks[broker]] == 0 or share == len(self.replicas):
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (share + 1, load, broker))
            shares[broker] += 1
            room[self.racks[broker]] -= 1
            count -= 1


def level_leaders(layout: Layout) -> None:
    """Spread preferred leaders as evenly as the replicas allow, by reordering within partitions: no data moves."""
    replicas = layout.replicas
    held: Held = {broker: {} for broker in layout.held}
    for item, partition in enumerate(replicas):
        held[partition[0]][item] = None

    def options(item: int, source: int, among: Iterable[int]) -> list[int]:
        return [broker for broker in among if broker in replicas[item]]

    level(held, options, _swap_into(layout, held, 0))


def level_successors(layout: Layout, first: int = 0) -> None:
    """Spread the load of each broker, if it fails, over the others: balance the second replicas of what it leads.

    Only partitions from `first` on are reordered.
    """
    replicas = layout.replicas
    led: dict[int, list[int]] = {}
    for item, partition in enumerate(replicas):
        if len(partition) > 1:
            led.setdefault(partition[0], []).append(item)

    def options(item: int, source: int, among: Iterable[int]) -> list[int]:
        return [broker for broker in among if broker in replicas[item][1:]] if item >= first else []

    for items in led.values():
        held: Held = {broker: {} for item in items for broker in sorted(replicas[item][1:])}
        for item in items:
            held[replicas[item][1]][item] = None
        level(held, options, _swap_into(layout, held, 1))


def _swap_into(layout: Layout, held: Held, place: int) -> Shift:
    def shift(item: int, source: int, target: int) -> None:
        partition = layout.replicas[item]
        where = partition.index(target)
        partition[place], partition[where] = target, source
        del held[source][item]
        held[target][item] = None

    return shift


def level(held: Held, options: Options, shift: Shift, shares: Mapping[int, int] | None = None) -> None:
    """Balance how many items brokers hold, with few shifts; the latest items move first, each only once if possible.

    shares: what each should hold in the end, if possible; by default the same, within 1, the larger to those that hold
    more. First every shift that takes from a broker above its share to one below it: without obstacles these are
    the fewest possible. Then the shortest chains from the fullest broker to one that holds at least two less.
    """
    shares = _equal_shares(held) if shares is None else shares
    below = [broker for broker in sorted(held) if len(held[broker]) < shares[broker]]
    shifted: set[int] = set()
    for again in (False, True):
        for source in sorted(held, key=lambda broker: (shares[broker] - len(held[broker]), broker)):
            for item in list(reversed(held[source])):
                if not below or len(held[source]) <= shares[source]:
                    break
                targets = options(item, source, below) if again or item not in shifted else []
                if targets:
                    target = max(targets, key=lambda broker: shares[broker] - len(held[broker]))
                    shift(item, source, target)
                    shifted.add(item)
                    if len(held[target]) == shares[target]:
                        below.remove(target)
    _level_by_chains(held, options, shift)


def _equal_shares(held: Held) -> dict[int, int]:
    share, larger = divmod(sum(map(len, held.values())), max(len(held), 1))
    fullest = sorted(held, key=lambda broker: (-len(held[broker]), broker))
    return {broker: share + (place < larger) for place, broker in enumerate(fullest)}


def _level_by_chains(held: Held, options: Options, shift: Shift) -> None:
    """Shift along chains until no broker can pass an item to a broker that holds at least two less."""
    rest = sorted(held)
    while len(rest) > 1:
        source = max(rest, key=lambda broker: len(held[broker]))
        if len(held[source]) < min(len(held[broker]) for broker in rest) + 2:
            return
        chain, reached = _chain(held, options, source, rest)
        for item, giver, taker in chain:
            shift(item, giver, taker)
        if not chain:
            # None of these ever reaches a broker that holds much less: all that they reach is among them.
            rest = [broker for broker in rest if broker not in reached]


def _chain(
    held: Held, options: Options, source: int, among: Sequence[int]
) -> tuple[list[tuple[int, int, int]], Collection[int]]:
    """The shortest chain of shifts from `source` down, last link first, or none; and the brokers visited."""
    goal = len(held[source]) - 2
    unseen = sorted((broker for broker in among if broker != source), key=lambda broker: len(held[broker]))
    came: dict[int, tuple[int, int]] = {}
    seen = [source]
    for giver in seen:
        for item in reversed(held[giver]):
            for taker in options(item, giver, unseen):
                came[taker] = (item, giver)
                seen.append(taker)
                unseen.remove(taker)
                if len(held[taker]) <= goal:
                    chain = []
                    while taker != source:
                        item, giver = came[taker]
                        chain.append((item, giver, taker))
                        taker = giver
                    return chain, seen
            if not unseen:
                break
    return [], seen
