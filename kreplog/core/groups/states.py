"""The states of a group as a table: for each, those it may be entered from.

    Empty                no members; it may have committed offsets              from PreparingRebalance
    PreparingRebalance   waits until its members have joined                    from Empty, CompletingRebalance, Stable
    CompletingRebalance  waits for the assignment from its leader               from PreparingRebalance
    Stable               every member has its assignment                        from CompletingRebalance
    Dead                 deleted, or its coordinator has moved                  from all others

Source: Kafka, GroupState; the classic protocol of KIP-848's terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class GroupState(StrEnum):
    """A state of the table above."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_ALIVE = frozenset(GroupState) - {GroupState.DEAD}

GROUP_TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: _ALIVE,
}
"""State entered -> states it may be entered from."""


def table() -> str:
    """The table as text, one state a line."""
    return "\n".join(f"{new:<20} from {', '.join(sorted(old))}" for new, old in GROUP_TRANSITIONS.items())
