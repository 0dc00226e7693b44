"""ListOffsets and OffsetForLeaderEpoch, to and from the messages of the cores, in the versions that are offered."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from kreplog.core.messages import (
    CONSUMER,
    DEBUGGING,
    EpochPartition,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)
from kreplog.errors import ErrorCode
from kreplog.types import EpochEndOffset, TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer


def decode_list_offsets(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> ListOffsetsRequest:
    """The request; with which isolation is passed over, and who asks unless it is one who is debugging.

    Raises PeerProtocolError.

    timestamp: besides LATEST and EARLIEST it may be -3, the greatest timestamp (version 7), or anything a client sends.
    """
    message = generic.decode_request(frame, header, budget)
    return ListOffsetsRequest(
        tuple(
            ListOffsetsPartition(
                TopicPartition(topic.name, partition.partition_index),
                partition.current_leader_epoch,
                partition.timestamp,
            )
            for topic in message.topics
            for partition in topic.partitions
        ),
        DEBUGGING if message.replica_id == DEBUGGING else CONSUMER,
    )


def encode_list_offsets(request: ListOffsetsRequest, header: RequestHeader) -> list[Buffer]:
    return generic.encode_request(
        header,
        replica_id=request.replica_id,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": one.partition.partition,
                        "current_leader_epoch": one.current_leader_epoch,
                        "timestamp": one.timestamp,
                    }
                    for one in group
                ],
            }
            for topic, group in groupby(request.partitions, lambda one: one.partition.topic)
        ],
    )


def encode_list_offsets_response(response: ListOffsetsResponse, header: RequestHeader) -> list[Buffer]:
    """The answer to the request `header`."""
    return generic.encode_response(
        header,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": one.partition.partition,
                        "error_code": int(one.error),
                        "timestamp": one.timestamp,
                        "offset": one.offset,
                        "leader_epoch": one.leader_epoch,
                    }
                    for one in group
                ],
            }
            for topic, group in groupby(response.partitions, lambda one: one.partition.topic)
        ],
    )


def decode_list_offsets_response(frame: Buffer, header: RequestHeader) -> ListOffsetsResponse:
    """Raises PeerProtocolError."""
    message = generic.decode_response(frame, header)
    return ListOffsetsResponse(
        tuple(
            ListedOffset(
                TopicPartition(topic.name, partition.partition_index),
                generic.error_of(partition.error_code),
                partition.offset,
                partition.leader_epoch,
                partition.timestamp,
            )
            for topic in message.topics
            for partition in topic.partitions
        )
    )


def decode_offset_for_leader_epoch(
    frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS
) -> OffsetsForLeaderEpochRequest:
    """The request; below version 3 it does not tell who asks, which the schema takes for a debugging consumer, -2.

    Raises PeerProtocolError.
    """
    message = generic.decode_request(frame, header, budget)
    return OffsetsForLeaderEpochRequest(
        message.replica_id,
        tuple(
            {
                one.partition: one
                for one in (
                    EpochPartition(
                        TopicPartition(topic.topic, partition.partition),
                        partition.current_leader_epoch,
                        partition.leader_epoch,
                    )
                    for topic in message.topics
                    for partition in topic.partitions
                )
            }.values()
        ),
    )


def encode_offset_for_leader_epoch(request: OffsetsForLeaderEpochRequest, header: RequestHeader) -> list[Buffer]:
    return generic.encode_request(
        header,
        replica_id=request.replica_id,
        topics=[
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": one.partition.partition,
                        "current_leader_epoch": one.current_leader_epoch,
                        "leader_epoch": one.leader_epoch,
                    }
                    for one in group
                ],
            }
            for topic, group in groupby(request.partitions, lambda one: one.partition.topic)
        ],
    )


def encode_offset_for_leader_epoch_response(
    response: OffsetsForLeaderEpochResponse, header: RequestHeader
) -> list[Buffer]:
    def answered(one: tuple[TopicPartition, ErrorCode, EpochEndOffset]) -> dict[str, Any]:
        partition, error, end = one
        return {
            "error_code": int(error),
            "partition": partition.partition,
            "leader_epoch": end.leader_epoch,
            "end_offset": end.end_offset,
        }

    return generic.encode_response(
        header,
        topics=[
            {"topic": topic, "partitions": [answered(one) for one in group]}
            for topic, group in groupby(response.partitions, lambda one: one[0].topic)
        ],
    )


def decode_offset_for_leader_epoch_response(frame: Buffer, header: RequestHeader) -> OffsetsForLeaderEpochResponse:
    """Raises PeerProtocolError."""
    message = generic.decode_response(frame, header)
    return OffsetsForLeaderEpochResponse(
        tuple(
            (
                TopicPartition(topic.topic, partition.partition),
                generic.error_of(partition.error_code),
                EpochEndOffset(partition.leader_epoch, partition.end_offset),
            )
            for topic in message.topics
            for partition in topic.partitions
        )
    )
