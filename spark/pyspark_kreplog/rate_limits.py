"""How far a micro-batch goes: the options that limit it as pure functions of backlogs and times.

The rules are those of Spark's Kafka source: a limit is shared among partitions in proportion to their backlog, and a
small backlog still gets one record, so that no partition starves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from kreplog.types import TopicPartition


def limit_records(
    limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The end of a batch of about `limit` offsets, none past `end`; shares below one offset become one.

    Source: KafkaMicroBatchStream.rateLimit, in integers.
    """
    backlog = {partition: end[partition] - start[partition] for partition in end if end[partition] > start[partition]}
    total = sum(backlog.values())
    return {
        partition: min(stop, start[partition] + max(1, limit * backlog[partition] // total))
        if partition in backlog
        else stop
        for partition, stop in end.items()
    }


def limit_bytes(limit: int, sizes: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The bytes of each partition's backlog that a batch of about `limit` bytes takes; at least one of each.

    sizes: bytes of the backlog of each partition, none of them 0.
    """
    total = sum(sizes.values())
    return {partition: max(1, limit * size // total) for partition, size in sizes.items()}


def end_within_bytes(limit: int, start: int, end: int, size: int, cut: Callable[[int], int]) -> int:
    """The offset at which about `limit` bytes from `start` on end, at most `end`, of a backlog of `size` bytes.

    cut: returns for a stop in (start, end] the first batch boundary with `limit` bytes before it, or the stop itself
    where fewer bytes precede it. It is called with stops that double from the stop which a mean record suggests, so
    that its work stays in proportion to `limit`, however large the backlog.
    """
    if size <= limit:
        return end
    length = max(1, ceil((end - start) * limit / size))
    while True:
        stop = min(end, start + length)
        boundary = cut(stop)
        if boundary < stop or stop == end:
            return boundary
        length *= 2


def waits_for_more(records: int, min_records: int | None, waited_ms: float, max_delay_ms: int) -> bool:
    """Whether a batch is put off until there are min_records, for at most max_delay_ms since the last one.

    Source: KafkaMicroBatchStream.delayBatch.
    """
    return min_records is not None and records < min_records and waited_ms < max_delay_ms
