"""DeleteRecords, to and from the messages of `core`, in the versions that are offered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kreplog.core.messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from kreplog.wire import generic
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.nesting import Nesting

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TOPICS = Nesting()


def decode_delete_records(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> DeleteRecordsRequest:
    """The request; of a partition that is named twice the last offset counts. Raises PeerProtocolError."""
    message = generic.decode_request(frame, header, budget)
    offsets = {partition: fields.offset for partition, fields in _TOPICS.read(message.topics)}
    return DeleteRecordsRequest(
        message.timeout_ms, tuple(DeleteRecordsPartition(partition, offset) for partition, offset in offsets.items())
    )


def encode_delete_records_response(response: DeleteRecordsResponse, header: RequestHeader) -> list[Buffer]:
    """The response to the request `header`; Kafka's has no field for messages."""
    topics = _TOPICS.write(
        response.partitions,
        lambda deleted: {"low_watermark": deleted.low_watermark, "error_code": int(deleted.error)},
    )
    return generic.encode_response(header, topics=topics)
