"""Degraded partitions of a cluster, by its metadata: the rule of `kreplog cluster status` and of the console."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kreplog.types import NO_LEADER

EXAMPLES = 3
"""Partitions that a line names at most."""


def degraded_partitions(topics: Iterable[Any]) -> list[str]:
    """A line for each kind of degraded partitions, with examples; [] for none. topics: of a Metadata response."""
    leaderless, under_replicated = [], []
    for topic in sorted(topics, key=lambda topic: (bool(topic.is_internal), str(topic.name))):  # users' own first
        for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index)):
            name = f"{topic.name}-{partition.partition_index}"
            if partition.leader_id == NO_LEADER:
                leaderless.append(name)
            elif not set(partition.replica_nodes) <= set(partition.isr_nodes):
                under_replicated.append(name)
    kinds = ((leaderless, "without a leader"), (under_replicated, "under-replicated"))
    return [_line(names, kind) for names, kind in kinds if names]


def _line(names: list[str], kind: str) -> str:
    examples = ", ".join(names[:EXAMPLES]) + (", ..." if len(names) > EXAMPLES else "")
    count = "1 partition is" if len(names) == 1 else f"{len(names):,} partitions are"
    return f"{count} {kind}: {examples}"
