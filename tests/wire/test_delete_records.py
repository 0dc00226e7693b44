"""DeleteRecords on the wire."""

from __future__ import annotations

import pytest

from kreplog.core.messages import DeletedRecords, DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.types import TopicPartition
from kreplog.wire import delete_records, generic
from kreplog.wire.frames import decode_request_header
from kreplog.wire.versions import ApiKey
from tests.wire.messages import body_of, header

PLACES = (TopicPartition("flights", 1), TopicPartition("flights", 2), TopicPartition("a", 0))
TOPICS = [
    {"name": "flights", "partitions": [{"partition_index": 1, "offset": 5}, {"partition_index": 2, "offset": -1}]},
    {"name": "a", "partitions": [{"partition_index": 0, "offset": 0}]},
]


@pytest.mark.parametrize("version", range(3))
def test_delete_records_is_kept(version: int) -> None:
    request_header = header(ApiKey.DELETE_RECORDS, version)
    frame = body_of(generic.encode_request(request_header, topics=TOPICS, timeout_ms=7))
    assert delete_records.decode_delete_records(frame, decode_request_header(frame)) == DeleteRecordsRequest(
        7, tuple(DeleteRecordsPartition(place, offset) for place, offset in zip(PLACES, (5, -1, 0), strict=True))
    )
    response = DeleteRecordsResponse(
        (
            DeletedRecords(PLACES[0], ErrorCode.NONE, 5),
            DeletedRecords(PLACES[1], ErrorCode.OFFSET_OUT_OF_RANGE, message="too much"),
            DeletedRecords(PLACES[2], ErrorCode.REQUEST_TIMED_OUT),
        )
    )
    theirs = generic.decode_response(
        body_of(delete_records.encode_delete_records_response(response, request_header)), request_header
    )
    assert [
        (topic.name, partition.partition_index, partition.low_watermark, partition.error_code)
        for topic in theirs.topics
        for partition in topic.partitions
    ] == [("flights", 1, 5, 0), ("flights", 2, -1, 1), ("a", 0, -1, 7)]


@pytest.mark.parametrize("version", range(3))
def test_a_request_cut_short_is_refused(version: int) -> None:
    frame = body_of(generic.encode_request(header(ApiKey.DELETE_RECORDS, version), topics=TOPICS, timeout_ms=7))
    for end in range(len(frame) - 1, 12, -3):
        with pytest.raises(PeerProtocolError):
            delete_records.decode_delete_records(frame[:end], decode_request_header(frame[:end]))
