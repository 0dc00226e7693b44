"""Offsets of every replica of a partition, leader or not, as its own broker reports them.

ListOffsets with replica id -2, the debugging consumer, returns the log end offset of any replica, and an empty Fetch
there its high watermark. Source: Kafka, ReplicaVerificationTool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kreplog.client.admin_client import AdminClient
from kreplog.client.broker_client import BrokerClient
from kreplog.core.messages import (
    DEBUGGING,
    LATEST,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import fetch, offsets
from kreplog.wire.versions import ApiKey

LIST_OFFSETS_VERSION = 5
FETCH_VERSION = 12


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Offsets are -1 where they are not known. error: other than NONE if the replica serves nothing."""

    error: ErrorCode
    log_end_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1


def replica_states(
    admin: AdminClient, replicas: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, ReplicaState]]:
    """States of replicas, by broker id and partition; without the brokers that do not respond.

    replicas: partitions by broker id."""

    async def states(broker_id: int, client: BrokerClient) -> dict[TopicPartition, ReplicaState]:
        return await _states(client, sorted(replicas[broker_id]))

    return admin.request_each(replicas, states)


def log_ends(admin: AdminClient, replicas: Mapping[int, Iterable[TopicPartition]]) -> dict[TopicPartition, int]:
    """Log end offsets of partitions, each of the one replica that is named; without those that are not reported.

    replicas: partitions by broker id."""

    async def states(broker_id: int, client: BrokerClient) -> dict[TopicPartition, ReplicaState]:
        return await _log_ends(client, sorted(replicas[broker_id]))

    return {
        at: state.log_end_offset
        for found in admin.request_each(replicas, states).values()
        for at, state in found.items()
        if state.error is ErrorCode.NONE
    }


async def _log_ends(client: BrokerClient, partitions: list[TopicPartition]) -> dict[TopicPartition, ReplicaState]:
    header = client.header(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION)
    ends = ListOffsetsRequest(tuple(ListOffsetsPartition(partition, -1, LATEST) for partition in partitions), DEBUGGING)
    listed = offsets.decode_list_offsets_response(await client.send(offsets.encode_list_offsets(ends, header)), header)
    return {listing.partition: ReplicaState(listing.error, listing.offset) for listing in listed.partitions}


async def _states(client: BrokerClient, partitions: list[TopicPartition]) -> dict[TopicPartition, ReplicaState]:
    states = await _log_ends(client, partitions)
    header = client.header(ApiKey.FETCH, FETCH_VERSION)
    requested = tuple(
        FetchPartition(partition, "", -1, state.log_end_offset, max_bytes=1)
        for partition, state in states.items()
        if state.error is ErrorCode.NONE
    )
    response = await client.send(fetch.encode_request(FetchRequest(DEBUGGING, -1, 0, 0, 1, requested), header))
    for fetched in fetch.decode_response(response, header).partitions:
        end, error = states[fetched.partition].log_end_offset, fetched.error
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:  # truncated since ListOffsets
            error, end = ErrorCode.NONE, fetched.high_watermark
        states[fetched.partition] = ReplicaState(error, end, fetched.high_watermark, fetched.log_start_offset)
    return states
