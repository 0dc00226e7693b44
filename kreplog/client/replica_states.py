"""Where every replica of a topic is: its broker is asked, as a debugging consumer asks, about its own log.

ListOffsets with replica id -2 tells the log end of any replica, leader or not, and an empty Fetch from there its high
watermark. Kafka's tools that compare replicas ask the same way. Source: Kafka, ReplicaVerificationTool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

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
LOG_DIRS_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """Offsets are -1 where they are not known. error: other than NONE when the replica serves nothing."""

    error: ErrorCode
    log_end_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1


def replica_states(
    brokers: AdminClient, held: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, ReplicaState]]:
    """By broker what it says of the replicas that it should have, `held`; brokers that do not answer are left out."""

    async def question(broker: int, line: BrokerClient) -> dict[TopicPartition, ReplicaState]:
        return await _states(line, sorted(held[broker]))

    return brokers.ask_each(held, question)


async def _states(line: BrokerClient, partitions: list[TopicPartition]) -> dict[TopicPartition, ReplicaState]:
    header = line.header(ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION)
    ends = ListOffsetsRequest(tuple(ListOffsetsPartition(partition, -1, LATEST) for partition in partitions), DEBUGGING)
    listed = offsets.decode_list_offsets_response(await line.send(offsets.encode_list_offsets(ends, header)), header)
    found = {partition.partition: ReplicaState(partition.error, partition.offset) for partition in listed.partitions}
    there = [one for one in found if found[one].error is ErrorCode.NONE]
    header = line.header(ApiKey.FETCH, FETCH_VERSION)
    asked = tuple(FetchPartition(one, "", -1, found[one].log_end_offset, max_bytes=1) for one in there)
    answer = await line.send(fetch.encode_request(FetchRequest(DEBUGGING, -1, 0, 0, 1, asked), header))
    for told in fetch.decode_response(answer, header).partitions:
        end = found[told.partition].log_end_offset
        error = told.error
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:  # cut, or started anew further on, since its end was asked for
            error, end = ErrorCode.NONE, told.high_watermark
        found[told.partition] = ReplicaState(error, end, told.high_watermark, told.log_start_offset)
    return found


def replica_sizes(
    brokers: AdminClient, held: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, int]]:
    """By broker the bytes of those of the replicas `held` that it has; brokers that do not answer are left out."""

    async def question(broker: int, line: BrokerClient) -> dict[TopicPartition, int]:
        wanted = [
            {"topic": topic, "partitions": [one.partition for one in group]}
            for topic, group in groupby(sorted(held[broker]), lambda one: one.topic)
        ]
        answer = await line.request(ApiKey.DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, topics=wanted)
        return {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for directory in answer.results
            for topic in directory.topics
            for partition in topic.partitions
        }

    return brokers.ask_each(held, question)
