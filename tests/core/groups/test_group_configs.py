"""Configs of groups: which are allowed, how they are stored, and what the coordinator makes of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kreplog.config import GroupConfig
from kreplog.core import nodes
from kreplog.core.dynamic_configs import APPEND, DEFAULT, DELETE, DYNAMIC_GROUP, STATIC, Change, Synonym
from kreplog.core.dynamic_configs import InvalidSettingError as Invalid
from kreplog.core.effects import GetNodes, Multi, Steps
from kreplog.core.groups.group_configs import (
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    alter_group,
    altered,
    applied,
    decode,
    described,
    encode,
)
from kreplog.errors import BadVersionError, CoordinationError
from kreplog.types import Create, Node, NodeStat, SetData

from .consumers import CONFIG, SESSION_MS, Consumer, consumer_shell
from .group_shell import GROUP, GroupShell

LONGER_MS = 60_000
BOUNDS = GroupConfig(
    group_consumer_min_heartbeat_interval_ms=1000,
    group_consumer_heartbeat_interval_ms=2000,
    group_consumer_max_heartbeat_interval_ms=9000,
    group_consumer_min_session_timeout_ms=5000,
    group_consumer_session_timeout_ms=6000,
    group_consumer_max_session_timeout_ms=20_000,
)


def changed(present: Mapping[str, str], *changes: Change, keep: bool = True) -> dict[str, str]:
    return altered(present, changes, BOUNDS, keep=keep)


def test_bounds_are_those_of_the_broker() -> None:
    for name, low, high in ((SESSION_TIMEOUT, 5000, 20_000), (HEARTBEAT_INTERVAL, 1000, 5999)):
        for value in (low, high):
            assert changed({}, Change(name, f" {value} ")) == {name: str(value)}
    for name, value, bound in (
        (SESSION_TIMEOUT, 4999, "group.consumer.min.session.timeout.ms = 5000"),
        (SESSION_TIMEOUT, 20_001, "group.consumer.max.session.timeout.ms = 20000"),
        (HEARTBEAT_INTERVAL, 999, "group.consumer.min.heartbeat.interval.ms = 1000"),
        (HEARTBEAT_INTERVAL, 9001, "group.consumer.max.heartbeat.interval.ms = 9000"),
    ):
        with pytest.raises(Invalid, match=f"{name} = {value} must be within .*{bound}"):
            changed({}, Change(name, str(value)))


def test_a_session_is_longer_than_a_heartbeat_interval_whichever_is_changed() -> None:
    with pytest.raises(Invalid, match=r"heartbeat.interval.ms = 6000 must be below .* = 6000"):
        changed({}, Change(HEARTBEAT_INTERVAL, "6000"))
    longer = changed({}, Change(HEARTBEAT_INTERVAL, "6000"), Change(SESSION_TIMEOUT, "6001"))
    assert longer == {HEARTBEAT_INTERVAL: "6000", SESSION_TIMEOUT: "6001"}
    with pytest.raises(Invalid, match="must be below"):
        changed(longer, Change(SESSION_TIMEOUT, None, DELETE))
    assert changed(longer, Change(HEARTBEAT_INTERVAL, None, DELETE)) == {SESSION_TIMEOUT: "6001"}
    assert changed(longer, Change(SESSION_TIMEOUT, "7000"), keep=False) == {SESSION_TIMEOUT: "7000"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change("share.session.timeout.ms", "9000"), "of share groups"),
        (Change("streams.num.standby.replicas", "1"), "of streams groups"),
        (Change("session.timeout.ms", "9000"), "not a setting of a group"),
        (Change(SESSION_TIMEOUT, "9 s"), "must be an integer"),
        (Change(SESSION_TIMEOUT, None), "has no value"),
        (Change(SESSION_TIMEOUT, "9000", APPEND), "not a list"),
    ],
)
def test_other_changes_are_refused(change: Change, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        changed({}, change)


def test_a_setting_is_given_once_and_deleted_though_it_is_unknown() -> None:
    with pytest.raises(Invalid, match="given twice"):
        changed({}, Change(SESSION_TIMEOUT, "6000"), Change(SESSION_TIMEOUT, "7000"))
    assert changed({}, Change("share.session.timeout.ms", None, DELETE)) == {}


def test_a_broker_applies_what_it_knows_within_its_bounds() -> None:
    stored = {
        "a": {SESSION_TIMEOUT: "7000"},
        "b\n": {SESSION_TIMEOUT: "60000", HEARTBEAT_INTERVAL: "1"},
        "c": {"newer": "1", HEARTBEAT_INTERVAL: "3000"},
        "d": {"newer": "1", SESSION_TIMEOUT: "soon"},
        "e": {SESSION_TIMEOUT: "5000", HEARTBEAT_INTERVAL: "9000"},
    }
    found = applied(stored, BOUNDS)
    assert found.texts == {
        "a": {SESSION_TIMEOUT: "7000"},
        "b\n": {SESSION_TIMEOUT: "20000", HEARTBEAT_INTERVAL: "1000"},
        "c": {HEARTBEAT_INTERVAL: "3000"},
    }
    assert found.times == {"a": (2000, 7000), "b\n": (1000, 20_000), "c": (3000, 6000)}
    groups = [reason.rpartition("(of group ")[2] for reason in found.deviations]
    assert groups == ["b\\n)", "b\\n)", "c)", "d)", "d)", "e)"]
    assert "60000 counts as 20000, for group.consumer.min.session.timeout.ms = 5000 and" in found.deviations[0]


def test_a_config_of_a_newer_version_stays_when_another_is_altered() -> None:
    assert changed({"newer": "1"}, Change(SESSION_TIMEOUT, "7000")) == {"newer": "1", SESSION_TIMEOUT: "7000"}


def test_descriptions_have_the_setting_of_the_broker_behind_the_own() -> None:
    def broker(name: str) -> list[Synonym]:
        return [Synonym(name, 1, STATIC), Synonym(name, 2, DEFAULT)]

    heartbeat, session = described({SESSION_TIMEOUT: "7000"}, broker)
    assert (heartbeat.name, heartbeat.value, heartbeat.source) == (HEARTBEAT_INTERVAL, 1, STATIC)
    assert session.synonyms == (
        (SESSION_TIMEOUT, 7000, DYNAMIC_GROUP),
        ("group.consumer.session.timeout.ms", 1, STATIC),
        ("group.consumer.session.timeout.ms", 2, DEFAULT),
    )


# In the store


def node(configs: Mapping[str, Mapping[str, str]], version: int = 0) -> Node:
    return holding(encode(configs), version)


def holding(data: bytes, version: int = 0) -> Node:
    return Node(data, NodeStat(version, 1, 1))


def run(steps: Steps[None], *stored: Node | None, lost: int = 0) -> list[Multi]:
    """The writes of the steps of a request. stored: what each read finds; lost: writes that others precede."""
    found, writes = iter(stored), list[Multi]()
    answer: object = None
    error: Exception | None = None
    while True:
        try:
            effect = steps.throw(error) if error is not None else steps.send(answer)
        except StopIteration:
            return writes
        answer = error = None
        if isinstance(effect, GetNodes):
            assert effect.paths == (nodes.GROUP_CONFIGS,)
            answer = (next(found),)
        elif isinstance(effect, Multi):
            writes.append(effect)
            error = BadVersionError("changed", path=nodes.GROUP_CONFIGS) if len(writes) <= lost else None


def test_configs_of_other_groups_stay_and_a_lost_race_is_repeated() -> None:
    other = {"other": {SESSION_TIMEOUT: "8000"}}
    set_it = alter_group("group", lambda before: {**before, HEARTBEAT_INTERVAL: "3000"})
    theirs = {"group": {SESSION_TIMEOUT: "9000"}}
    first, second = run(set_it, node(other), node(other | theirs, 1), lost=1)
    assert first.operations == (
        SetData(nodes.GROUP_CONFIGS, encode(other | {"group": {HEARTBEAT_INTERVAL: "3000"}}), 0),
    )
    both = {"group": {SESSION_TIMEOUT: "9000", HEARTBEAT_INTERVAL: "3000"}}
    assert second.operations == (SetData(nodes.GROUP_CONFIGS, encode(other | both), 1),)


def test_a_group_without_configs_leaves_nothing() -> None:
    (write,) = run(alter_group("group", lambda _: {SESSION_TIMEOUT: "9000"}), None)
    (created,) = write.operations
    assert isinstance(created, Create) and decode(holding(created.data)) == {"group": {SESSION_TIMEOUT: "9000"}}
    (write,) = run(alter_group("group", lambda _: {}), holding(created.data))
    assert write.operations == (SetData(nodes.GROUP_CONFIGS, b"{}", 0),)
    assert run(alter_group("group", lambda _: {}), None) == []
    assert run(alter_group("group", lambda _: {SESSION_TIMEOUT: "9000"}, validate_only=True), None) == []


def test_an_unreadable_node_is_not_replaced() -> None:
    for data in (b"{", b"[]", b'{"group": 1}'):
        with pytest.raises(CoordinationError, match=r"/config/groups .* restore"):
            run(alter_group("group", lambda _: {}), holding(data))


# At the coordinator


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell()


def configure(shell: GroupShell, **configs: dict[str, str]) -> None:
    shell.core.configs.replace(applied(configs, CONFIG))


def members(shell: GroupShell) -> set[str]:
    groups = [group for shard in shell.core.shards.values() for group in shard.groups.values()]
    return {member for group in groups if group.consumer is not None for member in group.consumer.members}


def test_a_member_has_the_times_of_its_group_from_its_next_heartbeat_on(shell: GroupShell) -> None:
    consumer = Consumer(shell, "a")
    response = consumer.join()
    assert response is not None and response.heartbeat_interval_ms == CONFIG.group_consumer_heartbeat_interval_ms
    configure(shell, **{GROUP: {SESSION_TIMEOUT: str(LONGER_MS), HEARTBEAT_INTERVAL: "12000"}})
    response = consumer.acknowledge()
    assert response is not None and response.heartbeat_interval_ms == 12_000
    shell.pass_time(LONGER_MS - 1)
    assert members(shell) == {"a"}
    shell.pass_time(1)
    assert members(shell) == set()


def test_a_session_that_has_begun_keeps_its_end(shell: GroupShell) -> None:
    Consumer(shell, "a").join()
    configure(shell, **{GROUP: {SESSION_TIMEOUT: str(LONGER_MS)}})
    shell.pass_time(SESSION_MS - 1)
    assert members(shell) == {"a"}
    shell.pass_time(1)
    assert members(shell) == set()


def test_other_groups_and_deleted_configs_have_the_times_of_the_broker(shell: GroupShell) -> None:
    configure(shell, other={SESSION_TIMEOUT: str(LONGER_MS), HEARTBEAT_INTERVAL: "12000"})
    consumer = Consumer(shell, "a")
    response = consumer.join()
    assert response is not None and response.heartbeat_interval_ms == CONFIG.group_consumer_heartbeat_interval_ms
    configure(shell, **{GROUP: {SESSION_TIMEOUT: str(LONGER_MS)}})
    consumer.acknowledge()
    configure(shell)
    consumer.acknowledge()
    shell.pass_time(SESSION_MS)
    assert members(shell) == set()


def test_a_new_coordinator_gives_members_the_session_of_their_group(shell: GroupShell) -> None:
    configure(shell, **{GROUP: {SESSION_TIMEOUT: str(LONGER_MS)}})
    Consumer(shell, "a").join()
    held = applied({GROUP: {SESSION_TIMEOUT: str(LONGER_MS)}}, CONFIG)
    shell.start()
    shell.core.configs.replace(held)
    shell.lead()
    shell.pass_time(SESSION_MS)
    assert members(shell) == {"a"}
    shell.pass_time(LONGER_MS - SESSION_MS)
    assert members(shell) == set()
