"""Topic: the public API of the partitions of one topic in a folder.

`Log` is one partition. This deals records to partitions as Kafka's producer does, and reads them merged.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kreplog._native import topic_rows
from kreplog._native.arrow_records import RowSelection
from kreplog._native.partitioner import partition_for
from kreplog.closing import Closing
from kreplog.codecs import CodecLike, ObjectCodec, codec_of
from kreplog.config import LogConfig
from kreplog.core.work_queues import WorkQueueConfig, lag_of
from kreplog.errors import ArgumentTypeError, LogClosedError, ResourceExhaustedError, UsageError
from kreplog.file_systems import warn_reader
from kreplog.log import Log
from kreplog.topic import arrow_merge
from kreplog.topic.cursor_lock import LockedCursor
from kreplog.topic.cursor_log import CursorLog
from kreplog.topic.cursors import Cursor
from kreplog.topic.dead_letters import DeadLetterTopic
from kreplog.topic.decoding import Decoding, OnError, check_on_error
from kreplog.topic.folder import TopicFolder, split_path, topics_in
from kreplog.topic.group_cursor import GroupCursor
from kreplog.topic.maintenance import MaintenanceConfig, MaintenanceError, TopicMaintenance
from kreplog.topic.merge import TopicRecord, merged_by_time, of_partition
from kreplog.topic.queue_member import DeliveredRecord
from kreplog.topic.sticky import StickyPartitioner
from kreplog.topic.table import At, Table, TableEntry
from kreplog.topic.topic_follow import TopicFollow, check_max_records
from kreplog.topic.work_queue import WorkQueue
from kreplog.types import topic_uuid

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

__all__ = [
    "Cursor",
    "DeliveredRecord",
    "GroupCursor",
    "MaintenanceConfig",
    "MaintenanceError",
    "PartitionOffset",
    "Table",
    "TableEntry",
    "Topic",
    "TopicFollow",
    "TopicRecord",
    "WorkQueue",
]

RECORD_OVERHEAD = 70  # of a batch with one record, without key and value
LEAST_PIECE = 64 << 10  # bytes of a partition that are merged at once, however many partitions there are
_ARROW_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
_DEFAULT_CONFIG = LogConfig()
_DEFAULT_MAINTENANCE = MaintenanceConfig()

Offsets = int | Mapping[int, int] | None


class PartitionOffset(NamedTuple):
    """Where a record is: its partition, and its offset there."""

    partition: int
    offset: int


class Topic(Closing):
    """The partitions of a topic in one folder, in Kafka's layout: `data/orders-0`, `data/orders-1` and so on.

    Open it with `Topic.open`. One process writes, any number read. Safe to use from several threads. Each partition is
    a directory as `kreplog.Log`, Spark and brokers read it; while the topic is open for writing no partition of it can
    be by itself. Records with a key go to the partition that Kafka's producer chooses, so a key's records keep their
    order.
    """

    def __init__(self) -> None:
        raise UsageError("open a topic with kreplog.Topic.open(path)")

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        partitions: int | None = None,
        *,
        key_codec: CodecLike = None,
        value_codec: CodecLike = None,
        config: LogConfig | None = None,
        read_only: bool = False,
        max_open_partitions: int = 512,
        maintenance: MaintenanceConfig | None = None,
    ) -> Self:
        """Open the topic `<folder>/<topic>`; create it with `partitions` partitions if there is none.

        partitions: of an existing topic the number that it has, or None. config: of every partition.
        key_codec, value_codec: what keys and values are in this program: "bytes", "str", "json", "msgpack", a
        kreplog.codecs.ObjectCodec, an Avro or Protobuf of kreplog.schemas, or a pair of functions (encode, decode).
        None is null in all of them.
        read_only: change nothing and take no lock; partitions that the writer adds are found. A partition is opened,
        and recovered if it was not closed, when it is first used. A creation that was broken off is completed.
        max_open_partitions: so many that were appended to, at most a quarter of the files that the process may have,
        keep their file open; when it is one more, half of them are flushed and closed until their next append.
        maintenance: what one thread does in the background: flushing by time, retention, compaction, checkpoints; by
        default what `config` has limits or a policy for. A reader has no such thread, nor a topic without such work.
        Raises InvalidTopicError (the name), UsageError (no such topic and no `partitions`), InvalidPartitionsError (it
        has another number of them: `existing`), LogLockedError (another process has the topic, a partition of it or its
        folder open for writing), CorruptCheckpointError (the topic file), UnsupportedFileSystemError (to be written, on
        a network file system without locks), StorageError. Read-only on a network file system, it warns with
        NetworkFileSystemWarning.
        """
        if config is None:
            config = _DEFAULT_CONFIG
        if not isinstance(config, LogConfig):
            raise ArgumentTypeError(f"config is a LogConfig, not {type(config).__name__}")
        if config.replicated:
            raise UsageError("a topic in a folder is not replicated: brokers replicate topics")
        topic = cls.__new__(cls)
        if maintenance is None:
            maintenance = _DEFAULT_MAINTENANCE
        if not isinstance(maintenance, MaintenanceConfig):
            raise ArgumentTypeError(f"maintenance is a MaintenanceConfig, not {type(maintenance).__name__}")
        topic_path = os.path.join(*split_path(path))
        topic._key_codec = codec_of(key_codec, "key", topic_path)
        topic._value_codec = codec_of(value_codec, "value", topic_path)
        topic._folder = TopicFolder(path, partitions, config, read_only, max_open_partitions)
        if read_only:
            warn_reader(path)
        topic._logs = topic._folder.appended.logs
        topic._sticky = StickyPartitioner()
        topic._cursor_log = CursorLog(topic._folder.folder)
        topic._cursors = weakref.WeakSet()
        topic._maintenance = TopicMaintenance(topic._folder, maintenance)
        return topic

    _folder: TopicFolder
    _logs: Mapping[int, Log]
    _sticky: StickyPartitioner
    _cursor_log: CursorLog
    _cursors: weakref.WeakSet[LockedCursor]
    _maintenance: TopicMaintenance
    _key_codec: ObjectCodec | None
    _value_codec: ObjectCodec | None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.partitions} partitions"
        return f"<kreplog.Topic {self.path} {state}>"

    @staticmethod
    def names(folder: str | os.PathLike[str]) -> list[str]:
        """The topics whose partitions are in the folder, in order, `__consumer_offsets` among them.

        Raises StorageError (no such folder, or this user may not list it)."""
        return topics_in(folder)

    # What it is

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._folder.topic

    @property
    def path(self) -> str:
        """`<folder>/<topic>`, absolute; the directory of partition n is this with `-n`."""
        return self._folder.path

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        self._folder.refresh()
        return self._folder.partitions

    @property
    def topic_id(self) -> uuid.UUID | None:
        """As in each partition's partition.metadata (KIP-516); None where a reader finds none there."""
        text = self._folder.topic_id
        return None if text is None else topic_uuid(text)

    @property
    def config(self) -> LogConfig:
        """The settings of every partition."""
        return self._folder.config

    @property
    def read_only(self) -> bool:
        return self._folder.read_only

    @property
    def closed(self) -> bool:
        return self._folder.closed

    def log(self, partition: int) -> Log:
        """The log of a partition, for all that `Log` has beyond this; closed with the topic, not by the caller.

        With what is appended through it, it counts among max_open_partitions and is flushed by time, as the others are.
        Raises UsageError (no such partition), LogClosedError, and as `Log.open` does.
        """
        log = self._folder.log(partition)
        if not self._folder.read_only:
            self._folder.appended.lend(partition, log)
        return log

    @property
    def maintenance_errors(self) -> tuple[MaintenanceError, ...]:
        """The failures of the background thread, of each task and partition the latest one, until an attempt succeeds.

        They are logged, too, and MaintenanceConfig.on_error is called with each. No other call raises them, except for
        a flush: its partition refuses the next append with LogFailedError, and `close` raises it. A partition that
        cannot be compacted is set aside until the topic is opened again; after want of disk space, files or memory, and
        in all else, the thread tries again."""
        return self._maintenance.errors

    def offsets(self) -> dict[int, range]:
        """The offsets of the committed records of each partition: from the log start to the high watermark."""
        logs = {number: self._folder.log(number) for number in self._folder.numbers}
        return {number: range(log.log_start_offset, log.high_watermark) for number, log in logs.items()}

    # Writing

    def append(
        self,
        value: Any,
        key: Any = None,
        *,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> PartitionOffset:
        """Append one record; return its partition and offset. It is in the page cache on return, as with Log.append.

        value, key: bytes-like or None, or what the topic's codecs take.
        partition: by default that of Kafka's producer: of a key by its murmur2 hash; without a key, one partition for
        16 KiB of records and then another.
        Raises ArgumentTypeError, UsageError (no such partition), RecordEncodeError, RecordTooLargeError,
        ResourceExhaustedError (nothing written), LogFailedError, LogClosedError.
        """
        if self._value_codec is not None or self._key_codec is not None:
            value, key = self._encoded(value, key)
        if partition is None:
            partition = self._choose(value, key)
        log = self._logs.get(partition)
        if log is None:
            log = self._folder.log_to_append(partition)
        try:
            offset = log.append(value, key, timestamp_ms, headers)
        except ResourceExhaustedError:
            if not self._folder.appended.make_room():
                raise
            offset = log.append(value, key, timestamp_ms, headers)
        return PartitionOffset(partition, offset)

    def _encoded(self, value: Any, key: Any) -> tuple[Any, Any]:
        self._folder.check_writable()  # a codec may register a schema
        return (
            value if self._value_codec is None else self._value_codec.encoded(value, "value"),
            key if self._key_codec is None else self._key_codec.encoded(key, "key"),
        )

    def _choose(self, value: Buffer | None, key: Buffer | None) -> int:
        partitions = self._folder.partitions
        try:
            if key is not None:
                return partition_for(key, partitions)
            return self._sticky.choose(RECORD_OVERHEAD + (0 if value is None else memoryview(value).nbytes), partitions)
        except TypeError:
            name, given = ("value", value) if key is None else ("key", key)
            raise ArgumentTypeError(f"{name} is bytes-like or None, not {type(given).__name__}") from None

    def append_many(
        self, values: Any, keys: Any = None, timestamps_ms: Any = None, *, partition: int | None = None
    ) -> dict[int, range]:
        """Append many records in batches of about batch_bytes; return the range of their offsets in each partition.

        values: a table with the columns value, key (binary or string), timestamp, headers and partition, all optional,
        as anything with Arrow's C interface has it: pyarrow, pandas, Polars, DuckDB; see _native/arrow_records. Or one
        column, with `keys` and `timestamps_ms` beside it: a sequence of bytes-like or None, an Arrow array in chunks or
        not, or a NumPy array as Log.append_many takes it. partition: for all records. Without it, and where that column
        is null, the key decides; records without a key go to partitions in long runs. Records of a partition keep their
        order. What is in Arrow or NumPy is taken as it is; items of other sequences go through the topic's codecs. All
        rows are split and encoded natively, and all are checked before the first is written.
        Where the process may open no more files, files of other partitions are closed, as by `append`; records that
        other threads append to a partition meanwhile can then be within its range.
        Raises ArgumentTypeError, UsageError, RecordEncodeError, RecordTooLargeError, InvalidRecordError (a compacted
        topic needs keys; nothing written); LogFailedError, ResourceExhaustedError: partitions before that of the error
        may be written; LogClosedError.
        """
        self._folder.check_writable()  # a codec may register a schema
        pieces = topic_rows.rows_of(
            _encoded(values, self._value_codec, "value"), _encoded(keys, self._key_codec, "key"), timestamps_ms
        )
        chosen: dict[int, list[RowSelection]] = {}
        for rows in pieces:
            if partition is not None:
                selections = [rows.whole(partition)] if rows.length else []
            else:
                selections = rows.by_partition(self._folder.partitions, self._sticky.draw(self._folder.partitions))
            for selection in selections:
                chosen.setdefault(selection.partition, []).append(selection)
        for number, selections in chosen.items():
            for selection in selections:
                topic_rows.check_rows(self._folder.log(number), selection)
        return {
            number: topic_rows.append_rows(
                self._folder.log_to_append(number), selections, self._folder.appended.make_room
            )
            for number, selections in chosen.items()
        }

    def add_partitions(self, total: int) -> None:
        """Have `total` partitions. Keys then go to other partitions than before: their order holds from now on only.

        Raises InvalidPartitionsError (fewer than there are), LogClosedError, StorageError: the next opening completes
        them.
        """
        self._folder.add_partitions(total)

    def flush(self) -> None:
        """Make everything appended so far durable, also by a process that was killed before it had flushed it. Raises
        LogFailedError, StorageError (of a partition that cannot be opened)."""
        self._folder.flush()

    def close(self) -> None:
        """Close its cursors, flush and close every partition, write Kafka's checkpoint files, and release the topic.
        Closing twice does nothing. The background thread ends first, after the file call that it is in. Raises
        LogFailedError of the first partition that could not be made durable; all are closed nevertheless."""
        self._maintenance.stop()
        if not self._folder.closed:
            for cursor in list(self._cursors):
                cursor.close()
            try:
                self._cursor_log.close()
            finally:
                self._folder.close()

    # Reading

    def read(
        self,
        partition: int | None = None,
        start: Offsets = None,
        stop: Offsets = None,
        *,
        order: str = "partition",
        isolation: str = "read_uncommitted",
        on_error: OnError = "raise",
    ) -> Iterator[TopicRecord]:
        """Iterate over the committed records up to the high watermarks now, of one partition or of all.

        start, stop: offsets, [start, stop); of all partitions, by partition number. order: "partition", one after the
        other; "time", merged: within a partition offsets rise, and between them the latest timestamp so far.
        isolation: as of `Log.read`.
        on_error: of a record that the codecs do not take: "raise", "skip", or a function that sets it aside; it is
        called with the RecordDecodeError, which has the record.
        Raises UsageError, LogClosedError, and as `Log.read` does; while iterating RecordDecodeError with the partition
        and the offset, after which a new read from the next offset goes on.
        """
        _check_order(order)
        numbers = self._numbers(partition)
        pieces = [
            of_partition(
                number, self._folder.log(number), _offset(start, number, partition), _offset(stop, number, partition),
                isolation,
            )
            for number in numbers
        ]  # fmt: skip
        records = merged_by_time(pieces) if order == "time" else (record for piece in pieces for record in piece)
        return Decoding(self.name, self._key_codec, self._value_codec).decoded(records, on_error)

    def follow(
        self,
        start: Mapping[int, int] | None = None,
        timeout: float | None = None,
        *,
        across_writers: bool = False,
        isolation: str = "read_uncommitted",
        on_error: OnError = "raise",
    ) -> TopicFollow[TopicRecord]:
        """Iterate over the committed records of all partitions as they come, and wait for more.

        For `for` and `async for`; a task that is cancelled while it waits has lost no record, and all tasks that wait
        for the topic share one thread. start: offsets by partition, by default the log start, where partitions that
        are added begin. A partition's records keep their order; partitions have turns of up to 256 records.
        Ends after `timeout` seconds without a record, when the writer closes the topic or has closed it, and when this
        topic is closed. across_writers: the writer may close and die; goes on with the next one. isolation: as of
        `Log.follow`; an open transaction holds back its own partitions alone. on_error: as of `read`.
        The writer's end is seen within 20 ms where no other writer has followed. Up to 128 partitions wake the reader
        as `Log.wait` has it; with more, it looks again every 20 ms.
        Raises UsageError (no such partition), LogClosedError; while iterating as `Log.follow` does, RecordDecodeError.
        """
        decoding = Decoding(self.name, self._key_codec, self._value_codec)
        check_on_error(on_error)

        def convert(number: int, record: Any) -> TopicRecord | None:
            return next(decoding.decoded(iter((TopicRecord(number, *record),)), on_error), None)

        starts = {} if start is None else start
        return TopicFollow(self._folder, starts, timeout, across_writers, 0, convert, isolation)

    def follow_batches(
        self,
        start: Mapping[int, int] | None = None,
        timeout: float | None = None,
        *,
        max_records: int = 1000,
        across_writers: bool = False,
        isolation: str = "read_uncommitted",
        on_error: OnError = "raise",
    ) -> TopicFollow[list[TopicRecord]]:
        """`follow` in lists of 1 to `max_records` records of a partition: those that are committed, without a wait for
        a full list."""
        decoding = Decoding(self.name, self._key_codec, self._value_codec)
        check_on_error(on_error)
        check_max_records(max_records)

        def convert(number: int, records: Any) -> list[TopicRecord] | None:
            return list(decoding.decoded((TopicRecord(number, *record) for record in records), on_error)) or None

        starts = {} if start is None else start
        return TopicFollow(self._folder, starts, timeout, across_writers, max_records, convert, isolation)

    def to_arrow(
        self,
        partition: int | None = None,
        start: Offsets = None,
        stop: Offsets = None,
        columns: Sequence[str] | None = None,
        *,
        order: str = "partition",
        timestamp_unit: str = "ms",
        max_bytes: int = 4 << 20,
        isolation: str = "read_uncommitted",
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the records that `read` returns as pyarrow.RecordBatches of about max_bytes.

        columns: as of Log.to_arrow, and partition (int32), which is the first of the default. order "time" reads all
        partitions at once, and merges them by NumPy. Keys and values
        are as stored, no codec decodes them. Needs pyarrow. Raises as `read` and `Log.to_arrow` do.
        """
        _check_order(order)
        numbers = self._numbers(partition)
        wanted = ("partition", *_ARROW_COLUMNS) if columns is None else tuple(columns)
        inner = [name for name in wanted if name != "partition"]
        if order == "time" and "timestamp" not in inner:
            inner.append("timestamp")
        if order == "time":
            max_bytes = max(max_bytes // max(1, len(numbers)), LEAST_PIECE)
        streams = [
            (number, self._folder.log(number).to_arrow(
                _offset(start, number, partition), _offset(stop, number, partition), inner or ["offset"],
                timestamp_unit=timestamp_unit, max_bytes=max_bytes, isolation=isolation,
            ))
            for number in numbers
        ]  # fmt: skip
        pieces = (arrow_merge.by_time if order == "time" else arrow_merge.in_turn)(streams)
        return (piece.select(list(wanted)) for piece in pieces)

    def cursor(self, name: str, *, start: str = "earliest") -> Cursor:
        """Open the durable position of a reader, for this process alone; also of a topic that is open read-only.

        name: as of a topic; brokers have it as a consumer group. start: "earliest" or "latest", where nothing is
        committed; the latter passes over transactions that are open, whatever the isolation of its reads.
        Raises InvalidTopicError (the name), UsageError, CursorLockedError (it is open elsewhere),
        LogLockedError (a broker runs on the folder), LogClosedError, StorageError (the folder may not be written).
        """
        if self.closed:
            raise LogClosedError(f"{self.path}: the topic is closed", path=self.path)
        cursor = Cursor(self, name, self._cursor_log, start)
        self._cursors.add(cursor)
        return cursor

    def group_cursor(self, name: str, *, start: str = "earliest", isolation: str = "read_uncommitted") -> GroupCursor:
        """Join the cursor group `name`: threads and processes that split the partitions among them; see GroupCursor.

        A cursor by `cursor` belongs to one process; a group has the same committed offsets, and the two exclude each
        other. name, start: as of `cursor`. isolation: as of `Log.read`; with "read_committed" a group that begins at
        the latest records begins before those of open transactions. Raises InvalidTopicError (the name), UsageError (a
        system other than Linux), CursorLockedError (a cursor has the name), LogClosedError, StorageError (the folder
        may not be written).
        """
        if self.closed:
            raise LogClosedError(f"{self.path}: the topic is closed", path=self.path)
        decoding = Decoding(self.name, self._key_codec, self._value_codec)
        cursor = GroupCursor(self, name, self._cursor_log, start, decoding, isolation)
        self._cursors.add(cursor)
        return cursor

    def work_queue(
        self,
        name: str,
        *,
        dead_letter: Topic | str | None = None,
        delivery_count_limit: int = 5,
        record_lock_duration_ms: int = 30_000,
        partition_max_record_locks: int = 2000,
        start: str = "earliest",
        isolation: str = "read_uncommitted",
    ) -> WorkQueue:
        """Join the work queue `name`: threads and processes that take records and acknowledge each by itself; see
        WorkQueue. The settings are those of Kafka's share groups (KIP-932), with its defaults.

        dead_letter: a topic for records that were delivered `delivery_count_limit` (1 to 10) times without an `ack`,
        and for those that do not decode: one that this process has open for writing, or the name of one in the same
        folder, which each dead letter opens, and the first creates, with a partition. They have Kafka's headers of dead
        letters (KIP-1191). Without it, records are delivered until they are acknowledged.
        record_lock_duration_ms: how long a record that was taken stays with its worker. partition_max_record_locks:
        records of a partition that are not done while others after them are delivered, 1 to 4000; then it waits.
        name, start, isolation: as of `group_cursor`, which shares the names. All members of a queue are to have the
        same settings.
        Raises as `group_cursor` does, and UsageError, ArgumentTypeError (a setting).
        """
        if self.closed:
            raise LogClosedError(f"{self.path}: the topic is closed", path=self.path)
        config = WorkQueueConfig(record_lock_duration_ms, delivery_count_limit, partition_max_record_locks)
        dead_letters = None if dead_letter is None else DeadLetterTopic(self, name, dead_letter)
        if dead_letters is None:
            config = replace(config, delivery_count_limit=None)
        decoding = Decoding(self.name, self._key_codec, self._value_codec)
        queue = WorkQueue(self, name, self._cursor_log, start, decoding, isolation, config, dead_letters)
        self._cursors.add(queue)
        return queue

    def table(
        self,
        *,
        at: At = None,
        snapshot: str | os.PathLike[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        follow: bool = False,
        on_error: OnError = "raise",
    ) -> Table:
        """Load the newest value of each key into memory, or into a file, as a mapping that follows the log; also beside
        a writer in another process, compaction, and truncation.

        at: the state as of a moment, which stays: offsets by partition, exclusive, of which those that are left out
        count as 0; or a datetime, or ms since 1970: up to the first record of each partition that is later. Of what was
        compacted since, older values are gone.
        snapshot: a file that `Table.save` writes; where there is one, only what comes after it is read. A partition
        that has been truncated at that place since, or compacted there or later, is read again, and all where the file
        is damaged or of another topic.
        path: a folder for LMDB files, which is made; the table is in them, for more keys than memory has room for, and
        goes on there when it is opened again. Several processes may open it. Needs lmdb, the extra `tables`. Without
        `at` and `snapshot`.
        follow: a thread applies what is committed, woken by the writer. Where it fails, it ends, and each later call of
        the table raises the error.
        on_error: as of `read`, for what iterates over the table; [] and `get` raise.
        Raises UsageError, OffsetOutOfRangeError (`at` is outside the log), CorruptBatchError, LogClosedError,
        ResourceExhaustedError (memory), StorageError.
        """
        if self.closed:
            raise LogClosedError(f"{self.path}: the topic is closed", path=self.path)
        return Table(self, self._key_codec, self._value_codec, at, snapshot, path, follow, on_error)

    def committed_offsets(self) -> dict[str, dict[int, int]]:
        """The committed offsets of each cursor by partition, also of those that other processes have open, and of a
        broker's consumer groups. Raises StorageError."""
        return {
            name: {number: committed.offset for number, committed in offsets.items()}
            for name, offsets in self._cursor_log.read_all(self.name).items()
        }

    def lags(self) -> dict[str, dict[int, int]]:
        """The lag of each of `committed_offsets`: how many offsets up to the high watermark are not done. That of a
        work queue is without those done beyond its committed offset. Raises StorageError."""
        offsets = self.offsets()
        return {
            name: {
                number: lag_of(committed.offset, committed.metadata, offsets[number].stop)
                for number, committed in cursor_offsets.items()
                if number in offsets
            }
            for name, cursor_offsets in self._cursor_log.read_all(self.name).items()
        }

    def _numbers(self, partition: int | None) -> list[int]:
        return list(self._folder.numbers) if partition is None else [partition]


def _encoded(items: Any, codec: ObjectCodec | None, field: str) -> Any:
    """A column with its items encoded, unless it is in memory as one, as Arrow's and NumPy's are."""
    if codec is None or items is None or isinstance(items, (str, bytes, bytearray)) or _is_columnar(items):
        return items
    try:
        listed = list(items)
    except TypeError:
        return items  # which is refused as no column
    return [codec.encoded(item, field) for item in listed]


def _is_columnar(items: object) -> bool:
    return any(hasattr(items, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "dtype"))


def _check_order(order: str) -> None:
    if order not in ("partition", "time"):
        raise UsageError(f"order is 'partition' or 'time', not {order!r}")


def _offset(given: Offsets, number: int, partition: int | None) -> int | None:
    """The offset of this partition, in what a caller gave for one or for all."""
    if given is None or (isinstance(given, int) and partition is not None):
        return given
    if isinstance(given, Mapping):
        return given.get(number)
    raise UsageError("offsets of all partitions are a mapping of partition to offset; an int is of one `partition`")
