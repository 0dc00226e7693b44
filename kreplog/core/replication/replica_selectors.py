"""Which replica a consumer fetches from: the rules of KIP-392, as functions of values.

A leader sends a consumer in another rack to a replica in its own; replica.selector.class says whether it does. Source:
Kafka, ReplicaManager.findPreferredReadReplica and RackAwareReplicaSelector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from kreplog.core.replication.isr import UNKNOWN_OFFSET, RemoteReplica


class ReplicaView(NamedTuple):
    """A replica that can serve a fetch. leo: its log end. lag_ms: since it last had everything that the leader had."""

    broker_id: int
    rack: str | None
    leo: int
    lag_ms: int


def can_serve(replica: RemoteReplica, isr: Collection[int], offset: int) -> bool:
    """Whether a consumer can fetch from `offset` there: the replica is in sync, and its log begins at the offset or
    before, and ends at it or behind."""
    known = replica.broker_id in isr and replica.log_start != UNKNOWN_OFFSET
    return known and replica.log_start <= offset <= replica.leo


def rack_aware(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int:
    """The broker to fetch from: the leader if it is in `rack` or no other is; else the follower there that is most
    caught up."""
    in_rack = [replica for replica in followers if replica.rack == rack]
    if leader.rack == rack or not in_rack:
        return leader.broker_id
    return max(in_rack, key=lambda replica: (replica.leo, -replica.lag_ms, replica.broker_id)).broker_id
