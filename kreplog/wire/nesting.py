"""Partitions as Kafka's messages nest them: a list of topics, each with its name and the list of its partitions.

The messages of `core` hold flat tuples of partitions. Neighbours of the same topic are written as one topic; the order
is kept both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from kreplog.types import TopicPartition

T = TypeVar("T")

PARTITION: Callable[[Any], TopicPartition] = attrgetter("partition")
"""The TopicPartition of most items."""


def by_topic(
    items: Iterable[T], partition_of: Callable[[T], TopicPartition] = PARTITION
) -> Iterator[tuple[str, list[T]]]:
    """(topic, items) of each run of neighbours of the same topic."""
    for topic, group in groupby(items, lambda item: partition_of(item).topic):
        yield topic, list(group)


@dataclass(frozen=True)
class Nesting:
    """Names of the fields in one message's schema: of a topic its name and its partitions, of a partition its index."""

    name: str = "name"
    index: str = "partition_index"
    partitions: str = "partitions"

    def write(
        self,
        items: Iterable[T],
        fields: Callable[[T], dict[str, Any]],
        partition_of: Callable[[T], TopicPartition] = PARTITION,
    ) -> list[dict[str, Any]]:
        """The topics of a message, for kreplog.wire.generic. fields: of an item, beside its partition index."""
        return [
            {
                self.name: topic,
                self.partitions: [{self.index: partition_of(item).partition, **fields(item)} for item in group],
            }
            for topic, group in by_topic(items, partition_of)
        ]

    def read(self, topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
        """Each partition of a decoded message, with its struct."""
        index_of = attrgetter(self.index)
        for topic in topics:
            name = getattr(topic, self.name)
            for partition in getattr(topic, self.partitions):
                yield TopicPartition(name, index_of(partition)), partition
