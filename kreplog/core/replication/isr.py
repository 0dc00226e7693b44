"""Which replicas are in sync, and what is committed: the rules, as functions of values.

RemoteReplica is what a leader knows of one follower. Nothing here changes anything but the RemoteReplica it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class RemoteReplica:
    """A follower as its leader sees it, in the leader's current epoch.

    leo: the offset of its last fetch in this epoch, so its log end, except that below the high watermark it may still
    have to append up to there (FollowerRole.pipelined_fetch_position); UNKNOWN_OFFSET before the first.
    last_caught_up_ms: when it last had everything that the leader had. last_fetch_ms, last_fetch_leader_leo: when it
    last fetched, and the leader's log end then. broker_epoch: of the registration that fetched. log_start: of its log,
    according to its last fetch.
    """

    broker_id: int
    leo: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = 0
    last_fetch_ms: int = 0
    last_fetch_leader_leo: int = 0
    broker_epoch: int = -1
    log_start: int = UNKNOWN_OFFSET


def high_watermark(
    current: int, local_end: int, local_id: int, maximal_isr: Collection[int], replicas: Mapping[int, RemoteReplica]
) -> int:
    """The smallest log end of the maximal ISR; never below `current`.

    local_end: the leader's own, up to where it counts. A member that has not fetched in this leader epoch holds the
    high watermark where it is. Source: KIP-497 (maximal ISR), KIP-320 (rule c).
    """
    ends = [local_end if member == local_id else _known_end(member, replicas) for member in maximal_isr]
    return max(current, min(ends, default=current))


def _known_end(member: int, replicas: Mapping[int, RemoteReplica]) -> int:
    replica = replicas.get(member)
    return UNKNOWN_OFFSET if replica is None else replica.leo


def has_min_isr(isr: Collection[int], min_insync_replicas: int, assigned_replicas: Collection[int]) -> bool:
    """Whether acks=all is accepted and the high watermark may advance. Source: KIP-966; min.insync.replicas counts as
    the replication factor where that is smaller."""
    return len(isr) >= min(min_insync_replicas, len(assigned_replicas))


def record_fetch(replica: RemoteReplica, fetch_offset: int, leader_end: int, now_ms: int) -> None:
    """Record a fetch from `fetch_offset`, the follower's log end. leader_end: the leader's LEO now.

    Under a steady load it is never quite at the leader's end; if it has what the leader had at its last fetch, it was
    caught up then. Source: Kafka, Replica.updateFetchState.
    """
    if fetch_offset >= leader_end:
        replica.last_caught_up_ms = now_ms
    elif fetch_offset >= replica.last_fetch_leader_leo:
        replica.last_caught_up_ms = max(replica.last_caught_up_ms, replica.last_fetch_ms)
    replica.leo = fetch_offset
    replica.last_fetch_ms = now_ms
    replica.last_fetch_leader_leo = leader_end


def leader_appended(replicas: Iterable[RemoteReplica], end_before: int, now_ms: int) -> None:
    """The leader's log has grown from `end_before`: a replica that was caught up starts to lag now, however long ago it
    fetched; so followers of an idle partition need not fetch to stay in sync."""
    for replica in replicas:
        if replica.leo >= end_before:
            replica.last_caught_up_ms = now_ms


def is_lagging(replica: RemoteReplica, leader_end: int, now_ms: int, max_ms: int) -> bool:
    """Whether a member has to leave the ISR: it has not been caught up for max_ms (replica.lag.time.max.ms)."""
    return replica.leo < leader_end and now_ms - replica.last_caught_up_ms > max_ms


def is_lagging_in_bytes(behind: int, max_bytes: int) -> bool:
    """Whether a member has to leave the ISR: it lacks `behind` bytes of the leader's log.

    max_bytes: replica.lag.max.bytes, -1 for no bound.
    """
    return 0 <= max_bytes < behind


def is_caught_up(replica: RemoteReplica, watermark: int, epoch_start: int) -> bool:
    """Whether a follower may join: it has all committed records, and everything up to the start of this leader's epoch,
    which earlier leaders may have committed without this one knowing yet. Source: KIP-320 (rule d), F12."""
    return replica.leo >= max(watermark, epoch_start)
