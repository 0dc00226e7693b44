"""Settings of a broker by Kafka's names: from a TOML file, the environment and the command line; the last one wins.

In the file a name is dotted (`broker.id = 0`), quoted, or in tables; in the environment it is KREPLOG_BROKER_ID, and
lists are comma-separated. All settings are checked before a broker starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kreplog.config import (
    SETTINGS_OF_TOPICS,
    GroupConfig,
    LogConfig,
    QuotaConfig,
    ReplicationConfig,
    SaslConfig,
    TopicConfig,
    TransactionConfig,
)
from kreplog.coord.zookeeper_security import ZooKeeperSecurity
from kreplog.core.broker.stray_retention import DEFAULT_RETENTION_MS
from kreplog.core.dynamic_configs import ALTER_LOG_DIRS_RATE
from kreplog.core.groups.group_configs import static_times, times_error
from kreplog.core.setting_values import (
    BOOLEAN,
    SECRET,
    SHARE,
    TEXT,
    ConfigType,
    ValueType,
    field_type,
    integer,
    number,
    one_of,
    texts,
)
from kreplog.errors import UsageError
from kreplog.server import zookeeper_settings
from kreplog.server.broker_values import (
    ADDRESS,
    ADVERTISED_LISTENERS,
    COORDINATION,
    INTERNAL,
    LISTENERS,
    OVERRIDES,
    PROTOCOL_MAP,
    REPLICATION_FACTOR,
    SUPER_USERS,
    some_of,
)
from kreplog.server.internal_listener import LISTENER_NAME, SECURITY_PROTOCOL, separate
from kreplog.server.listeners import (
    DEFAULT_PROTOCOLS,
    WILDCARDS,
    Listener,
    check_listeners,
    check_mechanisms,
    with_protocols,
)
from kreplog.server.settings_file import read_file
from kreplog.server.settings_of_kafka import refusal
from kreplog.tls import CLIENT_AUTH, PROTOCOLS, TLS_NAMES, TlsSettings
from kreplog.types import SecurityProtocol, is_loopback

ENVIRONMENT_PREFIX = "KREPLOG_"
LONGEST_SOCKET_PATH = 100
MAX_CLEANER_THREADS = 64
_MAX_INT32 = 2**31 - 1
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The only authorizer, under the name that it has in Kafka's server.properties and documentation."""

_OF_AUTHORIZER = ("super.users", "allow.everyone.if.no.acl.found")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of a broker, from `load`. Names are Kafka's, with underscores; times in ms.

    coordination: "embedded:PATH", a directory that all brokers of one host share, or "zookeeper:HOSTS[/root]".
    zookeeper: TLS and authentication to it; see ZooKeeperSecurity.
    broker_id: unique in the cluster. rack: for the assignment of replicas (KIP-36).
    listeners: addresses for clients; by default also a unix socket in the first log directory. An entry without a name
    is of PLAINTEXT.
    log_dirs: log directories, each on a disk of its own.
    advertised: the addresses that clients get by the name of a listener, where they are not its own.
    protocol_map: the security protocol of each listener, by its name.
    internal: the address for other brokers of the cluster; by default a unix socket in a directory of its own beside
    the first log directory. internal_protocol: of that listener, for a TCP address: PLAINTEXT or SSL. key_file: the
    cluster's key, which authenticates connections to an internal TCP listener. internal_name: the name of the one of
    `listeners` that is the internal one, not for clients. internal_by_protocol: the same, by the protocol that is its
    name. internal_advertised: the address by which other brokers reach it, None for its own.
    allow_plaintext_remote: allow PLAINTEXT listeners, metrics.listener, and without an authorizer SSL listeners that
    require no certificate of clients, on other than loopback addresses.
    authorizer: STANDARD_AUTHORIZER, which authorizes the requests of clients by ACLs; "" for none: all may do
    everything. super_users: principals, separated by semicolons, that may do everything whatever the ACLs.
    allow_everyone: everybody may do everything to a resource without any ACL.
    session_timeout_ms: time without a heartbeat after which the coordination store ends the broker's registration.
    socket_request_max_bytes: maximum size of a request; a larger one closes its connection.
    max_connections: maximum of client connections; a further one replaces an idle one, or is refused.
    max_per_ip: maximum of client connections of one IP address; further ones are closed.
    per_ip_overrides: the same for hosts of their own limit, `HOST:NUMBER`.
    max_creation_rate: maximum of new client connections in a second, of all listeners or, as a listener's own setting,
    of that one; further ones wait in the listener's backlog.
    max_idle_ms: time after which an idle connection is closed.
    max_in_flight, max_queued_bytes: limits of a connection, which is not read while it is above them.
    max_memory: bytes held for clients: by connections, of incomplete or unfinished requests and unread responses, and
    at most half of it by fetch sessions and waiting fetches.
    max_partitions, max_broker_partitions: maximum of partitions of the cluster, and of replicas of a broker (KIP-578).
    auto_create_topics: create a topic when a client that allows it requests its metadata.
    num_partitions: of a topic that is created without its own.
    default_replication_factor: of a topic that is created without its own; -1: 3 replicas, or as many as there are
    brokers if those are fewer.
    metrics_listener: address of the HTTP endpoint for metrics; None: no endpoint.
    log_format, log_level: of the lines in server.log and state-change.log.
    log_file_max_bytes, log_file_backups: of each file of a broker's logs.
    num_recovery_threads: threads that recover logs at the start, for each log directory.
    retention_check_interval_ms: interval of the checks for segments to delete.
    producer_check_interval_ms: interval of the checks for idle producer ids.
    controlled_shutdown_max_wait_ms: maximum time of a controlled shutdown, in which leaders move to other brokers.
    checkpoint_interval_ms: interval of the checkpoints of all replicas' offsets.
    stray_retention_ms: time after which a stray, a replica that is no longer assigned to the broker, is deleted; -1:
    never.
    cleaner_enable: compact the logs of topics whose cleanup.policy has compact.
    cleaner_threads: threads that compact, which share log.cleaner.dedupe.buffer.size.
    cleaner_backoff_ms: pause where no log is due for compaction.
    cleaner_max_bytes_per_second: maximum of bytes that all cleaner threads read in a second, in each of two passes;
    None for no limit.
    alter_log_dirs_max_bytes_per_second: maximum of bytes that all replicas take in a second that move to another log
    directory of the broker.
    unused: settings that are accepted and without effect, with their values, by name.
    given: names of the settings that the broker was given, the others have their defaults.
    handshake_timeout_ms: maximum time of a TLS handshake; a slower one ends with its connection.
    listener_values: settings that a listener has of its own, `listener.name.NAME.SETTING`, by its name and theirs.
    tls: the settings of TLS of all listeners without their own.
    replication, topic, log, groups, transactions, sasl, quotas: settings with Kafka's names there; see kreplog.config.
    """

    broker_id: int
    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    protocol_map: tuple[tuple[str, SecurityProtocol], ...]
    internal: Listener
    internal_protocol: str
    internal_name: str | None
    internal_by_protocol: str | None
    internal_advertised: Listener | None
    key_file: str | None
    log_dirs: tuple[str, ...]
    coordination: str
    zookeeper: ZooKeeperSecurity
    rack: str | None
    allow_plaintext_remote: bool
    authorizer: str
    super_users: str
    allow_everyone: bool
    session_timeout_ms: int
    socket_request_max_bytes: int
    max_in_flight: int
    max_queued_bytes: int
    max_memory: int
    max_connections: int
    max_partitions: int
    max_broker_partitions: int
    auto_create_topics: bool
    num_partitions: int
    default_replication_factor: int
    max_idle_ms: int
    metrics_listener: Listener | None
    log_format: str
    log_level: str
    log_file_max_bytes: int
    log_file_backups: int
    num_recovery_threads: int
    checkpoint_interval_ms: int
    retention_check_interval_ms: int
    producer_check_interval_ms: int
    stray_retention_ms: int
    controlled_shutdown_max_wait_ms: int
    cleaner_enable: bool
    cleaner_threads: int
    cleaner_backoff_ms: int
    cleaner_max_bytes_per_second: float | None
    alter_log_dirs_max_bytes_per_second: int
    handshake_timeout_ms: int
    max_per_ip: int
    per_ip_overrides: tuple[tuple[str, int], ...]
    max_creation_rate: int
    unused: tuple[tuple[str, Any], ...]
    given: frozenset[str]
    listener_values: Mapping[str, Mapping[str, Any]] = field(repr=False)
    tls: TlsSettings
    replication: ReplicationConfig
    topic: TopicConfig
    log: LogConfig
    groups: GroupConfig
    transactions: TransactionConfig
    sasl: SaslConfig
    quotas: QuotaConfig


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting. default: _REQUIRED for none."""

    type: ValueType
    default: Any


def load(
    overrides: Mapping[str, Any],
    file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BrokerSettings:
    """Settings from `file`, the environment and `overrides` (by Kafka's names), of which the last one wins.

    environment: os.environ if None. Raises UsageError with the setting, its value, its source and the allowed values.
    """
    found = {} if file is None else read_file(Path(file))
    return check(found, str(file), os.environ if environment is None else environment, overrides)


def check(
    in_file: Mapping[str, Any], file: str, environment: Mapping[str, str], overrides: Mapping[str, Any]
) -> BrokerSettings:
    """As `load`, with the settings of a file. file: its name in errors."""
    given: dict[str, tuple[Any, str]] = {name: (value, file) for name, value in in_file.items()}
    for key, text in environment.items():
        name = _ENVIRONMENT.get(key) or _listener_variable(key)
        if name is not None:
            given[name] = text, f"the environment ({key})"
    given.update((name, (value, "the command line")) for name, value in overrides.items() if value is not None)
    values: dict[str, Any] = {}
    listener_values: dict[str, dict[str, Any]] = {}
    for name, (value, source) in given.items():
        if name in RENAMED:
            raise UsageError(f"{name} in {source} is called {RENAMED[name]}: rename it there")
        reason = None if name in SETTINGS else refusal(name)
        if reason is not None:
            raise UsageError(f"{name} in {source} is no setting here: {reason}; take it out there")
        if name.startswith(_OF_LISTENER):
            listener, _, setting = name.removeprefix(_OF_LISTENER).partition(".")
            if setting not in PER_LISTENER:
                raise UsageError(
                    f"{name} in {source}: a listener may have these settings of its own: {', '.join(PER_LISTENER)}"
                )
            listener_values.setdefault(listener.upper(), {})[setting] = _parsed(name, setting, value, source)
        elif name in SETTINGS:
            values[name] = _parsed(name, name, value, source)
        else:
            raise UsageError(
                f"{name} in {source} is not a setting of a broker: the settings are {', '.join(sorted(SETTINGS))}"
            )
    missing = [name for name, setting in SETTINGS.items() if setting.default is _REQUIRED and name not in values]
    if missing:
        raise UsageError(
            f"a broker requires {', '.join(missing)}: set them in its file, the environment or the command line"
        )
    complete = {name: values.get(name, setting.default) for name, setting in SETTINGS.items()}
    if "listeners" not in values:
        complete["listeners"] += _socket_in(complete["log.dirs"][0])
    complete["listeners"] = with_protocols(complete["listeners"], complete["listener.security.protocol.map"])
    separated = separate(complete, values.keys())
    complete["inter.broker.listener"] = separated.internal
    complete["inter.broker.security.protocol"] = separated.internal.security_protocol.name
    complete[LISTENER_NAME] = separated.name
    complete["listeners"], complete["advertised.listeners"] = separated.clients, separated.advertised
    settings = BrokerSettings(
        **{field: complete[name] for name, field in _OWN.items()},
        internal_advertised=separated.advertised_internal,
        unused=tuple((name, complete[name]) for name in UNUSED),
        given=frozenset(values),
        listener_values=listener_values,
        zookeeper=ZooKeeperSecurity(**{field: complete[name] for name, field in zookeeper_settings.NAMES.items()}),
        tls=TlsSettings(**{field: complete[name] for name, field in TLS_NAMES.items()}),
        replication=ReplicationConfig(**{field: complete[name] for name, field in _REPLICATION.items()}),
        topic=TopicConfig(**{field: complete[name] for name, field in OF_TOPICS.items()}),
        log=replace(_LOG, **{field: complete[name] for name, field in OF_LOGS.items()}),
        groups=GroupConfig(**{field: complete[name] for name, field in _GROUPS.items()}),
        transactions=TransactionConfig(**{field: complete[name] for name, field in _TRANSACTIONS.items()}),
        sasl=SaslConfig(**{field: complete[name] for name, field in _SASL.items()}),
        quotas=QuotaConfig(**{field: complete[name] for name, field in _QUOTAS.items()}),
    )
    _check_listeners(settings)
    _check_internal(settings)
    _check_heartbeats(settings.groups)
    _check_authorizer(settings)
    _check_zookeeper(settings)
    return settings


def _parsed(name: str, setting: str, value: Any, source: str) -> Any:
    """The value of a setting of SETTINGS, which `source` calls `name`. Raises UsageError."""
    try:
        return SETTINGS[setting].type.parse(value)
    except ValueError as error:
        shown = "(hidden)" if SETTINGS[setting].type.config_type is ConfigType.PASSWORD else repr(value)
        raise UsageError(f"{name} = {shown} in {source}: {error}") from error


def _listener_variable(key: str) -> str | None:
    """The name of a listener's own setting that a variable of the environment has, whose name ends with its."""
    prefix = ENVIRONMENT_PREFIX + _OF_LISTENER.replace(".", "_").upper()
    if key.startswith(prefix):
        for setting in PER_LISTENER:
            ending = "_" + setting.replace(".", "_").upper()
            if key.endswith(ending) and len(key) > len(prefix) + len(ending):
                return f"{_OF_LISTENER}{key[len(prefix) : -len(ending)]}.{setting}"
    return None


def _socket_in(log_dir: str) -> tuple[Listener, ...]:
    """The default unix socket for clients; none if its path is too long for the system."""
    path = os.path.join(os.path.abspath(log_dir), "broker.sock")
    return (Listener(path=path),) if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH else ()


def _check_internal(settings: BrokerSettings) -> None:
    """Raise UsageError for an internal listener that brokers cannot connect to, or that needs a key."""
    internal, advertised = settings.internal, settings.internal_advertised
    shown = f"inter.broker.listener = {internal}"
    if settings.internal_name is not None:
        shown = f"{LISTENER_NAME} = {settings.internal_name}: {internal}"
    if internal.path:
        if not os.path.isabs(internal.path):
            raise UsageError(f"{shown}: the path of a unix socket must begin with /")
        if internal.security_protocol.encrypts:
            raise UsageError(
                f"{shown}: {settings.internal_protocol} between brokers needs inter.broker.listener to be host:port, "
                f"or {LISTENER_NAME} to name one: a unix socket has no TLS, and is of this host's brokers alone"
            )
    elif (internal if advertised is None else advertised).host in WILDCARDS:
        raise UsageError(
            f"{shown} is not an address that other brokers can connect to: use that of the network between them"
            + (", or set advertised.listeners" if settings.internal_name else "")
        )
    elif settings.key_file is None:
        raise UsageError(
            f"{shown} needs inter.broker.key.file: the cluster's key, the same on all its hosts; `kreplog cluster "
            "create` makes one, cluster.key"
        )


def _check_listeners(settings: BrokerSettings) -> None:
    """Raise UsageError for a remote listener that is open to all without allow.plaintext.remote, or one that clients
    cannot connect to."""
    check_listeners(settings.listeners, settings.advertised)
    names = {listener.name for listener in settings.listeners}
    if settings.internal_name is not None:
        names.add(settings.internal_name)
    for name, own in settings.listener_values.items():
        if name not in names:
            setting = next(iter(own))
            raise UsageError(
                f"{_OF_LISTENER}{name.lower()}.{setting}: listeners have none named {name}, but "
                f"{', '.join(sorted(names))}"
            )
    mechanisms: set[str] = set()
    for listener in settings.listeners:
        sasl = sasl_settings(settings, listener.name)
        check_mechanisms(listener, sasl)
        mechanisms.update(sasl.mechanisms)
    if "OAUTHBEARER" not in mechanisms:
        for name in settings.given:
            if name.startswith("sasl.oauthbearer."):
                raise UsageError(f"{name} has no effect without OAUTHBEARER in sasl.enabled.mechanisms")
    given = [("listeners", listener) for listener in settings.listeners]
    if settings.metrics_listener is not None:
        given.append(("metrics.listener", settings.metrics_listener))
    for name, listener in given:
        remote = listener.host and not is_loopback(listener.host)
        if remote and not settings.allow_plaintext_remote and _is_open_to_all(settings, listener):
            access = "read and write all topics" if name == "listeners" else "read the metrics"
            encrypts = listener.security_protocol.encrypts
            advice = "set ssl.client.auth = required, or authorizer.class.name, or " if encrypts else ""
            raise UsageError(
                f"{name} = {listener}: {listener.host} is not a loopback address, and whoever connects to it may "
                f"{access}; {advice}set allow.plaintext.remote = true to allow that"
            )


def internal_tls(settings: BrokerSettings) -> TlsSettings:
    """The settings of TLS of the internal listener, and of connections to those of other brokers."""
    return settings.tls if settings.internal_name is None else tls_settings(settings, settings.internal_name)


def _is_open_to_all(settings: BrokerSettings, listener: Listener) -> bool:
    """Whether whoever connects may send requests: in plaintext, or with TLS and neither certificate nor authorizer."""
    if listener.security_protocol is SecurityProtocol.SSL:
        return tls_settings(settings, listener.name).client_auth != "required" and not settings.authorizer
    return listener.security_protocol is SecurityProtocol.PLAINTEXT


def tls_settings(settings: BrokerSettings, listener: str) -> TlsSettings:
    """The settings of TLS of the listener of that name: its own over the broker's."""
    own = settings.listener_values.get(listener, {})
    return replace(settings.tls, **{TLS_NAMES[name]: value for name, value in own.items() if name in TLS_NAMES})


def _check_authorizer(settings: BrokerSettings) -> None:
    """Raise UsageError for settings of an authorizer without one: whoever wrote them counts on it."""
    for name in _OF_AUTHORIZER:
        if name in settings.given and not settings.authorizer:
            raise UsageError(f"{name} has no effect without authorizer.class.name = {STANDARD_AUTHORIZER}")


def _check_zookeeper(settings: BrokerSettings) -> None:
    """Raise UsageError for settings of a connection that there is not, or that contradict each other."""
    settings.zookeeper.check()
    given = settings.given.intersection(zookeeper_settings.NAMES)
    if given and not settings.coordination.startswith("zookeeper:"):
        raise UsageError(f"{min(given)} has no effect with coordination = {settings.coordination}")


def sasl_settings(settings: BrokerSettings, listener: str) -> SaslConfig:
    """The settings of SASL of the listener of that name: its own over the broker's."""
    own = settings.listener_values.get(listener, {})
    return replace(settings.sasl, **{_SASL[name]: value for name, value in own.items() if name in _SASL})


def _check_heartbeats(groups: GroupConfig) -> None:
    """Raise UsageError for a heartbeat interval or session time-out of consumer groups outside of its bounds, or of
    which no member can keep alive."""
    error = times_error(static_times(groups), groups, "group.")
    if error is not None:
        raise UsageError(error)


def given_value(settings: BrokerSettings, name: str) -> Any:
    """The value of a setting of SETTINGS: a number, a boolean, None, or else text."""
    for names, config in (
        (_OWN, settings),
        (_REPLICATION, settings.replication),
        (OF_TOPICS, settings.topic),
        (OF_LOGS, settings.log),
        (_GROUPS, settings.groups),
        (_TRANSACTIONS, settings.transactions),
        (zookeeper_settings.NAMES, settings.zookeeper),
        (TLS_NAMES, settings.tls),
        (_SASL, settings.sasl),
        (_QUOTAS, settings.quotas),
    ):
        if name in names:
            return _plain(getattr(config, names[name]))
    if name in UNUSED:
        return dict(settings.unused)[name]
    raise UsageError(f"{name} is not a setting of a broker")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ",".join(map(entry_text, value)) or None
    return str(value) if isinstance(value, Listener) else value


def entry_text(part: Any) -> str:
    """The text of an entry of a list; NAME:VALUE of a pair."""
    if not isinstance(part, tuple):
        return str(part)
    name, value = part
    return f"{name}:{value.name if isinstance(value, SecurityProtocol) else value}"


def default_value(name: str) -> tuple[Any, ...]:
    """The built-in default of a setting, as `given_value` returns values; empty if it has none."""
    default = SETTINGS[name].default
    return () if default is _REQUIRED else (_plain(default),)


def replaced(settings: BrokerSettings, values: Mapping[str, Any]) -> BrokerSettings:
    """`settings` with other values of settings in SETTINGS, parsed ones, by name."""

    def of(names: Mapping[str, str]) -> dict[str, Any]:
        return {names[name]: value for name, value in values.items() if name in names}

    return replace(
        settings,
        **of(_OWN),
        replication=replace(settings.replication, **of(_REPLICATION)),
        topic=replace(settings.topic, **of(OF_TOPICS)),
        log=replace(settings.log, **of(OF_LOGS)),
    )


def _authorizer(value: Any) -> str:
    if value not in ("", STANDARD_AUTHORIZER):
        raise ValueError(f"must be {STANDARD_AUTHORIZER}, or empty for no authorizer")
    return str(value)


_REQUIRED = object()

_OWN = {
    "broker.id": "broker_id",
    "listeners": "listeners",
    "advertised.listeners": "advertised",
    "listener.security.protocol.map": "protocol_map",
    "inter.broker.listener": "internal",
    "inter.broker.security.protocol": "internal_protocol",
    LISTENER_NAME: "internal_name",
    SECURITY_PROTOCOL: "internal_by_protocol",
    "inter.broker.key.file": "key_file",
    "log.dirs": "log_dirs",
    "coordination": "coordination",
    "broker.rack": "rack",
    "allow.plaintext.remote": "allow_plaintext_remote",
    "authorizer.class.name": "authorizer",
    "super.users": "super_users",
    "allow.everyone.if.no.acl.found": "allow_everyone",
    "broker.session.timeout.ms": "session_timeout_ms",
    "socket.request.max.bytes": "socket_request_max_bytes",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "queued.max.bytes.per.connection": "max_queued_bytes",
    "queued.max.request.bytes": "max_memory",
    "max.connections": "max_connections",
    "max.connections.per.ip": "max_per_ip",
    "max.connections.per.ip.overrides": "per_ip_overrides",
    "max.connection.creation.rate": "max_creation_rate",
    "max.partitions": "max_partitions",
    "max.broker.partitions": "max_broker_partitions",
    "auto.create.topics.enable": "auto_create_topics",
    "num.partitions": "num_partitions",
    "default.replication.factor": "default_replication_factor",
    "connections.max.idle.ms": "max_idle_ms",
    "metrics.listener": "metrics_listener",
    "server.log.format": "log_format",
    "server.log.level": "log_level",
    "server.log.max.bytes": "log_file_max_bytes",
    "server.log.backups": "log_file_backups",
    "num.recovery.threads.per.data.dir": "num_recovery_threads",
    "log.flush.offset.checkpoint.interval.ms": "checkpoint_interval_ms",
    "log.retention.check.interval.ms": "retention_check_interval_ms",
    "producer.id.expiration.check.interval.ms": "producer_check_interval_ms",
    "log.stray.retention.ms": "stray_retention_ms",
    "controlled.shutdown.max.wait.ms": "controlled_shutdown_max_wait_ms",
    "log.cleaner.enable": "cleaner_enable",
    "log.cleaner.threads": "cleaner_threads",
    "log.cleaner.backoff.ms": "cleaner_backoff_ms",
    "log.cleaner.io.max.bytes.per.second": "cleaner_max_bytes_per_second",
    ALTER_LOG_DIRS_RATE: "alter_log_dirs_max_bytes_per_second",
    "ssl.handshake.timeout.ms": "handshake_timeout_ms",
}
UNUSED: dict[str, int | float] = {"log.cleaner.io.buffer.size": 512 << 10, "log.cleaner.io.buffer.load.factor": 0.9}
"""Settings that are accepted and without effect, and Kafka's defaults."""

_REPLICATION = {field.name.replace("_", "."): field.name for field in fields(ReplicationConfig)}
OF_TOPICS = SETTINGS_OF_TOPICS | {"log.cleanup.policy": "cleanup_policy"}
PER_LISTENER = (*TLS_NAMES, "max.connection.creation.rate", "sasl.enabled.mechanisms", "connections.max.reauth.ms")
"""Settings that a listener may have of its own."""

_OF_LISTENER = "listener.name."
_GROUPS = {field.name.replace("_", "."): field.name for field in fields(GroupConfig)}
_TRANSACTIONS = {field.name.replace("_", "."): field.name for field in fields(TransactionConfig)}
_SASL = {field.name.replace("_", "."): field.name for field in fields(SaslConfig)}
_QUOTAS = {field.name.replace("_", "."): field.name for field in fields(QuotaConfig)}
OF_LOGS = {
    "log.retention.ms": "retention_ms",
    "log.retention.bytes": "retention_bytes",
    "log.segment.bytes": "segment_bytes",
    "log.roll.ms": "segment_ms",
    "log.index.interval.bytes": "index_interval_bytes",
    "log.index.size.max.bytes": "segment_index_bytes",
    "message.max.bytes": "max_message_bytes",
    "log.message.timestamp.type": "message_timestamp_type",
    "log.message.timestamp.before.max.ms": "message_timestamp_before_max_ms",
    "log.message.timestamp.after.max.ms": "message_timestamp_after_max_ms",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
    "max.producer.ids.per.partition": "max_producer_ids",
    "log.dir.group": "directory_group",
    "log.cleaner.min.cleanable.ratio": "min_cleanable_dirty_ratio",
    "log.cleaner.min.compaction.lag.ms": "min_compaction_lag_ms",
    "log.cleaner.max.compaction.lag.ms": "max_compaction_lag_ms",
    "log.cleaner.delete.retention.ms": "delete_retention_ms",
    "log.cleaner.dedupe.buffer.size": "dedupe_buffer_size",
}
_LOG = LogConfig(replicated=True, message_timestamp_after_max_ms=3_600_000)
"""Defaults of a broker's logs: with the limit for clocks that are ahead (KIP-1030), which an embedded log lacks."""

NAMES_BY_TOPIC_FIELD = {field: name for name, field in (OF_LOGS | OF_TOPICS).items()}
"""Names of the settings that topics have too, by the field of a TopicConfig."""


def _of_config(names: Mapping[str, str], config: Any) -> dict[str, _Setting]:
    return {name: _Setting(field_type(config, field), getattr(config, field)) for name, field in names.items()}


SETTINGS: dict[str, _Setting] = {
    "broker.id": _Setting(integer(0, _MAX_INT32), _REQUIRED),
    "listeners": _Setting(
        LISTENERS,
        (Listener("127.0.0.1", 9092),),  # and a unix socket, see _socket_in
    ),
    "advertised.listeners": _Setting(ADVERTISED_LISTENERS, ()),
    "listener.security.protocol.map": _Setting(PROTOCOL_MAP, DEFAULT_PROTOCOLS),
    "inter.broker.listener": _Setting(
        INTERNAL,
        None,  # a unix socket beside the first of log.dirs
    ),
    LISTENER_NAME: _Setting(TEXT, None),
    SECURITY_PROTOCOL: _Setting(one_of(*SecurityProtocol.__members__), None),
    "inter.broker.security.protocol": _Setting(one_of("PLAINTEXT", "SSL"), "PLAINTEXT"),
    "inter.broker.key.file": _Setting(TEXT, None),
    "log.dirs": _Setting(ValueType(ConfigType.LIST, "texts", texts), _REQUIRED),
    "coordination": _Setting(COORDINATION, _REQUIRED),
    "broker.rack": _Setting(TEXT, None),
    "allow.plaintext.remote": _Setting(BOOLEAN, False),
    "authorizer.class.name": _Setting(
        ValueType(ConfigType.STRING, f"{STANDARD_AUTHORIZER}, or empty", _authorizer), ""
    ),
    "super.users": _Setting(SUPER_USERS, ""),
    "allow.everyone.if.no.acl.found": _Setting(BOOLEAN, False),
    "broker.session.timeout.ms": _Setting(integer(100, 3_600_000), 9000),
    "socket.request.max.bytes": _Setting(integer(1024, _MAX_INT32), 100 << 20),
    "max.in.flight.requests.per.connection": _Setting(integer(1, 100_000), 100),
    "queued.max.bytes.per.connection": _Setting(integer(1024, 2**40), 64 << 20),
    "queued.max.request.bytes": _Setting(integer(1 << 20, 2**40), 256 << 20),
    "max.connections": _Setting(integer(1, _MAX_INT32), 10_000),
    "max.connections.per.ip": _Setting(integer(0, _MAX_INT32), _MAX_INT32),
    "max.connections.per.ip.overrides": _Setting(OVERRIDES, ()),
    "max.connection.creation.rate": _Setting(integer(1, _MAX_INT32), _MAX_INT32),
    "max.partitions": _Setting(integer(1, _MAX_INT32), 200_000),
    "max.broker.partitions": _Setting(integer(1, _MAX_INT32), 50_000),
    "auto.create.topics.enable": _Setting(BOOLEAN, True),
    "num.partitions": _Setting(integer(1, 10_000), 1),
    "default.replication.factor": _Setting(REPLICATION_FACTOR, -1),
    "connections.max.idle.ms": _Setting(integer(10, 2**40), 600_000),
    "metrics.listener": _Setting(ADDRESS, None),
    "server.log.format": _Setting(one_of("json", "text"), "json"),
    "server.log.level": _Setting(one_of("debug", "info", "warning", "error"), "info"),
    "server.log.max.bytes": _Setting(integer(64 << 10, 2**40), 64 << 20),
    "server.log.backups": _Setting(integer(1, 1000), 4),
    "num.recovery.threads.per.data.dir": _Setting(integer(1, 256), 2),
    "log.flush.offset.checkpoint.interval.ms": _Setting(integer(10, 3_600_000), 5000),
    "log.retention.check.interval.ms": _Setting(integer(10, 86_400_000), 300_000),
    "producer.id.expiration.check.interval.ms": _Setting(integer(10, 86_400_000), 600_000),
    "log.stray.retention.ms": _Setting(integer(-1, 2**63 - 1), DEFAULT_RETENTION_MS),
    "controlled.shutdown.max.wait.ms": _Setting(integer(0, 600_000), 10_000),
    "log.cleaner.enable": _Setting(BOOLEAN, True),
    "log.cleaner.threads": _Setting(integer(1, MAX_CLEANER_THREADS), 1),
    "log.cleaner.backoff.ms": _Setting(integer(0, 86_400_000), 15_000),
    "log.cleaner.io.max.bytes.per.second": _Setting(number(1, sys.float_info.max), None),
    ALTER_LOG_DIRS_RATE: _Setting(integer(0, 2**63 - 1), 2**63 - 1),
    "log.cleaner.io.buffer.size": _Setting(integer(1, _MAX_INT32), UNUSED["log.cleaner.io.buffer.size"]),
    "log.cleaner.io.buffer.load.factor": _Setting(SHARE, UNUSED["log.cleaner.io.buffer.load.factor"]),
    "ssl.keystore.location": _Setting(TEXT, None),
    "ssl.keystore.type": _Setting(one_of("PEM"), "PEM"),
    "ssl.key.password": _Setting(SECRET, None),
    "ssl.truststore.location": _Setting(TEXT, None),
    "ssl.truststore.type": _Setting(one_of("PEM"), "PEM"),
    "ssl.client.auth": _Setting(one_of(*CLIENT_AUTH), "none"),
    "ssl.enabled.protocols": _Setting(some_of(*PROTOCOLS), tuple(PROTOCOLS)),
    "ssl.cipher.suites": _Setting(ValueType(ConfigType.LIST, "names of the IANA", texts), ()),
    "ssl.endpoint.identification.algorithm": _Setting(one_of("https", ""), "https"),
    "ssl.principal.mapping.rules": _Setting(TEXT, "DEFAULT"),
    "ssl.handshake.timeout.ms": _Setting(integer(10, 600_000), 10_000),
    **{name: _Setting(*kind) for name, kind in zookeeper_settings.TYPES.items()},
    **_of_config(_REPLICATION, ReplicationConfig()),
    **_of_config(OF_TOPICS, TopicConfig()),
    **_of_config(OF_LOGS, _LOG),
    **_of_config(_GROUPS, GroupConfig()),
    **_of_config(_TRANSACTIONS, TransactionConfig()),
    **_of_config(_SASL, SaslConfig()),
    **_of_config(_QUOTAS, QuotaConfig()),
}
"""Every setting of a broker, by Kafka's name."""

RENAMED = {"flush.messages": "log.flush.interval.messages", "allow.remote": "allow.plaintext.remote"}
"""Former names, which are refused, so that no setting is lost in silence."""

_ENVIRONMENT = {ENVIRONMENT_PREFIX + name.replace(".", "_").upper(): name for name in (*SETTINGS, *RENAMED)}
