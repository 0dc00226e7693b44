"""The options of batch and streaming reads: names, defaults and meaning of Spark's Kafka source, checked once and made
into plain values.

Whether the records exist that offsets and times point to is checked later, in bounds.py. Spark passes option names in
lower case; messages give them as they are documented.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from kreplog.errors import InvalidTopicError, UsageError
from kreplog.types import TopicPartition, check_topic
from pyspark_kreplog import kafka_options
from pyspark_kreplog.kafka_options import BOOTSTRAP, DEFAULTS, GROUP, ISOLATION, ConsumerSettings

EARLIEST = -2
LATEST = -1

LOCAL_LOG_DIRS = "KREPLOG_LOCAL_LOG_DIRS"
"""The environment variable that takes the place of the option localLogDirs on the host where it is set."""

_CHOICES = ("subscribe", "subscribePattern", "assign")
_SHARED = (
    *("path", *_CHOICES, "startingOffsets", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "localLogDirs", ISOLATION),
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushdown")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
# They tune a Kafka consumer; for files they have no meaning, and a job that sets them still runs.
_WITHOUT_MEANING = (
    *("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
)
_DEFAULT_MAX_TRIGGER_DELAY = "15m"
_UNIT_MS = {"": 1, "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_log = logging.getLogger("pyspark_kreplog")


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read begins or ends, as the option named `option` says.

    value: an offset (EARLIEST and LATEST included), or ms of record time if `by_time`; the same for all partitions,
    or by partition.
    """

    option: str
    value: int | dict[TopicPartition, int]
    by_time: bool = False


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of what a micro-batch reads; None is no limit. min_offsets waits for at most max_delay_ms."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A checked set of options. Of topics, pattern and assigned exactly one is not None.

    path: the directory to read, absolute, "" where bootstrap is given, host:port of brokers by comma. local_log_dirs:
    of brokers, on their own hosts. consumer: how brokers are read; of files, its isolation level alone. group: the
    consumer group to which a stream commits its positions, None for none. ending and pushdown are of batch reads,
    limits of streams.
    """

    path: str
    bootstrap: str | None
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...] | None
    starting: Bound
    ending: Bound
    latest_if_no_start: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    pushdown: bool
    limits: TriggerLimits
    stream: bool
    local_log_dirs: tuple[str, ...] = ()
    consumer: ConsumerSettings = DEFAULTS
    group: str | None = None
    reads_local_replicas: bool = False
    """Whether tasks look for replicas on their hosts: directories are given, here or in the environment."""

    @property
    def location(self) -> str:
        """Where the records are, as messages name it."""
        return self.path if self.bootstrap is None else f"the cluster at {self.bootstrap}"


def includes_headers(given: Mapping[str, str]) -> bool:
    """Whether there is a column of headers. Checks what batch reads and streams have in common; raises UsageError."""
    return _parse(given, EARLIEST, stream=False).include_headers


def parse_batch(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read. Raises UsageError naming the option and the values that it takes."""
    options = _parse(given, EARLIEST, stream=False)
    if not options.starting.by_time and _contains(options.starting.value, LATEST):
        raise UsageError("option 'startingOffsets' must not be latest (-1) in a batch read: nothing would be left")
    if not options.ending.by_time and _contains(options.ending.value, EARLIEST):
        raise UsageError("option 'endingOffsets' must not be earliest (-2): nothing would be left")
    _warn_unused(given, _STREAM_ONLY, "streams")
    _warn_unused_of_kafka(given, options)
    return replace(options, limits=TriggerLimits())


def parse_stream(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a streaming read, which starts at latest by default. Raises UsageError likewise."""
    options = _parse(given, LATEST, stream=True)
    for name in _BATCH_ONLY:
        if name != "pushdown" and name.lower() in {key.lower() for key in given}:
            raise UsageError(f"option '{name}' is of batch reads alone: a stream has no end")
    _warn_unused(given, ("pushdown",), "batch reads")
    _warn_unused_of_kafka(given, options)
    limits = options.limits
    if limits.min_offsets is not None and limits.max_offsets is not None and limits.min_offsets > limits.max_offsets:
        raise UsageError(
            f"option 'minOffsetsPerTrigger' = {limits.min_offsets} must not exceed maxOffsetsPerTrigger = "
            f"{limits.max_offsets}"
        )
    return options


def _warn_unused(given: Mapping[str, str], names: Iterable[str], owner: str) -> None:
    present = {name.lower() for name in given}
    for name in names:
        if name.lower() in present:
            _log.warning("option '%s' has no effect here: it is of %s alone", name, owner)


def _warn_unused_of_kafka(given: Mapping[str, str], options: ReadOptions) -> None:
    if options.bootstrap is not None:
        kafka_options.warn_unused({name.lower(): value for name, value in given.items()})


def _parse(given: Mapping[str, str], default_start: int, *, stream: bool) -> ReadOptions:
    options = {name.lower(): value for name, value in given.items()}
    _refuse(options)
    topics, pattern, assigned = _choice(options)
    bootstrap = _bootstrap(options)
    consumer = kafka_options.file_settings(options) if bootstrap is None else kafka_options.consumer_settings(options)
    return ReadOptions(
        path="" if bootstrap is not None else local_path(options, f", or to read from brokers {BOOTSTRAP}"),
        bootstrap=bootstrap,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_bound(options, "starting", default_start),
        ending=_bound(options, "ending", LATEST),
        latest_if_no_start=_choice_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_choice_of(options, "failOnDataLoss", ("true", "false")) == "true",
        include_headers=_choice_of(options, "includeHeaders", ("false", "true")) == "true",
        pushdown=_choice_of(options, "pushdown", ("false", "true")) == "true",
        limits=TriggerLimits(
            max_offsets=_positive(options, "maxOffsetsPerTrigger"),
            min_offsets=_positive(options, "minOffsetsPerTrigger"),
            max_delay_ms=_duration_ms(options, "maxTriggerDelay", _DEFAULT_MAX_TRIGGER_DELAY),
            max_bytes=_positive(options, "maxBytesPerTrigger"),
        ),
        stream=stream,
        local_log_dirs=_local_log_dirs(options),
        consumer=consumer,
        group=None if bootstrap is None else options.get(GROUP, "").strip() or None,
        reads_local_replicas=bootstrap is not None and bool(_local_log_dirs(options) or os.environ.get(LOCAL_LOG_DIRS)),
    )


def _local_log_dirs(options: Mapping[str, str]) -> tuple[str, ...]:
    """Absolute paths by comma, since a worker has another working directory than the driver."""
    paths = tuple(path.strip() for path in options.get("locallogdirs", "").split(",") if path.strip())
    for path in paths:
        if not os.path.isabs(path):
            raise UsageError(
                f"option 'localLogDirs' names {path!r}: give absolute paths of brokers' log directories, by comma"
            )
    return paths


def _bootstrap(options: Mapping[str, str]) -> str | None:
    """Brokers to read from, None for files. With a path the servers are a former Kafka job's, and not used."""
    bootstrap = options.get(BOOTSTRAP, "").strip()
    if options.get("path") or not bootstrap:
        return None
    return bootstrap


def _refuse(options: Mapping[str, str]) -> None:
    kafka_options.refuse(options)
    known = {name.lower(): name for name in (*_SHARED, *_BATCH_ONLY, *_STREAM_ONLY, *_WITHOUT_MEANING)}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, known, 1)
            _log.warning(
                "option '%s' is not known and has no effect%s", name, f"; is '{known[near[0]]}' meant?" if near else ""
            )


def local_path(options: Mapping[str, str], alternative: str = "") -> str:
    """The option path, absolute, since a worker has another working directory than the driver. Raises UsageError."""
    path = options.get("path", "")
    if not path:
        raise UsageError(
            f"option 'path' is missing: give the directory that holds the <topic>-<partition> folders{alternative}"
        )
    if "\0" in path:
        raise UsageError(f"option 'path' = {path!r} has a zero byte, which no path may have")
    url = re.match("([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/]*))?", path)
    if url is None:
        return os.path.abspath(path)
    if url[1].lower() != "file" or url[2] not in (None, "", "localhost"):
        raise UsageError(f"option 'path' = {path!r}: only local directories can be read and written, not {url[0]}")
    return os.path.abspath(unquote(path[url.end() :]))


def _choice(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]:
    given = [name for name in _CHOICES if name.lower() in options]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "none is given"
        raise UsageError(f"exactly one of the options subscribe, subscribePattern and assign is needed: {found}")
    name = given[0]
    value = options[name.lower()].strip()
    if not value:
        raise UsageError(f"option '{name}' is empty")
    if name == "subscribe":
        topics = sorted({topic.strip() for topic in value.split(",") if topic.strip()})
        if not topics:
            raise UsageError(f"option 'subscribe' = {value!r} names no topic")
        return tuple(_topic(name, topic) for topic in topics), None, None
    if name == "subscribePattern":
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"option 'subscribePattern' = {value!r} is no regular expression: {error}") from error
        return None, value, None
    return None, None, _assigned(value)


def _topic(option: str, topic: str) -> str:
    try:
        return check_topic(topic)
    except InvalidTopicError as error:
        raise UsageError(f"option '{option}': {error}") from error


def _assigned(value: str) -> tuple[TopicPartition, ...]:
    wanted = """a JSON object of partitions by topic, as in {"flights": [0, 1]}"""
    parsed = _json("assign", value, wanted)
    if not parsed or not all(
        isinstance(numbers, list) and all(_is_count(number) for number in numbers) for numbers in parsed.values()
    ):
        raise UsageError(f"option 'assign' = {value!r} must be {wanted}")
    return tuple(sorted({TopicPartition(_topic("assign", topic), n) for topic, ns in parsed.items() for n in ns}))


def _contains(value: int | dict[TopicPartition, int], offset: int) -> bool:
    return offset in value.values() if isinstance(value, dict) else offset == value


def _bound(options: Mapping[str, str], side: str, default: int) -> Bound:
    """One time for all wins over times by partition, which win over offsets."""
    name = f"{side}Timestamp"
    if name.lower() in options:
        return Bound(name, _milliseconds(name, options[name.lower()]), by_time=True)
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in options:
        wanted = """a JSON object of milliseconds by topic and partition, as in {"flights": {"0": 1700000000000}}"""
        return Bound(name, _by_partition(name, options[name.lower()], wanted, 0), by_time=True)
    name = f"{side}Offsets"
    value = options.get(name.lower(), "").strip()
    if name.lower() not in options:
        return Bound(name, default)
    if value.lower() in ("earliest", "latest"):
        return Bound(name, EARLIEST if value.lower() == "earliest" else LATEST)
    wanted = """earliest, latest, or a JSON object of offsets by topic and partition, as in {"flights": {"0": 23}}"""
    return Bound(name, _by_partition(name, value, wanted, EARLIEST))


def _milliseconds(option: str, value: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
        raise UsageError(f"option '{option}' = {value!r} must be milliseconds since 1970, as in 1700000000000")
    return int(value)


def _by_partition(option: str, value: str, wanted: str, least: int) -> dict[TopicPartition, int]:
    out = {}
    for topic, numbers in _json(option, value, wanted).items():
        if not isinstance(numbers, dict):
            raise UsageError(f"option '{option}' = {value!r} must be {wanted}")
        for partition, number in numbers.items():
            if not re.fullmatch("[0-9]{1,9}", partition) or not _is_count(number, least):
                raise UsageError(
                    f"option '{option}' = {value!r} must be {wanted}; {number!r} for {topic}-{partition} is not fit"
                )
            out[TopicPartition(_topic(option, topic), int(partition))] = number
    return out


def _json(option: str, value: str, wanted: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise UsageError(f"option '{option}' = {value!r} must be {wanted}")
    return parsed


def _is_count(number: Any, least: int = 0) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number < 2**63


def _choice_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The option's value in lower case; the first allowed is the default."""
    value = options.get(name.lower(), allowed[0]).strip().lower()
    if value not in allowed:
        raise UsageError(f"option '{name}' = {options[name.lower()]!r} must be {' or '.join(sorted(allowed))}")
    return value


def _positive(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"\s*[0-9]{1,18}\s*", value) or int(value) == 0:
        raise UsageError(f"option '{name}' = {value!r} must be a whole number above zero")
    return int(value)


def _duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    """A time as Spark writes it: a whole number and a unit, ms without one. Source: JavaUtils.timeStringAs."""
    value = options.get(name.lower(), default)
    found = re.fullmatch(r"\s*([0-9]{1,15})(us|ms|s|m|min|h|d)?\s*", value.lower())
    if found is None:
        raise UsageError(f"option '{name}' = {value!r} must be a time, as in 500ms, 30s, 15m or 2h")
    return int(int(found[1]) * _UNIT_MS[found[2] or ""])
