"""Rebalance plans for added or leaving brokers: the fewest moves that restore balance, computed before any move.

A plan lists the changes; `reassignment` carries them out. Assignments map partitions to their brokers, preferred leader
first; brokers map ids to racks, or to None. The same input gives the same plan, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kreplog.core.controller.assignment import check_replicas
from kreplog.core.controller.layout import Layout, level, level_leaders, level_successors
from kreplog.errors import InvalidReplicationFactorError, UsageError
from kreplog.types import TopicPartition

ClusterAssignment = Mapping[TopicPartition, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Move:
    """One replica to copy: `target` takes the place of `source`."""

    partition: TopicPartition
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a broker: its replicas, and how many of them are preferred leaders."""

    replicas: int
    leaders: int


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The changes of a rebalance, none of them carried out.

    changed: the new replicas of every partition that changes; a change of their order only moves no data.
    moves: the replicas to copy, by partition. before, after: the load of every broker concerned.
    """

    changed: dict[TopicPartition, tuple[int, ...]]
    moves: tuple[Move, ...]
    before: dict[int, Load]
    after: dict[int, Load]


def add_brokers(
    assignment: ClusterAssignment, brokers: Mapping[int, str | None], new: Mapping[int, str | None]
) -> RebalancePlan:
    """Rebalance onto `brokers` and `new` together.

    Raises UsageError when a new broker is among `brokers`, and as `rebalance` does.
    Source: "Kafka Replication" of Kafka's wiki, "Incrementally add brokers online".
    """
    known = sorted(set(brokers) & set(new))
    if known:
        raise UsageError(f"brokers {known} are in the cluster already: name new ones only, or rebalance")
    return rebalance(assignment, {**brokers, **new})


def rebalance(assignment: ClusterAssignment, brokers: Mapping[int, str | None]) -> RebalancePlan:
    """Restore balance over `brokers` with few moves.

    Afterwards every partition is in as many racks as possible; replicas per broker are within 1 of each other, or as
    near to that as racks allow; preferred leaders are as even as that allows, and so are second replicas.
    Without racks no plan with that balance has fewer moves: for T replicas on n brokers, the larger of the excess over
    ceil(T / n) and the deficit to floor(T / n), over all brokers. With racks it may take more, by chains of moves.

    Raises InvalidReplicaAssignmentError for an invalid assignment, or a replica on a broker outside `brokers` (drain
    that
    broker, or give all registered brokers).
    """
    partitions = _in_turn(assignment)
    for partition in partitions:
        check_replicas(partition, assignment[partition], brokers)
    layout = Layout(brokers, (assignment[partition] for partition in partitions))
    for item in range(len(partitions)):
        _spread_over_racks(layout, item)
    level(layout.held, layout.options, layout.move, layout.fair())
    return _plan(assignment, partitions, layout, brokers)


def drain(assignment: ClusterAssignment, brokers: Mapping[int, str | None], leaving: Collection[int]) -> RebalancePlan:
    """Move every replica off the brokers in `leaving`, each once and no others, so that the remaining brokers are
    balanced.

    brokers: all, the leaving ones included. Raises InvalidReplicationFactorError when a partition has more replicas
    than brokers stay, and InvalidReplicaAssignmentError as `rebalance` does.
    """
    staying = {broker: rack for broker, rack in brokers.items() if broker not in leaving}
    partitions = _in_turn(assignment)
    for partition in partitions:
        check_replicas(partition, assignment[partition], brokers)
        if len(assignment[partition]) > len(staying):
            raise InvalidReplicationFactorError(
                f"{partition} has {len(assignment[partition])} replicas and only {len(staying)} brokers stay: "
                "add brokers first, or let fewer leave",
                partition=str(partition),
            )
    layout = Layout(staying, (assignment[partition] for partition in partitions))
    moved = set()
    for item, partition in enumerate(partitions):
        for source in assignment[partition]:
            if source in leaving:
                target = min(layout.options(item, source, staying), key=lambda broker: len(layout.held[broker]))
                layout.move(item, source, target)
                moved.add((item, target))

    def options(item: int, source: int, among: Iterable[int]) -> list[int]:
        return layout.options(item, source, among) if (item, source) in moved else []

    def move(item: int, source: int, target: int) -> None:
        layout.move(item, source, target)
        moved.remove((item, source))
        moved.add((item, target))

    level(layout.held, options, move, layout.fair())
    return _plan(assignment, partitions, layout, brokers)


def _in_turn(assignment: ClusterAssignment) -> list[TopicPartition]:
    """Topics in turn: the last partitions move first, so that each topic gives up its share and not one topic all of
    it."""
    return sorted(assignment, key=lambda partition: (partition.partition, partition.topic))


def _spread_over_racks(layout: Layout, item: int) -> None:
    """Move replicas out of racks that have several, until the partition is in as many racks as possible."""
    replicas, racks = layout.replicas[item], layout.racks
    for _ in range(min(len(replicas), layout.rack_count) - len({racks[broker] for broker in replicas})):
        counts = Counter(racks[broker] for broker in replicas)
        crowded = [broker for broker in replicas if counts[racks[broker]] > 1]
        source = max(crowded, key=lambda broker: len(layout.held[broker]))
        target = min(layout.options(item, source, layout.held), key=lambda broker: len(layout.held[broker]))
        layout.move(item, source, target)


def _plan(
    assignment: ClusterAssignment, partitions: list[TopicPartition], layout: Layout, brokers: Mapping[int, str | None]
) -> RebalancePlan:
    level_leaders(layout)
    level_successors(layout)
    changed = {}
    moves = []
    for partition, replicas in zip(partitions, map(tuple, layout.replicas), strict=True):
        before = assignment[partition]
        if replicas != before:
            changed[partition] = replicas
            sources = [broker for broker in before if broker not in replicas]
            targets = [broker for broker in replicas if broker not in before]
            moves += [Move(partition, *pair) for pair in zip(sources, targets, strict=True)]
    after = {**assignment, **changed}
    return RebalancePlan(changed, tuple(moves), _loads(assignment, brokers), _loads(after, brokers))


def _loads(assignment: ClusterAssignment, brokers: Iterable[int]) -> dict[int, Load]:
    replicas = Counter(broker for partition in assignment.values() for broker in partition)
    leaders = Counter(partition[0] for partition in assignment.values())
    return {broker: Load(replicas[broker], leaders[broker]) for broker in sorted(brokers)}
