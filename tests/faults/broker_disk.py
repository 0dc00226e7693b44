"""Driver: a log directory fails under a broker that has two; its replicas go offline, the broker and the rest go on."""

from __future__ import annotations

import asyncio
import errno
import sys
from pathlib import Path

import kreplog
from kreplog.core.replication.role import Role
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.faults.shim import FAIL_FROM_HERE_ON, OPEN, RENAME, SYNC, WRITE, Shim
from tests.server.brokers import eventually, serving
from tests.server.test_broker import Client

PARTITIONS = [TopicPartition("topic", number) for number in range(6)]
KINDS = {"sync": SYNC, "sealed": SYNC, "open": OPEN | WRITE | RENAME}


async def main(root: Path, how: str) -> None:
    with kreplog.Log.open(root / "source-0") as log:
        log.append(b"value")
        batch = bytes(log.fetch(0).data)
    directories = f"{root}/{{id}}-a,{root}/{{id}}-b"
    # One checkpoint a life but for "removed", so that it is the failed write that is noticed.
    every_ms = 50 if how == "removed" else 3_600_000
    async with serving(
        root, 1, 2, log_dirs=directories, log_flush_offset_checkpoint_interval_ms=every_ms, log_segment_bytes=2000
    ) as (
        broker,
        other,
    ):
        client, others = Client(broker), Client(other)
        await eventually(lambda: knows(client, 2))
        assigned = [
            {"partition_index": topic_partition.partition, "broker_ids": [1, 2]} for topic_partition in PARTITIONS
        ]
        configs = [{"name": "flush.messages", "value": "1"}] if how == "sync" else []
        topic = {
            "name": "topic",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assigned,
            "configs": configs,
        }
        await client.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
        for topic_partition in PARTITIONS:
            await eventually(lambda topic_partition=topic_partition: takes(client, batch, topic_partition))  # type: ignore[misc]
        failing = broker.hosted.directories[0]
        lost = [place for place, _ in broker.hosted.in_directory(failing)]
        served = [place for place in PARTITIONS if place not in lost]
        assert lost and served, "spread over both"

        if how == "removed":
            failing.path.rename(root / "removed")  # at once: into a half removed one checkpoints would still be written
        else:
            Shim().arm(KINDS[how], f"{failing.path}/", 1, errno.EIO, FAIL_FROM_HERE_ON)
            # What is appended is mapped: the disk is written at an fsync, and for the next segment.
            await eventually(lambda: refuses(client, batch, lost[0]))
        for topic_partition in lost:
            await eventually(lambda topic_partition=topic_partition: takes(others, batch, topic_partition))  # type: ignore[misc]
        assert all(is_offline(broker, topic_partition) for topic_partition in lost)
        for topic_partition in served:
            (answer,) = (await client.produce(batch, acks=-1, at=topic_partition)).partitions
            assert answer.error is ErrorCode.NONE, (topic_partition, answer)
            assert broker.manager.partitions[topic_partition].role is Role.LEADER
            assert broker.manager.partitions[topic_partition].isr == (1, 2)
        assert await knows(others, 2), "it is still registered"
        if how != "removed":
            Shim().disarm()
        client.peer.close()
        others.peer.close()
    assert not (Path(failing.path) / ".kafka_cleanshutdown").exists()
    assert (Path(broker.hosted.directories[1].path) / ".kafka_cleanshutdown").exists()
    print(f"{len(lost)} replicas offline, {len(served)} served")


async def knows(client: Client, brokers: int) -> bool:
    return len((await client.call(ApiKey.METADATA, 9, topics=None)).brokers) == brokers


async def takes(client: Client, batch: bytes, at: TopicPartition) -> bool:
    (answer,) = (await client.produce(batch, acks=1, at=at)).partitions
    return answer.error is ErrorCode.NONE


async def refuses(client: Client, batch: bytes, at: TopicPartition) -> bool:
    return not await takes(client, batch, at)


def is_offline(broker: Broker, at: TopicPartition) -> bool:
    return broker.manager.partitions[at].role is Role.OFFLINE


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
