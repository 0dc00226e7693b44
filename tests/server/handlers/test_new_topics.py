"""CreateTopics by a real broker: what it refuses, and what its response says of the topics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kreplog.core import whole_nodes
from kreplog.core.controller import topic_names
from kreplog.core.dynamic_configs import STATIC, TOPIC
from kreplog.core.effects import Pause
from kreplog.errors import ErrorCode
from kreplog.server.handlers import admin
from kreplog.server.handlers.admin import AdminHandlers
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
        assert "a_b collides with topic a.b" in collides.error_message
        assert await errors("c_d", "a.b", "e_f") == [refused, ErrorCode.TOPIC_ALREADY_EXISTS, 0]
        assert await topics_of(client) == ["a.b", "c.d", "e_f"]

    with_broker(tmp_path, work)


def test_topics_of_many_clients_are_created_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the first group's `__consumer_offsets`; creations by one broker do not hold up each other."""
    conflicts: list[int] = []
    retry_pause = whole_nodes.retry_pause

    def counted(attempt: int) -> Pause:
        conflicts.append(attempt)
        return retry_pause(attempt)

    monkeypatch.setattr(topic_names, "GUARDS", 1)
    monkeypatch.setattr(whole_nodes, "retry_pause", counted)
    monkeypatch.setattr(admin, "_TURN_S", 60.0)

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        clients = [Client(client.broker) for _ in range(20)]
        creations = [create(other, new_topic(f"app.{number}")) for number, other in enumerate(clients)]
        finding = client.call(ApiKey.FIND_COORDINATOR, 3, key="g", key_type=0)
        *created, coordinator = await asyncio.gather(*creations, finding)
        assert [topic.error_code for topics in created for topic in topics] == [0] * len(clients)
        assert (coordinator.error_code, coordinator.error_message) == (0, None)
        assert not conflicts
        for other in clients:
            other.peer.close()

    with_broker(tmp_path, work, offsets_topic_replication_factor=1, offsets_topic_num_partitions=1)


def test_a_creation_that_the_store_does_not_answer_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, begun = asyncio.Event(), asyncio.Event()
    carry_out = AdminHandlers._carry_out

    async def unanswered(self: AdminHandlers, steps: Any) -> None:
        if not begun.is_set():
            begun.set()
            await answered.wait()
        await carry_out(self, steps)

    monkeypatch.setattr(AdminHandlers, "_carry_out", unanswered)
    monkeypatch.setattr(admin, "_TURN_S", 0.01)

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        first = asyncio.create_task(create(client, new_topic("a.a")))
        await begun.wait()
        other = Client(client.broker)
        assert [topic.error_code for topic in await create(other, new_topic("b.b"))] == [0]
        other.peer.close()
        answered.set()
        assert [topic.error_code for topic in await first] == [0]

    with_broker(tmp_path, work)


@pytest.mark.parametrize("version", [5, 7])
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_new_topic_is_described_as_by_describe_configs(tmp_path: Path, version: int, validate_only: bool) -> None:
    """KIP-525: partitions, replicas and all settings with their sources."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        topics = [new_topic("a", 3, retention_ms="5", cleanup_policy="compact"), new_topic("b"), new_topic("#")]
        made, other, refused = await create(client, *topics, version=version, validate_only=validate_only)
        assert [(topic.num_partitions, topic.replication_factor) for topic in (made, other)] == [(3, 1), (1, 1)]
        assert (refused.num_partitions, refused.replication_factor, refused.configs) == (-1, -1, [])
        shown = {config.name: config for config in made.configs}
        assert {topic.topic_config_error_code for topic in (made, other, refused)} == {0}
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", TOPIC)
        assert (shown["cleanup.policy"].value, shown["segment.bytes"].value) == ("compact", "1048576")
        assert shown["segment.bytes"].config_source == STATIC
        if validate_only:
            assert await topics_of(client) == []
            return
        for topic in (made, other):
            resource = {"resource_type": 2, "resource_name": topic.name, "configuration_keys": None}
            (described,) = (await client.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource])).results
            assert facts(topic.configs) == facts(described.configs)

    with_broker(tmp_path, work, log_segment_bytes=1048576)


def facts(configs: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (config.name, config.value, config.read_only, config.config_source, config.is_sensitive) for config in configs
    ]


def test_versions_before_5_have_no_settings(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        (made,) = await create(client, new_topic("a"), version=4)
        assert (made.error_code, made.num_partitions, made.configs) == (0, -1, [])

    with_broker(tmp_path, work)
