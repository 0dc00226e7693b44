"""CreateTopics by a real broker: what it refuses, and what its response says of the topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kreplog.errors import ErrorCode
from kreplog.wire.versions import ApiKey
from tests.server.brokers import until_controlled
from tests.server.test_broker import Client, with_broker


def new_topic(name: str, partitions: int = 1, **configs: str) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": setting.replace("_", "."), "value": value} for setting, value in configs.items()],
    }


async def create(client: Client, *topics: dict[str, Any], version: int = 7, validate_only: bool = False) -> list[Any]:
    answer = await client.call(
        ApiKey.CREATE_TOPICS, version, topics=list(topics), timeout_ms=10_000, validate_only=validate_only
    )
    return list(answer.topics)


async def topics_of(client: Client) -> list[str]:
    return [topic.name for topic in (await client.call(ApiKey.METADATA, 9, topics=None)).topics]


def test_topics_whose_metrics_would_have_the_same_names_are_refused(tmp_path: Path) -> None:
    refused = ErrorCode.INVALID_TOPIC_EXCEPTION

    async def errors(*names: str, validate_only: bool = False) -> list[int]:
        found = await create(clients[0], *map(new_topic, names), validate_only=validate_only)
        return [topic.error_code for topic in found]

    clients: list[Client] = []

    async def work(client: Client) -> None:
        clients.append(client)
        await until_controlled(client.broker)
        assert await errors("c.d", "c_d", validate_only=True) == [0, refused]
        assert await errors("a.b", "c.d", "a_b") == [0, 0, refused]
        assert await errors("a_b", validate_only=True) == [refused]
        (collides,) = await create(client, new_topic("a_b"))
        assert (collides.error_code, collides.num_partitions) == (refused, -1)
        assert "a_b collides with the existing topic a.b" in collides.error_message
        assert await errors("c_d", "a.b", "e_f") == [refused, ErrorCode.TOPIC_ALREADY_EXISTS, 0]
        assert await topics_of(client) == ["a.b", "c.d", "e_f"]

    with_broker(tmp_path, work)
