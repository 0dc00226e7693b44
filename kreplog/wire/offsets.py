"""ListOffsets and OffsetForLeaderEpoch, to and from the messages of `core`, in the versions that are offered."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from kreplog.core.messages import (
    CONSUMER,
    DEBUGGING,
    READ_UNCOMMITTED,
    EpochPartition,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.nesting import Nesting

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LIST_OFFSETS = Nesting()
_LEADER_EPOCHS = Nesting(name="topic", index="partition")


def decode_list_offsets(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> ListOffsetsRequest:
    """The request; any replica_id but DEBUGGING counts as CONSUMER.

    timestamp: any number that a client sends. Raises PeerProtocolError.
    """
    message = generic.decode_request(frame, header, budget)
    return ListOffsetsRequest(
        tuple(
            ListOffsetsPartition(partition, fields.current_leader_epoch, fields.timestamp)
            for partition, fields in _LIST_OFFSETS.read(message.topics)
        ),
        DEBUGGING if message.replica_id == DEBUGGING else CONSUMER,
        message.isolation_level or READ_UNCOMMITTED,
        header.api_version,
    )


def encode_list_offsets(request: ListOffsetsRequest, header: RequestHeader) -> list[Buffer]:
    topics = _LIST_OFFSETS.write(
        request.partitions,
        lambda listed: {"current_leader_epoch": listed.current_leader_epoch, "timestamp": listed.timestamp},
    )
    return generic.encode_request(
        header, replica_id=request.replica_id, isolation_level=request.isolation_level, topics=topics
    )


def encode_list_offsets_response(response: ListOffsetsResponse, header: RequestHeader) -> list[Buffer]:
    """The response to the request `header`."""
    topics = _LIST_OFFSETS.write(
        response.partitions,
        lambda listed: {
            "error_code": int(listed.error),
            "timestamp": listed.timestamp,
            "offset": listed.offset,
            "leader_epoch": listed.leader_epoch,
        },
    )
    return generic.encode_response(header, topics=topics)


def decode_list_offsets_response(frame: Buffer, header: RequestHeader) -> ListOffsetsResponse:
    """Raises PeerProtocolError."""
    message = generic.decode_response(frame, header)
    return ListOffsetsResponse(
        tuple(
            ListedOffset(
                partition, generic.error_of(fields.error_code), fields.offset, fields.leader_epoch, fields.timestamp
            )
            for partition, fields in _LIST_OFFSETS.read(message.topics)
        )
    )


def decode_offset_for_leader_epoch(
    frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS
) -> OffsetsForLeaderEpochRequest:
    """The request; below version 3 it has no replica_id, which the schema takes for a debugging consumer's, -2.

    Of a partition that is named twice the last entry counts. Raises PeerProtocolError.
    """
    message = generic.decode_request(frame, header, budget)
    partitions = {
        partition: EpochPartition(partition, fields.current_leader_epoch, fields.leader_epoch)
        for partition, fields in _LEADER_EPOCHS.read(message.topics)
    }
    return OffsetsForLeaderEpochRequest(message.replica_id, tuple(partitions.values()))


def encode_offset_for_leader_epoch_response(
    response: OffsetsForLeaderEpochResponse, header: RequestHeader
) -> list[Buffer]:
    topics = _LEADER_EPOCHS.write(
        response.partitions,
        lambda found: {
            "error_code": int(found[1]),
            "leader_epoch": found[2].leader_epoch,
            "end_offset": found[2].end_offset,
        },
        itemgetter(0),
    )
    return generic.encode_response(header, topics=topics)
