"""Facts of a consumer group for those who show it: its members, its committed offsets, and its lag."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.group_admin import (
    DEAD,
    CommittedOffset,
    GroupDescription,
    committed_offsets,
    describe_group,
    owners,
)
from kreplog.client.offset_lookup import available_end_offsets
from kreplog.types import TopicPartition, counted


def read_group(connections: ClusterConnections, group: str, deadline: Callable[[], float]) -> dict[str, Any] | None:
    """The description of a group as JSON; None for one without members and offsets.

    deadline: of each of its requests. Raises as call_coordinator."""
    described = describe_group(connections, group, deadline())
    committed = committed_offsets(connections, group, deadline())
    if described.state == DEAD and not committed:
        return None
    partitions = sorted({*committed, *owners(described.members)})
    return group_facts(described, committed, partitions, available_end_offsets(connections, partitions, deadline()))


def group_facts(
    described: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    partitions: Sequence[TopicPartition],
    ends: Mapping[TopicPartition, int],
) -> dict[str, Any]:
    """The description of a group as JSON. ends: log ends of those of `partitions` that have a leader.

    lag: None where that of a partition is unknown, since it has no leader or is gone, or has records and no committed
    offset. known_lag: the sum over the others. lag_unknown: number of partitions whose lag is unknown."""
    owner = owners(described.members)
    offsets = []
    for at in partitions:
        offset, end = (committed[at].offset if at in committed else None), ends.get(at)
        lag = None if end is None or (offset is None and end) else max(0, end - (offset or 0))
        offsets.append(
            {
                "topic": at.topic,
                "partition": at.partition,
                "offset": offset,
                "log_end_offset": end,
                "lag": lag,
                "member_id": owner[at].member_id if at in owner else None,
                "metadata": committed[at].metadata if at in committed else None,
            }
        )
    known = [row["lag"] for row in offsets if row["lag"] is not None]
    unknown = len(offsets) - len(known)
    return {
        "group": described.group,
        "state": described.state,
        "type": described.type,
        "epoch": described.epoch,
        "assignment_epoch": described.assignment_epoch,
        "protocol_type": described.protocol_type,
        "protocol": described.protocol,
        "coordinator": "{}:{}".format(*described.coordinator),
        "members": [
            {
                **member._asdict(),
                "partitions": [str(at) for at in member.partitions],
                "target": None if member.target is None else [str(at) for at in member.target],
            }
            for member in described.members
        ],
        "offsets": offsets,
        "lag": None if unknown else sum(known),
        "known_lag": sum(known),
        "lag_unknown": unknown,
    }


def lag_text(known: int, unknown: int) -> str:
    """A lag in words. known: sum of the lags that are known. unknown: number of partitions whose lag is not."""
    return f"at least {known:,}, {counted(unknown, 'partition')} unknown" if unknown else f"{known:,}"
