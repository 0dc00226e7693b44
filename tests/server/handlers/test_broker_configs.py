"""Dynamic broker configs (KIP-226): altered, stored, sent to the brokers, applied while these run, and described."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kreplog
from kreplog.core import nodes
from kreplog.core.dynamic_configs import (
    APPEND,
    DEFAULT,
    DELETE,
    DYNAMIC,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    SET,
    STATIC,
    TOPIC,
)
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.settings import OF_LOGS
from kreplog.types import Node, TopicPartition
from kreplog.wire.versions import ApiKey
from tests.reference import Batch, Rec, encode
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.test_broker import TP, Client

OTHER_VALUES: dict[str, Any] = {
    "log.cleaner.min.cleanable.ratio": 0.25,
    "log.message.timestamp.type": "LogAppendTime",
}
"""Other than the default; of all other settings 4321."""


async def alter(
    client: Client, name: str, changes: dict[str, str | None], operation: int | None = None, **extent: Any
) -> tuple[int, str | None]:
    """Error code and message; waits until the broker has applied the changes. By default values are set, and None
    deletes."""
    configs = [
        {
            "name": setting,
            "value": value,
            "config_operation": operation if operation is not None else DELETE if value is None else SET,
        }
        for setting, value in changes.items()
    ]
    resource = {"resource_type": 4, "resource_name": name, "configs": configs}
    answer = await client.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], **{"validate_only": False, **extent}
    )
    if answer.responses[0].error_code == 0 and not extent:
        await until_applied(client.broker, name, changes)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def replace(client: Client, name: str, configs: dict[str, str]) -> tuple[int, str | None]:
    """With AlterConfigs. Error code and message."""
    given = [{"name": setting, "value": value} for setting, value in configs.items()]
    resource = {"resource_type": 4, "resource_name": name, "configs": given}
    answer = await client.call(ApiKey.ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    return answer.responses[0].error_code, answer.responses[0].error_message


async def until_applied(broker: Broker, name: str, changes: Mapping[str, str | None]) -> None:
    """Until the broker has these dynamic configs, of itself or with an empty name the cluster-wide default, and none
    where the value is None."""

    async def applied() -> bool:
        held = broker.dynamic.configs
        return changes.items() <= {**dict.fromkeys(changes), **dict(held.own if name else held.default)}.items()

    await eventually(applied)


async def described(client: Client, name: str, kind: int = 4) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.call(ApiKey.DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=True)
    assert answer.results[0].error_code == 0, answer.results[0].error_message
    return {config.name: config for config in answer.results[0].configs}


def synonyms(config: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def with_brokers(
    root: Path, work: Callable[..., Awaitable[None]], brokers: tuple[int, ...] = (1,), **settings: Any
) -> None:
    """Run `work(client of the first broker, first broker, others ...)` once all are controlled."""

    async def main() -> None:
        async with serving(root, *brokers, **settings) as served:
            for broker in served:
                await until_controlled(broker)
            client = Client(served[0])
            await work(client, *served)
            client.peer.close()

    asyncio.run(main())


def config_of(broker: Broker, partition: TopicPartition = TP) -> kreplog.LogConfig:
    return broker.hosted.of(partition).log.config


@pytest.mark.parametrize("name", ["1", ""])
@pytest.mark.parametrize("setting", sorted(DYNAMIC & OF_LOGS.keys()))
def test_a_setting_of_logs_applies_to_open_logs_and_to_new_ones(tmp_path: Path, name: str, setting: str) -> None:
    value = OTHER_VALUES.get(setting, 4321)

    async def work(client: Client, broker: Broker) -> None:
        await client.create("topic")
        before = getattr(config_of(broker), OF_LOGS[setting])
        assert before != value
        assert await alter(client, name, {setting: str(value)}) == (0, None)
        assert getattr(config_of(broker), OF_LOGS[setting]) == value
        await client.create("new")
        assert getattr(config_of(broker, TopicPartition("new", 0)), OF_LOGS[setting]) == value
        assert await alter(client, name, {setting: None}) == (0, None)
        assert getattr(config_of(broker), OF_LOGS[setting]) == before

    with_brokers(tmp_path, work)


def test_a_produce_is_measured_by_the_new_message_max_bytes(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        await client.create("topic")
        batch = encode(Batch((Rec(0, int(time.time() * 1000), None, b"v" * 1000),)))
        (partition,) = (await client.produce(batch)).partitions
        assert partition.error is ErrorCode.NONE
        await alter(client, "1", {"message.max.bytes": "500"})
        (partition,) = (await client.produce(batch)).partitions
        assert partition.error is ErrorCode.MESSAGE_TOO_LARGE

    with_brokers(tmp_path, work)


def test_max_connections_is_of_the_next_connection(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        await client.create("topic")
        await alter(client, "", {"max.connections": "1"})
        other = Client(broker)
        assert broker.server.refused == 0
        assert await other.create("other") == 0
        assert broker.server.refused == 1  # in place of the idle one
        other.peer.close()

    with_brokers(tmp_path, work)


def test_settings_of_the_cleaner_reach_it(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        changes = {"threads": "3", "backoff.ms": "50", "io.max.bytes.per.second": "1000.5"}
        await alter(client, "1", {f"log.cleaner.{name}": value for name, value in changes.items()})
        assert broker.logs.cleaner.settings == (3, 50, 1000.5)
        assert broker.hosted.config.dedupe_buffer_size == broker.settings.log.dedupe_buffer_size // 3

    with_brokers(tmp_path, work)


def test_a_topics_own_setting_counts_more(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        await client.create("topic")
        configs = [{"name": "retention.ms", "value": "5000", "config_operation": SET}]
        resource = {"resource_type": 2, "resource_name": "topic", "configs": configs}
        await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)

        async def applied() -> bool:
            return config_of(broker).retention_ms == 5000

        await eventually(applied)
        await alter(client, "", {"log.retention.ms": "9000"})
        assert config_of(broker).retention_ms == 5000
        shown = (await described(client, "topic", kind=2))["retention.ms"]
        assert synonyms(shown) == [
            ("retention.ms", "5000", TOPIC),
            ("log.retention.ms", "9000", DYNAMIC_DEFAULT_BROKER),
            ("log.retention.ms", "-1", DEFAULT),
        ]

    with_brokers(tmp_path, work)


def test_a_brokers_own_counts_more_than_the_default_of_the_cluster_and_that_more_than_its_file(tmp_path: Path) -> None:
    name = "log.retention.ms"
    own, cluster = (name, "1000", DYNAMIC_BROKER), (name, "2000", DYNAMIC_DEFAULT_BROKER)
    static, default = (name, "3000", STATIC), (name, "-1", DEFAULT)

    async def work(client: Client, broker: Broker) -> None:
        await client.create("topic")

        async def shows(*expected: tuple[str, str, int]) -> None:
            shown = (await described(client, "1"))[name]
            assert (synonyms(shown), (name, shown.value, shown.config_source)) == (list(expected), expected[0])
            assert config_of(broker).retention_ms == int(expected[0][1])

        await shows(static, default)
        await alter(client, "", {name: "2000"})
        await shows(cluster, static, default)
        await alter(client, "1", {name: "1000"})
        await shows(own, cluster, static, default)
        shown = await described(client, "")
        assert shown.keys() == DYNAMIC
        assert synonyms(shown[name]) == [cluster, default]
        await alter(client, "", {name: None})
        await shows(own, static, default)
        await alter(client, "1", {name: None})
        await shows(static, default)
        shown = await described(client, "1")
        assert (shown["broker.id"].read_only, shown[name].read_only) == (True, False)
        assert synonyms(shown["broker.id"]) == [("broker.id", "1", STATIC)]
        assert synonyms(shown["num.partitions"]) == [("num.partitions", "1", DEFAULT)]

    with_brokers(tmp_path, work, log_retention_ms=3000)


@pytest.mark.parametrize(
    ("name", "changes", "operation", "error"),
    [
        ("1", {"log.dirs": "/"}, None, "log.dirs cannot be changed while a broker runs: change its broker.toml"),
        ("1", {"colour": "red"}, None, "colour is not a setting of a broker: dynamic are compression.gzip.level"),
        ("1", {"log.retention.ms": "x"}, None, "log.retention.ms = x: must be an integer from -1 to"),
        ("1", {"log.retention.ms": "9" * 5000}, None, "log.retention.ms = 9999999999"),
        ("1", {"log.retention.ms": "7", "log.segment.bytes": "0"}, None, "log.segment.bytes = 0: must be an integer"),
        ("1", {"log.retention.ms": None}, SET, "log.retention.ms = None: must be an integer"),
        ("1", {"log.retention.ms": "7"}, APPEND, "log.retention.ms is not a list"),
        ("1", {"log.retention.ms": "7"}, 9, "log.retention.ms is not a list"),
        ("2", {"log.retention.ms": "7"}, None, "broker 1 alters and describes only its own configs"),
        ("one", {"log.retention.ms": "7"}, None, "'one' is not the id of a broker"),
        ("٣", {"log.retention.ms": "7"}, None, "'٣' is not the id of a broker"),
        ("../controller", {"log.retention.ms": "7"}, None, "'../controller' is not the id of a broker"),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, name: str, changes: dict[str, str | None], operation: int | None, error: str
) -> None:
    async def work(client: Client, broker: Broker) -> None:
        code, message = await alter(client, name, changes, operation)
        assert code == ErrorCode.INVALID_REQUEST
        assert message is not None and message.startswith(error)
        assert await broker.store.get_nodes((nodes.broker_config(1), nodes.broker_config(None))) == [None, None]

    with_brokers(tmp_path, work)


def test_validate_only_changes_nothing_and_what_is_not_set_can_be_deleted(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        assert await alter(client, "1", {"log.retention.ms": "7"}, validate_only=True) == (0, None)
        unset: dict[str, str | None] = {"log.retention.ms": None, "leader.replication.throttled.rate": None}
        assert await alter(client, "1", unset) == (0, None)
        assert await broker.store.get_nodes((nodes.broker_config(1),)) == [None]

    with_brokers(tmp_path, work)


def test_alter_configs_replaces_what_is_set(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        await alter(client, "1", {"log.retention.ms": "7", "log.roll.ms": "8"})
        assert await replace(client, "1", {"log.roll.ms": "9"}) == (0, None)
        await until_applied(broker, "1", {"log.roll.ms": "9", "log.retention.ms": None})

    with_brokers(tmp_path, work)


@pytest.mark.parametrize("configs", [{}, {"log.roll.ms": "9"}])
def test_alter_configs_replaces_an_unreadable_node(tmp_path: Path, configs: dict[str, str]) -> None:
    path = nodes.broker_config(1)

    async def work(client: Client, broker: Broker) -> None:
        await alter(client, "1", {"log.retention.ms": "7"})
        await broker.store.multi((kreplog.types.SetData(path, b"{]"),))
        code, message = await alter(client, "1", {"log.roll.ms": "9"})
        assert code == ErrorCode.INVALID_CONFIG
        assert message is not None and message.endswith("AlterConfigs replaces it")
        assert await replace(client, "1", configs) == (0, None)
        assert nodes.decode_broker_config(path, (await broker.store.get_nodes((path,)))[0]) == tuple(configs.items())
        await until_applied(broker, "1", {"log.retention.ms": None, **configs})

    with_brokers(tmp_path, work)


def test_an_alteration_is_applied_where_an_ignored_one_is_stored_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited: list[Callable[[], bool]] = []

    async def work(client: Client, broker: Broker) -> None:
        until = broker.topics.until

        async def noted(true: Callable[[], bool], timeout_s: float) -> bool:
            awaited.append(true)
            return await until(true, timeout_s)

        await alter(client, "", {"log.retention.ms": "1000"})
        monkeypatch.setattr(broker.topics, "until", noted)
        content = nodes.encode_broker_config({"a.newer.setting": "1"})
        await broker.store.multi((kreplog.types.SetData(nodes.broker_config(None), content),))
        assert await alter(client, "", {"log.retention.ms": "2000"}) == (0, None)
        assert [true() for true in awaited] == [True]
        (node,) = await broker.store.get_nodes((nodes.broker_config(None),))
        assert isinstance(node, Node) and b"a.newer.setting" in node.data

    with_brokers(tmp_path, work)


def test_all_brokers_get_the_default_of_the_cluster_and_each_its_own(tmp_path: Path) -> None:
    async def work(client: Client, first: Broker, second: Broker) -> None:
        await alter(client, "", {"log.retention.ms": "1000"})
        await alter(client, "1", {"log.roll.ms": "2000"})
        await until_applied(second, "", {"log.retention.ms": "1000"})
        assert first.dynamic.configs.default == second.dynamic.configs.default
        assert (first.dynamic.configs.own, second.dynamic.configs.own) == ((("log.roll.ms", "2000"),), ())

    with_brokers(tmp_path, work, (1, 2))


def test_they_survive_a_restart_of_the_cluster(tmp_path: Path) -> None:
    async def set_up(client: Client, broker: Broker) -> None:
        await client.create("topic")
        await alter(client, "", {"log.retention.ms": "1000"})
        await alter(client, "1", {"log.roll.ms": "2000"})

    async def look(client: Client, broker: Broker) -> None:
        assert (config_of(broker).retention_ms, config_of(broker).segment_ms) == (1000, 2000)

    with_brokers(tmp_path, set_up)
    with_brokers(tmp_path, look)


def test_what_a_broker_cannot_apply_is_ignored_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: Client, broker: Broker) -> None:
        await alter(client, "", {"log.retention.ms": "1000"})
        (node,) = await broker.store.get_nodes((nodes.broker_config(None),))
        assert isinstance(node, Node)
        content = nodes.encode_broker_config({"log.retention.ms": "2000", "a.newer.setting": "1", "log.roll.ms": "0"})
        await broker.store.multi((kreplog.types.SetData(nodes.broker_config(None), content),))
        await until_applied(broker, "", {"log.retention.ms": "2000", "log.roll.ms": None})
        assert "a.newer.setting is not a setting of a broker" in caplog.text
        assert "log.roll.ms = 0: must be an integer" in caplog.text

    with_brokers(tmp_path, work)
