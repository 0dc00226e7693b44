"""The two state machines as tables: for each state of a replica and of a partition, those it may be entered from.

A replica, which is one broker's copy of one partition:

    NewReplica                  just assigned, online at its next step      from Non
    OnlineReplica               its broker is registered and hosts it       from New, Online, Offline, Ineligible
    OfflineReplica              broker or disk failed, or stopped           from New, Online, Offline, Ineligible
    ReplicaDeletionStarted      StopReplica with delete was sent            from Offline
    ReplicaDeletionSuccessful   its broker has deleted it                   from Started
    ReplicaDeletionIneligible   cannot be deleted before its broker returns from Offline, Started
    NonExistentReplica          no longer assigned                          from Successful

A partition:

    NonExistentPartition        not created yet, or deleted                 from Offline
    NewPartition                assigned, without a leader so far           from Non
    OnlinePartition             has a leader that is online                 from New, Online, Offline
    OfflinePartition            had a leader; no replica can lead it now    from New, Online, Offline

Source: the replica state machine study, and Kafka's ReplicaState and PartitionState.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ReplicaStatus(StrEnum):
    """A state of the table above."""

    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"
    NON_EXISTENT = "NonExistentReplica"


class PartitionStatus(StrEnum):
    """A state of the table above."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


_ALIVE = {ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE}
_KNOWN = {PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}

REPLICA_TRANSITIONS: Mapping[ReplicaStatus, frozenset[ReplicaStatus]] = {
    ReplicaStatus.NEW: frozenset({ReplicaStatus.NON_EXISTENT}),
    ReplicaStatus.ONLINE: frozenset(_ALIVE),
    ReplicaStatus.OFFLINE: frozenset(_ALIVE),
    ReplicaStatus.DELETION_STARTED: frozenset({ReplicaStatus.OFFLINE}),
    ReplicaStatus.DELETION_SUCCESSFUL: frozenset({ReplicaStatus.DELETION_STARTED}),
    ReplicaStatus.DELETION_INELIGIBLE: frozenset({ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED}),
    ReplicaStatus.NON_EXISTENT: frozenset({ReplicaStatus.DELETION_SUCCESSFUL}),
}
"""State entered -> states it may be entered from."""

PARTITION_TRANSITIONS: Mapping[PartitionStatus, frozenset[PartitionStatus]] = {
    PartitionStatus.NEW: frozenset({PartitionStatus.NON_EXISTENT}),
    PartitionStatus.ONLINE: frozenset(_KNOWN),
    PartitionStatus.OFFLINE: frozenset(_KNOWN),
    PartitionStatus.NON_EXISTENT: frozenset({PartitionStatus.OFFLINE}),
}
"""State entered -> states it may be entered from."""


def table() -> str:
    """Both tables as text, one state a line."""
    rows: list[tuple[str, list[str]]] = []
    rows += [(str(new), sorted(map(str, old))) for new, old in REPLICA_TRANSITIONS.items()]
    rows += [(str(new), sorted(map(str, old))) for new, old in PARTITION_TRANSITIONS.items()]
    return "\n".join(f"{new:<26} from {', '.join(old)}" for new, old in rows)
