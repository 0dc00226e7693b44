"""Clients that try to get more than their quota, or to make a broker pay for limiting them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog._native.batch import build
from kreplog.core.quotas import quota_manager
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.monitoring.metrics import render
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.network.quota_clients import Client, Clock, set_quotas

BATCH = build([b"x" * 1000] * 10)
USER = {"user": "ANONYMOUS"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def prepared(broker: Broker) -> None:
    await until_controlled(broker)
    await Client(broker, "creator").create("topic")


def test_many_connections_and_client_ids_of_a_user_get_no_more_than_one(tmp_path: Path, clock: Clock) -> None:
    """All at once, each connection with a client id of its own."""

    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await prepared(broker)
            await set_quotas(broker, USER, producer_byte_rate=len(BATCH) // 2)  # five at once are within it
            clients = [Client(broker, f"id-{number}") for number in range(100)]
            tasks = [asyncio.create_task(client.produce(BATCH)) for client in clients]

            async def all_wait_or_are_answered() -> bool:
                return sum(task.done() for task in tasks) + len(broker.server.muted) >= len(tasks)

            for seconds in range(1, 6):
                await eventually(all_wait_or_are_answered)
                allowed = len(BATCH) // 2 * (10 + 11 * seconds)
                assert 0 < broker.traffic.total.bytes_in <= allowed + len(BATCH)
                clock.after(broker, 11_000)
            for task in tasks:
                task.cancel()

    asyncio.run(scenario())


def test_a_flood_of_client_ids_gets_the_quota_of_one_and_no_memory(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one connection, another id with each request, where each id has a quota of its own."""
    monkeypatch.setattr(quota_manager, "MAX_SENSORS", 20)

    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await prepared(broker)
            await set_quotas(broker, {"client-id": None}, producer_byte_rate=len(BATCH))  # ten at once
            client = Client(broker, "first")
            throttled = 0
            for number in range(20 + 40):
                client.user = f"flood-{number}"
                response = await client.produce(BATCH)
                throttled += response.throttle_time_ms > 0
                if response.throttle_time_ms:
                    broker.server.unmute_all()  # it would wait
                    assert number >= 20 + 8
                    break
            assert throttled == 1
            manager = broker.server.client_quotas
            assert len([state for state in manager.states(clock.now_ms) if "rate" in state.key]) <= 21
            other = asyncio.create_task(Client(broker, "flood-elsewhere").produce(BATCH))

            async def waits() -> bool:
                return len(broker.server.muted) == 1

            await eventually(waits)
            assert not other.done()
            other.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("api", "fields"),
    [(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}), (ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b""})],
)
def test_requests_of_sasl_that_are_no_login_are_charged(
    tmp_path: Path, clock: Clock, api: ApiKey, fields: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await prepared(broker)
            await set_quotas(broker, {"client-id": "noisy"}, request_percentage=1e-6)
            response = await Client(broker, "noisy").call(api, **fields)
            assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert len(broker.server.muted) == 1

    asyncio.run(scenario())


def test_requests_that_wait_for_a_quota_hold_bounded_memory(tmp_path: Path, clock: Clock) -> None:
    """Whoever sends large ones on many connections loses connections, and nobody else does."""

    async def scenario() -> None:
        limit = 4 << 20
        async with serving(tmp_path, 0, queued_max_request_bytes=limit) as (broker,):
            await prepared(broker)
            await set_quotas(broker, {"client-id": "noisy"}, producer_byte_rate=1)
            quiet = Client(broker, "quiet")
            await quiet.produce(BATCH)
            first = Client(broker, "noisy")
            await first.produce(BATCH)
            first.close()
            large = build([b"x" * 1000] * 900)
            clients = [Client(broker, "noisy") for _ in range(30)]
            tasks = [asyncio.create_task(client.produce(large)) for client in clients]

            async def all_wait_or_are_closed() -> bool:
                return sum(task.done() for task in tasks) + len(broker.server.muted) >= len(tasks)

            await eventually(all_wait_or_are_closed)
            assert broker.server.memory.held <= limit
            assert 1 < len(broker.server.muted) < len(tasks)
            assert (await quiet.produce(BATCH)).throttle_time_ms == 0
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_small_requests_that_wait_count_too(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await prepared(broker)
            await set_quotas(broker, {"client-id": "noisy"}, producer_byte_rate=1)
            clients = [Client(broker, "noisy") for _ in range(30)]
            await clients[0].produce(BATCH)
            tasks = [asyncio.create_task(client.produce(BATCH)) for client in clients]

            async def all_wait() -> bool:
                return broker.server.memory.held >= len(BATCH) * (len(tasks) - 1)

            await eventually(all_wait)  # nobody reads of the first one, which is muted
            assert len(broker.server.muted) == len(tasks)
            for task in tasks:
                task.cancel()

    asyncio.run(scenario())


def test_names_of_clients_are_no_metrics_of_their_own(tmp_path: Path, clock: Clock) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client, the extra `dev`")
    names = ['a"} 1\nkafka_server_fake 1 #', "back\\slash", "x" * 300, "\u202eevil", "{}=,"]

    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await prepared(broker)
            await set_quotas(broker, {"client-id": None}, producer_byte_rate=100)
            for name in names:
                client = Client(broker, name)
                await client.produce(BATCH)
                client.close()
            await Client(broker, "operator").call(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
            text = (await render(broker)).decode()
            found = {
                sample.labels["client_id"]: sample.value
                for family in parser.text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "kafka_server_produce_throttle_time"
            }
            assert found.keys() == set(names)
            assert all(value > 0 for value in found.values())
            assert "kafka_server_fake" not in {family.name for family in parser.text_string_to_metric_families(text)}

    asyncio.run(scenario())
