"""ListOffsets for the bulk client: the offsets of partitions by time, from whichever brokers lead them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from kreplog.client.bulk_errors import PartitionUnavailableError
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections, by_leader
from kreplog.core.messages import CONSUMER
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, NO_LEADER, TopicPartition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey


class OffsetAndTimestamp(NamedTuple):
    """timestamp_ms: of the record there, where it was looked up by time; else -1. leader_epoch: NO_EPOCH: unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offsets(
    cluster: ClusterConnections, partitions: Sequence[TopicPartition], timestamp: int, deadline: float
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """timestamp: in ms, or EARLIEST, LATEST of core.messages; None where no record is as late.

    Every error of a leader is taken for one that passes: leaders are looked for anew until `deadline`
    (time.monotonic). Raises UnknownTopicError, PartitionUnavailableError, BrokersUnreachableError."""
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    waiting = dict.fromkeys(partitions)
    errors: dict[TopicPartition, ErrorCode] = {}
    cluster.require(waiting, deadline)
    while True:
        for broker_id, led in by_leader(cluster.metadata, waiting).items():
            if broker_id != NO_LEADER:
                _request_from_leader(cluster, broker_id, led, timestamp, deadline, found, errors)
        waiting = {at: None for at in waiting if at not in found}
        if not waiting:
            return {at: found[at] for at in partitions}
        if time.monotonic() + RETRY_BACKOFF_S >= deadline:
            at = next(iter(waiting))
            code = errors.get(at, ErrorCode.LEADER_NOT_AVAILABLE)
            raise PartitionUnavailableError(
                f"{at}: no leader lists its offsets ({code.name})", partition=str(at), code=code
            )
        for at in waiting:
            cluster.metadata = cluster.metadata.without_leader(at)
        time.sleep(RETRY_BACKOFF_S)  # an election may be under way, which clients are not notified of
        cluster.refresh({at.topic for at in waiting}, deadline)
        cluster.require(waiting, deadline)


def _request_from_leader(
    cluster: ClusterConnections,
    broker_id: int,
    led: Sequence[TopicPartition],
    timestamp: int,
    deadline: float,
    found: dict[TopicPartition, OffsetAndTimestamp | None],
    errors: dict[TopicPartition, ErrorCode],
) -> None:
    topics: dict[str, list[dict[str, int]]] = {}
    for at in led:
        epoch = cluster.metadata.partitions[at].leader_epoch
        topics.setdefault(at.topic, []).append(
            {"partition_index": at.partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        )
    listed = [{"name": topic, "partitions": entries} for topic, entries in topics.items()]
    try:
        response = cluster.call_leader(
            broker_id, ApiKey.LIST_OFFSETS, deadline, replica_id=CONSUMER, isolation_level=0, topics=listed
        )
    except OSError:
        errors.update(dict.fromkeys(led, ErrorCode.BROKER_NOT_AVAILABLE))
        return
    requested = set(led)
    for topic in response.topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            error = generic.error_of(partition.error_code)
            if at not in requested:
                continue
            if error is not ErrorCode.NONE:
                errors[at] = error
            elif partition.offset < 0:
                found[at] = None
            else:
                epoch = NO_EPOCH if partition.leader_epoch is None else partition.leader_epoch
                found[at] = OffsetAndTimestamp(partition.offset, partition.timestamp, epoch)
