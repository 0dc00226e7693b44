"""DescribeClientQuotas, AlterClientQuotas (KIP-546): at the broker that gets them, at others, and after a restart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core import nodes
from kreplog.core.quotas.quota_requests import ANY, EXACT, OF_DEFAULT, matching
from kreplog.core.whole_nodes import MAX_BYTES
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.handlers import quota_handlers
from kreplog.server.runtime import whole_node_cache
from kreplog.types import Create, SetData
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.network.quota_clients import Client, alteration, set_quotas

ENTITIES: tuple[dict[str, str | None], ...] = (
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": "alice"},
    {"user": None},
    {"client-id": "app"},
)


async def alter(broker: Broker, *entries: dict[str, Any], validate_only: bool = False, version: int = 1) -> list[int]:
    """The error codes of the response."""
    response = await Client(broker, "admin").call(
        ApiKey.ALTER_CLIENT_QUOTAS, version, entries=list(entries), validate_only=validate_only
    )
    for entry, result in zip(entries, response.entries, strict=True):
        given = [(part["entity_type"], part["entity_name"]) for part in entry["entity"]]
        assert [(part.entity_type, part.entity_name) for part in result.entity] == given
        assert bool(result.error_message) == bool(result.error_code)
    return [entry.error_code for entry in response.entries]


async def describe(broker: Broker, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    """The quotas of each entity; or the error."""
    given = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    response = await Client(broker, "admin").call(ApiKey.DESCRIBE_CLIENT_QUOTAS, components=given, strict=strict)
    if response.error_code:
        assert response.entries is None and response.error_message
        return ErrorCode(response.error_code)
    return [
        ({part.entity_type: part.entity_name for part in entry.entity}, {each.key: each.value for each in entry.values})
        for entry in response.entries
    ]


async def entities(broker: Broker, *components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
    return [entity for entity, _ in await describe(broker, *components, strict=strict)]


def test_filters_choose_by_name_default_or_type(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            assert await describe(broker) == []
            assert await alter(broker, *(alteration(each, producer_byte_rate=1000.0) for each in ENTITIES)) == [0] * 5
            both, of_default, alice, default, app = ENTITIES

            async def chosen(*components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
                found = await entities(broker, *components, strict=strict)
                return [entity for entity in ENTITIES if entity in found]

            assert await chosen() == list(ENTITIES)
            assert await chosen(strict=True) == []
            assert await chosen(("user", EXACT, "alice")) == [both, of_default, alice]
            assert await chosen(("user", EXACT, "alice"), strict=True) == [alice]
            assert await chosen(("user", OF_DEFAULT, None)) == [default]
            assert await chosen(("user", ANY, None), strict=True) == [alice, default]
            assert await chosen(("client-id", ANY, None), ("user", ANY, None)) == [both, of_default]
            assert await chosen(("client-id", OF_DEFAULT, None)) == [of_default]
            assert await chosen(("client-id", EXACT, "app"), strict=True) == [app]
            assert await chosen(("client-id", EXACT, "APP")) == []
            assert await chosen(("ip", ANY, None)) == []
            addresses: list[dict[str, str | None]] = [{"ip": None}, {"ip": "192.0.2.1"}]
            given = (alteration(each, connection_creation_rate=5.0) for each in addresses)
            assert await alter(broker, *given) == [0, 0]
            assert await entities(broker, ("ip", ANY, None), strict=True) == addresses
            assert await entities(broker, ("ip", EXACT, "192.0.2.1")) == addresses[1:]
            assert await entities(broker, ("ip", OF_DEFAULT, None)) == addresses[:1]
            assert await describe(broker, ("ip", ANY, None), ("user", ANY, None)) == ErrorCode.INVALID_REQUEST

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, None), ("user", EXACT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", OF_DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("group", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_filter_that_is_none_is_refused(tmp_path: Path, components: Any, error: ErrorCode) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            assert await describe(broker, *components) is error

    asyncio.run(scenario())


def test_entries_are_checked_one_by_one_and_applied_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            entries = [
                alteration({"user": "alice"}, producer_byte_rate=1000.0, request_percentage=0.25),
                alteration({"user": "bob"}, producer_byte_rate=0.5),
                alteration({"user": "bob"}, unknown=1.0),
                alteration({"ip": "127.0.0.1"}, producer_byte_rate=1.0),
                alteration({"user": ""}, producer_byte_rate=1000.0),
                alteration({}, producer_byte_rate=1000.0),
                alteration({"user": "carol"}, producer_byte_rate=None),  # nothing to remove
            ]
            expected = [0, *[ErrorCode.INVALID_REQUEST] * 5, 0]
            assert await alter(broker, *entries, validate_only=True) == expected
            assert await describe(broker) == []
            assert await alter(broker, *entries) == expected
            both = {"producer_byte_rate": 1000.0, "request_percentage": 0.25}
            assert await describe(broker) == [({"user": "alice"}, both)]
            removal = alteration({"user": "alice"}, producer_byte_rate=None, controller_mutation_rate=5.0)
            assert await alter(broker, removal, version=0) == [0]
            left = {"request_percentage": 0.25, "controller_mutation_rate": 5.0}
            assert await describe(broker) == [({"user": "alice"}, left)]
            twice = alteration({"user": "alice"}, producer_byte_rate=1.0)
            twice["ops"] *= 2
            assert await alter(broker, twice) == [ErrorCode.INVALID_REQUEST]

    asyncio.run(scenario())


def test_every_broker_has_the_quotas_and_after_a_restart_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0, 1) as brokers:
            for broker in brokers:
                await until_controlled(broker)
            await asyncio.gather(
                *(
                    set_quotas(brokers[number % 2], {"user": f"u-{number}"}, request_percentage=1.0)
                    for number in range(8)
                )
            )

            async def all_known() -> bool:
                return len(brokers[0].server.client_quotas.limits.quotas) == 8 == len(await describe(brokers[1]))

            await eventually(all_known)
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)

            async def known() -> bool:
                return len(await describe(broker)) == 8

            await eventually(known)

    asyncio.run(scenario())


def test_a_damaged_node_changes_no_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whole_node_cache, "RETRY_S", 0.01)

    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            await set_quotas(broker, {"user": "alice"}, request_percentage=1.0)
            await broker.store.multi([SetData(nodes.CLIENT_QUOTAS, b'[[{"user":"alice"},{"no_such_key":1}]]')])

            async def noticed() -> bool:
                return "no quotas that this version can read" in caplog.text

            await eventually(noticed)
            assert await describe(broker) == [({"user": "alice"}, {"request_percentage": 1.0})]
            codes = await alter(broker, alteration({"user": "bob"}, request_percentage=1.0))
            assert codes == [ErrorCode.REQUEST_TIMED_OUT]
            await broker.store.multi([SetData(nodes.CLIENT_QUOTAS, b"[]")])

            async def repaired() -> bool:
                return bool(await describe(broker) == [])

            await eventually(repaired)

    asyncio.run(scenario())


def test_more_quotas_than_a_node_holds_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            await set_quotas(broker, {"user": "alice"}, request_percentage=1.0)
            names = [f"{number}-{'x' * 20_000}" for number in range(MAX_BYTES // 20_000)]
            entries = [alteration({"user": name}, request_percentage=1.0) for name in names]
            assert set(await alter(broker, *entries)) == {ErrorCode.INVALID_REQUEST}
            assert await entities(broker) == [{"user": "alice"}]

    asyncio.run(scenario())


def test_hundreds_are_described_outside_of_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int] = {}

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **more: Any) -> Any:
            threads[name] = threading.get_ident()
            return call(*arguments, **more)

        return noted

    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            names = [f"user-{number:03}" for number in range(300)]
            codes = await alter(broker, *(alteration({"user": name}, request_percentage=1.0) for name in names))
            assert set(codes) == {0}
            monkeypatch.setattr(quota_handlers, "matching", noting("found", matching))
            monkeypatch.setattr(generic, "encode_response", noting("encoded", generic.encode_response))
            assert await entities(broker) == [{"user": name} for name in names]
            assert threads.keys() == {"found", "encoded"}
            assert threading.get_ident() not in threads.values()

    asyncio.run(scenario())


def test_a_node_that_was_there_before_the_broker_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await broker.store.until_connected()
            await broker.store.multi([Create(nodes.CLIENT_QUOTAS, b'[[{"client-id":null},{"request_percentage":2}]]')])

            async def known() -> bool:
                return bool(await describe(broker) == [({"client-id": None}, {"request_percentage": 2.0})])

            await eventually(known)

    asyncio.run(scenario())
