"""Portions of DescribeTopicPartitions: partitions by topic and number, each portion from a cursor on (KIP-966).

The simulator does not run these rules: its clients look partitions up one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

MAX_PARTITIONS_DESCRIBED = 2000
"""Partitions in a response, as max.request.partition.size.limit of Kafka."""


class PartitionCursor(NamedTuple):
    """The first partition of a portion. The topic need not exist."""

    topic: str
    partition: int


START = PartitionCursor("", 0)


class Portion(NamedTuple):
    """The topics of a response, in order, each with its partitions; None: it does not exist. A topic whose partitions
    are all in earlier portions has none here. next: where the following portion begins; None after the last one."""

    topics: list[tuple[str, list[int] | None]]
    next: PartitionCursor | None


def portion_limit(requested: int) -> int:
    """Maximum of partitions in a response. requested: the client's."""
    return max(1, min(requested, MAX_PARTITIONS_DESCRIBED))


def topics_from(cursor: PartitionCursor, requested: Collection[str], known: Iterable[str]) -> list[str]:
    """The topics of a request from a cursor on, in order; all known ones if it names none."""
    return sorted(name for name in requested or known if name >= cursor.topic)


def portion(
    cursor: PartitionCursor, topics: Iterable[str], known: Mapping[str, Collection[int]], limit: int
) -> Portion:
    """The portion of a response that begins at the cursor.

    topics: of `topics_from`. known: the partitions of topics that exist, in order. limit: of `portion_limit`."""
    found: list[tuple[str, list[int] | None]] = []
    remaining = limit
    for name in topics:
        if name not in known:
            found.append((name, None))
            continue
        numbers = [number for number in known[name] if name != cursor.topic or number >= cursor.partition]
        listed = numbers[:remaining]
        if listed or not numbers:
            found.append((name, listed))
        remaining -= len(listed)
        if len(listed) < len(numbers):
            return Portion(found, PartitionCursor(name, numbers[len(listed)]))
    return Portion(found, None)
