"""AlterReplicaLogDirs and DescribeLogDirs of brokers that serve: a replica moves under load, and nobody notices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kreplog.core.replication.role import Role
from kreplog.errors import ErrorCode
from kreplog.managed_log import build
from kreplog.server.broker import Broker
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving
from tests.server.test_broker import TP, Client

OTHER = TopicPartition("topic", 1)
PAYLOAD = bytes(2000)


async def alter(client: Client, directory: Path, partition: TopicPartition = TP, version: int = 2) -> ErrorCode:
    dirs = [{"path": str(directory), "topics": [{"name": partition.topic, "partitions": [partition.partition]}]}]
    response = await client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, dirs=dirs)
    (topic,) = response.results
    (answer,) = topic.partitions
    assert (topic.topic_name, answer.partition_index) == partition
    return ErrorCode(answer.error_code)


async def described(client: Client) -> dict[str, list[tuple[int, bool, bool]]]:
    """By the name of the log directory: (partition, is_future_key, whether offsets are missing)."""
    response = await client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
    return {
        Path(result.log_dir).name: [
            (each.partition_index, each.is_future_key, each.offset_lag > 0)
            for topic in result.topics
            if topic.name == "topic"
            for each in topic.partitions
        ]
        for result in response.results
    }


def place(broker: Broker, partition: TopicPartition = TP) -> Path:
    replica = broker.hosted.get(partition)
    assert replica is not None
    return Path(replica.directory.path)


def elsewhere(broker: Broker) -> Path:
    (path,) = {directory.path for directory in broker.hosted.directories} - {place(broker)}
    return Path(path)


async def create(client: Client, brokers: list[int], **configs: str) -> None:
    async def known() -> bool:
        return len((await client.call(ApiKey.METADATA, 9, topics=None)).brokers) == len(brokers)

    await eventually(known)
    topic = {
        "name": "topic",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": brokers}],
        "configs": [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()],
    }
    await client.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)

    async def served() -> bool:
        (answer,) = (await client.produce(build([PAYLOAD]))).partitions
        return answer.error is ErrorCode.NONE

    await eventually(served)


@pytest.mark.parametrize(
    ("rounds", "configs"),
    [
        (1, {}),
        pytest.param(3, {}, marks=pytest.mark.long),
        pytest.param(3, {"flush_messages": "1"}, marks=pytest.mark.long),
    ],
)
def test_leader_and_follower_move_back_and_forth_under_load(
    tmp_path: Path, rounds: int, configs: dict[str, str]
) -> None:
    """Every record that was acknowledged with acks=all is at its offset, on both brokers."""
    acknowledged: dict[int, bytes] = {}

    async def load(broker: Broker, ended: asyncio.Event) -> None:
        client, number = Client(broker), 0
        while not ended.is_set():
            values = [b"%d-%d" % (number, each) + PAYLOAD for each in range(3)]
            (answer,) = (await client.produce(build(values))).partitions
            assert answer.error is ErrorCode.NONE, answer
            acknowledged.update(enumerate(values, answer.base_offset))
            number += 1
        client.peer.close()

    async def work() -> None:
        directories = f"{tmp_path}/{{id}}-a,{tmp_path}/{{id}}-b"
        async with serving(tmp_path, 1, 2, log_dirs=directories, log_segment_bytes=100_000) as (leader, follower):
            clients = {leader: Client(leader), follower: Client(follower)}
            await create(clients[leader], [1, 2], **configs)
            ended = asyncio.Event()
            loads = [asyncio.create_task(load(leader, ended)) for _ in range(3)]
            for _ in range(rounds):
                for broker, client in clients.items():
                    reached, target = len(acknowledged), elsewhere(broker)
                    assert await alter(client, target) is ErrorCode.NONE

                    async def moved(broker: Broker = broker, target: Path = target) -> bool:
                        left = [path for other in broker.hosted.directories for path in other.path.glob("topic-*")]
                        return left == [target / "topic-0"]

                    await eventually(moved)

                    async def goes_on(reached: int = reached) -> bool:
                        return len(acknowledged) > reached + 30

                    await eventually(goes_on)
            ended.set()
            await asyncio.gather(*loads)
            assert leader.manager.partitions[TP].role is Role.LEADER
            assert leader.manager.partitions[TP].isr == (1, 2)
            for broker, client in clients.items():
                await eventually(lambda broker=broker: is_level(broker, acknowledged))  # type: ignore[misc]
                log = broker.hosted.of(TP).log
                found = {record.offset: record.value for record in log.read()}
                assert acknowledged.items() <= found.items()
                assert sorted(found) == list(range(log.log_end_offset))
                client.peer.close()
            logs = [broker.hosted.of(TP).log for broker in clients]
            assert logs[0].leader_epochs == logs[1].leader_epochs

    asyncio.run(work())


async def is_level(broker: Broker, acknowledged: dict[int, bytes]) -> bool:
    return broker.hosted.of(TP).log.high_watermark > max(acknowledged)


def test_what_is_described_of_a_move_and_what_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(
            tmp_path,
            1,
            log_dirs=f"{tmp_path}/a,{tmp_path}/b",
            replica_alter_log_dirs_io_max_bytes_per_second=1,
            log_cleaner_enable="false",
        ) as (broker,):
            client = Client(broker)
            await create(client, [1])
            for _ in range(12):
                await client.produce(build([bytes(100_000)]))
            here, target = place(broker), elsewhere(broker)
            assert await alter(client, tmp_path / "none", version=1) is ErrorCode.LOG_DIR_NOT_FOUND
            assert await alter(client, target, OTHER) is ErrorCode.REPLICA_NOT_AVAILABLE
            assert await alter(client, target) is ErrorCode.NONE
            await eventually(lambda: copies(client, target.name))
            assert await described(client) == {here.name: [(0, False, False)], target.name: [(0, True, True)]}
            assert await alter(client, here) is ErrorCode.NONE
            assert await described(client) == {here.name: [(0, False, False)], target.name: []}
            assert await alter(client, target) is ErrorCode.NONE
            await set_rate(client, "1000000000")

            async def moved() -> bool:
                return await described(client) == {here.name: [], target.name: [(0, False, False)]}

            await eventually(moved)
            client.peer.close()

    asyncio.run(work())


async def copies(client: Client, name: str) -> bool:
    return bool((await described(client))[name])


async def set_rate(client: Client, rate: str) -> None:
    config = {"name": "replica.alter.log.dirs.io.max.bytes.per.second", "config_operation": 0, "value": rate}
    resource: dict[str, Any] = {"resource_type": 4, "resource_name": "1", "configs": [config]}
    response = await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert response.responses[0].error_code == 0, response
