"""DescribeTopicPartitions: partitions in portions, from a cursor on (KIP-966)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.broker import described_partitions
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.wire.versions import ApiKey
from tests.server.brokers import serving, until_controlled
from tests.server.test_broker import Client

PARTITIONS = {"a": 3, "b": 1, "c": 4}


async def describe(client: Client, *names: str, limit: int = 2000, cursor: dict[str, Any] | None = None) -> Any:
    topics = [{"name": name} for name in names]
    fields = {"topics": topics, "response_partition_limit": limit, "cursor": cursor}
    return await client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **fields)


def listed(response: Any) -> list[tuple[str, list[int]]]:
    return [(topic.name, [found.partition_index for found in topic.partitions]) for topic in response.topics]


async def portions(client: Client, *names: str, limit: int) -> list[list[tuple[str, list[int]]]]:
    """All responses, each from the cursor of the one before."""
    found, cursor = [], None
    while True:
        response = await describe(client, *names, limit=limit, cursor=cursor)
        found.append(listed(response))
        if response.next_cursor is None:
            return found
        assert len(found) < 100
        cursor = {
            "topic_name": response.next_cursor.topic_name,
            "partition_index": response.next_cursor.partition_index,
        }


def test_partitions_are_described_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            for name, count in PARTITIONS.items():
                assert await client.create(name, count) == 0
            whole = [(name, list(range(count))) for name, count in PARTITIONS.items()]
            response = await describe(client)
            assert listed(response) == whole and response.next_cursor is None
            first = response.topics[0].partitions[0]
            assert (first.error_code, first.leader_id, first.isr_nodes, first.replica_nodes) == (0, 1, [1], [1])
            assert (first.eligible_leader_replicas, first.last_known_elr, first.offline_replicas) == ([], [], [])
            for limit in range(-1, 9):
                parts = await portions(client, limit=limit)
                assert all(sum(len(numbers) for _, numbers in part) <= max(1, limit) for part in parts)
                merged: dict[str, list[int]] = {}
                for name, numbers in (entry for part in parts for entry in part):
                    merged.setdefault(name, []).extend(numbers)
                assert list(merged.items()) == whole
            monkeypatch.setattr(described_partitions, "MAX_PARTITIONS_DESCRIBED", 3)
            assert await portions(client, limit=2000) == [whole[:1], [("b", [0]), ("c", [0, 1])], [("c", [2, 3])]]

            response = await describe(client, "c", "no", "a", "x#y", "a")
            assert listed(response) == [("a", [0, 1, 2])]
            assert response.next_cursor.topic_name == "c"
            response = await describe(client, "no", "x#y")
            errors = [(topic.name, topic.error_code) for topic in response.topics]
            wanted = [("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("x#y", ErrorCode.INVALID_TOPIC_EXCEPTION)]
            assert errors == wanted
            beyond = await describe(client, cursor={"topic_name": "c", "partition_index": 9})
            assert listed(beyond) == [("c", [])]
            with pytest.raises((PeerProtocolError, ConnectionError, asyncio.IncompleteReadError)):
                await describe(client, cursor={"topic_name": "c", "partition_index": -1})
            client.peer.close()

    asyncio.run(main())
