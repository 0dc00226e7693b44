"""A topic's settings as clients give them, name and text, and as they are told what holds.

What is given is checked once, here, whether a topic is made or altered. Names are Kafka's; two of Kafka's have one
value that is allowed, since tools give them in any case: logs are deleted, not compacted, batches kept as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kreplog.config import TOPIC_LOG_SETTINGS, LogConfig, TopicConfig
from kreplog.server.settings import BrokerSettings, config_value

FIXED = {"cleanup.policy": "delete", "compression.type": "producer"}
NAMES = {field.replace("_", "."): field for field in TopicConfig.__slots__}

DEFAULT, TOPIC, STATIC = 5, 1, 4
"""Where a value comes from, as DescribeConfigs says it: nobody set it, the topic did, the broker's settings did."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""What IncrementalAlterConfigs does to a setting."""

_LOG_NAMES = {
    "segment_ms": "log.roll.ms",
    "max_message_bytes": "message.max.bytes",
}
"""Of a LogConfig's fields: Kafka's name where it is not that of the topic's setting with log. before it."""


class InvalidSettingError(Exception):
    """Names the setting, the value, and what is allowed."""


class Change(NamedTuple):
    """One setting and its new text. operation: SET or another."""

    name: str
    text: str | None
    operation: int = SET


@dataclass(frozen=True, slots=True)
class Described:
    """value: what holds. source: where it comes from. broker: (name, value, source) of the broker's own, if any."""

    name: str
    value: Any
    source: int
    alterable: bool
    broker: tuple[str, Any, int] | None = None


def default_for(default: TopicConfig, replicas: int) -> TopicConfig:
    """What a topic with so many replicas goes by when nothing is given."""
    return replace(default, min_insync_replicas=min(default.min_insync_replicas, max(1, replicas)))


def for_new(default: TopicConfig, changes: Iterable[Change], replicas: int) -> TopicConfig:
    """What a new topic goes by. Raises InvalidSettingError."""
    default = default_for(default, replicas)
    return changed(default, changes, default, replicas)


def changed(config: TopicConfig, changes: Iterable[Change], default: TopicConfig, replicas: int) -> TopicConfig:
    """`config` with the changes. default: what a setting is that is deleted. Raises InvalidSettingError."""
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise InvalidSettingError(f"{change.name} is given twice")
        seen.add(change.name)
        config = _changed(config, change, default)
    if config.min_insync_replicas > max(1, replicas):
        raise InvalidSettingError(
            f"min.insync.replicas = {config.min_insync_replicas} with {replicas} replicas could never be met: allowed "
            f"is an integer from 1 to {replicas}"
        )
    return config


def _changed(config: TopicConfig, change: Change, default: TopicConfig) -> TopicConfig:
    name, text, operation = change
    if name not in NAMES and name not in FIXED:
        raise InvalidSettingError(
            f"{name} is no setting of a topic here: known are {', '.join(sorted([*NAMES, *FIXED]))}"
        )
    if operation not in (SET, DELETE):
        raise InvalidSettingError(f"{name} is no list: it can be set, or deleted, and nothing be added or taken away")
    if name in FIXED:
        if operation == SET and text != FIXED[name]:
            raise InvalidSettingError(f"{name} = {text}: allowed is {FIXED[name]}")
        return config
    field = NAMES[name]
    if operation == DELETE:
        return replace(config, **{field: getattr(default, field)})
    of_log = field in TOPIC_LOG_SETTINGS
    try:
        value = config_value(LogConfig() if of_log else config, field, text)
    except ValueError as error:
        raise InvalidSettingError(f"{name} = {text}: {error}") from error
    return replace(config, **{field: value})


def described(config: TopicConfig, settings: BrokerSettings) -> Iterator[Described]:
    """What holds for a topic with `config`, on a broker with `settings`."""
    library, log = TopicConfig(), LogConfig()
    for name, field in NAMES.items():
        value = getattr(config, field)
        if field in TOPIC_LOG_SETTINGS:
            own = getattr(settings.log, field)
            known = own == getattr(log, field)
            of_broker = (_LOG_NAMES.get(field, f"log.{name}"), own, DEFAULT if known else STATIC)
        else:
            own = getattr(settings.topic, field)
            of_broker = (name, own, DEFAULT if own == getattr(library, field) else STATIC)
            value = None if value == own else value
        if value is None:
            yield Described(name, own, of_broker[2], True, of_broker)
        else:
            yield Described(name, value, TOPIC, True, of_broker)
    for name, fixed in FIXED.items():
        yield Described(name, fixed, DEFAULT, False)
