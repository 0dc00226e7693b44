"""The partitions of a running cluster, at the option kafka.bootstrap.servers: the counterpart of log_directory.py.

Nothing here knows of Spark. The bulk client of kreplog reads from the leaders; its connections are made where they are
used, in the driver for a plan and in each task for records.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import kreplog
from kreplog.closing import Closing
from kreplog.errors import KreplogError, LogTruncatedError, OffsetOutOfRangeError
from kreplog.types import TopicPartition, topic_id_text, topic_uuid
from pyspark_kreplog.bounds import end_offset
from pyspark_kreplog.kafka_options import DEFAULTS, ConsumerSettings, client_module
from pyspark_kreplog.leader_epochs import Entries
from pyspark_kreplog.log_directory import PartitionSnapshot, require_subscribed, select_subscribed, topic_id_of
from pyspark_kreplog.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from kreplog.client.cluster_metadata import PartitionMetadata
    from kreplog.client.consumer import Consumer

RECORD_BYTES = 128
"""Assumed size of a record, by which ranges are cut: offsets are what a leader reports."""

FRESH_S = 0.04

FETCH_TIMEOUT_S = 60.0
"""How long a fetch waits for the next record."""

_PIECE_BYTES = 4 << 20
_COMMIT_S = 5.0


def connect(bootstrap: str, columns: Sequence[str] = ("offset",), settings: ConsumerSettings = DEFAULTS) -> Consumer:
    """A consumer of the cluster. Raises UsageError where the package that it needs is missing."""
    consumer: Consumer = client_module("consumer", "read from").Consumer(
        bootstrap, columns, timestamp_unit="us", piece_bytes=_PIECE_BYTES, **asdict(settings)
    )
    return consumer


LOST_RECORD_ERRORS = OffsetOutOfRangeError, LogTruncatedError
"""The errors that `fetch` raises where planned records are gone: deleted, or truncated."""


def fetch_timeout_error() -> type[KreplogError]:
    """The error that `fetch` raises after FETCH_TIMEOUT_S without a record: an end that does not come back, a
    leader that is silent for that time, or a client that is throttled."""
    from kreplog.client.bulk_errors import FetchTimeoutError

    return FetchTimeoutError


class LeaderLog:
    """A partition's log as its leader reports it, with what plans take of a kreplog.Log.

    Offsets are requested again where they are older than FRESH_S."""

    def __init__(
        self,
        cluster: ClusterReader,
        partition: TopicPartition,
        topic_id: uuid.UUID | None,
        offsets: tuple[int, int],
        leader_epochs: Entries,
    ) -> None:
        self.topic_id = topic_id
        self.incarnation_id = None
        self.leader_epochs = leader_epochs
        self._cluster = cluster
        self._partition = partition
        self._offsets = offsets
        self._at_s = time.monotonic()

    @property
    def log_start_offset(self) -> int:
        return self._fresh()[0]

    @property
    def high_watermark(self) -> int:
        return self._fresh()[1] if not self._cluster.reads_committed else self._cluster.high_watermark(self._partition)

    @property
    def last_stable_offset(self) -> int:
        """With read_committed alone, where it is the end that a leader reports."""
        return self._fresh()[1]

    def _fresh(self) -> tuple[int, int]:
        if time.monotonic() - self._at_s >= FRESH_S:
            self._offsets = self._cluster.offsets([self._partition])[self._partition]
            self._at_s = time.monotonic()
        return self._offsets

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        return self._cluster.offset_for_timestamp(self._partition, timestamp_ms)

    def offset_ranges(self, start: int, stop: int, max_bytes: int) -> list[kreplog.OffsetRange]:
        """[start, stop) in pieces of so many bytes if records have RECORD_BYTES."""
        step = max(1, max_bytes // RECORD_BYTES)
        return [
            kreplog.OffsetRange(first, min(first + step, stop), (min(first + step, stop) - first) * RECORD_BYTES, False)
            for first in range(start, stop, step)
        ]


class ClusterReader(Closing):
    """A reader of what plans have to know of a cluster; a context manager, which closes its connections. Not
    thread-safe.

    Connects when first used: before that it can be pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def close(self) -> None:
        consumer = self.__dict__.pop("_consumer", None)
        if consumer is not None:
            consumer.close()

    @cached_property
    def _consumer(self) -> Consumer:
        return connect(self._options.bootstrap or "", settings=self._options.consumer)

    def subscribed(self) -> list[TopicPartition]:
        """The partitions that the options name, sorted. Raises UsageError for a missing topic."""
        return require_subscribed(self._options, self._discover())

    def find(self) -> tuple[list[TopicPartition], list[str]]:
        """The partitions that the options name, and the topics named that do not exist."""
        return select_subscribed(self._options, self._discover())

    def _discover(self) -> list[TopicPartition]:
        """The partitions of topics that are read, and the first of every other topic, which messages list. Raises
        TopicAuthorizationError for a topic that is to be read and may not be."""
        existing = [TopicPartition(topic, 0) for topic in self._consumer.topics()]
        if self._options.pattern is None:
            named = set(self._options.topics or {partition.topic for partition in self._options.assigned or ()})
        else:
            named = {first.topic for first in select_subscribed(self._options, existing)[0]}
        self._consumer.require_readable(sorted(named))
        found: list[TopicPartition] = []
        for first in existing:
            found += self._partitions_of(first.topic) if first.topic in named else [first]
        return sorted(found)

    def _partitions_of(self, topic: str) -> dict[TopicPartition, PartitionMetadata]:
        """The partitions of a topic; none if it is deleted at this moment."""
        from kreplog.client.bulk_errors import UnknownTopicError

        with suppress(UnknownTopicError):
            return self._consumer.partitions(topic)
        return {}

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionSnapshot]:
        """The state of each partition, except of those that are deleted at this moment."""
        return {
            partition: PartitionSnapshot(
                log.log_start_offset,
                end_offset(log, self._options.consumer.isolation_level),
                topic_id_of(log),
                tuple(log.leader_epochs),
                log.incarnation_id,
            )
            for partition, log in self.logs(partitions).items()
        }

    @contextmanager
    def use(self, partition: TopicPartition) -> Iterator[LeaderLog | None]:
        """The log of one partition; None where it does not exist."""
        yield self.logs([partition]).get(partition)

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LeaderLog]:
        """Each partition's log as its leader reports it now, except of those that do not exist."""
        known: dict[TopicPartition, PartitionMetadata] = {}
        for topic in sorted({partition.topic for partition in partitions}):
            known |= self._partitions_of(topic)
        existing = [partition for partition in partitions if partition in known]
        offsets = self.offsets(existing)
        epochs = self._leader_epochs(existing)
        return {
            partition: LeaderLog(
                self, partition, uuid_of(known[partition].topic_id), offsets[partition], epochs.get(partition, ())
            )
            for partition in existing
        }

    def _leader_epochs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Entries]:
        """The leader epochs of each partition; none if nothing needs them, or if brokers are too old to report them."""
        from kreplog.client.bulk_errors import UnsupportedBrokerError

        if partitions and (self._options.stream or self._options.reads_local_replicas):
            with suppress(UnsupportedBrokerError):
                return {**self._consumer.leader_epochs(partitions)}
        return {}

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Log start offset and end of each: the high watermark, or with read_committed the last stable offset."""
        if not partitions:
            return {}
        starts = self._consumer.beginning_offsets(partitions)
        ends = self._consumer.end_offsets(partitions)
        return {partition: (starts[partition], ends[partition]) for partition in partitions}

    @property
    def reads_committed(self) -> bool:
        return self._options.consumer.isolation_level == "read_committed"

    def high_watermark(self, partition: TopicPartition) -> int:
        return self._consumer.end_offsets([partition], isolation_level="read_uncommitted")[partition]

    def commit(self, group: str, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> bool:
        """Commit positions under the name of a group; False where the brokers have no groups. Raises KreplogError."""
        from kreplog.client.bulk_errors import UnsupportedBrokerError

        try:
            self._consumer.commit_offsets(group, positions, epochs, timeout_s=_COMMIT_S)
        except UnsupportedBrokerError:
            return False
        return True

    def offset_for_timestamp(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        found = self._consumer.list_offsets([partition], timestamp_ms)[partition]
        return None if found is None else found.offset


def uuid_of(topic_id: str) -> uuid.UUID | None:
    """A topic id as Kafka writes it; "" for none."""
    return topic_uuid(topic_id) if topic_id else None


@dataclass(frozen=True, slots=True)
class ReplicaHosts:
    """The address of a partition's leader, host:port, None where it has none, and the hosts of its replicas."""

    leader: str | None
    replicas: tuple[str, ...]


def replica_hosts(
    bootstrap: str, topics: Collection[str], settings: ConsumerSettings
) -> dict[TopicPartition, ReplicaHosts]:
    """The hosts of every partition of `topics`, as the metadata of the cluster name them now."""
    found = {}
    with connect(bootstrap, settings=settings) as consumer:
        for topic in topics:
            for partition, known in consumer.partitions(topic).items():
                brokers = consumer.brokers
                leader = brokers.get(known.leader)
                found[partition] = ReplicaHosts(
                    None if leader is None else f"{leader[0]}:{leader[1]}",
                    tuple(brokers[each][0] for each in known.replicas if each in brokers),
                )
    return found


def fetch(
    bootstrap: str,
    partition: TopicPartition,
    topic_id: str | None,
    start: int,
    stop: int,
    columns: Sequence[str],
    settings: ConsumerSettings,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The records of [start, stop) from the partition's leader, in pieces of a few MiB, each with the next offset."""
    ids = {}
    if topic_id is not None:
        ids[partition.topic] = topic_id_text(uuid.UUID(topic_id))
    with connect(bootstrap, columns, settings) as consumer:
        for piece in consumer.read_arrow({partition: (start, stop)}, timeout_s=FETCH_TIMEOUT_S, topic_ids=ids):
            yield piece.to_arrow(), piece.next_offset


def offsets(bootstrap: str, partition: TopicPartition, settings: ConsumerSettings) -> tuple[int, int]:
    """Log start offset and end of a partition as its leader reports them, as ClusterReader.offsets."""
    with connect(bootstrap, settings=settings) as consumer:
        return consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
