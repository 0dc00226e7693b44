"""The internal topic that FindCoordinator creates: with all its replicas, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.config import GroupConfig, TransactionConfig
from kreplog.core.broker import coordinator_lookup
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.errors import ErrorCode
from kreplog.server.handlers.admin import AdminHandlers
from kreplog.server.handlers.api import Api
from kreplog.server.handlers.coordinators import CoordinatorHandlers
from kreplog.server.handlers.topics import TopicViews
from kreplog.types import BrokerRegistration
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, until_controlled
from tests.server.test_broker import Client, with_broker


async def found(client: Client, group: str = "group") -> Any:
    return await client.call(ApiKey.FIND_COORDINATOR, 3, key=group, key_type=0)


async def partitions(client: Client) -> int:
    response = await client.call(ApiKey.METADATA, 9, topics=None)
    return sum(len(topic.partitions) for topic in response.topics if topic.name == OFFSETS_TOPIC)


def test_one_broker_with_a_factor_of_one_coordinates(tmp_path: Path) -> None:
    """`kreplog cluster create` gives that factor to clusters that have fewer brokers than three."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)

        async def is_found() -> bool:
            return int((await found(client)).error_code) == ErrorCode.NONE

        await eventually(is_found)
        assert await partitions(client) == 3

    with_broker(tmp_path, work, offsets_topic_num_partitions=3, offsets_topic_replication_factor=1)


def test_many_keys_of_a_request_are_looked_up_in_the_same_leaders() -> None:
    """FindCoordinator v4, KIP-699. The internal topic has 50 partitions by default: their leaders are listed once."""
    listed = []

    class Partitions(dict[int, Any]):
        def items(self) -> Any:
            listed.append(self)
            return super().items()

    state = {number: SimpleNamespace(state=SimpleNamespace(leader=number)) for number in range(3)}
    topics = SimpleNamespace(get=lambda name: SimpleNamespace(name=name, partitions=Partitions(state)))
    live = {number: BrokerRegistration(number, 1, f"host{number}", 9092) for number in range(2)}
    handlers = CoordinatorHandlers(
        cast(AdminHandlers, None), cast(TopicViews, topics), lambda listener: live, GroupConfig(), TransactionConfig()
    )
    keys = [f"group {number}" for number in range(20)]
    response = asyncio.run(handlers.find(SimpleNamespace(key_type=0, coordinator_keys=keys), "PLAINTEXT"))
    assert [found["key"] for found in response["coordinators"]] == keys
    leaders = [partition_of_group(key, 3) for key in keys]
    assert set(leaders) == {0, 1, 2}
    assert [found["node_id"] for found in response["coordinators"]] == [
        leader if leader in live else -1 for leader in leaders
    ]
    assert len(listed) == 1


def test_too_few_brokers_create_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kafka there is no coordinator until enough brokers are registered: a topic with fewer replicas would keep
    them. A flood of requests does not become one of attempts."""
    attempts: list[str] = []
    create = AdminHandlers.create_internal_topic
    monkeypatch.setattr(coordinator_lookup, "RETRY_MS", 3_600_000)

    async def counted(self: AdminHandlers, name: str, *others: Any) -> None:
        attempts.append(name)
        await create(self, name, *others)

    monkeypatch.setattr(AdminHandlers, "create_internal_topic", counted)

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        for number in range(50):
            response = await found(client, f"group {number}")
            assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert "offsets.topic.replication.factor = 3" in response.error_message
        assert attempts == [OFFSETS_TOPIC]
        assert await partitions(client) == 0
        monkeypatch.setattr(coordinator_lookup, "RETRY_MS", 0)
        await found(client)
        assert len(attempts) == 2, "it is not tried again"

    with_broker(tmp_path, work)


def test_answers_of_any_size_are_encoded_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the event loop would serve nobody meanwhile."""
    encoded: list[int] = []
    respond = Api._respond_from_thread

    def respond_from_thread(self: Api, encode: Any, context: Any) -> None:
        encoded.append(context.header.api_key)
        respond(self, encode, context)

    async def work(client: Client) -> None:
        await client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["id"])
        await client.call(ApiKey.LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[])

    monkeypatch.setattr(Api, "_respond_from_thread", respond_from_thread)
    with_broker(tmp_path, work)
    assert encoded == [ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS]


def test_a_transactional_id_expires(tmp_path: Path) -> None:
    """Its deletion is in the log of `__transaction_state`, so a restarted broker does not find it either."""
    settings = {
        "transaction_state_log_num_partitions": 1,
        "transaction_state_log_replication_factor": 1,
        "transaction_state_log_min_isr": 1,
        "transactional_id_expiration_ms": 300,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 10,
    }

    async def is_found(client: Client) -> bool:
        await client.call(ApiKey.FIND_COORDINATOR, 3, key="id", key_type=1)
        response = await client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["id"])
        error = ErrorCode(response.transaction_states[0].error_code)
        if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            return await is_found(client)
        assert error in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return error is ErrorCode.NONE

    async def begun(client: Client) -> bool:
        await client.call(ApiKey.FIND_COORDINATOR, 3, key="id", key_type=1)
        response = await client.call(
            ApiKey.INIT_PRODUCER_ID,
            3,
            transactional_id="id",
            transaction_timeout_ms=1000,
            producer_id=-1,
            producer_epoch=-1,
        )
        return int(response.error_code) == ErrorCode.NONE

    async def expires(client: Client) -> None:
        await until_controlled(client.broker)
        await eventually(lambda: begun(client))
        assert await is_found(client)

        async def is_gone() -> bool:
            return not await is_found(client)

        await eventually(is_gone)

    async def stays_gone(client: Client) -> None:
        await until_controlled(client.broker)
        assert not await is_found(client)

    with_broker(tmp_path, expires, **settings)
    with_broker(tmp_path, stays_gone, **{**settings, "transactional_id_expiration_ms": 2**31 - 1})


def test_a_fenced_producer_gets_a_code_that_its_version_has(tmp_path: Path) -> None:
    """KIP-588: before version 4 of InitProducerId there is no PRODUCER_FENCED."""
    settings = {
        "transaction_state_log_num_partitions": 1,
        "transaction_state_log_replication_factor": 1,
        "transaction_state_log_min_isr": 1,
    }

    async def begin(client: Client, version: int, producer_id: int, epoch: int) -> Any:
        await client.call(ApiKey.FIND_COORDINATOR, 3, key="id", key_type=1)
        return await client.call(
            ApiKey.INIT_PRODUCER_ID,
            version,
            transactional_id="id",
            transaction_timeout_ms=1000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    async def work(client: Client) -> None:
        await until_controlled(client.broker)

        async def has_begun() -> bool:
            return int((await begin(client, 4, -1, -1)).error_code) == ErrorCode.NONE

        await eventually(has_begun)
        first = await begin(client, 4, -1, -1)
        await begin(client, 4, -1, -1)
        known = (first.producer_id, first.producer_epoch - 1)
        assert (await begin(client, 3, *known)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await begin(client, 4, *known)).error_code == ErrorCode.PRODUCER_FENCED

    with_broker(tmp_path, work, **settings)
