"""Metrics of the groups that a broker coordinates, under the names of Kafka's GroupMetadataManager and
GroupCoordinatorMetrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.groups.states import GroupState

MAX_GROUPS = 1000
"""Groups that are read in one iteration of the event loop."""

Metric = tuple[str, str, str, int]
"""Name, kind, help and value."""


async def group_metrics(coordinator: GroupCoordinator) -> Iterator[Metric]:
    states: Counter[GroupState] = Counter()
    offsets = 0
    for shard in list(coordinator.shards.values()):
        groups = list(shard.groups.values())
        for index in range(0, len(groups), MAX_GROUPS):
            for group in groups[index : index + MAX_GROUPS]:
                states[group.state] += 1
                offsets += len(group.offsets)
            await asyncio.sleep(0)
    loading = sum(not shard.active for shard in coordinator.shards.values())
    return _metrics(coordinator, states, offsets, loading)


def _metrics(
    coordinator: GroupCoordinator, states: Counter[GroupState], offsets: int, loading: int
) -> Iterator[Metric]:
    name, totals = "kafka_coordinator_group_groupmetadatamanager", coordinator.totals
    yield f"{name}_numgroups", "gauge", "Groups that this broker coordinates.", states.total()
    yield f"{name}_numoffsets", "gauge", "Committed offsets of these groups.", offsets
    for state in (
        GroupState.EMPTY,
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
        GroupState.DEAD,
    ):
        yield f"{name}_numgroups{state.lower()}", "gauge", f"Of the groups, those in state {state}.", states[state]
    yield f"{name}_numpartitionsloading", "gauge", "Partitions whose groups are being loaded.", loading
    name = "kafka_server_group_coordinator_metrics"
    yield f"{name}_offset_commit_count_total", "counter", "Offsets committed.", totals.commits
    yield f"{name}_offset_expiration_count_total", "counter", "Offsets removed by retention.", totals.expirations
    yield f"{name}_offset_deletion_count_total", "counter", "Offsets deleted, also with topics.", totals.deletions
    yield f"{name}_group_completed_rebalance_count_total", "counter", "Generations assigned.", totals.rebalances
