"""The descriptions of topics' settings in DescribeConfigs, with those of the broker that they inherit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kreplog.config import NO_OWN_SETTINGS, TopicConfig
from kreplog.core.dynamic_configs import DEFAULT, STATIC, TOPIC
from kreplog.core.setting_values import ConfigType
from kreplog.core.topic_settings import described
from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.settings import SETTINGS, load

GIVEN = {"broker.id": 1, "log.dirs": "/data", "coordination": "embedded:/coordination"}


def test_described_settings_have_their_source() -> None:
    more = {"log.retention.ms": 9, "min.insync.replicas": 2, "message.max.bytes": 5000}
    settings = DynamicSettings(load(GIVEN | more, None, {}))
    config = TopicConfig(2, flush_messages=1, retention_bytes=7, inherited=("min_insync_replicas", "compression_type"))
    found: dict[str, Any] = {setting.name: setting for setting in described(config, settings.topic_synonyms)}
    assert [(found[name].value, found[name].source) for name in ("flush.messages", "retention.bytes")] == [
        (1, TOPIC),
        (7, TOPIC),
    ]
    assert found["retention.bytes"].synonyms[1:] == (("log.retention.bytes", -1, DEFAULT),)
    assert (found["retention.ms"].value, found["retention.ms"].source) == (9, STATIC)
    assert (found["min.insync.replicas"].value, found["min.insync.replicas"].source) == (2, STATIC)
    assert (found["flush.ms"].value, found["flush.ms"].source) == (2**63 - 1, TOPIC)
    assert found["flush.messages"].synonyms[1:] == (("log.flush.interval.messages", 2**63 - 1, DEFAULT),)
    assert found["max.message.bytes"].synonyms == (
        ("message.max.bytes", 5000, STATIC),
        ("message.max.bytes", 1048588, DEFAULT),
    )
    assert (found["segment.bytes"].value, found["segment.bytes"].source) == (1 << 30, DEFAULT)
    assert (found["compression.type"].value, found["compression.type"].source) == ("producer", DEFAULT)
    assert found["segment.bytes"].alterable and found["compression.type"].alterable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, [(2, STATIC), (1, DEFAULT)]),
        (3, [(3, STATIC), (1, DEFAULT)]),
        (1, [(1, DEFAULT)]),
    ],
)
def test_an_inherited_setting_is_described_by_the_value_in_force(value: int, expected: list[tuple[int, int]]) -> None:
    """The broker's own is 2; that of the controller counts."""
    settings = DynamicSettings(load(GIVEN | {"min.insync.replicas": 2}, None, {}))
    config = replace(NO_OWN_SETTINGS, min_insync_replicas=value)
    found = {setting.name: setting for setting in described(config, settings.topic_synonyms)}["min.insync.replicas"]
    assert [(synonym.value, synonym.source) for synonym in found.synonyms] == expected


def test_settings_have_types() -> None:
    expected = {
        "unclean.leader.election.enable": ConfigType.BOOLEAN,
        "min.insync.replicas": ConfigType.INT,
        "compression.type": ConfigType.STRING,
    }
    of_topic = expected | {
        "retention.ms": ConfigType.LONG,
        "min.cleanable.dirty.ratio": ConfigType.DOUBLE,
        "cleanup.policy": ConfigType.LIST,
        "leader.replication.throttled.replicas": ConfigType.LIST,
        "preallocate": ConfigType.BOOLEAN,
    }
    found = {
        setting.name: setting.config_type
        for setting in described(TopicConfig(), DynamicSettings(load(GIVEN, None, {})).topic_synonyms)
    }
    assert {name: found[name] for name in of_topic} == of_topic
    of_broker = expected | {
        "log.retention.ms": ConfigType.LONG,
        "log.cleaner.min.cleanable.ratio": ConfigType.DOUBLE,
        "log.dirs": ConfigType.LIST,
        "broker.rack": ConfigType.STRING,
    }
    assert {name: SETTINGS[name].type.config_type for name in of_broker} == of_broker
