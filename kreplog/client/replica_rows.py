"""Facts of each replica of a partition, for those who show topics: its state, offsets and lag."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kreplog.client.replica_states import ReplicaState
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition


def replica_rows(
    at: TopicPartition,
    leader_id: int,
    replicas: Sequence[int],
    isr: Collection[int],
    states: Mapping[int, Mapping[TopicPartition, ReplicaState]],
) -> list[dict[str, Any]]:
    """A dict for each replica, in the order of `replicas`; offsets are None where its broker does not report them.

    states: as replica_states returns them, by broker id."""
    leader = states.get(leader_id, {}).get(at)
    rows = []
    for broker in replicas:
        replica = states.get(broker, {}).get(at)
        offsets: dict[str, int | None] = dict.fromkeys(("log_start_offset", "log_end_offset", "high_watermark", "lag"))
        if replica is not None and replica.error is ErrorCode.NONE:
            offsets = {
                "log_start_offset": replica.log_start_offset,
                "log_end_offset": replica.log_end_offset,
                "high_watermark": replica.high_watermark,
                "lag": None,
            }
            if leader is not None and leader.error is ErrorCode.NONE:
                offsets["lag"] = max(0, leader.log_end_offset - replica.log_end_offset)
        state = _state(broker, leader_id, isr, replica, responds=broker in states)
        rows.append({"broker": broker, "state": state, **offsets})
    return rows


def _state(broker: int, leader_id: int, isr: Collection[int], replica: ReplicaState | None, *, responds: bool) -> str:
    if not responds:
        return "down"
    if replica is None or replica.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "missing"
    if replica.error is not ErrorCode.NONE:
        return "failed"
    if broker == leader_id:
        return "leader"
    return "in sync" if broker in isr else "lagging"
