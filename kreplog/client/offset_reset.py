"""OffsetResetPlan: where a group is to continue in each partition, computed from where its partitions begin and end.

The plan changes nothing: group_offsets.py commits it. Source: Kafka, kafka-consumer-groups --reset-offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.group_admin import DEAD, CommittedOffset, describe_group
from kreplog.client.offset_lookup import list_offsets
from kreplog.core.messages import EARLIEST, LATEST
from kreplog.errors import UsageError
from kreplog.types import TopicPartition, counted


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where to: exactly one is set. timestamp: EARLIEST, LATEST, or milliseconds since 1970, for the first record that
    is as late, the end without one. shift: records forward, or back where negative."""

    timestamp: int | None = None
    offset: int | None = None
    shift: int | None = None

    @classmethod
    def earliest(cls) -> ResetTarget:
        return cls(timestamp=EARLIEST)

    @classmethod
    def latest(cls) -> ResetTarget:
        return cls(timestamp=LATEST)


class PartitionReset(NamedTuple):
    """The change of a committed offset that a plan proposes for one partition. committed: the present offset, None
    without one. offset: the new one. wanted: what was requested, where that is outside of the log and `offset` is its
    nearest end; else None."""

    committed: int | None
    offset: int
    wanted: int | None


def require_resettable(cluster: ClusterConnections, group: str, deadline: float) -> None:
    """Raises UsageError for a group that has members, and as describe_group."""
    described = describe_group(cluster, group, deadline)
    if described.members or described.state not in ("Empty", DEAD):
        raise UsageError(
            f"group {group} is {described.state} with {counted(len(described.members), 'member')}: offsets can be "
            "reset while it has none; stop its consumers first"
        )


def plan_reset(
    cluster: ClusterConnections,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    target: ResetTarget,
    deadline: float,
) -> dict[TopicPartition, PartitionReset]:
    """The reset of each partition. Raises UsageError for a shift without a committed offset, and as list_offsets."""
    for at in partitions:
        if target.shift is not None and at not in committed:
            raise UsageError(f"{at}: the group has no committed offset there to shift")
    wanted: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    if target.timestamp is not None:
        found = list_offsets(cluster, partitions, target.timestamp, deadline)
        wanted = {at: None if (result := found[at]) is None else result.offset for at in partitions}
    starts = list_offsets(cluster, partitions, EARLIEST, deadline)
    ends = list_offsets(cluster, partitions, LATEST, deadline)
    resets: dict[TopicPartition, PartitionReset] = {}
    for at in partitions:
        start, end = starts[at], ends[at]
        low, high = 0 if start is None else start.offset, 0 if end is None else end.offset
        before = committed[at].offset if at in committed else None
        offset = _wanted(target, before, wanted[at], high)
        inside = min(max(offset, low), max(low, high))
        resets[at] = PartitionReset(before, inside, None if offset == inside else offset)
    return resets


def _wanted(target: ResetTarget, committed: int | None, found: int | None, end: int) -> int:
    if target.offset is not None:
        return target.offset
    if target.shift is not None:
        return (committed or 0) + target.shift
    return end if found is None else found
