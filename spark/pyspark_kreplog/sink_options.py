"""The options of a sink and the columns it takes: names, meaning and messages of Spark's Kafka sink, checked once."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from kreplog.config import COMPRESSION_TYPES
from kreplog.errors import InvalidTopicError, UsageError
from kreplog.types import check_topic
from pyspark_kreplog.options import local_path

MAX_PARTITIONS = 10_000

_OURS = ("path", "topic", "numPartitions", "kafka.compression.type", "kafka.batch.size", "kafka.max.request.size")
# They tune a producer or a stream, or have no meaning for files; a job that sets them still runs.
_WITHOUT_MEANING = ("includeHeaders", "checkpointLocation", "queryName", "kafka.bootstrap.servers")
_REFUSED = {
    "kafka.key.serializer": "keys are written as bytes; convert them in the query",
    "kafka.value.serializer": "values are written as bytes; convert them in the query",
    "kafka.partitioner.class": "partitions are Kafka's default partitioner's; give others in the column partition",
    "kafka.interceptor.classes": "records are written to files, past any interceptor",
}
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


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a sink. Raises UsageError naming the option and what it may be."""
    options = {name.lower(): value for name, value in given.items()}
    for name, instead in _REFUSED.items():
        if name in options:
            raise UsageError(f"option '{name}' is not supported: {instead}")
    known = {name.lower(): name for name in (*_OURS, *_WITHOUT_MEANING)}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean '{known[near[0]]}'?" if near else ""
            _log.warning("option '%s' is not known and has no effect%s", name, hint)
    topic = options.get("topic")
    if topic is not None:
        try:
            check_topic(topic)
        except InvalidTopicError as error:
            raise UsageError(f"option 'topic': {error}") from error
    compression = options.get("kafka.compression.type", "none").strip().lower()
    if compression not in COMPRESSION_TYPES:
        raise UsageError(
            f"option 'kafka.compression.type' = {compression!r} must be one of {', '.join(COMPRESSION_TYPES)}"
        )
    return SinkOptions(
        path=local_path(options),
        topic=topic,
        num_partitions=_number(options, "numPartitions", None, 1, MAX_PARTITIONS),
        compression=compression,
        batch_bytes=_number(options, "kafka.batch.size", 65536, 1, 2**30) or 0,
        max_message_bytes=_number(options, "kafka.max.request.size", 1048588, 128, 2**30) or 0,
    )


def _number(options: Mapping[str, str], name: str, default: int | None, least: int, most: int) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return default
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or not least <= int(value) <= most:
        raise UsageError(f"option '{name}' = {value!r} must be a whole number from {least} to {most}")
    return int(value)


def check_sink_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise UsageError, as Spark's Kafka sink words it, unless rows of `schema` can be written.

    Columns that are none of a sink's are left out."""
    names = set(schema.fieldNames())
    if options.topic is None and "topic" not in names:
        raise UsageError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in names:
        raise UsageError(f"Required attribute 'value' not found: the columns are {', '.join(schema.fieldNames())}")
    for field in schema.fields:
        if field.name == "topic" and options.topic is not None:
            continue
        if field.name in _COLUMN_TYPES and not _fits(field):
            raise UsageError(
                f"unsupported type {field.dataType.simpleString()} of column {field.name}: {_COLUMN_TYPES[field.name]}"
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
