"""ListOffsets and OffsetForLeaderEpoch for the bulk client, from whichever brokers lead the partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kreplog.client.bulk_errors import PartitionUnavailableError, UnknownTopicError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.leader_requests import request_from_leaders
from kreplog.core.messages import CONSUMER, LATEST
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, NO_LEADER, EpochEndOffset, TopicPartition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up. timestamp_ms: of the record there, where it was looked up by time; else -1.
    leader_epoch: NO_EPOCH: unknown."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def list_offsets(
    cluster: ClusterConnections,
    partitions: Sequence[TopicPartition],
    timestamp: int,
    deadline: float,
    isolation_level: int = 0,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first offset of each partition whose record is as late as `timestamp`; None where no record is.

    timestamp: in ms, or EARLIEST, LATEST of core.messages.
    isolation_level: 1 is read_committed, where LATEST is the last stable offset. Raises as request_from_leaders."""

    def fields(led: Sequence[TopicPartition]) -> dict[str, Any]:
        topics: dict[str, list[dict[str, int]]] = {}
        for at in led:
            epoch = cluster.metadata.partitions[at].leader_epoch
            topics.setdefault(at.topic, []).append(
                {"partition_index": at.partition, "current_leader_epoch": epoch, "timestamp": timestamp}
            )
        listed = [{"name": topic, "partitions": entries} for topic, entries in topics.items()]
        return {"replica_id": CONSUMER, "isolation_level": isolation_level, "topics": listed}

    def results(response: Any) -> Iterator[tuple[TopicPartition, ErrorCode, OffsetAndTimestamp | None]]:
        for topic in response.topics:
            for partition in topic.partitions:
                epoch = NO_EPOCH if partition.leader_epoch is None else partition.leader_epoch
                result = OffsetAndTimestamp(partition.offset, partition.timestamp, epoch)
                error = generic.error_of(partition.error_code)
                yield (
                    TopicPartition(topic.name, partition.partition_index),
                    error,
                    result if result.offset >= 0 else None,
                )

    return request_from_leaders(
        cluster, partitions, ApiKey.LIST_OFFSETS, fields, results, "lists its offsets", deadline
    )


def available_end_offsets(
    cluster: ClusterConnections, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, int]:
    """The high watermark of each partition; without those that no longer exist, or have no leader until `deadline`.

    Raises BrokersUnreachableError, UnsupportedBrokerError."""
    if not partitions:
        return {}
    metadata = cluster.refresh({at.topic for at in partitions}, deadline)
    led = {at: None for at in partitions if metadata.leader_of(at) != NO_LEADER}
    while led:
        try:
            found = list_offsets(cluster, list(led), LATEST, deadline)
        except (PartitionUnavailableError, UnknownTopicError) as error:  # it has lost its leader, or was deleted
            led = {at: None for at in led if str(at) != error.partition}
        else:
            return {at: result.offset for at, result in found.items() if result is not None}
    return {}


def epoch_end_offsets(
    cluster: ClusterConnections, epochs: Mapping[TopicPartition, int], deadline: float
) -> dict[TopicPartition, EpochEndOffset]:
    """Where the largest leader epoch at or below that of each partition ends in its leader's log (KIP-320).

    Raises as request_from_leaders."""

    def fields(led: Sequence[TopicPartition]) -> dict[str, Any]:
        topics: dict[str, list[dict[str, int]]] = {}
        for at in led:
            current = cluster.metadata.partitions[at].leader_epoch
            topics.setdefault(at.topic, []).append(
                {"partition": at.partition, "current_leader_epoch": current, "leader_epoch": epochs[at]}
            )
        listed = [{"topic": topic, "partitions": entries} for topic, entries in topics.items()]
        return {"replica_id": CONSUMER, "topics": listed}

    def results(response: Any) -> Iterator[tuple[TopicPartition, ErrorCode, EpochEndOffset]]:
        for topic in response.topics:
            for partition in topic.partitions:
                yield (
                    TopicPartition(topic.topic, partition.partition),
                    generic.error_of(partition.error_code),
                    EpochEndOffset(partition.leader_epoch, partition.end_offset),
                )

    return request_from_leaders(
        cluster, list(epochs), ApiKey.OFFSET_FOR_LEADER_EPOCH, fields, results, "knows its leader epochs", deadline
    )
