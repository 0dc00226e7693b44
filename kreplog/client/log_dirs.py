"""Log directories of brokers, by DescribeLogDirs: sizes of replicas, and directories that are offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from kreplog.client.admin_client import AdminClient
from kreplog.client.broker_client import BrokerClient
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey

VERSION = 1


def replica_sizes(
    admin: AdminClient, replicas: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of replicas, by broker id and partition; without the brokers that do not respond.

    replicas: partitions by broker id."""

    async def describe(broker_id: int, client: BrokerClient) -> dict[TopicPartition, int]:
        topics = [
            {"topic": topic, "partitions": [partition.partition for partition in group]}
            for topic, group in groupby(sorted(replicas[broker_id]), lambda partition: partition.topic)
        ]
        response = await client.request(ApiKey.DESCRIBE_LOG_DIRS, VERSION, topics=topics)
        return {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for directory in response.results
            for topic in directory.topics
            for partition in topic.partitions
        }

    return admin.request_each(replicas, describe)


def offline_directories(admin: AdminClient, broker_ids: Iterable[int]) -> dict[int, list[str]]:
    """Offline log directories by broker id; without the brokers that do not respond."""
    return _directories(admin, broker_ids, ErrorCode.KAFKA_STORAGE_ERROR)


def online_directories(admin: AdminClient, broker_ids: Iterable[int]) -> dict[int, list[str]]:
    """Absolute paths of the log directories in use, by broker id; without the brokers that do not respond."""
    return _directories(admin, broker_ids, ErrorCode.NONE)


def _directories(admin: AdminClient, broker_ids: Iterable[int], error_code: ErrorCode) -> dict[int, list[str]]:
    async def describe(_: int, client: BrokerClient) -> list[str]:
        response = await client.request(ApiKey.DESCRIBE_LOG_DIRS, VERSION, topics=[])
        return [result.log_dir for result in response.results if result.error_code == error_code]

    return admin.request_each(broker_ids, describe)
