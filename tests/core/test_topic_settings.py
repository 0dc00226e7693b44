"""Settings of topics: allowed values, their alteration, and which of those that they have are their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kreplog import Log
from kreplog.config import INHERITED, NO_OWN_SETTINGS, LogConfig, TopicConfig
from kreplog.core.dynamic_configs import (
    APPEND,
    DEFAULT,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    Change,
    InvalidSettingError,
    Synonym,
    config_text,
)
from kreplog.core.nodes import decode_topic_config, encode_topic_config
from kreplog.core.throttled_replicas import is_throttled
from kreplog.core.topic_settings import NO_EFFECT, UNUSED, altered, changed, described, without_own
from kreplog.errors import OffsetOutOfRangeError, UsageError
from kreplog.types import Node
from tests.reference import Batch, Rec, encode

OWN = TopicConfig(min_insync_replicas=2)
"""Of a topic that inherits nothing."""
THROTTLED = "leader.replication.throttled.replicas"


def built_in(field: str) -> list[Synonym]:
    """The broker's settings: nobody has changed any."""
    config = TopicConfig() if field in (*INHERITED, "cleanup_policy") else LogConfig()
    return [Synonym(field, getattr(config, field), DEFAULT)]


def test_values_are_parsed_by_type() -> None:
    changes = [
        Change("retention.ms", "1000"),
        Change("unclean.leader.election.enable", "true"),
        Change("message.timestamp.type", "LogAppendTime"),
        Change("cleanup.policy", "delete"),
        Change("compression.type", "gzip"),
    ]
    assert changed(OWN, changes, NO_OWN_SETTINGS, 3) == TopicConfig(
        2, True, retention_ms=1000, message_timestamp_type="LogAppendTime", compression_type="gzip"
    )


def test_the_level_of_compression_is_that_of_the_codec() -> None:
    levels = {"gzip": 1, "lz4": 2, "zstd": 0}
    changes = [Change(f"compression.{codec}.level", str(level)) for codec, level in levels.items()]
    for codec, level in levels.items():
        config = changed(OWN, [*changes, Change("compression.type", codec)], NO_OWN_SETTINGS, 3)
        assert (config.codec, config.compression_level) == (codec, level)
    for codec in ("producer", "uncompressed", "snappy"):
        assert replace(OWN, compression_type=codec, compression_gzip_level=9).compression_level == 0
    with pytest.raises(UsageError, match="compression_gzip_level = 0 is not allowed: allowed are -1 to 9 but 0"):
        TopicConfig(compression_gzip_level=0)


def test_a_deleted_setting_is_inherited() -> None:
    config = TopicConfig(3, retention_ms=5)
    changes = [Change("retention.ms", None, DELETE), Change("min.insync.replicas", "", DELETE)]
    assert changed(config, changes, NO_OWN_SETTINGS, 3) == TopicConfig(inherited=("min_insync_replicas",))
    compacting = replace(config, cleanup_policy="compact")
    assert changed(compacting, [Change("cleanup.policy", None, DELETE)], NO_OWN_SETTINGS, 3) == config


def test_a_new_topic_has_the_settings_of_its_own_that_are_given() -> None:
    assert changed(NO_OWN_SETTINGS, [], NO_OWN_SETTINGS, 1) == NO_OWN_SETTINGS
    given = changed(NO_OWN_SETTINGS, [Change("min.insync.replicas", "1")], NO_OWN_SETTINGS, 3)
    assert given == replace(NO_OWN_SETTINGS, min_insync_replicas=1, inherited=INHERITED[1:])


@pytest.mark.parametrize("inherited", [(), INHERITED, INHERITED[:1], INHERITED[3:]])
def test_the_store_has_only_what_is_a_topics_own(inherited: tuple[str, ...]) -> None:
    config = TopicConfig(retention_ms=5, inherited=inherited)
    data = encode_topic_config(config)
    assert decode_topic_config("/config/topics/t", Node(data, cast(Any, None))) == config
    for field in INHERITED:
        assert (f'"{field.replace("_", ".")}":'.encode() in data) == (field not in inherited)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([Change("retention.ms", "-2")], "retention.ms = -2: must be an integer from -1 to 9223372036854775807"),
        ([Change("retention.ms", None)], "retention.ms = None: must be an integer"),
        ([Change("segment.bytes", "1e9")], "segment.bytes = 1e9: must be an integer from 256 to 2147483647"),
        ([Change("flush.messages", "0")], "flush.messages = 0: must be an integer from 1"),
        ([Change("unclean.leader.election.enable", "1")], "unclean.leader.election.enable = 1: must be true or"),
        ([Change("message.timestamp.type", "Now")], "message.timestamp.type = Now: choose one of CreateTime"),
        ([Change("cleanup.policy", "erase")], "cleanup.policy = erase: choose one of delete, compact, compact,delete"),
        ([Change("min.cleanable.dirty.ratio", "2")], "min.cleanable.dirty.ratio = 2: must be a number from 0 to 1"),
        ([Change("min.cleanable.dirty.ratio", "nan")], "min.cleanable.dirty.ratio = nan: must be a number from 0 to 1"),
        (
            [Change("min.compaction.lag.ms", "2"), Change("max.compaction.lag.ms", "1")],
            "min.compaction.lag.ms = 2 must be at most max.compaction.lag.ms, 1",
        ),
        ([Change("compression.type", "none")], "compression.type = none: choose one of producer, uncompressed, gzip"),
        (
            [Change("compression.gzip.level", "10")],
            "compression.gzip.level = 10: must be an integer from -1 to 9 but 0",
        ),
        ([Change("compression.gzip.level", "0")], "compression.gzip.level = 0: must be an integer from -1 to 9 but 0"),
        ([Change("compression.lz4.level", "0")], "compression.lz4.level = 0: must be an integer from 1 to 17"),
        (
            [Change("compression.zstd.level", "23")],
            "compression.zstd.level = 23: must be an integer from -131072 to 22",
        ),
        ([Change("cleanup.policy", "erase", APPEND)], "cleanup.policy = delete,erase: choose one of"),
        ([Change("cleanup.policy", ",")], "cleanup.policy = ,: choose one of"),
        ([Change("cleanup.policy", "compact,")], "cleanup.policy = compact,: choose one of"),
        ([Change("cleanup.policy", None)], "cleanup.policy = None: must be a text"),
        ([Change("segment.index.bytes", "3")], "segment.index.bytes = 3: must be an integer from 4 to"),
        ([Change("flush.ms", "-1")], "flush.ms = -1: must be an integer from 0 to"),
        ([Change("max.message.bytes", "-1")], "max.message.bytes = -1: must be an integer from 0 to"),
        ([Change("remote.storage.enable", "true")], "remote.storage.enable = true: must be false: there is no tiered"),
        ([Change("remote.log.copy.disable", "1")], "remote.log.copy.disable = 1: must be true or false"),
        ([Change("local.retention.ms", "-3")], "local.retention.ms = -3: must be an integer from -2 to"),
        ([Change("remote.copy.lag.ms", "-2")], "remote.copy.lag.ms = -2: must be an integer from -1 to"),
        ([Change("file.delete.delay.ms", "-1")], "file.delete.delay.ms = -1: must be an integer from 0 to"),
        ([Change("preallocate", "yes")], "preallocate = yes: must be true or false"),
        ([Change("preallocate", "true", APPEND)], "preallocate is not a list"),
        ([Change(THROTTLED, "0")], f"{THROTTLED} = 0: must be a list such as 0:1,1:2 of PARTITION:BROKER, *, or empty"),
        ([Change(THROTTLED, "0:1,2:")], f"{THROTTLED} = 0:1,2:: must be a list such as"),
        ([Change(THROTTLED, "none")], f"{THROTTLED} = none: must be a list such as 0:1,1:2 of PARTITION:BROKER, *, or"),
        ([Change(THROTTLED, "*,0:1")], f"{THROTTLED} = *,0:1: must be a list such as"),
        ([Change(THROTTLED, "0:1:2")], f"{THROTTLED} = 0:1:2: must be a list such as"),
        ([Change(THROTTLED, "\u0660:1")], f"{THROTTLED} = \u0660:1: must be a list such as"),
        ([Change(THROTTLED, "0:1," * 30_000 + "0:1")], f"{THROTTLED} = {'0:1,' * 25}: must be a list"),
        ([Change("retention.ms", "1", SUBTRACT)], "retention.ms is not a list"),
        ([Change("retention.ms", "1", 9)], "retention.ms is not a list"),
        ([Change("retention.ms", "1"), Change("retention.ms", "2")], "retention.ms is given twice"),
        ([Change("min.insync.replicas", "4")], "min.insync.replicas = 4 with 3 replicas cannot be met"),
        (
            [Change("colour", "red")],
            "colour is not a setting of a topic: the settings are cleanup.policy, compression.gzip.level",
        ),
    ],
)
def test_wrong_settings_are_named(changes: list[Change], expected: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        changed(OWN, changes, NO_OWN_SETTINGS, 3)
    assert str(refused.value).startswith(expected)


def test_settings_without_effect_are_stored_and_described_as_such() -> None:
    changes = [Change("preallocate", "true"), Change("file.delete.delay.ms", "1000"), Change(THROTTLED, "*")]
    config = changed(OWN, changes, NO_OWN_SETTINGS, 3)
    assert dict(config.unused) == {"preallocate": "true", "file.delete.delay.ms": "1000", THROTTLED: "*"}
    path = "/config/topics/t"
    assert decode_topic_config(path, Node(encode_topic_config(config), cast(Any, None))) == config
    found = {setting.name: setting for setting in described(config, built_in)}
    assert [(found[name].value, found[name].source) for name in ("preallocate", "file.delete.delay.ms", THROTTLED)] == [
        (True, TOPIC),
        (1000, TOPIC),
        ("*", TOPIC),
    ]
    assert (found["segment.jitter.ms"].value, found["segment.jitter.ms"].source) == (0, DEFAULT)
    assert {name for name, setting in found.items() if setting.documentation == NO_EFFECT} == set(UNUSED)
    deleted = [Change(name, None, DELETE) for name, _ in config.unused]
    assert changed(config, deleted, NO_OWN_SETTINGS, 3) == OWN


def test_what_kafka_accepts_without_a_meaning_here_is_kept() -> None:
    given = {
        "remote.storage.enable": "false",
        "local.retention.ms": "-2",
        "local.retention.bytes": "5",
        "remote.log.copy.disable": "true",
        "remote.log.delete.on.disable": "true",
        "remote.copy.lag.ms": "-1",
        "remote.copy.lag.bytes": "-1",
        "errors.deadletterqueue.group.enable": "true",
    }
    config = changed(OWN, [Change(name, text) for name, text in given.items()], NO_OWN_SETTINGS, 3)
    found = {setting.name: setting for setting in described(config, built_in)}
    for name, text in given.items():
        assert (config_text(found[name].value), found[name].source) == (text, TOPIC)
        assert found[name].documentation == NO_EFFECT


def test_the_least_values_are_kafkas() -> None:
    least = {"segment.index.bytes": 4, "flush.ms": 0, "max.message.bytes": 0}
    config = changed(OWN, [Change(name, str(value)) for name, value in least.items()], NO_OWN_SETTINGS, 3)
    assert (config.segment_index_bytes, config.flush_ms, config.max_message_bytes) == (4, 0, 0)
    log = config.log_config(LogConfig())
    assert (log.segment_index_bytes, log.max_message_bytes) == (4, 0)


@pytest.mark.parametrize("text", [" 0:1 , 1:1", "0:1,1:1,", "0:1,,1:1", "0:1,0:1,1:1"])
def test_lists_of_throttled_replicas_are_read_as_kafka_reads_them(text: str) -> None:
    config = changed(OWN, [Change(THROTTLED, text)], NO_OWN_SETTINGS, 3)
    throttled = [partition for partition in range(3) if is_throttled(config, THROTTLED, partition, 1)]
    assert throttled == [0, 1] and not is_throttled(config, THROTTLED, 0, 2)


def test_a_list_of_throttled_replicas_that_an_earlier_version_took_lists_none() -> None:
    node = Node(encode_topic_config(replace(OWN, unused=((THROTTLED, "none"),))), cast(Any, None))
    config = decode_topic_config("", node)
    assert not is_throttled(config, THROTTLED, 0, 1)
    assert {setting.name: setting.value for setting in described(config, built_in)}[THROTTLED] == ""
    config = changed(config, [Change(THROTTLED, "0:1", APPEND)], NO_OWN_SETTINGS, 3)
    assert dict(config.unused)[THROTTLED] == "0:1"


def test_a_stored_value_that_cannot_be_read_is_described_as_it_is() -> None:
    unused = {THROTTLED: "0:first", "file.delete.delay.ms": "1h", "remote.storage.enable": "true"}
    config = replace(OWN, unused=tuple(unused.items()))
    found = {setting.name: (setting.value, setting.source) for setting in described(config, built_in)}
    assert {name: found[name] for name in unused} == {name: (text, TOPIC) for name, text in unused.items()}
    assert not is_throttled(config, THROTTLED, 0, 1)


def test_a_list_of_throttled_replicas_may_have_spaces() -> None:
    assert is_throttled(replace(OWN, unused=((THROTTLED, " *"),)), THROTTLED, 0, 1)


def test_lists_are_appended_to_and_subtracted_from() -> None:
    config = OWN
    for operation, items, expected in (
        (SUBTRACT, "0:1", ""),
        (APPEND, "0:1,1:2", "0:1,1:2"),
        (APPEND, "1:2,2:3", "0:1,1:2,2:3"),
        (SUBTRACT, "0:1, 9:9", "1:2,2:3"),
        (SUBTRACT, "1:2,2:3", ""),
    ):
        config = changed(config, [Change(THROTTLED, items, operation)], NO_OWN_SETTINGS, 3)
        assert dict(config.unused)[THROTTLED] == expected
    assert changed(OWN, [Change("cleanup.policy", "delete", APPEND)], NO_OWN_SETTINGS, 3) == OWN


def test_cleanup_policies() -> None:
    config = OWN
    for operation, text, expected in (
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SET, "compact, delete", "compact,delete"),
        (SET, "compact,compact", "compact"),
        (SUBTRACT, "compact", ""),
        (APPEND, "delete", "delete"),
        (SET, "", ""),
        (DELETE, None, "delete"),
    ):
        config = changed(config, [Change("cleanup.policy", text, operation)], NO_OWN_SETTINGS, 3)
        assert (config.cleanup_policy, config.compacts) == (expected, "compact" in expected)
    config = changed(config, [Change("min.cleanable.dirty.ratio", "0.25")], NO_OWN_SETTINGS, 3)
    assert config.log_config(LogConfig()).min_cleanable_dirty_ratio == 0.25


def test_what_was_compacted_keeps_its_gaps_under_any_policy() -> None:
    compacting, none = TopicConfig(cleanup_policy="compact"), NO_OWN_SETTINGS
    once = altered(compacting, [Change("cleanup.policy", "delete")], none, 1, keep=True)
    assert once.offset_gaps and not once.compacts and once.log_config(LogConfig()).offset_gaps
    assert altered(once, [], none, 1, keep=True).offset_gaps
    assert altered(once, [], none, 1, keep=False).offset_gaps
    compacts_next = altered(TopicConfig(), [Change("cleanup.policy", "compact")], none, 1, keep=True)
    assert compacts_next.compacts and not compacts_next.offset_gaps
    path = "/config/topics/t"
    assert decode_topic_config(path, Node(encode_topic_config(once), cast(Any, None))) == once


def test_an_alteration_keeps_what_is_not_changed_or_returns_it_to_the_default() -> None:
    before, changes = TopicConfig(2, retention_ms=5, inherited=INHERITED[1:]), [Change("segment.bytes", "1000")]
    assert altered(before, changes, NO_OWN_SETTINGS, 3, keep=True) == replace(before, segment_bytes=1000)
    default = replace(NO_OWN_SETTINGS, cleanup_policy="compact")
    assert altered(before, changes, default, 3, keep=False) == replace(default, segment_bytes=1000)
    with pytest.raises(InvalidSettingError, match=r"min.insync.replicas = 2 with 1 replicas"):
        altered(before, changes, NO_OWN_SETTINGS, 1, keep=True)


def test_a_topic_whose_settings_are_unreadable_may_have_been_compacted() -> None:
    config = altered(None, [Change("retention.ms", "5")], NO_OWN_SETTINGS, 3, keep=False)
    assert config == replace(NO_OWN_SETTINGS, retention_ms=5, offset_gaps=True)


def test_a_topic_keeps_the_policy_that_its_broker_gave_it() -> None:
    broker = TopicConfig(cleanup_policy="compact")
    none = without_own(broker)
    assert none == replace(NO_OWN_SETTINGS, cleanup_policy="compact")
    own = changed(none, [Change("cleanup.policy", "delete")], none, 1)
    assert not own.compacts
    assert changed(own, [Change("cleanup.policy", None, DELETE)], none, 1) == none
    assert none.with_defaults(TopicConfig()).compacts and not own.with_defaults(broker).compacts
    assert decode_topic_config("/config/topics/t", Node(encode_topic_config(none), cast(Any, None))) == none
    found = {setting.name: setting for setting in described(own, built_in)}
    assert (found["cleanup.policy"].value, found["cleanup.policy"].source) == ("delete", DEFAULT)
    found = {setting.name: setting for setting in described(none, built_in)}
    assert (found["cleanup.policy"].value, found["cleanup.policy"].source) == ("compact", TOPIC)


def test_a_follower_of_a_topic_without_its_own_policy_refuses_a_gap(tmp_path: Path) -> None:
    none = without_own(TopicConfig())
    config = altered(none, [], none, 1, keep=True)
    first, third = (encode(Batch((Rec(offset, 5, b"k", b"v"),), offset)) for offset in (0, 2))
    with Log.open(tmp_path / "t-0", config.log_config(LogConfig(replicated=True))) as log:
        log.append_as_follower(first)
        with pytest.raises(OffsetOutOfRangeError, match="the log ends at 1"):
            log.append_as_follower(third)
        log.configure(replace(config, offset_gaps=True).log_config(log.config))
        log.append_as_follower(third)
        assert log.log_end_offset == 3
