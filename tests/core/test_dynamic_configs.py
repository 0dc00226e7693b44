"""Dynamic broker configs: what can be altered, and which value of a setting counts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from kreplog.config import ReplicationConfig
from kreplog.core.dynamic_configs import (
    CLUSTER_WIDE,
    DEFAULT,
    DELETE,
    DYNAMIC,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT_BROKER,
    DYNAMIC_OF_LOGS,
    SET,
    STATIC,
    SUBTRACT,
    Change,
    InvalidSettingError,
    altered,
    changes_logs,
    config_text,
    effective,
    of_replication,
    parsed,
    resource_error,
    synonyms,
)
from kreplog.core.messages import BrokerConfigs
from kreplog.server.runtime.starting import log_config_of
from kreplog.server.settings import SETTINGS, load, replaced

NAME = "log.retention.ms"
PARSERS = {"broker.id": int, NAME: int, "log.roll.ms": int}


def test_every_dynamic_config_is_a_setting_of_a_broker() -> None:
    assert SETTINGS.keys() >= DYNAMIC


@pytest.mark.parametrize(("own", "default", "static"), list(product((False, True), repeat=3)))
def test_the_first_that_is_set_counts(own: bool, default: bool, static: bool) -> None:
    configs = BrokerConfigs(((NAME, "1"),) if own else (), ((NAME, "2"),) if default else ())
    expected = [
        (value, source)
        for value, source, is_set in (
            (1, DYNAMIC_BROKER, own),
            (2, DYNAMIC_DEFAULT_BROKER, default),
            (3, STATIC, static),
            (4, DEFAULT, True),
        )
        if is_set
    ]
    found = synonyms(NAME, configs, (3,) if static else (), (4,), int)
    assert [(synonym.value, synonym.source) for synonym in found] == expected
    assert effective(configs) == ({NAME: str(expected[0][0])} if own or default else {})


def test_changes_are_applied_to_what_is_set() -> None:
    changes = [Change(NAME, " 08"), Change("log.roll.ms", None, DELETE), Change("colour", None, DELETE)]
    for cluster_wide in (True, False):
        after = altered({"log.roll.ms": "5", "broker.id": "1"}, changes, PARSERS, cluster_wide)
        assert after == {NAME: "8", "broker.id": "1"}


@pytest.mark.parametrize("name", sorted(CLUSTER_WIDE))
def test_a_default_of_topics_is_of_the_cluster_and_of_no_broker(name: str) -> None:
    change = Change(name, "7")
    assert altered({}, [change], {name: str}, cluster_wide=True) == {name: "7"}
    with pytest.raises(InvalidSettingError, match="alter the cluster-wide default, whose name is empty"):
        altered({}, [change], {name: str}, cluster_wide=False)
    valid, ignored = parsed(BrokerConfigs(((name, "7"),), ((name, "8"),)), {name: str})
    assert (valid, len(ignored)) == (BrokerConfigs((), ((name, "8"),)), 1)


@pytest.mark.parametrize(("text", "expected"), [("5", 5), ("0", 2), ("65", 2), ("", 2), ("many", 2), ("\u0665", 2)])
def test_the_number_of_fetchers_is_the_static_one_where_another_is_not_allowed(text: str, expected: int) -> None:
    static = ReplicationConfig(num_replica_fetchers=2)
    name = "num.replica.fetchers"
    assert of_replication(BrokerConfigs(((name, text),)), name, static) == expected
    assert of_replication(BrokerConfigs((), ((name, text),)), name, static) == expected
    assert of_replication(BrokerConfigs(), name, static) == 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([Change(NAME, "1"), Change(NAME, None, DELETE)], f"{NAME} is given twice"),
        ([Change("broker.id", "2")], "broker.id cannot be changed while a broker runs: change its broker.toml, and"),
        ([Change("log.segment.byte", "2")], "log.segment.byte is not a setting of a broker: dynamic are compression"),
        ([Change("x" * 1000, "2")], f"{'x' * 100} is not a setting"),
        ([Change(NAME, "1", SUBTRACT)], f"{NAME} is not a list"),
        ([Change(NAME, None, SET)], f"{NAME} = None: "),
        ([Change(NAME, "y" * 1000)], f"{NAME} = {'y' * 100}: "),
    ],
)
def test_wrong_changes_are_named(changes: list[Change], error: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        altered({}, changes, PARSERS, cluster_wide=False)
    assert str(refused.value).startswith(error)


def test_what_cannot_be_applied_is_left_out_with_the_reason() -> None:
    configs = BrokerConfigs(((NAME, "1"), ("log.roll.ms", "soon")), (("a.newer.one", "1"), ("log.roll.ms", "2")))
    valid, ignored = parsed(configs, PARSERS)
    assert valid == BrokerConfigs(((NAME, "1"),), (("log.roll.ms", "2"),))
    assert [reason.partition(" ")[0] for reason in ignored] == ["log.roll.ms", "a.newer.one"]


def test_a_broker_answers_for_itself_and_for_the_cluster() -> None:
    assert resource_error("7", 7) is None and resource_error("", 7) is None
    for name in ("8", "07", "-7", "seven", "7/../8", "\u0667"):
        assert resource_error(name, 7) is not None


def test_open_logs_are_configured_where_a_setting_of_theirs_differs() -> None:
    before = BrokerConfigs(((NAME, "1"),), (("max.connections", "7"),))
    assert not changes_logs(before, BrokerConfigs(((NAME, "1"),), ((NAME, "2"), ("log.cleaner.backoff.ms", "5"))))
    assert changes_logs(before, BrokerConfigs(((NAME, "2"),), before.default))
    assert changes_logs(before, BrokerConfigs((), before.default))


@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_what_changes_logs_follows_from_the_definitions_of_settings(tmp_path: Path, name: str) -> None:
    static = load({"broker.id": 1, "log.dirs": str(tmp_path), "coordination": f"embedded:{tmp_path}"})
    value = {
        "compression.type": "gzip",
        **{f"compression.{codec}.level": 2 for codec in ("gzip", "lz4", "zstd")},
        "log.cleaner.min.cleanable.ratio": 0.25,
        "log.cleaner.threads": 2,
        "log.message.timestamp.type": "LogAppendTime",
        "num.replica.fetchers": 2,
        "unclean.leader.election.enable": True,
    }.get(name, 7 << 20)
    changed = replaced(static, {name: value})
    assert changed != static
    assert (log_config_of(changed) != log_config_of(static)) == (name in DYNAMIC_OF_LOGS)


def test_values_are_written_as_kafka_writes_them() -> None:
    assert [config_text(value) for value in (True, 1, 0.5, "a", None)] == ["true", "1", "0.5", "a", None]
