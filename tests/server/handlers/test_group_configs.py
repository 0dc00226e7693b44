"""Configs of groups: altered at one broker, described and applied at others, stored over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core import nodes
from kreplog.core.dynamic_configs import DEFAULT, DELETE, DYNAMIC_GROUP, SET, STATIC
from kreplog.core.groups.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.runtime import whole_node_cache
from kreplog.types import SetData
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.network.quota_clients import Client

NAME = "readers"
OTHER = "other readers"
BROKER_SESSION, BROKER_HEARTBEAT = "group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms"


async def alter(
    broker: Broker, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False, kind: int = 32
) -> tuple[int, str | None]:
    """Error code and message; None deletes."""
    configs = [
        {"name": setting, "value": value, "config_operation": DELETE if value is None else SET}
        for setting, value in changes.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    response = await Client(broker, "admin").call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only
    )
    (result,) = response.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


async def described(broker: Broker, name: str) -> dict[str, list[tuple[str, str, int]]]:
    """The synonyms of each setting."""
    resource = {"resource_type": 32, "resource_name": name, "configuration_keys": None}
    response = await Client(broker, "admin").call(
        ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True, include_documentation=False
    )
    (result,) = response.results
    assert result.error_code == 0, result.error_message
    found = {}
    for config in result.configs:
        found[config.name] = [(each.name, each.value, each.source) for each in config.synonyms]
        assert (config.value, config.config_source) == found[config.name][0][1:]
        assert not config.read_only and config.config_type == 3
    return found


async def listed(broker: Broker, *kinds: int, version: int = 1) -> Any:
    """Names by type; or the error."""
    response = await Client(broker, "admin").call(
        ApiKey.LIST_CONFIG_RESOURCES, version, **({"resource_types": list(kinds)} if version else {})
    )
    if response.error_code:
        return ErrorCode(response.error_code)
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


def test_configs_are_described_at_every_broker_with_those_of_the_broker_behind_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0, 1, group_consumer_session_timeout_ms=50_000) as (first, second):
            for broker in (first, second):
                await until_controlled(broker)
            static = [(BROKER_SESSION, "50000", STATIC), (BROKER_SESSION, "45000", DEFAULT)]
            default = [(BROKER_HEARTBEAT, "5000", DEFAULT)]
            assert await described(first, NAME) == {HEARTBEAT_INTERVAL: default, SESSION_TIMEOUT: static}
            assert await alter(first, NAME, {SESSION_TIMEOUT: "60000", HEARTBEAT_INTERVAL: "15000"}) == (0, None)
            both = {
                HEARTBEAT_INTERVAL: [(HEARTBEAT_INTERVAL, "15000", DYNAMIC_GROUP), *default],
                SESSION_TIMEOUT: [(SESSION_TIMEOUT, "60000", DYNAMIC_GROUP), *static],
            }
            assert await described(first, NAME) == both

            async def known() -> bool:
                return await described(second, NAME) == both

            await eventually(known)
            assert second.cores.groups.configs.times_of(NAME) == (15_000, 60_000)
            assert first.cores.groups.configs.times_of(OTHER) == (5000, 50_000)
            assert await alter(second, NAME, {HEARTBEAT_INTERVAL: None}) == (0, None)
            assert (await described(second, NAME))[HEARTBEAT_INTERVAL] == default
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            await broker.group_config_cache.until_ready(60)
            assert (await described(broker, NAME))[SESSION_TIMEOUT][0] == (SESSION_TIMEOUT, "60000", DYNAMIC_GROUP)

    asyncio.run(scenario())


def test_refused_changes_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            invalid = int(ErrorCode.INVALID_CONFIG), int(ErrorCode.INVALID_REQUEST)
            for name, changes, expected, reason in (
                (NAME, {SESSION_TIMEOUT: "60001"}, invalid[0], "group.consumer.max.session.timeout.ms = 60000"),
                (NAME, {SESSION_TIMEOUT: "60000", HEARTBEAT_INTERVAL: "4999"}, invalid[0], HEARTBEAT_INTERVAL),
                (NAME, {"share.session.timeout.ms": "45000"}, invalid[0], "share groups"),
                (NAME, {"retention.ms": "1"}, invalid[0], "not a setting of a group"),
                ("", {SESSION_TIMEOUT: "60000"}, invalid[1], "give the id of a group"),
            ):
                code, message = await alter(broker, name, changes)
                assert code == expected and reason in (message or "")
            assert await alter(broker, NAME, {SESSION_TIMEOUT: "60000"}, validate_only=True) == (0, None)
            code, _ = await alter(broker, NAME, {SESSION_TIMEOUT: "60001"}, validate_only=True)
            assert code == invalid[0]
            assert (await broker.store.get_nodes((nodes.GROUP_CONFIGS,)))[0] is None
            response = await Client(broker, "admin").call(
                ApiKey.DESCRIBE_CONFIGS,
                4,
                resources=[{"resource_type": 32, "resource_name": "", "configuration_keys": None}],
                include_synonyms=False,
                include_documentation=False,
            )
            assert response.results[0].error_code == invalid[1]

    asyncio.run(scenario())


def test_altering_all_configs_deletes_those_that_are_not_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            await alter(broker, NAME, {SESSION_TIMEOUT: "60000", HEARTBEAT_INTERVAL: "15000"})
            given = [{"name": HEARTBEAT_INTERVAL, "value": "7000"}]
            resource = {"resource_type": 32, "resource_name": NAME, "configs": given}
            response = await Client(broker, "admin").call(
                ApiKey.ALTER_CONFIGS, 2, resources=[resource], validate_only=False
            )
            assert response.responses[0].error_code == 0
            found = await described(broker, NAME)
            assert found[HEARTBEAT_INTERVAL][0] == (HEARTBEAT_INTERVAL, "7000", DYNAMIC_GROUP)
            assert found[SESSION_TIMEOUT] == [(BROKER_SESSION, "45000", DEFAULT)]

    asyncio.run(scenario())


def test_resources_with_configs_are_listed_by_type(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0, 1) as (broker, other):
            for each in (broker, other):
                await until_controlled(each)
            assert await listed(broker, 32) == []
            for name in (NAME, OTHER):
                assert await alter(broker, name, {SESSION_TIMEOUT: "60000"}) == (0, None)
            assert await listed(broker, 32) == [(32, OTHER), (32, NAME)]
            await eventually(lambda: _lists(broker, [(4, "0"), (4, "1")], 4))
            assert await listed(broker) == [(4, "0"), (4, "1"), (32, OTHER), (32, NAME)]
            assert await listed(broker, 8, 16) == [] and await listed(broker, version=0) == []
            assert await listed(broker, 32, 64) is ErrorCode.UNSUPPORTED_VERSION
            await alter(broker, NAME, {SESSION_TIMEOUT: None})
            assert await listed(broker, 32) == [(32, OTHER)]

    asyncio.run(scenario())


async def _lists(broker: Broker, expected: list[tuple[int, str]], *kinds: int) -> bool:
    return bool(await listed(broker, *kinds) == expected)


def test_configs_stay_in_effect_while_their_node_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whole_node_cache, "RETRY_S", 0.01)

    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            await alter(broker, NAME, {SESSION_TIMEOUT: "60000"})
            await broker.store.multi((SetData(nodes.GROUP_CONFIGS, b"{"),))

            async def noticed() -> bool:
                return "/config/groups has no configs of groups that this version can read" in caplog.text

            await eventually(noticed)
            assert broker.cores.groups.configs.times_of(NAME).session_timeout_ms == 60_000
            code, message = await alter(broker, NAME, {SESSION_TIMEOUT: "50000"})
            assert code == ErrorCode.REQUEST_TIMED_OUT and "restore it" in (message or "")
            stored = b'{"readers":{"consumer.session.timeout.ms":"1"},"other readers":{"newer":"1"}}'
            text = "configs of groups in the coordination store are not applied as they are: "
            await broker.store.multi((SetData(nodes.GROUP_CONFIGS, stored),))

            async def applied() -> bool:
                return broker.cores.groups.configs.times_of(NAME).session_timeout_ms == 45_000

            await eventually(applied)
            for reason in ("consumer.session.timeout.ms = 1 counts as 45000", "newer is not a setting"):
                assert text + reason in caplog.text

    asyncio.run(scenario())
