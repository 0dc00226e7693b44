"""New partitions that administrators request: how many are allowed, on which brokers, and where their replicas go.

A broker that has a request decides this by its own metadata; what it writes, the controller carries out. The limits of
the cluster and of each broker are in partition_limits. Source: Kafka, ZkAdminManager; KIP-464.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kreplog.core.controller import assignment
from kreplog.core.messages import PartitionState
from kreplog.core.nodes import TopicNode
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, UsageError
from kreplog.types import NO_LEADER, BrokerRegistration

MAX_NEW_PARTITIONS = 10_000
"""Maximum of new partitions of a request, as in Kafka: a mistyped number would block the broker, then the cluster."""

BROKER_DEFAULT = -1
"""The number of partitions, or the replication factor, of a request that leaves it to the broker (KIP-464)."""

MAX_DEFAULT_REPLICATION_FACTOR = 3
"""As many replicas has a topic by default, if there are as many brokers."""

Replicas = dict[int, tuple[int, ...]]
"""The replicas of each partition by its number, the preferred leader first."""


def assignable(brokers: Mapping[int, BrokerRegistration]) -> dict[int, BrokerRegistration]:
    """The brokers that may get new replicas: those that are not about to stop."""
    return {broker.id: broker for broker in brokers.values() if not broker.stopping}


def check_number(partitions: int) -> None:
    """Raise InvalidPartitionsError for more new partitions than a request may have."""
    if partitions > MAX_NEW_PARTITIONS:
        raise InvalidPartitionsError(
            f"{partitions:,} new partitions: at most {MAX_NEW_PARTITIONS:,} are allowed in a request"
        )


def check_keeps_partitions(topic: str, existing: int | None = None) -> None:
    """Raise InvalidPartitionsError for an internal topic, whose number of partitions, `existing` if known, stays."""
    if topic in INTERNAL_TOPICS:
        number = "" if existing is None else f"{existing} "
        raise InvalidPartitionsError(
            f"{topic} is internal and keeps its {number}partitions: with another number groups and transactions would "
            "lose the partition that has their state",
            existing=existing,
        )


def number_of_partitions(requested: int, default: int) -> int:
    """The number of partitions of a new topic. default: num.partitions of the broker."""
    return default if requested == BROKER_DEFAULT else requested


def replication_factor(requested: int, default: int, brokers: int) -> int:
    """The number of replicas of each partition of a new topic. default: default.replication.factor, BROKER_DEFAULT for
    MAX_DEFAULT_REPLICATION_FACTOR or as many as there are `brokers`."""
    if requested != BROKER_DEFAULT:
        return requested
    return min(MAX_DEFAULT_REPLICATION_FACTOR, brokers) if default == BROKER_DEFAULT else default


def given_replicas(assignments: Iterable[tuple[int, Sequence[int]]], partitions: int, factor: int) -> Replicas:
    """The replicas that a request to create a topic gives, of each partition; none: they are to be placed. partitions,
    factor: BROKER_DEFAULT where they are given. Raises UsageError (they are not), InvalidReplicaAssignmentError (a
    partition twice)."""
    given: Replicas = {}
    for number, replicas in assignments:
        if number in given:
            raise InvalidReplicaAssignmentError(f"partition {number} is assigned twice")
        given[number] = tuple(replicas)
    if given and (partitions, factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
        raise UsageError(
            f"a number of partitions ({partitions}) and a replication factor ({factor}) beside assignments: give "
            f"{BROKER_DEFAULT} for both, since the assignments decide"
        )
    return given


def topic_replicas(
    given: Mapping[int, Sequence[int]],
    partitions: int,
    factor: int,
    brokers: Mapping[int, BrokerRegistration],
    existing: int = 0,
) -> Replicas:
    """The replicas of the partitions of a new topic.

    given: those of each partition, which then decide how many there are; none: they are placed, `factor` of each of
    `partitions`. brokers: the assignable ones. existing: partitions of all topics, so that topics begin at different
    brokers. Raises InvalidPartitionsError, InvalidReplicationFactorError: fewer than 1, or more replicas than brokers.
    """
    if given:
        return {number: tuple(replicas) for number, replicas in given.items()}
    return assignment.assign(racks(brokers), partitions, factor, start=existing)


def added_partitions(
    name: str,
    current: TopicNode,
    count: int,
    given: Sequence[Sequence[int]],
    brokers: Mapping[int, BrokerRegistration],
) -> Replicas:
    """The replicas of the partitions that a topic is given, so that it has `count`.

    given: those of each new partition in order; none: they are placed, as many as the first partition has.
    brokers: the assignable ones. Raises InvalidPartitionsError (an internal topic, no greater number, or too many),
    InvalidReplicaAssignmentError (not as many as new partitions), InvalidReplicationFactorError.
    """
    first = max(current.partitions) + 1
    check_keeps_partitions(name, first)
    if count <= first:
        raise InvalidPartitionsError(
            f"topic {name} has {first} partitions already: give a greater number", existing=first
        )
    check_number(count - first)
    if given:
        if len(given) != count - first:
            raise InvalidReplicaAssignmentError(f"{len(given)} assignments for {count - first} partitions")
        return {number: tuple(replicas) for number, replicas in enumerate(given, first)}
    existing = {number: partition.target for number, partition in current.partitions.items()}
    return assignment.assign(racks(brokers), count - first, len(existing[min(existing)]), first, existing=existing)


def racks(brokers: Mapping[int, BrokerRegistration]) -> dict[int, str | None]:
    """The rack of each broker."""
    return {broker.id: broker.rack for broker in brokers.values()}


def are_led(partitions: Collection[PartitionState], count: int) -> bool:
    """Whether the controller has carried out a request for so many partitions of a topic. partitions: those that the
    broker's metadata have. The simulator does not run this rule: its operators do not wait."""
    return len(partitions) >= count and all(state.state.leader != NO_LEADER for state in partitions)
