"""What a mirror writes to: a directory of logs, or the brokers of a cluster. Plain values, so that tasks can have them.

A directory takes each append exactly once: its log remembers the mirror as a writer, and as its sequence the source
offset that comes next. Brokers take it at least once: a task that is killed between their acknowledgement and its line
in the map of offsets appends these records again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

import kreplog
from kreplog.bulk_append import encode_arrow, last_sequence
from kreplog.errors import KreplogError, StorageError, UsageError
from kreplog.types import TopicPartition
from kreplog_jobs.offset_map import OffsetMap, runs_of
from pyspark_kreplog.commit import check_no_broker
from pyspark_kreplog.kafka_options import ConsumerSettings
from pyspark_kreplog.log_directory import discover, topic_id_of
from pyspark_kreplog.network import connect, uuid_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kreplog.client import Consumer, Producer

BATCH_BYTES = 1_000_000
TOPIC_TIMEOUT_S = 30.0
MAX_MESSAGE_BYTES = 1 << 30
"""What the source took, the target takes."""

_RECORD = ["timestamp", "key", "value", "headers"]


@dataclass(frozen=True, slots=True)
class TargetPartition:
    """A partition of the target, as it is before the mirror writes. topic_id: None for a topic without an id. empty:
    whether it has no record."""

    topic_id: str | None
    empty: bool


class PartitionTarget(Protocol):
    """A partition that is open to be appended to."""

    topic_id: str | None

    def resume(self, offsets: OffsetMap) -> None:
        """Settle what a killed task left pending in `offsets`. Raises KreplogError for a target that lost records."""

    def append(self, offsets: OffsetMap, rows: pa.Table, position: int) -> None:
        """Append `rows`; the source goes on at offset `position`."""


class Target(Protocol):
    def describe(self, partitions: Mapping[str, int]) -> dict[TopicPartition, TargetPartition]:
        """The partitions that exist, of topics with so many in the source."""

    def create(self, partitions: Mapping[str, int]) -> None:
        """Create the topics and partitions that are missing. Raises KreplogError: a topic may have been created."""

    def open(self, mirror: str, partition: TopicPartition) -> AbstractContextManager[PartitionTarget]:
        """The partition, open to be appended to by the mirror of this id. Raises KreplogError."""


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """The partition directories below `path`."""

    path: str
    compression: str

    def describe(self, partitions: Mapping[str, int]) -> dict[TopicPartition, TargetPartition]:
        os.makedirs(self.path, exist_ok=True)
        check_no_broker(self.path)
        found = {}
        for partition in discover(self.path):
            if partition.topic in partitions:
                with kreplog.Log.open(os.path.join(self.path, str(partition)), read_only=True) as log:
                    empty = log.log_start_offset == log.high_watermark
                    found[partition] = TargetPartition(topic_id_of(log), empty)
        return found

    def create(self, partitions: Mapping[str, int]) -> None:
        for topic, count in sorted(partitions.items()):
            # The highest first: it says how many partitions the topic has, also after a kill in between.
            for partition in reversed(range(count)):
                path = os.path.join(self.path, f"{topic}-{partition}")
                if not os.path.isdir(path):
                    kreplog.Log.open(path).close()

    @contextmanager
    def open(self, mirror: str, partition: TopicPartition) -> Iterator[PartitionTarget]:
        config = kreplog.LogConfig(max_message_bytes=MAX_MESSAGE_BYTES)
        with kreplog.Log.open(os.path.join(self.path, str(partition)), config) as log:
            yield _MirroredLog(log, f"kreplog-mirror-{mirror}", self.compression)


class _MirroredLog:
    def __init__(self, log: kreplog.Log, writer: str, compression: str) -> None:
        self.topic_id = topic_id_of(log)
        self._log = log
        self._writer = writer
        self._compression = compression

    def resume(self, offsets: OffsetMap) -> None:
        sequence = last_sequence(self._log, self._writer)
        end = offsets.end
        if self._log.log_end_offset < end.target_end or (end.records and (sequence or 0) < end.source_end):
            raise StorageError(
                f"{os.path.basename(self._log.path)}: the target has lost records of this mirror: it ends at offset "
                f"{self._log.log_end_offset}, and has source offsets below {sequence or 0}, while the checkpoint has "
                f"{end.target_end} and {end.source_end}; restore it, or mirror into another directory with another "
                "checkpoint",
                path=self._log.path,
            )
        appended = bool(offsets.pending) and sequence is not None and sequence >= offsets.pending[-1].source_end
        offsets.resolve(sequence if appended else None)

    def append(self, offsets: OffsetMap, rows: pa.Table, position: int) -> None:
        """The log is locked by this process, so that the offsets are known before they are written."""
        start = self._log.log_end_offset
        offsets.append(runs_of(_offsets_of(rows), [(start, rows.num_rows)], start))
        batches = encode_arrow(rows.select(_RECORD), batch_bytes=BATCH_BYTES, compression=self._compression)
        appended = self._log.append_once(batches, writer=self._writer, sequence=position)
        if appended != range(start, start + rows.num_rows):
            raise StorageError(
                f"{os.path.basename(self._log.path)}: appended were offsets {appended}, not {rows.num_rows} from "
                f"{start} on",
                path=self._log.path,
            )
        offsets.commit(position)


@dataclass(frozen=True, slots=True)
class BrokersTarget:
    """The topics of the cluster at `bootstrap`. replication_factor: of topics that are created; -1: the brokers'.
    security: of connections there; holds passwords and keys, so that no text of the target has it."""

    bootstrap: str
    compression: str
    replication_factor: int = -1
    security: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def _connect(self) -> Consumer:
        return connect(self.bootstrap, settings=ConsumerSettings(security=self.security))

    def describe(self, partitions: Mapping[str, int]) -> dict[TopicPartition, TargetPartition]:
        with self._connect() as consumer:
            existing = sorted(set(consumer.topics()) & partitions.keys())
            known = {place: state for topic in existing for place, state in consumer.partitions(topic).items()}
            starts, ends = consumer.beginning_offsets(known), consumer.end_offsets(known)
            return {
                place: TargetPartition(_text(state.topic_id), starts[place] == ends[place])
                for place, state in known.items()
            }

    def create(self, partitions: Mapping[str, int]) -> None:
        existing = self._counts(partitions)
        few = {topic: count for topic, count in existing.items() if count < partitions[topic]}
        for topic, count in sorted(few.items()):
            raise UsageError(
                f"topic {topic} has {partitions[topic]} partitions in the source and {count} at {self.bootstrap}: add "
                "partitions there, since records keep theirs"
            )
        missing = sorted(partitions.keys() - existing.keys())
        if not missing:
            return
        self._create({topic: partitions[topic] for topic in missing})
        deadline = time.monotonic() + TOPIC_TIMEOUT_S
        while self._counts(partitions).keys() != partitions.keys():
            if time.monotonic() > deadline:
                raise KreplogError(f"topics {', '.join(missing)} were created, and are not in the brokers' metadata")
            time.sleep(0.1)  # brokers learn of new topics one after the other

    def _counts(self, topics: Mapping[str, int]) -> dict[str, int]:
        with self._connect() as consumer:
            existing = sorted(set(consumer.topics()) & topics.keys())
            return {topic: len(consumer.partitions(topic)) for topic in existing}

    def _create(self, partitions: Mapping[str, int]) -> None:
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError

        from kreplog.client.security import ClientSecurity

        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap.split(","), **ClientSecurity.of(self.security).of_kafka_python()
            )
            try:
                admin.create_topics(
                    {
                        topic: {"num_partitions": count, "replication_factor": self.replication_factor}
                        for topic, count in partitions.items()
                    }
                )
            finally:
                admin.close()
        except KafkaError as error:
            raise KreplogError(
                f"topics {', '.join(partitions)} cannot be created at {self.bootstrap}: {error}"
            ) from error

    @contextmanager
    def open(self, mirror: str, partition: TopicPartition) -> Iterator[PartitionTarget]:
        from kreplog.client import Producer

        with self._connect() as consumer:
            topic_id = _text(consumer.partitions(partition.topic)[partition].topic_id)
            start = consumer.beginning_offsets([partition])[partition]
        client_id = f"kreplog-mirror-{mirror}"
        with Producer(
            self.bootstrap,
            compression=self.compression,
            batch_bytes=BATCH_BYTES,
            client_id=client_id,
            security=self.security,
        ) as producer:
            yield _MirroredPartition(producer, partition, topic_id, start)


class _MirroredPartition:
    """A source partition and its target. start: the first target offset, which an offset translates to where no better
    is known."""

    def __init__(self, producer: Producer, partition: TopicPartition, topic_id: str | None, start: int) -> None:
        self.topic_id = topic_id
        self._producer = producer
        self._partition = partition
        self._start = start

    def resume(self, offsets: OffsetMap) -> None:
        offsets.resolve(None)

    def append(self, offsets: OffsetMap, rows: pa.Table, position: int) -> None:
        place = self._partition
        appended = self._producer.append_arrow(place.topic, rows.select(_RECORD), partition=place.partition)
        targets = [(piece.first_offset, piece.records) for piece in appended]
        runs = runs_of(_offsets_of(rows), targets, max(offsets.end.target_end, self._start))
        offsets.commit(position, runs)
        offsets.sync()


def _text(topic_id: str) -> str | None:
    """A topic id of the brokers in the form of the source's."""
    found = uuid_of(topic_id)
    return None if found is None else str(found)


def _offsets_of(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(rows["offset"].combine_chunks().to_numpy(zero_copy_only=False), np.int64)
