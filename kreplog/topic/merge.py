"""Records of several partitions in one order of time.

Timestamps are producers' and may fall within a partition, whose offsets must not: so a record counts as of the latest
timestamp that its partition has had up to it. The order is of (that timestamp, partition, offset).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kreplog.log import Log


class TopicRecord(NamedTuple):
    """A record of a topic. timestamp_ms: ms since 1970. key, value: bytes or None, or what the topic's codec reads."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


def of_partition(number: int, log: Log, start: int | None, stop: int | None, isolation: str) -> Iterator[TopicRecord]:
    """The committed records of [start, stop). Raises as Log.read does, at the call."""
    records = log.read(start, stop, isolation=isolation)
    return (TopicRecord(number, *record) for record in records)


def merged_by_time(partitions: Iterable[Iterator[TopicRecord]]) -> Iterator[TopicRecord]:
    """All records, each partition's in its own order."""
    # The merge goes by the next record of each partition alone, so one with an earlier timestamp follows at once.
    return heapq.merge(*partitions, key=lambda record: (record.timestamp_ms, record.partition, record.offset))
