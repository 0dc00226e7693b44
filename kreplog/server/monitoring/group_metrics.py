"""Metrics of the groups that a broker coordinates, under the names of Kafka's GroupMetadataManager and
GroupCoordinatorMetrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from kreplog.core.groups.consumer_group import ConsumerGroupState
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.groups.states import GroupState

MAX_GROUPS = 1000
"""Groups that are read in one iteration of the event loop."""

Metric = tuple[str, str, str, tuple[int | str, ...]]
"""Name, kind, help and samples: a number, or labels and a number as text."""


async def group_metrics(coordinator: GroupCoordinator) -> Iterator[Metric]:
    states: Counter[GroupState] = Counter()
    consumer_states: Counter[ConsumerGroupState] = Counter()
    offsets = 0
    for shard in list(coordinator.shards.values()):
        groups = list(shard.groups.values())
        for index in range(0, len(groups), MAX_GROUPS):
            for group in groups[index : index + MAX_GROUPS]:
                if group.consumer is None:
                    states[group.state] += 1
                else:
                    consumer_states[group.consumer.state] += 1
                offsets += len(group.offsets)
            await asyncio.sleep(0)
    loading = sum(not shard.active for shard in coordinator.shards.values())
    return _metrics(coordinator, states, consumer_states, offsets, loading)


def _metrics(
    coordinator: GroupCoordinator,
    states: Counter[GroupState],
    consumer_states: Counter[ConsumerGroupState],
    offsets: int,
    loading: int,
) -> Iterator[Metric]:
    name, totals = "kafka_coordinator_group_groupmetadatamanager", coordinator.totals
    help = "Groups of the classic protocol that this broker coordinates."
    yield f"{name}_numgroups", "gauge", help, (states.total(),)
    yield f"{name}_numoffsets", "gauge", "Committed offsets of all groups that it coordinates.", (offsets,)
    for state in (
        GroupState.EMPTY,
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
        GroupState.DEAD,
    ):
        help = f"Of the groups of the classic protocol, those in state {state}."
        yield f"{name}_numgroups{state.lower()}", "gauge", help, (states[state],)
    yield f"{name}_numpartitionsloading", "gauge", "Partitions whose groups are being loaded.", (loading,)
    name = "kafka_server_group_coordinator_metrics"
    counts = (f'{{protocol="classic"}} {states.total()}', f'{{protocol="consumer"}} {consumer_states.total()}')
    yield f"{name}_group_count", "gauge", "Groups that this broker coordinates, by protocol.", counts
    by_state = tuple(f'{{state="{state.lower()}"}} {consumer_states[state]}' for state in ConsumerGroupState)
    yield f"{name}_consumer_group_count", "gauge", "Groups whose coordinator assigns (KIP-848), by state.", by_state
    for kind, help, value in (
        ("offset_commit", "Offsets committed.", totals.commits),
        ("offset_expiration", "Offsets removed by retention.", totals.expirations),
        ("offset_deletion", "Offsets deleted, also with topics.", totals.deletions),
        ("group_completed_rebalance", "Generations assigned.", totals.rebalances),
        ("consumer_group_rebalance", "Epochs of groups whose coordinator assigns.", totals.consumer_rebalances),
    ):
        yield f"{name}_{kind}_count_total", "counter", help, (value,)
