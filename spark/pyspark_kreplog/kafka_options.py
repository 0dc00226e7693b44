"""Options that begin with "kafka.": the settings of a Kafka consumer, for the bulk client that takes its place.

Those with a meaning for it are checked here; those that contradict what a Spark source does are refused, with the
reason that Spark's Kafka source has; all others are named in one warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from kreplog.errors import UsageError

BOOTSTRAP = "kafka.bootstrap.servers"
GROUP = "kafka.group.id"

MAX_FETCH_BYTES = 64 << 20
"""The largest response that the bulk client requests; a larger limit means as much."""

_REFUSED = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.key.deserializer": "keys are binary; convert them in the query",
    "kafka.value.deserializer": "values are binary; convert them in the query",
    "kafka.key.serializer": "it has no meaning for a read",
    "kafka.value.serializer": "it has no meaning for a read",
    "kafka.enable.auto.commit": "a read commits no offsets",
    "kafka.interceptor.classes": "records are read from files, past any interceptor",
}
ISOLATION = "isolationLevel"

_ISOLATION = "kafka.isolation.level"
_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
PROTOCOL = "kafka.security.protocol"
_CLIENT_ID = "kafka.client.id"
_RACK = "kafka.client.rack"
_MIN_BYTES = "kafka.fetch.min.bytes"
_MAX_WAIT = "kafka.fetch.max.wait.ms"
_MAX_BYTES = "kafka.fetch.max.bytes"
_PARTITION_BYTES = "kafka.max.partition.fetch.bytes"
_REQUEST_TIMEOUT = "kafka.request.timeout.ms"
_API_TIMEOUT = "kafka.default.api.timeout.ms"
_CHECK_CRCS = "kafka.check.crcs"
_USED = {
    *(BOOTSTRAP, GROUP, _ISOLATION, PROTOCOL, _CLIENT_ID, _RACK, _MIN_BYTES, _MAX_WAIT, _MAX_BYTES),
    *(_PARTITION_BYTES, _REQUEST_TIMEOUT, _API_TIMEOUT),
}

_SECURITY = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")

_SETTING = re.compile(r"(?<![\w./-])(?:security|ssl|sasl)(?:\.[a-z]+)+")

_log = logging.getLogger("pyspark_kreplog")


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of kreplog.client.Consumer by their names there; plain data, so that it can go to another process.

    security: holds passwords and keys, so that no text of these settings, or of a task with them, has it.
    """

    client_id: str = "kreplog-spark"
    isolation_level: str = "read_uncommitted"
    rack: str = ""
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 16 << 20
    partition_max_bytes: int = 4 << 20
    request_timeout_s: float = 30.0
    retry_timeout_s: float = 60.0
    security: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


DEFAULTS = ConsumerSettings()


def refuse(options: Mapping[str, str]) -> None:
    """Raise UsageError for an option that no Spark source takes. options: with names in lower case, here and below."""
    for name, instead in _REFUSED.items():
        if name in options:
            raise UsageError(f"option '{name}' is not supported: {instead}")
    _isolation_level(options)


def file_settings(options: Mapping[str, str]) -> ConsumerSettings:
    """The one of them that a read of files takes: the isolation level alone. Raises UsageError naming the option."""
    return ConsumerSettings(isolation_level=_isolation_level(options))


def consumer_settings(options: Mapping[str, str]) -> ConsumerSettings:
    """Raises UsageError naming the option."""
    default = DEFAULTS
    settings = ConsumerSettings(
        client_id=options.get(_CLIENT_ID, "").strip() or default.client_id,
        isolation_level=_isolation_level(options),
        rack=options.get(_RACK, "").strip(),
        min_bytes=_number(options, _MIN_BYTES, default.min_bytes),
        max_wait_ms=_number(options, _MAX_WAIT, default.max_wait_ms),
        max_bytes=min(_number(options, _MAX_BYTES, default.max_bytes, 1), MAX_FETCH_BYTES),
        partition_max_bytes=_number(options, _PARTITION_BYTES, default.partition_max_bytes, 1),
        request_timeout_s=_number(options, _REQUEST_TIMEOUT, int(default.request_timeout_s * 1000), 1) / 1000,
        retry_timeout_s=_number(options, _API_TIMEOUT, int(default.retry_timeout_s * 1000), 1) / 1000,
        security=security_settings(options, "read from"),
    )
    if settings.max_wait_ms >= settings.request_timeout_s * 1000:
        raise UsageError(
            f"option '{_MAX_WAIT}' = {settings.max_wait_ms} must be below {_REQUEST_TIMEOUT} = "
            f"{settings.request_timeout_s * 1000:.0f}, since a broker may wait as long before it responds"
        )
    return settings


def security_settings(options: Mapping[str, str], purpose: str) -> dict[str, str]:
    """Kafka's settings security.protocol, ssl.* and sasl.* of a client, checked. purpose: "read from" or "write to".

    Raises UsageError naming the setting, without a password or key."""
    settings = {name.removeprefix("kafka."): value for name, value in options.items() if is_security(name, options)}
    if settings:
        try:
            client_module("security", purpose).ClientSecurity.of(settings)
        except UsageError as error:
            text = _SETTING.sub(r"'kafka.\g<0>'", str(error))
            raise UsageError(f"option {text}" if text[0] == "'" else text, path=error.path) from None
    return settings


def is_security(name: str, options: Mapping[str, str]) -> bool:
    """Whether an option concerns the security of connections, and they have any."""
    plaintext = options.get(PROTOCOL, "PLAINTEXT").strip().upper() == "PLAINTEXT"
    return name.startswith(_SECURITY) and not plaintext


def client_module(name: str, purpose: str) -> ModuleType:
    """A module of kreplog.client. Raises UsageError where the package that it needs is missing."""
    try:
        return import_module(f"kreplog.client.{name}")
    except ImportError as error:
        raise UsageError(
            f"kafka.bootstrap.servers: {error}; to {purpose} brokers, pip install 'kreplog[cluster]' here and on every "
            "worker"
        ) from error


def warn_unused(options: Mapping[str, str]) -> None:
    """Name the options without a meaning in one warning. CRCs are checked whatever check.crcs says."""
    unused = sorted(
        name
        for name in options
        if name.startswith("kafka.")
        and name not in _USED
        and not is_security(name, options)
        and not (name == _CHECK_CRCS and options[name].strip().lower() == "true")
    )
    if unused:
        _log.warning("options without effect on reads from brokers: %s", ", ".join(unused))


def _isolation_level(options: Mapping[str, str]) -> str:
    """read_uncommitted by default, as of a Kafka consumer; Spark's Kafka source leaves that default. Source: KIP-98."""
    levels = {}
    for name in (ISOLATION, _ISOLATION):
        value = options.get(name.lower())
        if value is not None:
            levels[name] = value.strip().lower()
            if levels[name] not in _ISOLATION_LEVELS:
                raise UsageError(f"option '{name}' = {value!r} must be read_committed or read_uncommitted")
    if len(set(levels.values())) > 1:
        raise UsageError(
            f"options '{ISOLATION}' = {levels[ISOLATION]!r} and '{_ISOLATION}' = {levels[_ISOLATION]!r} contradict "
            "each other: set one of them"
        )
    return next(iter(levels.values()), DEFAULTS.isolation_level)


def _number(options: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    value = options.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"\s*[0-9]{1,10}\s*", value) or not least <= int(value) < 2**31:
        raise UsageError(f"option '{name}' = {value!r} must be a whole number from {least} to {2**31 - 1}")
    return int(value)
