"""Assignments of consumer groups: as they are stored and sent, as sets of partitions, and since when a member has each.

A member may commit for a partition in an earlier epoch than its own, too, if it has had the partition since that epoch:
nobody else can have committed meanwhile. So each partition has an assignment epoch: that of the target assignment by
which the member got it. After a revocation it is another, also where the same member gets the partition again.
Source: KIP-1251.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kreplog.core.consumer_group_messages import Assignment, CurrentAssignment, MemberState, TopicIdPartitions
from kreplog.core.groups.assignors import Partition, Partitions

NOTHING: Partitions = frozenset()

NEW = CurrentAssignment(0, -1, MemberState.STABLE, (), (), ())
"""Of a member that has just joined."""


def to_assignment(partitions: Iterable[Partition]) -> Assignment:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return tuple(TopicIdPartitions(topic, tuple(numbers)) for topic, numbers in topics.items())


def to_partitions(assignment: Assignment) -> Partitions:
    return frozenset((topic, number) for topic, numbers in assignment for number in numbers)


def held(current: CurrentAssignment) -> Iterator[tuple[Partition, int]]:
    """The partitions that a member may own, or has yet to revoke, each with its assignment epoch."""
    return _each((*current.assigned, *current.pending_revocation), current.assignment_epochs)


def assigned_since(current: CurrentAssignment) -> dict[Partition, int]:
    """The assignment epochs of the partitions that a member may own."""
    return dict(_each(current.assigned, current.assignment_epochs[: len(current.assigned)]))


def _each(assignment: Assignment, assignment_epochs: tuple[tuple[int, ...], ...]) -> Iterator[tuple[Partition, int]]:
    for (topic, numbers), epochs in zip(assignment, assignment_epochs, strict=True):
        for number, epoch in zip(numbers, epochs, strict=True):
            yield (topic, number), epoch


def current_assignment(
    epochs: tuple[int, int],
    state: MemberState,
    assigned: Partitions,
    pending_revocation: Partitions,
    since: Mapping[Partition, int],
    epoch: int,
) -> CurrentAssignment:
    """A member's assignment. epochs: its own and the previous one. since: assignment epochs of partitions that it has
    had already; epoch: that of the others."""
    stored = to_assignment(assigned), to_assignment(pending_revocation)
    assignment_epochs = tuple(
        tuple(since.get((topic, number), epoch) for number in numbers) for topic, numbers in (*stored[0], *stored[1])
    )
    return CurrentAssignment(*epochs, state, *stored, assignment_epochs)


def retained(current: CurrentAssignment, epochs: tuple[int, int], partitions: Partitions) -> CurrentAssignment:
    """The assignment of a static member that leaves or returns: what it was assigned of these partitions has waited for
    it. Kafka has their assignment epochs begin at 0: one with the same member id could then commit as long ago."""
    since = assigned_since(current)
    return current_assignment(
        epochs, MemberState.STABLE, partitions & since.keys(), NOTHING, since, current.member_epoch
    )
