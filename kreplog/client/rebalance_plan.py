"""Which replicas to move for an even cluster: core.controller.rebalance's plan, over what the brokers say now.

The bytes of a move are those of the partition's leader.
"""

from __future__ import annotations

from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.reassignment import UnderWay, assignment, leader_sizes, under_way
from kreplog.core.controller.rebalance import rebalance
from kreplog.types import TopicPartition


def plan_rebalance(
    admin: AdminClient, racks: dict[int, str | None]
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[str, Any]]:
    """New replicas of the partitions that have to change, and the plan as JSON; replicas that move already count as
    moved. racks: of every broker that may have replicas, by id. Raises UnreachableError, TopicRequestError.
    """
    there, moving = _as_of_one_moment(admin)
    now: dict[TopicPartition, tuple[int, ...]] = {
        one: tuple(partition.replica_nodes) for one, partition in there.items() if partition.replica_nodes
    }
    for one, state in moving.items():
        now[one] = tuple(broker for broker in state.replicas if broker not in state.removing)
    plan = rebalance(now, racks)
    if moving:  # the order of their replicas is not known yet
        for one in [one for one, replicas in plan.changed.items() if set(replicas) == set(now[one])]:
            del plan.changed[one]
    sizes = leader_sizes(admin, {move.partition: there[move.partition] for move in plan.moves})
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
        "moving_already": len(moving),
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
            {"topic": one.topic, "partition": one.partition, "replicas": list(replicas)}
            for one, replicas in sorted(plan.changed.items())
        ],
    }


def _as_of_one_moment(
    admin: AdminClient,
) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, UnderWay]]:
    """The metadata of all partitions, and what moves. A move that ended between the two questions would leave one with
    its old replicas beside its new ones, as if it were to keep both."""
    moving = under_way(admin)
    while True:
        there = assignment(admin.metadata())
        before, moving = moving, under_way(admin)
        if moving == before:
            return there, moving
