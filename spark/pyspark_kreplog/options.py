"""The options of a read: names, defaults and meaning of Spark's Kafka source, checked once and made into plain values.

What the options say about records that may not be there (offsets, times) is for plan.py to find out. Option names
reach us in lower case; messages give them as they are documented.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from kreplog.errors import InvalidTopicError, UsageError
from kreplog.types import TopicPartition, check_topic

EARLIEST = -2
LATEST = -1

_CHOICES = ("subscribe", "subscribePattern", "assign")
_OURS = (
    *("path", *_CHOICES, "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "pushdown"),
)
# They tune a consumer or a stream; for files read in one go they have no meaning, and a job that sets them still runs.
_WITHOUT_MEANING = (
    *("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
)
_REFUSED = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.key.deserializer": "keys are binary; convert them in the query",
    "kafka.value.deserializer": "values are binary; convert them in the query",
    "kafka.key.serializer": "it has no meaning for a read",
    "kafka.value.serializer": "it has no meaning for a read",
    "kafka.enable.auto.commit": "a read commits no offsets",
    "kafka.interceptor.classes": "records are read from files, past any interceptor",
}

_log = logging.getLogger("pyspark_kreplog")


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read begins or ends, as the option named `option` says.

    value: an offset (EARLIEST and LATEST included), or ms of record time if `by_time`; one for all partitions or one
    for each.
    """

    option: str
    value: int | dict[TopicPartition, int]
    by_time: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """A checked set of options. Of topics, pattern and assigned exactly one is not None."""

    path: str
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


def parse(given: Mapping[str, str]) -> Options:
    """Check the options of a batch read. Raises UsageError naming the option and what it may be."""
    options = {name.lower(): value for name, value in given.items()}
    _refuse(options)
    topics, pattern, assigned = _choice(options)
    return Options(
        path=_path(options),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_starting(options),
        ending=_ending(options),
        latest_if_no_start=_one_of(options, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        fail_on_data_loss=_one_of(options, "failOnDataLoss", ("true", "false")) == "true",
        include_headers=_one_of(options, "includeHeaders", ("false", "true")) == "true",
        pushdown=_one_of(options, "pushdown", ("false", "true")) == "true",
    )


def _refuse(options: Mapping[str, str]) -> None:
    for name, instead in _REFUSED.items():
        if name in options:
            raise UsageError(f"option '{name}' is not supported: {instead}")
    if options.get("kafka.isolation.level", "read_uncommitted") != "read_uncommitted":
        raise UsageError(
            f"option 'kafka.isolation.level' = {options['kafka.isolation.level']!r} is not supported: a read shows "
            "what every in-sync replica has, aborted transactions included; leave it out or set it to read_uncommitted"
        )
    known = {name.lower(): name for name in (*_OURS, *_WITHOUT_MEANING)}
    for name in options:
        if name not in known and not name.startswith("kafka."):
            near = difflib.get_close_matches(name, known, 1)
            _log.warning(
                "option '%s' is not known and has no effect%s", name, f"; is '{known[near[0]]}' meant?" if near else ""
            )


def _path(options: Mapping[str, str]) -> str:
    path = options.get("path", "")
    if not path:
        raise UsageError("option 'path' is missing: give the directory that holds the <topic>-<partition> folders")
    scheme = urlsplit(path).scheme
    if scheme == "file":
        return unquote(urlsplit(path).path)
    if scheme:
        raise UsageError(f"option 'path' = {path!r}: only local directories can be read, not {scheme}:")
    return path


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
        except re.error as error:
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


def _starting(options: Mapping[str, str]) -> Bound:
    bound = _bound(options, "starting", EARLIEST)
    if not bound.by_time and _contains(bound.value, LATEST):
        raise UsageError("option 'startingOffsets' must not be latest (-1) in a batch read: nothing would be left")
    return bound


def _ending(options: Mapping[str, str]) -> Bound:
    bound = _bound(options, "ending", LATEST)
    if not bound.by_time and _contains(bound.value, EARLIEST):
        raise UsageError("option 'endingOffsets' must not be earliest (-2): nothing would be left")
    return bound


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


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
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
