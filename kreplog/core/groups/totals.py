"""GroupTotals: what a coordinator has done since its process started, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupTotals:
    """Counters of a coordinator of groups. commits, expirations, deletions: committed offsets that were stored, that
    retention removed, and that were deleted by request or with their topics. rebalances: generations whose assignment
    is stored. consumer_rebalances: epochs that groups have begun whose coordinator assigns."""

    commits: int = 0
    expirations: int = 0
    deletions: int = 0
    rebalances: int = 0
    consumer_rebalances: int = 0
