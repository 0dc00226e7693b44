"""Where a read starts and ends in a partition: options and what is committed right now, resolved to offsets."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog.options import EARLIEST, LATEST, Bound, ReadOptions

_log = logging.getLogger("pyspark_kreplog")


class CommittedLog(Protocol):
    """A partition's committed records: a kreplog.Log, or a leader's over the network."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None: ...


def end_offset(log: CommittedLog, isolation_level: str) -> int:
    """Where reads end now: the high watermark, or with read_committed the last stable offset (KIP-98)."""
    return log.last_stable_offset if isolation_level == "read_committed" else log.high_watermark


def require_every_partition(bound: Bound, partitions: Collection[TopicPartition]) -> None:
    """Offsets and times by partition must name exactly the partitions that are read, as in Spark's Kafka source."""
    if not isinstance(bound.value, dict) or bound.value.keys() == set(partitions):
        return
    differing = [
        f"{text} {', '.join(map(str, sorted(names)))}"
        for text, names in (
            ("it lacks", set(partitions) - bound.value.keys()),
            ("not read are", bound.value.keys() - set(partitions)),
        )
        if names
    ]
    raise UsageError(
        f"option '{bound.option}' must name every partition that is read and no other: {'; '.join(differing)}"
        + ("" if bound.by_time else " (-2 stands for earliest, -1 for latest)")
    )


def range_of(log: CommittedLog, partition: TopicPartition, options: ReadOptions) -> tuple[int, int]:
    """The offsets [start, stop) of a batch read, within what is committed right now. Raises UsageError."""
    first, end = log.log_start_offset, end_offset(log, options.consumer.isolation_level)
    stop = resolve(log, partition, options, options.ending, first, end)
    start = resolve(log, partition, options, options.starting, first, end)
    if start > stop and (start != first or options.fail_on_data_loss):
        raise UsageError(
            f"{partition}: the read would begin at offset {start} ({options.starting.option}) and end before it, at "
            f"{stop} ({options.ending.option}): change one of the two options",
            partition=str(partition),
            offset=start,
        )
    return start, stop


def is_offset(bound: Bound, partition: TopicPartition) -> bool:
    """Whether the option names an offset of the partition, rather than a time, earliest or latest."""
    value = bound.value[partition] if isinstance(bound.value, dict) else bound.value
    return not bound.by_time and value not in (EARLIEST, LATEST)


def resolve(
    log: CommittedLog, partition: TopicPartition, options: ReadOptions, bound: Bound, first: int, end: int
) -> int:
    """The offset in [first, end] that `bound` stands for, an ending one also below `first`. Raises UsageError."""
    value = bound.value[partition] if isinstance(bound.value, dict) else bound.value
    if bound.by_time:
        offset = log.offset_for_timestamp(value)
        if offset is not None and offset < end:
            return offset
        if bound is options.starting and not options.latest_if_no_start:
            raise UsageError(
                f"{partition}: no committed record has a timestamp of {value} or later, the time of {bound.option}: "
                "choose an earlier time, or set startingOffsetsByTimestampStrategy to latest to read nothing of it",
                partition=str(partition),
            )
        return end
    if value == EARLIEST:
        return first
    if value == LATEST:
        return end
    if first <= value <= end or (bound is options.ending and value < first):
        return value
    reason = f"the log now starts at {first}" if value < first else f"only records below {end} are committed"
    found = min(max(value, first), end)
    lost = f"{partition}: offset {value} of {bound.option} does not exist: {reason}"
    if options.fail_on_data_loss:
        raise UsageError(
            f"{lost}. Set {bound.option} to {found}, or failOnDataLoss to false to start from the records that exist",
            partition=str(partition),
            offset=value,
        )
    _log.warning("%s; going on with %d", lost, found)
    return found
