"""Distances of followers from their leader, so that any two brokers share about as many partitions as any other two.

Brokers stand in rings, one for each rack, and brokers without racks in rings of one. A distance is (racks, places):
how many racks further, and how many places further within that rack. In a round every broker leads once, and all have
their followers at the same distances; so what two brokers share depends on the distance between them alone, and is even
once every distance between two replicas has been used as often as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

Distance = tuple[int, int]

ROUNDS = 1024
"""Rounds until the distances repeat: more partitions than a topic has."""


class FollowerDistances:
    """The distances of each round, for one number of followers. racks, places: how many there are of each.

    followers: fewer than racks, so that each is in another rack. Rounds are chosen one after the other: the distances
    from the leader that are used least, and of those the ones at which the distances between all replicas stay the most
    even. The first round takes the nearest. The same arguments give the same distances.
    """

    def __init__(self, racks: int, places: int, followers: int) -> None:
        self._racks = racks
        self._places = places
        self._followers = followers
        self._from_leader = {(rack, place): 0 for place in range(places) for rack in range(1, racks)}
        self._between = [[0] * places for _ in range(racks)]
        self._rounds: list[tuple[Distance, ...]] = []

    def of_round(self, number: int) -> Sequence[Distance]:
        """The distances of a round, 0 for the first, which lead to different racks."""
        while len(self._rounds) <= number % ROUNDS:
            self._rounds.append(self._next_round())
        return self._rounds[number % ROUNDS]

    def _next_round(self) -> tuple[Distance, ...]:
        chosen: list[Distance] = [(0, 0)]
        for _ in range(self._followers):
            taken = {rack for rack, _ in chosen}
            free = [distance for distance in self._from_leader if distance[0] not in taken]
            least = min(self._from_leader[distance] for distance in free)
            among = [distance for distance in free if self._from_leader[distance] == least]
            best = min(among, key=lambda distance: self._cost(distance, chosen)) if self._rounds else among[0]
            self._count(best, chosen, 1)
            self._from_leader[best] += 1
            chosen.append(best)
        return tuple(chosen[1:])

    def _cost(self, distance: Distance, chosen: Sequence[Distance]) -> int:
        """By how much the sum of the squares of `_between` would grow."""
        cost = self._count(distance, chosen, 1)
        self._count(distance, chosen, -1)
        return cost

    def _count(self, distance: Distance, chosen: Sequence[Distance], times: int) -> int:
        """Count a replica's distances to and from the others; by how much the sum of squares grows."""
        growth = 0
        rack, place = distance
        for other_rack, other_place in chosen:
            between = rack - other_rack, place - other_place
            for further, along in (between, (-between[0], -between[1])):
                growth += 2 * times * self._between[further][along] + 1
                self._between[further][along] += times
        return growth


@lru_cache(maxsize=256)
def follower_distances(racks: int, places: int, followers: int) -> FollowerDistances:
    """The distances for clusters of that many racks, of at most that many brokers each."""
    return FollowerDistances(racks, places, followers)
