"""Settings of topics: from the names and texts of clients' requests, and back for DescribeConfigs.

They are checked here, whether a topic is created or altered. Names are Kafka's. Some of them, UNUSED, are stored and
described, but have no effect: there is nothing here that they could change. THROTTLED are the lists of replicas that
replication/replication_quota.py reads. The simulator runs none of these rules: its topics get their settings as values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kreplog.config import INHERITED, NO_OWN_SETTINGS, TOPIC_LOG_SETTINGS, LogConfig, TopicConfig
from kreplog.core.dynamic_configs import (
    APPEND,
    DEFAULT,
    DELETE,
    SET,
    STATIC,
    SUBTRACT,
    TOPIC,
    Change,
    InvalidSettingError,
    Synonym,
)
from kreplog.core.setting_values import BOOLEAN, ConfigType, ValueType, field_type, integer
from kreplog.core.throttled_replicas import THROTTLED, check_replica_list

NAMES = {
    field.replace("_", "."): field
    for field in TopicConfig.__slots__
    if field not in ("offset_gaps", "unused", "inherited")
}

_REMOTE_STORAGE_ENABLE = "remote.storage.enable"

UNUSED: dict[str, bool | int] = {
    "errors.deadletterqueue.group.enable": False,
    "file.delete.delay.ms": 60_000,
    "local.retention.bytes": -2,
    "local.retention.ms": -2,
    "message.downconversion.enable": True,
    "preallocate": False,
    "remote.copy.lag.bytes": -1,
    "remote.copy.lag.ms": 0,
    "remote.log.copy.disable": False,
    "remote.log.delete.on.disable": False,
    _REMOTE_STORAGE_ENABLE: False,
    "segment.jitter.ms": 0,
}
"""Settings without effect, and Kafka's defaults."""

_NEGATIVE = {
    "local.retention.bytes": -2,
    "local.retention.ms": -2,
    "remote.copy.lag.bytes": -1,
    "remote.copy.lag.ms": -1,
}
"""The least values of those that may be below 0."""

_BY_NAME: dict[str, bool | int | str] = {**UNUSED, **dict.fromkeys(THROTTLED, "")}
"""Settings that TopicConfig.unused has, and their defaults."""

NO_EFFECT = "stored, but without effect in kreplog"
"""The documentation of an UNUSED setting in DescribeConfigs."""

_REPLICA_LIST = ValueType(ConfigType.LIST, "PARTITION:BROKER, ...; or *", check_replica_list)


def _no_remote_storage(value: Any) -> bool:
    if BOOLEAN.parse(value):
        raise ValueError("must be false: there is no tiered storage, and a log is on the disks of its brokers alone")
    return False


def _type_by_name(name: str, default: bool | int | str) -> ValueType:
    if isinstance(default, str):
        return _REPLICA_LIST
    if name == _REMOTE_STORAGE_ENABLE:
        return ValueType(ConfigType.BOOLEAN, "false", _no_remote_storage)
    return BOOLEAN if isinstance(default, bool) else integer(_NEGATIVE.get(name, 0), 2**63 - 1)


TYPES: dict[str, ValueType] = {
    **{
        name: field_type(LogConfig() if field in TOPIC_LOG_SETTINGS else TopicConfig(), field)
        for name, field in NAMES.items()
    },
    **{name: _type_by_name(name, default) for name, default in _BY_NAME.items()},
}
"""The type of every setting of a topic."""


@dataclass(frozen=True, slots=True)
class Described:
    """A setting in DescribeConfigs. synonyms: the values that it has or would have, by precedence, the first of which
    counts; also those of the broker's corresponding setting. documentation: what is special about it, if anything."""

    name: str
    config_type: ConfigType
    alterable: bool
    synonyms: tuple[Synonym, ...]
    documentation: str | None = None

    @property
    def value(self) -> Any:
        return self.synonyms[0].value

    @property
    def source(self) -> int:
        return self.synonyms[0].source

    @property
    def is_secret(self) -> bool:
        return self.config_type == ConfigType.PASSWORD


def without_own(broker: TopicConfig) -> TopicConfig:
    """The settings of a topic that is created without any, on a broker with this static default. The policy alone is
    not inherited, so that the topic keeps it."""
    return replace(NO_OWN_SETTINGS, cleanup_policy=broker.cleanup_policy)


def changed(config: TopicConfig, changes: Iterable[Change], default: TopicConfig, replicas: int) -> TopicConfig:
    """`config`, the own settings of a topic with so many replicas, with the changes. default: as of `without_own`, for
    settings that are deleted. Raises InvalidSettingError."""
    seen: set[str] = set()
    for change in changes:
        if change.name in seen:
            raise InvalidSettingError(f"{change.name} is given twice")
        seen.add(change.name)
        config = _changed(config, change, default)
    if config.min_insync_replicas > max(1, replicas):
        raise InvalidSettingError(
            f"min.insync.replicas = {config.min_insync_replicas} with {replicas} replicas cannot be met: must be an "
            f"integer from 1 to {replicas}"
        )
    if (config.min_compaction_lag_ms or 0) > (config.max_compaction_lag_ms or 2**63 - 1):
        raise InvalidSettingError(
            f"min.compaction.lag.ms = {config.min_compaction_lag_ms} must be at most max.compaction.lag.ms, "
            f"{config.max_compaction_lag_ms}"
        )
    return config


def altered(
    before: TopicConfig | None, changes: Iterable[Change], default: TopicConfig, replicas: int, *, keep: bool
) -> TopicConfig:
    """The own settings of a topic that is altered. before: those that it had; None if they are unreadable, and to be
    replaced. keep: those that are not changed stay, and do not return to their defaults. default, replicas: as of
    `changed`.

    Followers accept gaps of offsets if the topic was ever compacted, or may have been: what compaction has removed
    stays so under any policy. Raises InvalidSettingError.
    """
    config = changed(before if keep and before is not None else default, changes, default, replicas)
    return replace(config, offset_gaps=before is None or before.offset_gaps or before.compacts)


def _changed(config: TopicConfig, change: Change, default: TopicConfig) -> TopicConfig:
    name, text, operation = change
    if name not in NAMES and name not in _BY_NAME:
        raise InvalidSettingError(
            f"{name} is not a setting of a topic: the settings are {', '.join(sorted([*NAMES, *_BY_NAME]))}"
        )
    if operation in (APPEND, SUBTRACT) and TYPES[name].config_type == ConfigType.LIST:
        present = config.cleanup_policy if name in NAMES else dict(config.unused).get(name, "")
        text, operation = _append_or_subtract(present, text or "", operation), SET
    if operation not in (SET, DELETE):
        raise InvalidSettingError(
            f"{name} is not a list: it can be set or deleted, but not appended to or subtracted from"
        )
    if name in _BY_NAME:
        return _with_text(config, name, None if operation == DELETE else text or "")
    field, kind = NAMES[name], TYPES[name]
    if operation == DELETE:
        return _with_own(config, field, getattr(default, field), own=False)
    if kind.config_type == ConfigType.LIST and text is not None:
        items = [item.strip() for item in text.split(",")]
        text = ",".join(dict.fromkeys(items) if all(items) else items)
    try:
        value = kind.parse(text)
    except ValueError as error:
        raise InvalidSettingError(f"{name} = {text}: {error}") from error
    return _with_own(config, field, value, own=True)


def _append_or_subtract(present: str, given: str, operation: int) -> str:
    """A comma-separated list after APPEND of the items that it lacks, or SUBTRACT of those that it has."""
    items, changed_items = ([item.strip() for item in text.split(",") if item.strip()] for text in (present, given))
    left = items if operation == APPEND else [item for item in items if item not in changed_items]
    return ",".join(dict.fromkeys([*left, *(changed_items if operation == APPEND else ())]))


def _with_own(config: TopicConfig, field: str, value: Any, *, own: bool) -> TopicConfig:
    """`config` with another value of a field; own: whether the topic has it, or inherits the setting."""
    inherited = tuple(name for name in INHERITED if (not own if name == field else name in config.inherited))
    return replace(config, inherited=inherited, **{field: value})


def _with_text(config: TopicConfig, name: str, text: str | None) -> TopicConfig:
    """`config` with another value of a setting of _BY_NAME; None for its default."""
    unused = dict(config.unused)
    unused.pop(name, None)
    if text is not None:
        try:
            TYPES[name].parse(text)
        except ValueError as error:
            raise InvalidSettingError(f"{name} = {text[:100]}: {error}") from error
        unused[name] = text
    return replace(config, unused=tuple(sorted(unused.items())))


def _in_force(value: Any, of_broker: list[Synonym]) -> list[Synonym]:
    """The synonyms of an inherited setting: the static one is the controller's, which may differ from this broker's."""
    if of_broker[0].value == value:
        return of_broker
    built_in = [synonym for synonym in of_broker if synonym.source == DEFAULT]
    static = Synonym(of_broker[0].name, value, STATIC)
    return built_in if built_in[0].value == value else [static, *built_in]


def _stored_value(name: str, text: str) -> Any:
    """The value of a stored setting of _BY_NAME; its text if that cannot be read, as of a newer version."""
    try:
        return TYPES[name].parse(text)
    except ValueError:
        return text


def described(config: TopicConfig, broker: Callable[[str], list[Synonym]]) -> Iterator[Described]:
    """The settings of a topic with `config`, those that count. broker: returns the values of the broker's setting that
    corresponds to a field of TopicConfig, by precedence."""
    for name, field in NAMES.items():
        value = getattr(config, field)
        of_broker = broker(field)
        if field in config.inherited:
            value, of_broker = None, _in_force(value, of_broker)
        elif field == "cleanup_policy" and value == of_broker[0].value:
            value = None
        own = [] if value is None else [Synonym(name, value, TOPIC)]
        yield Described(name, TYPES[name].config_type, True, (*own, *of_broker))
    given = dict(config.unused)
    for name, default in _BY_NAME.items():
        own = [Synonym(name, _stored_value(name, given[name]), TOPIC)] if name in given else []
        synonyms = (*own, Synonym(name, default, DEFAULT))
        documentation = NO_EFFECT if name in UNUSED else None
        yield Described(name, TYPES[name].config_type, True, synonyms, documentation)
