"""The partitions of a running cluster, at the option kafka.bootstrap.servers: the counterpart of log_directory.py.

Nothing here knows of Spark. The bulk client of kreplog reads from the leaders; its connections are made where they are
used, in the driver for a plan and in each task for records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import kreplog
from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog.log_directory import require_subscribed
from pyspark_kreplog.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from kreplog.client.consumer import Consumer

RECORD_BYTES = 128
"""Assumed size of a record, by which ranges are cut: offsets are what a leader reports."""

_PIECE_BYTES = 4 << 20


def connect(bootstrap: str, columns: Sequence[str] = ("offset",)) -> Consumer:
    """A consumer of the cluster. Raises UsageError where the package that it needs is missing."""
    try:
        from kreplog.client.consumer import Consumer
    except ImportError as error:
        raise UsageError(
            f"kafka.bootstrap.servers: {error}; to read from brokers, pip install 'kreplog[cluster]' here and on every "
            "worker"
        ) from error
    return Consumer(bootstrap, columns, timestamp_unit="us", piece_bytes=_PIECE_BYTES, client_id="kreplog-spark")


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """A partition's log as its leader reported it at one moment, with what plan.py takes of a kreplog.Log."""

    partition: TopicPartition
    topic_id: str | None
    log_start_offset: int
    high_watermark: int
    cluster: Cluster

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        return self.cluster.offset_for_timestamp(self.partition, timestamp_ms)

    def offset_ranges(self, start: int, stop: int, max_bytes: int) -> list[kreplog.OffsetRange]:
        """[start, stop) in pieces of so many bytes if records have RECORD_BYTES."""
        step = max(1, max_bytes // RECORD_BYTES)
        return [
            kreplog.OffsetRange(first, min(first + step, stop), (min(first + step, stop) - first) * RECORD_BYTES, False)
            for first in range(start, stop, step)
        ]


class Cluster:
    """What a plan has to know of a cluster; a context manager, which closes its connections. Not thread-safe."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = connect(bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.close()

    def subscribed_partitions(self, options: ReadOptions) -> list[TopicPartition]:
        """The partitions that the options name, sorted. Raises UsageError for a missing topic."""
        named = options.topics or {partition.topic for partition in options.assigned or ()}
        topics = set(self._consumer.topics())
        wanted = topics if options.pattern is not None else topics & set(named)
        found = sorted(partition for topic in wanted for partition in self._consumer.partitions(topic))
        if not found:  # the message then lists what the cluster holds
            found = [TopicPartition(topic, 0) for topic in sorted(topics)]
        return require_subscribed(options, found)

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LeaderLog]:
        """Each partition's log as its leader reports it now."""
        if not partitions:
            return {}
        starts = self._consumer.beginning_offsets(partitions)
        ends = self._consumer.end_offsets(partitions)
        ids = {
            partition: known.topic_id
            for topic in {partition.topic for partition in partitions}
            for partition, known in self._consumer.partitions(topic).items()
        }
        return {
            partition: LeaderLog(partition, ids.get(partition) or None, starts[partition], ends[partition], self)
            for partition in partitions
        }

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        found = self._consumer.list_offsets([partition], timestamp_ms)[partition]
        return None if found is None else found.offset


def fetch(
    bootstrap: str,
    partition: TopicPartition,
    topic_id: str | None,
    start: int,
    stop: int,
    columns: Sequence[str],
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The records of [start, stop) from the partition's leader, in pieces of a few MiB, each with the next offset."""
    ids = {} if topic_id is None else {partition.topic: topic_id}
    with connect(bootstrap, columns) as consumer:
        for piece in consumer.read_arrow({partition: (start, stop)}, topic_ids=ids):
            yield piece.to_arrow(), piece.next_offset


def log_start_offset(bootstrap: str, partition: TopicPartition) -> int:
    with connect(bootstrap) as consumer:
        return consumer.beginning_offsets([partition])[partition]
