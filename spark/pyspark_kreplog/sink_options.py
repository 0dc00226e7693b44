"""The options of a sink and the columns it takes: names, meaning and messages of Spark's Kafka sink, checked once."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from kreplog.config import COMPRESSION_TYPES
from kreplog.errors import InvalidTopicError, UsageError
from kreplog.types import check_topic
from pyspark_kreplog.kafka_options import PROTOCOL, is_security, security_settings
from pyspark_kreplog.options import local_path

MAX_PARTITIONS = 10_000
MAX_TRANSACTIONAL_ID_BYTES = 1000
MIN_BATCH_BYTES = 128
"""A record batch has a header of 61 bytes; smaller batches have one record each."""

_OURS = ("path", "topic", "numPartitions", "kafka.compression.type", "kafka.batch.size", "kafka.max.request.size")
# They tune a producer or a stream, or have no meaning for files; a job that sets them still runs.
_WITHOUT_MEANING = ("includeHeaders", "checkpointLocation", "queryName", "kafka.bootstrap.servers")
_REFUSED = {
    "kafka.key.serializer": "keys are written as bytes; convert them in the query",
    "kafka.value.serializer": "values are written as bytes; convert them in the query",
    "kafka.partitioner.class": "partitions are Kafka's default partitioner's; give others in the column partition",
    "kafka.interceptor.classes": "no interceptor runs here; convert records in the query",
}

BATCH_BYTES = "kafka.batch.size"
MAX_REQUEST_BYTES = "kafka.max.request.size"
TRANSACTIONAL_ID = "kafka.transactional.id"
# Of writes to brokers, in ms: default, least. A day is the most.
TIMES = {
    "kafka.request.timeout.ms": (30_000, 100),
    "kafka.delivery.timeout.ms": (120_000, 100),
    "kafka.max.block.ms": (60_000, 100),
    "kafka.transaction.timeout.ms": (60_000, 1000),
}
_BROKERS = (
    *("topic", "kafka.bootstrap.servers", "kafka.compression.type", BATCH_BYTES, MAX_REQUEST_BYTES, *TIMES),
    *("kafka.client.id", "kafka.acks", "kafka.enable.idempotence", PROTOCOL),
    TRANSACTIONAL_ID,
)
_ALL_IN_SYNC = ("all", "-1")
_TEXT_OR_BYTES = (StringType, BinaryType)
_COLUMN_TYPES = {
    "topic": "topic must be a string",
    "key": "key must be a string or binary",
    "value": "value must be a string or binary",
    "headers": "headers must be an array<struct<key:string,value:binary>>",
    "partition": "partition must be an int",
}

_log = logging.getLogger("pyspark_kreplog")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """A checked set of options. topic: None where each row names its own. num_partitions: of a topic that the sink
    creates, None where the option is not given."""

    path: str
    topic: str | None
    num_partitions: int | None
    compression: str
    batch_bytes: int
    max_message_bytes: int


@dataclass(frozen=True, slots=True)
class BrokerSinkOptions:
    """A checked set of options of a sink to brokers. bootstrap: "host:port", with commas between several. topic: None
    where each row names its own. transactional_id: None to write at least once. security: holds passwords and keys, so
    that no text of these options has it."""

    bootstrap: str
    topic: str | None
    compression: str
    batch_bytes: int
    max_request_bytes: int
    request_timeout_s: float
    delivery_timeout_s: float
    max_block_s: float
    client_id: str
    transactional_id: str | None = None
    transaction_timeout_s: float = 60.0
    security: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


def parse_sink(given: Mapping[str, str]) -> SinkOptions | BrokerSinkOptions:
    """Check the options of a sink, which is to brokers where there is no path. Raises UsageError."""
    options = {name.lower(): value for name, value in given.items()}
    if not options.get("path") and "kafka.bootstrap.servers" in options:
        return _parse_broker_sink(options)
    return parse_path_sink(options)


def parse_path_sink(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a sink to a path. Raises UsageError naming the option and what it may be."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse(options, _REFUSED)
    known = {name.lower(): name for name in (*_OURS, *_WITHOUT_MEANING)}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean '{known[near[0]]}'?" if near else ""
            _log.warning("option '%s' is not known and has no effect%s", name, hint)
    return SinkOptions(
        path=local_path(options, ", or to write to brokers kafka.bootstrap.servers"),
        topic=_topic(options),
        num_partitions=_number(options, "numPartitions", None, 1, MAX_PARTITIONS),
        compression=_compression(options),
        batch_bytes=_number(options, BATCH_BYTES, 65536, 1, 2**30) or 0,
        max_message_bytes=_number(options, MAX_REQUEST_BYTES, 1048588, 128, 2**30) or 0,
    )


def _parse_broker_sink(options: Mapping[str, str]) -> BrokerSinkOptions:
    _refuse(options, _REFUSED)
    _check_acks(options)
    known = {name.lower() for name in ("path", *_BROKERS, *_WITHOUT_MEANING)}
    unused = sorted(name for name in options if name not in known and not is_security(name, options))
    if unused:
        _log.warning("of a write to brokers these options have no effect: %s", ", ".join(unused))
    max_request_bytes = _number(options, MAX_REQUEST_BYTES, 1048576, 128, 2**30) or 0
    batch_bytes = _number(options, BATCH_BYTES, 1_000_000, 1, 2**30) or 0
    times = {name: (_number(options, name, default, least, 86_400_000) or 0) / 1000
             for name, (default, least) in TIMES.items()}  # fmt: skip
    return BrokerSinkOptions(
        bootstrap=_addresses(options["kafka.bootstrap.servers"]),
        topic=_topic(options),
        compression=_compression(options),
        batch_bytes=max(MIN_BATCH_BYTES, min(batch_bytes, max_request_bytes)),
        max_request_bytes=max_request_bytes,
        request_timeout_s=times["kafka.request.timeout.ms"],
        delivery_timeout_s=times["kafka.delivery.timeout.ms"],
        max_block_s=times["kafka.max.block.ms"],
        client_id=options.get("kafka.client.id", "kreplog-spark"),
        transactional_id=_transactional_id(options),
        transaction_timeout_s=times["kafka.transaction.timeout.ms"],
        security=security_settings(options, "write to"),
    )


def _addresses(servers: str) -> str:
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise UsageError(
                f"option 'kafka.bootstrap.servers' = {servers!r} must be host:port, with commas between several"
            )
    return servers


def _transactional_id(options: Mapping[str, str]) -> str | None:
    transactional_id = options.get(TRANSACTIONAL_ID)
    if transactional_id is not None and not 0 < len(transactional_id.encode()) <= MAX_TRANSACTIONAL_ID_BYTES:
        raise UsageError(
            f"option '{TRANSACTIONAL_ID}' = {transactional_id!r} must have 1 to {MAX_TRANSACTIONAL_ID_BYTES} bytes"
        )
    return transactional_id


def _check_acks(options: Mapping[str, str]) -> None:
    """Settings weaker than acks=all and idempotence are accepted with a warning, and not applied. Raises UsageError."""
    acks = options.get("kafka.acks", "all").strip().lower()
    if acks not in (*_ALL_IN_SYNC, "0", "1"):
        raise UsageError(f"option 'kafka.acks' = {options['kafka.acks']!r} must be all")
    idempotence = options.get("kafka.enable.idempotence", "true").strip().lower()
    if idempotence not in ("true", "false"):
        raise UsageError(
            f"option 'kafka.enable.idempotence' = {options['kafka.enable.idempotence']!r} must be true or false"
        )
    if acks not in _ALL_IN_SYNC or idempotence == "false":
        _log.warning("the sink waits for all in-sync replicas and is idempotent, whatever kafka.acks and "
                     "kafka.enable.idempotence say")  # fmt: skip


def _refuse(options: Mapping[str, str], refused: Mapping[str, str]) -> None:
    for name, instead in refused.items():
        if name in options:
            raise UsageError(f"option '{name}' is not supported: {instead}")


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except InvalidTopicError as error:
            raise UsageError(f"option 'topic': {error}") from error
    return topic


def _compression(options: Mapping[str, str]) -> str:
    compression = options.get("kafka.compression.type", "none").strip().lower()
    if compression not in COMPRESSION_TYPES:
        raise UsageError(
            f"option 'kafka.compression.type' = {compression!r} must be one of {', '.join(COMPRESSION_TYPES)}"
        )
    return compression


def _number(options: Mapping[str, str], name: str, default: int | None, least: int, most: int) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return default
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or not least <= int(value) <= most:
        raise UsageError(f"option '{name}' = {value!r} must be a whole number from {least} to {most}")
    return int(value)


def check_sink_columns(schema: StructType, topic: str | None) -> None:
    """Raise UsageError, as Spark's Kafka sink words it, unless rows of `schema` can be written.

    topic: the option. Columns that are none of a sink's are left out."""
    names = set(schema.fieldNames())
    if topic is None and "topic" not in names:
        raise UsageError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in names:
        raise UsageError(f"Required attribute 'value' not found: the columns are {', '.join(schema.fieldNames())}")
    for column in schema.fields:
        name = column.name
        if name in _COLUMN_TYPES and schema.fieldNames().count(name) > 1:
            raise UsageError(f"column {name} is there twice: drop or rename one of them")
        if name == "topic" and topic is not None:
            continue
        if name in _COLUMN_TYPES and not _fits(column):
            raise UsageError(
                f"unsupported type {column.dataType.simpleString()} of column {name}: {_COLUMN_TYPES[name]}"
            )


def _fits(field: StructField) -> bool:
    kind: DataType = field.dataType
    if field.name in ("key", "value"):
        return isinstance(kind, _TEXT_OR_BYTES)
    if field.name == "topic":
        return isinstance(kind, StringType)
    if field.name == "partition":
        return isinstance(kind, IntegerType)
    entry = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(entry, StructType) or entry.fieldNames() != ["key", "value"]:
        return False
    return isinstance(entry["key"].dataType, StringType) and isinstance(entry["value"].dataType, BinaryType)
