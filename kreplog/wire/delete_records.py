"""DeleteRecords, to and from the messages of the cores, in the versions that are offered."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kreplog.core.messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer


def decode_delete_records(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> DeleteRecordsRequest:
    """Raises PeerProtocolError."""
    message = generic.decode_request(frame, header, budget)
    return DeleteRecordsRequest(
        message.timeout_ms,
        tuple(
            DeleteRecordsPartition(partition, offset)
            for partition, offset in {
                TopicPartition(topic.name, one.partition_index): one.offset
                for topic in message.topics
                for one in topic.partitions
            }.items()
        ),
    )


def encode_delete_records_response(response: DeleteRecordsResponse, header: RequestHeader) -> list[Buffer]:
    """The answer to the request `header`; Kafka's has no place for messages."""
    return generic.encode_response(
        header,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": one.partition.partition,
                        "low_watermark": one.low_watermark,
                        "error_code": int(one.error),
                    }
                    for one in group
                ],
            }
            for topic, group in groupby(response.partitions, lambda one: one.partition.topic)
        ],
    )
