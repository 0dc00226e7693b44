"""Dynamic broker configs (KIP-226): settings of brokers that change while they run; and changes of settings in general.

The store holds them as texts by name, for each broker and, as the cluster-wide default, for all of them. The controller
sends every broker its own and the default with each LeaderAndIsr and UpdateMetadata. Of a setting counts

    the broker's own dynamic config, else the cluster-wide default, else its static setting, else the built-in default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kreplog.config import SETTINGS_OF_TOPICS, ReplicationConfig
from kreplog.core.messages import BrokerConfigs, Configs
from kreplog.core.setting_values import field_type
from kreplog.core.throttled_replicas import FOLLOWER_THROTTLED_RATE, LEADER_THROTTLED_RATE

TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC, DEFAULT = range(1, 6)
DYNAMIC_GROUP = 8
"""Sources of a value in DescribeConfigs."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs."""

DYNAMIC_OF_LOGS = frozenset(
    {
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.threads",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "message.max.bytes",
        "producer.id.expiration.ms",
    }
)
"""Settings of a broker that take effect while it runs and change those of its logs; log.cleaner.threads does, since
log.cleaner.dedupe.buffer.size is of all threads together."""

CLUSTER_WIDE = frozenset(SETTINGS_OF_TOPICS)
"""Settings that only the cluster-wide default has: the defaults of topics, which the controller applies."""

ALTER_LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
NUM_REPLICA_FETCHERS = "num.replica.fetchers"
_OF_REPLICATION = {
    name: field_type(ReplicationConfig(), name.replace(".", "_"))
    for name in (NUM_REPLICA_FETCHERS, LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE)
}

DYNAMIC = (
    DYNAMIC_OF_LOGS
    | CLUSTER_WIDE
    | {
        "log.cleaner.backoff.ms",
        "log.cleaner.io.max.bytes.per.second",
        "max.connections",
        ALTER_LOG_DIRS_RATE,
        *_OF_REPLICATION,
    }
)
"""Settings of a broker that take effect while it runs."""

Parse = Callable[[Any], Any]
"""Makes the value of a setting from its text. Raises ValueError with the allowed values."""


class InvalidSettingError(Exception):
    """The message has the setting, its value, and the allowed values."""


class Change(NamedTuple):
    """A setting and its new value as text. operation: SET or another."""

    name: str
    text: str | None
    operation: int = SET


class Synonym(NamedTuple):
    """A value that a setting has, or would have without those before it."""

    name: str
    value: Any
    source: int


def effective(configs: BrokerConfigs) -> dict[str, str]:
    """The dynamic configs that count for the broker, in place of its static settings: texts by name."""
    return {**dict(configs.default), **dict(configs.own)}


def changes_logs(before: BrokerConfigs, after: BrokerConfigs) -> bool:
    """Whether open logs are to be configured when one replaces the other."""
    changed = effective(before).items() ^ effective(after).items()
    return any(name in DYNAMIC_OF_LOGS for name, _ in changed)


def of_replication(configs: BrokerConfigs, name: str, static: ReplicationConfig) -> int:
    """The number that a setting of replication has; the static one where the dynamic one is not allowed, as in a newer
    version. name: NUM_REPLICA_FETCHERS, LEADER_THROTTLED_RATE or FOLLOWER_THROTTLED_RATE."""
    try:
        return int(_OF_REPLICATION[name].parse(effective(configs)[name]))
    except (KeyError, ValueError):
        return int(getattr(static, name.replace(".", "_")))


def resource_error(name: str, broker_id: int) -> str | None:
    """Why a broker refuses to alter or describe the configs of the broker resource `name`; None if it does not. Only a
    broker itself knows its settings; the cluster-wide default, named "", any broker."""
    if name in ("", str(broker_id)):
        return None
    if not (name.isascii() and name.isdigit()):
        return f"{name[:100]!r} is not the id of a broker: it must be an integer, or empty for the cluster-wide default"
    return (
        f"broker {broker_id} alters and describes only its own configs and the cluster-wide default: send the request "
        f"to broker {name[:20]}"
    )


def altered(
    present: Mapping[str, str], changes: Iterable[Change], settings: Mapping[str, Parse], cluster_wide: bool
) -> dict[str, str]:
    """`present`, the dynamic configs of a broker or of the cluster, with the changes; settings: all that brokers have,
    by name. cluster_wide: they are the cluster-wide default. Raises as with_changes does."""

    def check(name: str) -> None:
        _check_dynamic(name, settings)
        if name in CLUSTER_WIDE and not cluster_wide:
            raise InvalidSettingError(
                f"{name} is a default of topics, the same on all brokers: alter the cluster-wide default, whose "
                "name is empty"
            )

    def stored(name: str, text: str | None) -> str:
        try:
            return config_text(settings[name]("" if text is None else text)) or ""
        except ValueError as error:
            raise InvalidSettingError(f"{name} = {str(text)[:100]}: {error}") from error

    return with_changes(present, changes, check, stored)


def with_changes(
    present: Mapping[str, str],
    changes: Iterable[Change],
    check: Callable[[str], None],
    stored: Callable[[str, str | None], str],
) -> dict[str, str]:
    """`present`, configs of a broker or a group, with the changes. check: raises InvalidSettingError for a name that
    cannot be set. stored: returns a value's text as it is stored, or raises InvalidSettingError. Deleting what is not
    set changes nothing. Raises InvalidSettingError."""
    after, seen = dict(present), set[str]()
    for name, text, operation in changes:
        if name in seen:
            raise InvalidSettingError(f"{name} is given twice")
        seen.add(name)
        if operation == DELETE:
            after.pop(name, None)
            continue
        check(name)
        if operation != SET:
            raise InvalidSettingError(
                f"{name} is not a list: it can be set or deleted, but not appended to or subtracted from"
            )
        after[name] = stored(name, text)
    return after


def config_text(value: Any) -> str | None:
    """A value of a setting as Kafka writes it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _check_dynamic(name: str, settings: Mapping[str, Parse]) -> None:
    if name in DYNAMIC:
        return
    if name in settings:
        raise InvalidSettingError(
            f"{name} cannot be changed while a broker runs: change its broker.toml, and restart it; dynamic are "
            f"{', '.join(sorted(DYNAMIC))}"
        )
    raise InvalidSettingError(f"{name[:100]} is not a setting of a broker: dynamic are {', '.join(sorted(DYNAMIC))}")


def parsed(configs: BrokerConfigs, settings: Mapping[str, Parse]) -> tuple[BrokerConfigs, list[str]]:
    """The configs that a broker can apply, and why it ignores others: a newer version or a person may have written
    them."""
    ignored: list[str] = []

    def valid(given: Configs, cluster_wide: bool) -> Configs:
        found = []
        for name, text in given:
            try:
                altered({}, [Change(name, text)], settings, cluster_wide)
            except InvalidSettingError as error:
                ignored.append(str(error))
            else:
                found.append((name, text))
        return tuple(found)

    return BrokerConfigs(valid(configs.own, False), valid(configs.default, True)), ignored


def synonyms(
    name: str, configs: BrokerConfigs, static: Iterable[Any], default: Iterable[Any], parse: Parse
) -> list[Synonym]:
    """The values of a broker's setting by precedence; the first one counts. static: the one that the broker was started
    with, if any; default: the built-in one, if any."""
    dynamic = ((DYNAMIC_BROKER, configs.own), (DYNAMIC_DEFAULT_BROKER, configs.default))
    found = [Synonym(name, parse(given[name]), source) for source, texts in dynamic if name in (given := dict(texts))]
    found += [Synonym(name, value, STATIC) for value in static]
    return found + [Synonym(name, value, DEFAULT) for value in default]
