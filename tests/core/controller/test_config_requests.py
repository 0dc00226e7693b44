"""Requests that alter settings: no change that others make in the meantime is lost, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.admin_requests import ATTEMPTS, RefusedError
from kreplog.core.controller.config_requests import alter_broker, alter_topic
from kreplog.core.dynamic_configs import InvalidSettingError
from kreplog.errors import ErrorCode
from kreplog.types import Delete, SetData
from tests.core.controller.request_store import RequestStore, refused

TOPIC, BROKER = nodes.topic_config("t"), nodes.broker_config(1)
BEFORE, LATER = TopicConfig(retention_ms=1), TopicConfig(retention_ms=5)


class World(RequestStore):
    """Also with settings."""

    def __init__(self) -> None:
        super().__init__()
        self.set(TOPIC, nodes.encode_topic_config(BEFORE))

    def set(self, path: str, data: bytes) -> None:
        self.session.multi((SetData(path, data),))

    def topic(self) -> TopicConfig:
        return nodes.decode_topic_config(TOPIC, self.session.get(TOPIC))

    def broker(self, broker_id: int | None) -> dict[str, str]:
        path = nodes.broker_config(broker_id)
        return dict(nodes.decode_broker_config(path, self.session.get(path)))


@pytest.fixture
def world() -> World:
    return World()


def with_retention_bytes(before: TopicConfig | None, replicas: int) -> TopicConfig:
    assert before is not None and replicas == 2
    return TopicConfig(retention_ms=before.retention_ms, retention_bytes=7)


def with_setting(name: str) -> Callable[[Mapping[str, str]], dict[str, str]]:
    return lambda before: {**before, name: "1"}


def refuse(*_: Any) -> Any:
    raise InvalidSettingError("wrong")


def test_a_change_of_a_topic_has_that_which_another_made_after_it_was_read(world: World) -> None:
    steps = alter_topic("t", with_retention_bytes, replace_unreadable=False)
    other = {1: lambda: world.set(TOPIC, nodes.encode_topic_config(LATER))}
    expected = TopicConfig(retention_ms=5, retention_bytes=7)
    assert world.carry_out(steps, other) == expected
    assert (world.topic(), world.writes) == (expected, 2)


@pytest.mark.parametrize("broker_id", [1, None])
@pytest.mark.parametrize("first", [True, False])
def test_a_change_of_a_broker_has_that_which_another_made_after_it_was_read(
    world: World, broker_id: int | None, first: bool
) -> None:
    """first: neither the node nor its directory exists when it is read."""
    if not first:
        world.carry_out(alter_broker(broker_id, with_setting("a"), replace_unreadable=False))
    other = alter_broker(broker_id, with_setting("b"), replace_unreadable=False)
    steps = alter_broker(broker_id, with_setting("c"), replace_unreadable=False)
    world.carry_out(steps, {1: lambda: world.carry_out(other)})
    assert world.broker(broker_id) == dict.fromkeys("bc" if first else "abc", "1")


def test_what_others_change_each_time_is_refused_with_a_retriable_error(world: World) -> None:
    data = nodes.encode_topic_config(LATER)
    each = dict.fromkeys(range(1, ATTEMPTS + 1), lambda: world.set(TOPIC, data))
    with refused(ErrorCode.REQUEST_TIMED_OUT):
        world.carry_out(alter_topic("t", with_retention_bytes, replace_unreadable=False), each)
    assert (world.writes, world.topic()) == (ATTEMPTS, LATER)

    world.carry_out(alter_broker(1, with_setting("a"), replace_unreadable=False))
    settings = nodes.encode_broker_config({"b": "1"})
    each = dict.fromkeys(range(1, ATTEMPTS + 1), lambda: world.set(BROKER, settings))
    with refused(ErrorCode.REQUEST_TIMED_OUT):
        world.carry_out(alter_broker(1, with_setting("c"), replace_unreadable=False), each)
    assert (world.writes, world.broker(1)) == (ATTEMPTS, {"b": "1"})


def test_a_topic_that_is_missing_or_deleted_before_the_write_is_refused(world: World) -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        world.carry_out(alter_topic("u", with_retention_bytes, replace_unreadable=True))

    deletion = (Delete(TOPIC), Delete(nodes.topic("t")))
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        steps = alter_topic("t", with_retention_bytes, replace_unreadable=True)
        world.carry_out(steps, {1: lambda: world.session.multi(deletion)})


def test_a_wrong_setting_is_refused_and_changes_nothing(world: World) -> None:
    with refused(ErrorCode.INVALID_CONFIG):
        world.carry_out(alter_topic("t", refuse, replace_unreadable=True))
    with refused(ErrorCode.INVALID_REQUEST):
        world.carry_out(alter_broker(1, refuse, replace_unreadable=True))
    assert (world.writes, world.topic()) == (0, BEFORE)


def test_unreadable_settings_are_replaced_or_refused(world: World) -> None:
    world.carry_out(alter_broker(1, with_setting("a"), replace_unreadable=False))
    for path in (TOPIC, BROKER):
        world.set(path, b"{")
    for steps in (
        alter_topic("t", with_retention_bytes, replace_unreadable=False),
        alter_broker(1, with_setting("b"), replace_unreadable=False),
    ):
        with pytest.raises(RefusedError, match="AlterConfigs replaces it") as refusal:
            world.carry_out(steps)
        assert refusal.value.code == ErrorCode.INVALID_CONFIG
    world.carry_out(alter_topic("t", lambda before, _: before or BEFORE, replace_unreadable=True))
    world.carry_out(alter_broker(1, with_setting("b"), replace_unreadable=True))
    assert (world.topic(), world.broker(1)) == (BEFORE, {"b": "1"})


def test_nothing_is_written_to_validate_or_where_nothing_changes(world: World) -> None:
    world.carry_out(alter_broker(1, with_setting("a"), replace_unreadable=False))
    for steps in (
        alter_broker(1, with_setting("a"), replace_unreadable=False),
        alter_broker(1, with_setting("b"), replace_unreadable=False, validate_only=True),
        alter_topic("t", with_retention_bytes, replace_unreadable=False, validate_only=True),
    ):
        world.carry_out(steps)
        assert world.writes == 0
    assert (world.topic(), world.broker(1)) == (BEFORE, {"a": "1"})
