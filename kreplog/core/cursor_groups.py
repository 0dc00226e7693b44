"""Which partitions of a topic a member of a cursor group reads: decided by each member for itself, from who is alive.

Members are numbered; one that joins takes the number after the highest. Ordered by number, the first `partitions %
members` have a quota of one more than the others. So quotas add up to all partitions; the death of a member lowers no
other quota, and a new member raises none: no partition moves but those of the dead and those that the new one gets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Balance(NamedTuple):
    """The changes that balance a member. surplus: owned partitions to give up. wanted: number of free ones to take."""

    surplus: tuple[int, ...]
    wanted: int


def next_member(members: Collection[int]) -> int:
    """The number of a member that joins these."""
    return max(members, default=-1) + 1


def quota_of(member: int, members: Collection[int], partitions: int) -> int:
    """The number of partitions that the member owns once all of `members`, itself among them, have balanced."""
    least, rest = divmod(partitions, len(members))
    rank = sum(other < member for other in members)
    return least + (rank < rest)


def balance(member: int, members: Collection[int], owned: Sequence[int], partitions: int) -> Balance:
    """Partitions that a member releases, and how many it lacks.

    owned: the member's partitions, the longest owned first, which stay."""
    quota = quota_of(member, members, partitions)
    return Balance(tuple(owned[quota:]), max(0, quota - len(owned)))
