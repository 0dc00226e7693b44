"""Rebalance plan of a running cluster: the fewest moves that balance it, or that take all replicas off some brokers,
with the bytes that each would copy.

kreplog.core.controller.rebalance makes the plan. The bytes of a move are those of the partition's leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.reassignment import OngoingReassignment, leader_sizes, ongoing_reassignments, partitions_in
from kreplog.core.controller.rebalance import drain, rebalance
from kreplog.errors import UsageError
from kreplog.types import TopicPartition


def racks_of_live_brokers(admin: AdminClient) -> dict[int, str | None]:
    """The racks of the brokers in the cluster's metadata, by id; None for a broker without a rack. Raises
    UnreachableError."""
    return {broker.node_id: broker.rack for broker in admin.metadata(()).brokers}


def plan_rebalance(
    admin: AdminClient, racks: Mapping[int, str | None], leaving: Collection[int] = ()
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[str, Any]]:
    """New replicas of the partitions that have to change, and the plan as JSON; ongoing moves count as done.

    racks: of every broker that may have replicas, by id. leaving: those that are to have none; only what they have
    moves then. Raises UnreachableError, TopicRequestError; UsageError for replicas on brokers outside `racks`, and
    InvalidReplicationFactorError where fewer brokers stay than a partition has replicas.
    """
    partitions, ongoing = _consistent_snapshot(admin)
    assignment: dict[TopicPartition, tuple[int, ...]] = {
        partition: tuple(metadata.replica_nodes) for partition, metadata in partitions.items() if metadata.replica_nodes
    }
    for partition, state in ongoing.items():
        assignment[partition] = tuple(broker for broker in state.replicas if broker not in state.removing)
    if unknown := {broker for replicas in assignment.values() for broker in replicas}.difference(racks):
        raise UsageError(
            f"brokers {sorted(unknown)} have replicas and are not running: start them, or move their replicas to the "
            "others with `kreplog cluster drain`"
        )
    plan = drain(assignment, racks, leaving) if leaving else rebalance(assignment, racks)
    if ongoing:  # the final order of their replicas is not known yet
        reordered = [
            partition for partition, replicas in plan.changed.items() if set(replicas) == set(assignment[partition])
        ]
        for partition in reordered:
            del plan.changed[partition]
    sizes = leader_sizes(admin, {move.partition: partitions[move.partition] for move in plan.moves})
    moves = [
        {
            "topic": move.partition.topic,
            "partition": move.partition.partition,
            "from": move.source,
            "to": move.target,
            "bytes": sizes.get(move.partition),
        }
        for move in plan.moves
    ]
    return plan.changed, {
        "moves": moves,
        "bytes": sum(sizes.get(move.partition, 0) for move in plan.moves),
        "moving_already": len(ongoing),
        "brokers": [
            {
                "id": broker,
                "replicas": [plan.before[broker].replicas, plan.after[broker].replicas],
                "preferred_leaders": [plan.before[broker].leaders, plan.after[broker].leaders],
            }
            for broker in sorted(plan.after)
        ],
        "version": 1,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
            for partition, replicas in sorted(plan.changed.items())
        ],
    }


def _consistent_snapshot(
    admin: AdminClient,
) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, OngoingReassignment]]:
    """Metadata of all partitions and the ongoing reassignments, read until nothing changed in between: a move that ends
    between the two requests would show old replicas beside new ones without being ongoing."""
    ongoing = ongoing_reassignments(admin)
    while True:
        partitions = partitions_in(admin.metadata())
        before, ongoing = ongoing, ongoing_reassignments(admin)
        if ongoing == before:
            return partitions, ongoing
