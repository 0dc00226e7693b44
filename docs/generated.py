"""What pages take from the code when they are built: the protocol table, the settings, the coverage of known flaws.

Directives: `protocol-table`, `settings-table KIND` (broker, refused, topic or log), `coverage NUMBER`. Each makes
Markdown that is parsed where the directive stands, so that nothing generated is kept. Docstrings are made fit for
Sphinx as well, and compiled methods get the signatures of their stubs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from kreplog.config import (
    ASSIGNORS,
    INHERITED,
    GroupConfig,
    LogConfig,
    QuotaConfig,
    ReplicationConfig,
    SaslConfig,
    TopicConfig,
    TransactionConfig,
)
from kreplog.coord.zookeeper_security import ZooKeeperSecurity
from kreplog.core import throttled_replicas, topic_settings
from kreplog.core.dynamic_configs import CLUSTER_WIDE, DYNAMIC
from kreplog.core.setting_values import ValueType, field_type
from kreplog.server import settings, zookeeper_settings
from kreplog.server.settings_of_kafka import REFUSED, REFUSED_FAMILIES
from kreplog.sim import mutations
from kreplog.tls import TLS_NAMES, TlsSettings
from kreplog.wire.kafka_apis import KAFKA_4, LATER_VERSIONS, NOT_OFFERED
from kreplog.wire.versions import BETWEEN_BROKERS, FLEXIBLE_FROM, NEVER_FLEXIBLE, TO_CLIENTS, ApiKey
from tests.test_flaws import places

UNITS = {
    "ms": "ms",
    "minutes": "min",
    "seconds": "s",
    "bytes.per.second": "bytes/s",
    "bytes": "bytes",
    "buffer.size": "bytes",
    "percentage": "%",
    "messages": "records",
}
"""By words of a setting's name, of which the first that it has counts."""

NOT_OF_KAFKA = {
    *("coordination", "inter.broker.listener", "inter.broker.key.file", "allow.plaintext.remote", "metrics.listener"),
    *("max.in.flight.requests.per.connection", "queued.max.bytes.per.connection"),
    *("max.partitions", "max.broker.partitions", "max.producer.ids.per.partition", "log.dir.group"),
    *("server.log.format", "server.log.level", "server.log.max.bytes", "server.log.backups"),
    *("controlled.shutdown.max.wait.ms", "log.stray.retention.ms", "replica.lag.max.bytes"),
    *("zookeeper.authentication", "zookeeper.user", "zookeeper.password"),
    *("transaction.state.log.commit.timeout.ms", "ssl.handshake.timeout.ms", "inter.broker.security.protocol"),
}
"""Settings that a broker of Kafka 3.9 does not have under this name."""

NOT_A_SETTING = "not a setting of Kafka's"

_NO_LIMIT_IN_3 = "9223372036854775807: no limit (3600000 from Kafka 4.0 on)"

KAFKA_DEFAULTS = {
    "broker.id": "-1: generated",
    "listeners": "PLAINTEXT://:9092, all interfaces",
    "log.dirs": "/tmp/kafka-logs (log.dir)",
    "queued.max.request.bytes": "-1: no limit",
    "max.connections": "2147483647",
    "ssl.keystore.type": "JKS",
    "ssl.truststore.type": "JKS",
    "max.connections.per.ip.overrides": '""',
    "log.message.timestamp.after.max.ms": _NO_LIMIT_IN_3,
    "message.timestamp.after.max.ms": _NO_LIMIT_IN_3,
    "sasl.oauthbearer.expected.audience": 'none ("" in Kafka 4.4)',
    "ssl.cipher.suites": '"": those of Java',
    "default.replication.factor": "1",
    "num.recovery.threads.per.data.dir": "1 (2 from Kafka 4.0 on)",
    "log.flush.offset.checkpoint.interval.ms": "60000",
    "replica.lag.time.max.ms": "30000",
    "replica.fetch.max.bytes": "1048576",
    "replica.selector.class": "none: as LeaderSelector",
    "zookeeper.ssl.enabled.protocols": "none: zookeeper.ssl.protocol, TLSv1.2",
    "zookeeper.ssl.endpoint.identification.algorithm": "HTTPS",
    "leader.imbalance.check.interval.ms": "300 s (leader.imbalance.check.interval.seconds)",
    "log.flush.interval.ms": "null: log.flush.scheduler.interval.ms, no limit",
    "log.retention.ms": "604800000 (log.retention.hours = 168)",
    "log.roll.ms": "the same (log.roll.hours = 168)",
    "retention.ms": "604800000",
    "group.consumer.assignors": f"{','.join(ASSIGNORS)} ({GroupConfig().group_consumer_assignors} in Kafka 4.4)",
    "sasl.enabled.mechanisms": "GSSAPI",
    "security.inter.broker.protocol": "PLAINTEXT",
    "group.consumer.migration.policy": "disabled (bidirectional from Kafka 4.0 on)",
    "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308: no limit",
    "errors.deadletterqueue.group.enable": "none (false in Kafka 4.4)",
    "remote.copy.lag.bytes": "none (-1 in Kafka 4.4)",
    "remote.copy.lag.ms": "none (0 in Kafka 4.4)",
}
"""The default of Kafka 3.9 where it, or its name, differs; in brackets that of 4.4 where that is another."""

NOT_OF_KAFKA_4 = {
    *("zookeeper.set.acl", "zookeeper.ssl.client.enable", "zookeeper.ssl.keystore.location"),
    *("zookeeper.ssl.keystore.password", "zookeeper.ssl.truststore.location", "zookeeper.ssl.enabled.protocols"),
    *("zookeeper.ssl.cipher.suites", "zookeeper.ssl.endpoint.identification.algorithm"),
    *("leader.imbalance.per.broker.percentage", "message.downconversion.enable"),
}
"""Settings of Kafka 3.9 that 4.4 does not have."""

TOPIC_TAKES_EFFECT = {
    "min.insync.replicas": "at once: the next produce with acks=all, and the high watermark",
    "unclean.leader.election.enable": "at once, also for partitions without a leader",
    "flush.ms": "at once, also for what is not fsynced yet",
    "flush.messages": "with the next leader epoch, which the controller begins at once",
    "retention.ms": "next check, every `log.retention.check.interval.ms`",
    "retention.bytes": "next check, every `log.retention.check.interval.ms`",
    "segment.bytes": "next append",
    "segment.ms": "next append",
    "segment.index.bytes": "next append",
    "max.message.bytes": "next produce",
    "index.interval.bytes": "next segment",
    "message.timestamp.type": "next produce",
    "message.timestamp.before.max.ms": "next produce",
    "message.timestamp.after.max.ms": "next produce",
    "compression.type": "next produce",
    **{f"compression.{codec}.level": "next produce" for codec in ("gzip", "lz4", "zstd")},
    "cleanup.policy": "next check for retention, next run of a cleaner thread, and next produce",
    "min.cleanable.dirty.ratio": "next run of a cleaner thread, after `log.cleaner.backoff.ms` at the latest",
    "min.compaction.lag.ms": "next run of a cleaner thread",
    "max.compaction.lag.ms": "next run of a cleaner thread",
    "delete.retention.ms": "next compaction, for tombstones that it meets first",
}
"""When a topic's setting takes effect once a replica has it."""

BROKER_TAKES_EFFECT = {
    "log.cleaner.backoff.ms": "at once",
    "log.cleaner.dedupe.buffer.size": "next compaction",
    "log.cleaner.io.max.bytes.per.second": "next compaction",
    "log.cleaner.threads": "at once; a thread that is one too many ends after its compaction",
    "max.connections": "next connection",
    "leader.replication.throttled.rate": "next fetch; after `replica.fetch.wait.max.ms` at the latest",
    "follower.replication.throttled.rate": "next fetch; after `replica.fetch.backoff.ms` at the latest",
    "replica.alter.log.dirs.io.max.bytes.per.second": "next MiB that is copied; after a second at the latest",
    "num.replica.fetchers": "at once: partitions move between the fetchers",
    "producer.id.expiration.ms": "next segment, or check every `producer.id.expiration.check.interval.ms`",
}
"""When a dynamic config of a broker takes effect that has no setting of topics beside it."""

LOG_TAKES_EFFECT = {
    "replicated": "`Log.open`; `Log.configure` cannot change it",
    "segment_bytes": "next append",
    "segment_ms": "next append",
    "index_interval_bytes": "next segment",
    "segment_index_bytes": "next append",
    "max_message_bytes": "next append; for an `Appender`, the next one made",
    "batch_bytes": "next `append_many`",
    "retention_ms": "next `enforce_retention`",
    "retention_bytes": "next `enforce_retention`",
    "flush_messages": "next append",
    "message_timestamp_type": "next append",
    "message_timestamp_before_max_ms": "next `append_batches`",
    "message_timestamp_after_max_ms": "next `append_batches`",
    "compression_type": "next append; for an `Appender`, the next one made",
    "producer_id_expiration_ms": "next roll of a segment or `expire_producers`",
    "max_producer_ids": "next batch of a new producer",
    "cleanup_policy": "next `compact`, `enforce_retention` or `append_as_follower`",
    "min_cleanable_dirty_ratio": "next `compact`",
    "min_compaction_lag_ms": "next `compact`",
    "max_compaction_lag_ms": "next `compact`",
    "delete_retention_ms": "next `compact`, for tombstones that it meets first",
    "dedupe_buffer_size": "next `compact`",
    "offset_gaps": "next `append_as_follower`",
    "directory_group": "when `Log.open` creates the directory",
}
"""When a field of the LogConfig that Log.configure takes counts for a log that is open."""

_HEAD = ("Name", "Type", "Allowed", "Default", "Unit", "Takes effect", "Kafka's default", "Meaning")
_DESCRIBED = re.compile(r"[a-z][a-z0-9_*]*(?:, [a-z][a-z0-9_*]*)*:(?= |$)")


# Docstrings


def described(docstring: str) -> dict[str, str]:
    """The texts of a docstring by name: its items `name: text` and `name, name: text`."""
    found: dict[str, str] = {}
    for names, text in _items(docstring):
        for name in names:
            found[name] = text
    return found


def _items(docstring: str) -> Iterator[tuple[list[str], str]]:
    for paragraph in re.split(r"\n\s*\n", docstring):
        names: list[str] = []
        words: list[str] = []
        for line in map(str.strip, paragraph.splitlines()):
            # The same sentence boundary as in the docstrings: an item may begin behind another on its line.
            for part in re.split(r"(?<=\.) (?=[a-z][a-z_]+: )", line):
                head = _DESCRIBED.match(part)
                if head:
                    if names:
                        yield names, " ".join(words)
                    names = head.group()[:-1].split(", ")
                    words = [part[head.end() :].strip()]
                else:
                    words.append(part)
        if names:
            yield names, " ".join(words)


def _meaning(documented: Mapping[str, str], field: str) -> str:
    if field in documented:
        return documented[field]
    return next((text for name, text in documented.items() if "*" in name and field.startswith(name.rstrip("*"))), "")


# Tables


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    return "\n".join([_row(*head), "|" + "---|" * len(head), *(_row(*row) for row in rows)])


def protocol_table() -> str:
    rows: list[tuple[object, ...]] = []
    for key in sorted({*BETWEEN_BROKERS, *KAFKA_4}):
        known = key in BETWEEN_BROKERS
        name = KAFKA_4[key][0] if key in KAFKA_4 else "".join(map(str.capitalize, ApiKey(key).name.split("_")))
        flexible = FLEXIBLE_FROM[key] if known else ""
        rows.append(
            (
                int(key),
                name,
                _versions(*(TO_CLIENTS if key in TO_CLIENTS else BETWEEN_BROKERS)[key]) if known else "none",
                "clients" if key in TO_CLIENTS else "brokers" if known else "nobody",
                _versions(*KAFKA_4[key][1:]) if key in KAFKA_4 else "none",
                "never" if flexible == NEVER_FLEXIBLE else flexible,
                NOT_OFFERED.get(key) or LATER_VERSIONS.get(key, ""),
            )
        )
    head = (
        "API key",
        "API",
        "Versions",
        "Offered to",
        "Kafka 4.4",
        "Flexible from (KIP-482)",
        "What is missing, and why",
    )
    return _table(head, rows)


def _versions(first: int, last: int) -> object:
    return f"{first} to {last}" if first < last else first


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        return '""'
    if isinstance(value, tuple):
        return ", ".join(map(settings.entry_text, value)) or "none"
    return f"{value} (no limit)" if value == 2**63 - 1 else str(value)


def default_of(name: str) -> str:
    """The default of a broker's setting, or of a topic's if brokers have none of this name."""
    if name in settings.SETTINGS:
        default = settings.SETTINGS[name].default
        return "**required**" if default is settings._REQUIRED else _value(default)
    if name in topic_settings.UNUSED:
        return _value(topic_settings.UNUSED[name])
    if name in throttled_replicas.THROTTLED:
        return _value("")
    field = topic_settings.NAMES[name]
    own = getattr(TopicConfig(), field)
    return default_of(settings.NAMES_BY_TOPIC_FIELD[field]) if own is None else _value(own)


def _unit(name: str) -> str:
    """The unit that a setting has in its name."""
    words = f".{name.replace('_', '.')}."
    return next((unit for part, unit in UNITS.items() if f".{part}." in words), "")


def _type(kind: ValueType) -> tuple[str, str]:
    """Type, as Kafka names it, and allowed values."""
    return kind.config_type.name.lower(), _allowed(kind)


def _allowed(kind: ValueType) -> str:
    return kind.allowed.replace(str(2**63 - 1), "2^63-1").replace(str(2**40), "2^40")


def _of_kafka(name: str) -> str:
    if name in NOT_OF_KAFKA:
        return NOT_A_SETTING
    return KAFKA_DEFAULTS.get(name, "the same") + ("; not a setting of Kafka 4.4" if name in NOT_OF_KAFKA_4 else "")


def _broker_settings() -> str:
    documented = (
        (settings._OWN, described(settings.BrokerSettings.__doc__ or "")),
        (settings._REPLICATION, described(ReplicationConfig.__doc__ or "")),
        (settings.OF_TOPICS, described(TopicConfig.__doc__ or "")),
        (settings.OF_LOGS, described(LogConfig.__doc__ or "")),
        (settings._GROUPS, described(GroupConfig.__doc__ or "")),
        (settings._TRANSACTIONS, described(TransactionConfig.__doc__ or "")),
        (zookeeper_settings.NAMES, described(ZooKeeperSecurity.__doc__ or "")),
        (TLS_NAMES, described(TlsSettings.__doc__ or "")),
        (settings._SASL, described(SaslConfig.__doc__ or "")),
        (settings._QUOTAS, described(QuotaConfig.__doc__ or "")),
    )
    of_topic = {field: name for name, field in topic_settings.NAMES.items()}
    rows: list[tuple[object, ...]] = []
    for name, setting in settings.SETTINGS.items():
        if name in settings.UNUSED:
            rest = (default_of(name), _unit(name), "never", "the same", "accepted, without effect")
            rows.append((f"`{name}`", *_type(setting.type), *rest))
            continue
        names, texts = next((names, texts) for names, texts in documented if name in names)
        topic = of_topic.get(names[name]) if names in (settings.OF_TOPICS, settings.OF_LOGS) else None
        takes_effect = _broker_takes_effect(name, topic)
        meaning = _meaning(texts, names[name])
        rest = (default_of(name), _unit(name), takes_effect, _of_kafka(name), meaning)
        rows.append((f"`{name}`", *_type(setting.type), *rest))
    return _table(_HEAD, rows)


def _broker_takes_effect(name: str, topic: str | None) -> str:
    """When a change of a broker's setting takes effect. topic: the topic's setting that replaces it, if any."""
    if name == "log.cleanup.policy":
        return "read-only: broker start; for topics that the broker creates without their own `cleanup.policy`"
    when = "read-only: broker start"
    if name in DYNAMIC:
        of_whom = "cluster-wide" if name in CLUSTER_WIDE else "of a broker or cluster-wide"
        when = f"dynamic, {of_whom}: " + (TOPIC_TAKES_EFFECT[topic] if topic else BROKER_TAKES_EFFECT[name])
    return f"{when}; for topics without their own `{topic}`" if topic else when


def _topic_settings() -> str:
    of_topic, of_log = described(TopicConfig.__doc__ or ""), described(LogConfig.__doc__ or "")
    config = TopicConfig()
    rows: list[tuple[object, ...]] = []
    for name, field in topic_settings.NAMES.items():
        own = getattr(config, field)
        of_broker = settings.NAMES_BY_TOPIC_FIELD[field]
        owner = "the cluster's" if field in INHERITED else "the broker's"
        default = f"{owner} `{of_broker}`" + ("" if own is None else f": {_value(own)}")
        meaning = _meaning(of_log if own is None else of_topic, field)
        rest = (default, _unit(name), TOPIC_TAKES_EFFECT[name], _of_kafka(name), meaning)
        rows.append((f"`{name}`", *_type(topic_settings.TYPES[name]), *rest))
    for name in throttled_replicas.THROTTLED:
        meaning = f"replicas to which a broker's `{name.removesuffix('replicas')}rate` applies (KIP-73)"
        rest = (default_of(name), "", "next fetch", "the same", meaning)
        rows.append((f"`{name}`", *_type(topic_settings.TYPES[name]), *rest))
    for name in topic_settings.UNUSED:
        rest = (default_of(name), _unit(name), "never", _of_kafka(name), "accepted, stored and described")
        rows.append((f"`{name}`", *_type(topic_settings.TYPES[name]), *rest))
    return _table(_HEAD, rows)


def _log_settings() -> str:
    documented, config = described(LogConfig.__doc__ or ""), LogConfig()
    rows: list[tuple[object, ...]] = []
    for field in fields(LogConfig):
        allowed = _allowed(field_type(config, field.name))
        default = _value(getattr(config, field.name))
        rest = (LOG_TAKES_EFFECT[field.name], _of_kafka_field(field.name), documented[field.name])
        rows.append((f"`{field.name}`", field.type, allowed, default, _unit(field.name), *rest))
    return _table(("Field", *_HEAD[1:]), rows)


def _of_kafka_field(field: str) -> str:
    """Kafka's default of a topic's setting, or a broker's, that corresponds to a field of LogConfig."""
    names = {name_of: name for name, name_of in (settings.OF_LOGS | topic_settings.NAMES).items()}
    if field not in names:
        return NOT_A_SETTING
    of_topic = getattr(TopicConfig(), field, None)
    if of_topic is not None and of_topic != getattr(LogConfig(), field):
        return _value(of_topic)
    return _of_kafka(names[field])


def _refused_settings() -> str:
    refused = REFUSED | {f"{start}*": reason for start, reason in REFUSED_FAMILIES.items()}
    return _table(("Setting of Kafka", "Here"), [(f"`{name}`", refused[name]) for name in sorted(refused)])


SETTINGS_TABLES = {
    "broker": _broker_settings,
    "refused": _refused_settings,
    "topic": _topic_settings,
    "log": _log_settings,
}


def coverage(flaw: int) -> str:
    """The tests, scenarios and mutations that bear the flaw's number."""
    tests = [f"`tests/{place}`" for place in places().get(flaw, [])]
    matching = [
        f"`{name}`" for name in mutations.names() if re.search(rf"\bF{flaw}\b", mutations.describe(name)) is not None
    ]
    lines = [f"- Test: {place}" for place in tests]
    if matching:
        lines.append(f"- Mutation: {', '.join(matching)}")
    return "\n".join(lines) or "- Not covered by a test, a scenario or a mutation."


# Sphinx


class _Generated(SphinxDirective):
    """A directive whose content is Markdown made here."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(self.make())

    def make(self) -> str:
        raise NotImplementedError


class ProtocolTable(_Generated):
    def make(self) -> str:
        return protocol_table()


class SettingsTable(_Generated):
    required_arguments = 1

    def make(self) -> str:
        return SETTINGS_TABLES[self.arguments[0]]()


class Coverage(_Generated):
    required_arguments = 1

    def make(self) -> str:
        return coverage(int(self.arguments[0]))


def as_rest(lines: list[str]) -> list[str]:
    """A docstring of this project as reStructuredText: its items as a list, indented tables as they stand."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        inside = ""  # "item" or "literal" while lines continue one
        for line in filter(str.strip, paragraph.splitlines()):
            text, indented = line.strip(), line.startswith(" ")
            head = None if indented else _DESCRIBED.match(text)
            if inside == "literal" and indented:
                out.append("   " + line)
            elif head is not None:
                names = ", ".join(f"``{name}``" for name in head.group()[:-1].split(", "))
                out += ["", f"* {names}: {_escaped(text[head.end() :].strip())}"]
                inside = "item"
            elif text.startswith("Raises "):
                out += ["", _escaped(text)]
                inside = ""
            elif inside == "item":
                out.append(f"  {_escaped(text)}")
            elif indented:
                out += ["", "::", "", "   " + line]
                inside = "literal"
            else:
                if inside:
                    out.append("")
                inside = ""
                out.append(_escaped(text))
        out.append("")
    return out


def _escaped(text: str) -> str:
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"`{piece}`" if piece.startswith("`") else re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", piece) for piece in pieces
    )


def _fit(_app: Sphinx, _kind: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    lines[:] = as_rest(lines)


@cache
def _stubs() -> dict[str, tuple[str, str]]:
    """By qualified name of a compiled method: parameters and result as its stub has them."""
    found = {}
    for path in sorted((Path(__file__).parent.parent / "kreplog" / "_native").glob("*.pyi")):
        for kind in ast.parse(path.read_text(encoding="utf-8")).body:
            for member in getattr(kind, "body", ()):
                if (
                    isinstance(kind, ast.ClassDef)
                    and isinstance(member, ast.FunctionDef)
                    and member.returns is not None
                ):
                    parameters = ast.unparse(member.args).removeprefix("self").removeprefix(", ")
                    found[f"{kind.name}.{member.name}"] = f"({parameters})", ast.unparse(member.returns)
    return found


def _typed(
    _app: Sphinx, kind: str, _name: str, thing: object, _options: object, _signature: str | None, _result: str | None
) -> tuple[str, str] | None:
    return _stubs().get(getattr(thing, "__qualname__", "")) if kind == "method" else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("protocol-table", ProtocolTable)
    app.add_directive("settings-table", SettingsTable)
    app.add_directive("coverage", Coverage)
    app.connect("autodoc-process-docstring", _fit)
    app.connect("autodoc-process-signature", _typed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
