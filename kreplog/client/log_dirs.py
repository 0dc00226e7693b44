"""Log directories of brokers: sizes of replicas, directories that are offline, and moves between directories.

By DescribeLogDirs and AlterReplicaLogDirs, which each broker answers for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from kreplog.client.admin_client import AdminClient
from kreplog.client.broker_client import BrokerClient
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey

VERSION = 1
ALTER_VERSION = 2


class ReplicaFiles(NamedTuple):
    """A replica in a log directory. is_copy: a move to this directory fills it, and it lacks `lag` offsets of the
    replica."""

    directory: str
    bytes: int
    lag: int
    is_copy: bool


def replica_files(
    admin: AdminClient, replicas: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, list[ReplicaFiles]]]:
    """Replicas and their copies, by broker id and partition; without the brokers that do not respond.

    replicas: partitions by broker id."""

    async def describe(broker_id: int, client: BrokerClient) -> dict[TopicPartition, list[ReplicaFiles]]:
        response = await client.request(ApiKey.DESCRIBE_LOG_DIRS, VERSION, topics=_topics("topic", replicas[broker_id]))
        found: dict[TopicPartition, list[ReplicaFiles]] = {}
        for directory in response.results:
            for topic in directory.topics:
                for each in topic.partitions:
                    found.setdefault(TopicPartition(topic.name, each.partition_index), []).append(
                        ReplicaFiles(directory.log_dir, each.partition_size, each.offset_lag, each.is_future_key)
                    )
        return found

    return admin.request_each(replicas, describe)


def replica_sizes(
    admin: AdminClient, replicas: Mapping[int, Iterable[TopicPartition]]
) -> dict[int, dict[TopicPartition, int]]:
    """Bytes of replicas, without copies of them; otherwise as `replica_files`."""
    return {
        broker: {partition: each.bytes for partition, listed in found.items() for each in listed if not each.is_copy}
        for broker, found in replica_files(admin, replicas).items()
    }


def move_replicas(
    admin: AdminClient, broker_id: int, directory: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Have a broker begin to move replicas to one of its log directories; the error of each. Empty if it does not
    respond."""

    async def alter(_: int, client: BrokerClient) -> dict[TopicPartition, ErrorCode]:
        dirs = [{"path": directory, "topics": _topics("name", partitions)}]
        response = await client.request(ApiKey.ALTER_REPLICA_LOG_DIRS, ALTER_VERSION, dirs=dirs)
        return {
            TopicPartition(topic.topic_name, each.partition_index): ErrorCode(each.error_code)
            for topic in response.results
            for each in topic.partitions
        }

    return admin.request_each([broker_id], alter).get(broker_id, {})


def _topics(name: str, partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {name: topic, "partitions": [partition.partition for partition in group]}
        for topic, group in groupby(sorted(partitions), lambda partition: partition.topic)
    ]


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
