"""kafka-python as the independent peer: the same Produce and Fetch messages, made and encoded by it alone."""

from __future__ import annotations

import uuid
from typing import Any

from kafka.protocol.consumer.fetch import FetchRequest as TheirFetchRequest
from kafka.protocol.consumer.fetch import FetchResponse as TheirFetchResponse
from kafka.protocol.producer.produce import ProduceRequest as TheirProduceRequest
from kafka.protocol.producer.produce import ProduceResponse as TheirProduceResponse

from kreplog._native.wire import topic_id_bytes
from kreplog.core.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from kreplog.wire.frames import RequestHeader
from tests.wire.messages import IDS, by_topic


def part(cls: Any, path: str) -> Any:
    """The class of a nested struct: by the names of the fields that lead to it."""
    struct = cls._struct
    for name in path.split("."):
        struct = struct.fields[name]
    return struct.data_class


def topic_uuid(topic: str) -> uuid.UUID:
    return uuid.UUID(bytes=topic_id_bytes(IDS[topic]))


def framed_request(message: Any, header: RequestHeader) -> bytes:
    message.with_header(correlation_id=header.correlation_id, client_id=header.client_id)
    return bytes(message.encode(header=True, framed=True))


def framed_response(message: Any, header: RequestHeader) -> bytes:
    message.with_header(correlation_id=header.correlation_id)
    return bytes(message.encode(header=True, framed=True))


def produce_request(request: ProduceRequest, version: int, transactional_id: str | None) -> Any:
    topic_class = part(TheirProduceRequest, "topic_data")
    part_class = part(TheirProduceRequest, "topic_data.partition_data")
    return TheirProduceRequest(
        version=version,
        transactional_id=transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            topic_class(
                version=version,
                name=topic,
                partition_data=[
                    part_class(version=version, index=item.partition.partition, records=bytes(item.records))
                    for item in group
                ],
            )
            for topic, group in by_topic(request.partitions, lambda item: item.partition)
        ],
    )


def produce_response(response: ProduceResponse, version: int) -> Any:
    topic_class = part(TheirProduceResponse, "responses")
    part_class = part(TheirProduceResponse, "responses.partition_responses")
    return TheirProduceResponse(
        version=version,
        throttle_time_ms=0,
        responses=[
            topic_class(
                version=version,
                name=topic,
                partition_responses=[
                    part_class(
                        version=version,
                        index=item.partition.partition,
                        error_code=int(item.error),
                        base_offset=item.base_offset,
                        log_append_time_ms=item.log_append_time_ms,
                        log_start_offset=item.log_start_offset,
                        record_errors=[],
                        error_message=item.message or None,
                    )
                    for item in group
                ],
            )
            for topic, group in by_topic(response.partitions, lambda item: item.partition)
        ],
    )


def fetch_request(request: FetchRequest, version: int) -> Any:
    topic_class = part(TheirFetchRequest, "topics")
    part_class = part(TheirFetchRequest, "topics.partitions")
    forgotten_class = part(TheirFetchRequest, "forgotten_topics_data")
    state = None
    if version >= 15 and (request.replica_id, request.broker_epoch) != (-1, -1):
        state = part(TheirFetchRequest, "replica_state")(
            version=version, replica_id=request.replica_id, replica_epoch=request.broker_epoch
        )
    return TheirFetchRequest(
        version=version,
        replica_id=request.replica_id,
        replica_state=state,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=[
            topic_class(
                version=version,
                topic=topic,
                topic_id=topic_uuid(topic),
                partitions=[
                    part_class(
                        version=version,
                        partition=item.partition.partition,
                        current_leader_epoch=item.current_leader_epoch,
                        fetch_offset=item.fetch_offset,
                        last_fetched_epoch=item.last_fetched_epoch,
                        log_start_offset=item.log_start_offset,
                        partition_max_bytes=item.max_bytes,
                    )
                    for item in group
                ],
            )
            for topic, group in by_topic(request.partitions, lambda item: item.partition)
        ],
        forgotten_topics_data=[
            forgotten_class(
                topic=topic,
                topic_id=topic_uuid(topic),
                partitions=[place.partition for place in group],
            )
            for topic, group in by_topic(request.forgotten, lambda place: place)
        ],
        rack_id=request.rack,
    )


def fetch_response(response: FetchResponse, version: int) -> Any:
    topic_class = part(TheirFetchResponse, "responses")
    part_class = part(TheirFetchResponse, "responses.partitions")
    aborted_class = part(TheirFetchResponse, "responses.partitions.aborted_transactions")
    diverging_class = part(TheirFetchResponse, "responses.partitions.diverging_epoch")
    leader_class = part(TheirFetchResponse, "responses.partitions.current_leader")

    def partition(fetched: Any) -> Any:
        tags = {}
        if version >= 12 and fetched.diverging is not None:
            tags["diverging_epoch"] = diverging_class(
                version=version, epoch=fetched.diverging.leader_epoch, end_offset=fetched.diverging.end_offset
            )
        if version >= 12 and (fetched.leader, fetched.leader_epoch) != (-1, -1):
            tags["current_leader"] = leader_class(
                version=version, leader_id=fetched.leader, leader_epoch=fetched.leader_epoch
            )
        return part_class(
            version=version,
            partition_index=fetched.partition.partition,
            error_code=int(fetched.error),
            high_watermark=fetched.high_watermark,
            last_stable_offset=fetched.high_watermark if fetched.last_stable_offset < 0 else fetched.last_stable_offset,
            log_start_offset=fetched.log_start_offset,
            aborted_transactions=[
                aborted_class(version=version, producer_id=producer, first_offset=first)
                for producer, first in fetched.aborted
            ],
            preferred_read_replica=fetched.preferred_read_replica,
            records=bytes(fetched.records),
            **tags,
        )

    return TheirFetchResponse(
        version=version,
        throttle_time_ms=0,
        error_code=int(response.error),
        session_id=response.session_id,
        responses=[
            topic_class(
                version=version,
                topic=topic,
                topic_id=topic_uuid(topic),
                partitions=[partition(fetched) for fetched in group],
            )
            for topic, group in by_topic(response.partitions, lambda fetched: fetched.partition)
        ],
    )
