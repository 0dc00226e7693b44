"""Automatic topic creation by real brokers: who may cause it, with which defaults, and what it cannot exceed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.errors import ConnectionLossError, ErrorCode
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.test_broker import Client, with_broker


async def errors_of(client: Client, *names: str, version: int = 9, allowed: bool = True) -> list[int]:
    found = await client.call(
        ApiKey.METADATA,
        version,
        topics=[{"topic_id": None, "name": name} for name in names],
        allow_auto_topic_creation=allowed,
    )
    assert [topic.name for topic in found.topics] == list(names)
    return [topic.error_code for topic in found.topics]


async def until_ready(client: Client, name: str) -> Any:
    """The topic's partitions, once it has leaders."""
    found: list[Any] = []

    async def is_ready() -> bool:
        answer = await client.call(ApiKey.METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=False)
        found[:] = answer.topics
        return not found[0].error_code and not any(partition.error_code for partition in found[0].partitions)

    await eventually(is_ready)
    return found[0].partitions


async def topics_of(client: Client) -> list[str]:
    return [topic.name for topic in (await client.call(ApiKey.METADATA, 9, topics=None)).topics]


@pytest.mark.parametrize("version", [1, 4, 9, 12])
def test_a_metadata_request_creates_the_topic(tmp_path: Path, version: int) -> None:
    """Before version 4 a client cannot forbid it."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        assert await errors_of(client, "new", version=version) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert len(await until_ready(client, "new")) == 3
        assert await errors_of(client, "new", version=version) == [0]

    with_broker(tmp_path, work, num_partitions=3)


def test_a_client_that_forbids_it_and_a_request_for_all_topics_create_nothing(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        assert await errors_of(client, "a", "b#", allowed=False) == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert await errors_of(client, "__consumer_offsets") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await errors_of(client, "wanted") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await until_ready(client, "wanted")
        assert await topics_of(client) == ["wanted"]

    with_broker(tmp_path, work)


def test_a_broker_that_forbids_it_creates_nothing(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        assert await errors_of(client, "a", version=1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await client.create("made") == 0
        assert await topics_of(client) == ["made"]

    with_broker(tmp_path, work, auto_create_topics_enable=False)


def test_topics_beyond_the_limit_are_refused_and_the_broker_serves_on(tmp_path: Path) -> None:
    """A flood of names from several connections, of which as many are created as partitions are allowed."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        clients = [client, *(Client(client.broker) for _ in range(9))]
        floods = [[f"t{number}-{index}" for index in range(100)] for number in range(len(clients))]
        errors = await asyncio.gather(*(errors_of(each, *names) for each, names in zip(clients, floods, strict=True)))
        assert {error for found in errors for error in found} <= {
            *(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PARTITIONS),
        }
        for each in clients[1:]:
            each.peer.close()

        decided: dict[str, int] = {}

        async def are_decided() -> bool:
            for names in floods:
                errors = zip(names, await errors_of(client, *names), strict=True)
                # A refusal is known for a moment only: no single round has all of them where rounds take long.
                decided.update((name, error) for name, error in errors if error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return len(decided) == sum(map(len, floods))

        await eventually(are_decided)
        assert sorted(decided.values()) == [0] * 5 + [ErrorCode.INVALID_PARTITIONS] * (len(decided) - 5)
        created = await topics_of(client)  # of whichever connection came first
        assert len(created) == 5
        for name in created:
            await until_ready(client, name)

    with_broker(tmp_path, work, max_partitions=5)


def test_too_few_brokers_for_the_replication_factor_refuse_the_topic(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await until_controlled(client.broker)

        async def is_refused() -> bool:
            return (await errors_of(client, "a"))[0] == ErrorCode.INVALID_REPLICATION_FACTOR

        await eventually(is_refused)
        assert await topics_of(client) == []

    with_broker(tmp_path, work, default_replication_factor=2)


def test_a_topic_whose_metrics_have_the_names_of_another_is_refused(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        assert await client.create("a.b") == 0

        async def is_refused() -> bool:
            return (await errors_of(client, "a_b"))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION

        await eventually(is_refused)
        assert await topics_of(client) == ["a.b"]

    with_broker(tmp_path, work)


def test_a_store_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplog.core.controller.automatic_creation.RETRY_MS", 1)

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        store: Any = client.broker.store
        multi = store.multi

        async def fails(operations: Any) -> Any:
            raise ConnectionLossError("the store does not respond")

        store.multi = fails
        for _ in range(3):
            assert await errors_of(client, "a") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        store.multi = multi

        async def is_ready() -> bool:
            return await errors_of(client, "a") == [0]

        await eventually(is_ready)

    with_broker(tmp_path, work)


def test_any_broker_creates_and_all_of_them_agree(tmp_path: Path) -> None:
    """The controller and the other broker get the request at the same moment."""

    async def main() -> None:
        async with serving(tmp_path, 1, 2, num_partitions=2) as brokers:
            clients = [Client(broker) for broker in brokers]
            for broker in brokers:
                await until_controlled(broker)

            async def sees_both() -> bool:
                return all(len(broker.manager.metadata.brokers) == 2 for broker in brokers)

            await eventually(sees_both)
            names = [f"t{number}" for number in range(20)]
            await asyncio.gather(*(errors_of(client, *names) for client in clients))
            for name in names:
                first, second = [await until_ready(client, name) for client in clients]
                assert [list(partition.replica_nodes) for partition in first] == [
                    list(partition.replica_nodes) for partition in second
                ]
                assert [sorted(partition.replica_nodes) for partition in first] == [[1, 2], [1, 2]]
            for client in clients:
                client.peer.close()

    asyncio.run(main())


def test_defaults_count_for_create_topics(tmp_path: Path) -> None:
    """KIP-464: -1 partitions and -1 replicas."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        topic = {"name": "a", "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
        answer = await client.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
        (made,) = answer.topics
        assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 4, 1)

    with_broker(tmp_path, work, num_partitions=4, default_replication_factor=1)
