"""Log: the public API of one partition directory.

`_native` has the file format and the hot calls; this module has their public signatures, and what needs Python: the
thread for an appender's `linger_ms`, and the handling of forked children.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kreplog._native import (
    batch_headers,
    bulk,
    compaction,
    directory,
    encoded,
    fixed_width,
    lookup,
    partition_metadata,
    reader,
    recovery,
    retention,
    truncation,
    waiting,
    writable,
)
from kreplog._native import verify as verification
from kreplog._native.appender import BufferedAppender
from kreplog._native.batch import Record
from kreplog._native.log import SegmentedLog
from kreplog._native.lookup import OffsetRange, SegmentInfo
from kreplog._native.reader import Fetched
from kreplog.closing import Closing
from kreplog.config import LogConfig
from kreplog.errors import ArgumentTypeError, UsageError
from kreplog.file_systems import HostLock, forgo_copy_on_write, needs_host_lock, warn_reader
from kreplog.follow import Follow, wait_async
from kreplog.types import AppendInfo, CompactionReport, TopicPartition, VerifyReport

ANY_COORDINATOR = 2**31 - 1
"""The coordinator epoch under which a log without coordinators accepts every transaction."""

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from typing_extensions import Buffer

    from kreplog._native.arrow_export import ArrowColumns

__all__ = ["Appender", "Fetched", "Follow", "Log", "NumpyColumns", "OffsetRange", "Record", "SegmentInfo"]

_MAX_LINGER_MS = 1 << 31  # as in Kafka's producer
_BATCH_FIELDS = [
    *((name, "i8") for name in ("base_offset", "last_offset", "max_timestamp", "producer_id")),
    *(("size", "i4"), ("leader_epoch", "i4"), ("crc", "u4"), ("record_count", "i4"), ("base_sequence", "i4")),
    *(("attributes", "i2"), ("producer_epoch", "i2")),
]
_DEFAULT_CONFIG = LogConfig()
_ARROW_COLUMNS = ("offset", "timestamp", "key", "value", "headers")

_writers: weakref.WeakSet[Log] = weakref.WeakSet()


class NumpyColumns(NamedTuple):
    """Records as read-only NumPy arrays of equal length; made by `Log.to_numpy`.

    offsets: int64. timestamps_ms: int64, ms since 1970. values: of the given dtype, None without one.
    """

    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    values: npt.NDArray[Any] | None


class Appender(Closing, BufferedAppender):
    """Buffers single records and appends them in batches; a context manager, made by `Log.appender`.

    A record is written when its batch is full, on `flush`, before any other call that changes the log, or after
    linger_ms.
    """

    def __init__(self, log: Log, batch_bytes: int, linger_ms: float, compression: str | None) -> None:
        if isinstance(linger_ms, bool) or not isinstance(linger_ms, (int, float)):
            raise ArgumentTypeError(f"linger_ms is a number, not {type(linger_ms).__name__}")
        if not 0 <= linger_ms <= _MAX_LINGER_MS:
            raise UsageError(f"linger_ms = {linger_ms} is out of range: 0 to {_MAX_LINGER_MS}")
        self._wake = threading.Event()
        self._linger_ns = int(linger_ms * 1e6)
        super().__init__(log, batch_bytes, compression, self._wake.set)
        self._thread = threading.Thread(
            target=_linger,
            args=(weakref.ref(self, partial(_wake, self._wake)), self._wake, self._linger_ns),
            name="kreplog-linger",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Write the buffered records and close. Closing twice does nothing. Raises LogFailedError."""
        try:
            super().close()
        finally:
            self._wake.set()


def _wake(event: threading.Event, _appender_ref: weakref.ref[Appender]) -> None:
    event.set()


def _linger(appender_ref: weakref.ref[Appender], wake: threading.Event, linger_ns: int) -> None:
    while True:
        wake.wait()
        wake.clear()
        appender = appender_ref()
        if appender is None:
            return
        try:
            appender.linger(linger_ns)
        except Exception:  # the log has failed: the next append raises the error
            return
        if appender.closed or appender.log.closed:
            return
        del appender


class Log(Closing, SegmentedLog):
    """One replica of a partition: an ordered log of records in a directory, in Kafka's format.

    Open it with `Log.open`. One process writes, any number read. Safe to use from several threads.
    """

    _managed = False
    _in_topic = False
    _host_lock: HostLock | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: LogConfig | None = None,
        read_only: bool = False,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Open `<dir>/<topic>-<partition>`; create it if it is missing, and recover it if it was not closed.

        read_only: change nothing and take no lock; records are visible as soon as the writer commits them.
        progress: called with (bytes checked, bytes to check) during recovery.
        Raises InvalidTopicError (the directory's name), UsageError (not a directory), LogLockedError (another process
        has it open for writing), UnsupportedFileSystemError (to be written, on a network file system without locks),
        StorageError (it cannot be read, or, read-only, contains no log). Read-only on a network file system, it warns
        with NetworkFileSystemWarning.
        """
        log = cls._open(path, config, read_only, progress)
        if read_only and not (cls._managed or cls._in_topic):
            warn_reader(log.path)
        return log

    @classmethod
    def _open(
        cls,
        path: str | os.PathLike[str],
        config: LogConfig | None,
        read_only: bool,
        progress: Callable[[int, int], None] | None,
        partition: TopicPartition | None = None,
    ) -> Self:
        if config is None:
            config = _DEFAULT_CONFIG
        if not isinstance(config, LogConfig):
            raise ArgumentTypeError(f"config is a LogConfig, not {type(config).__name__}")
        log = cls.__new__(cls)
        on_many_hosts = not read_only and needs_host_lock(path)
        directory.prepare(log, path, config, read_only, cls._managed, cls._in_topic, partition)
        if read_only:
            recovery.attach(log)
            return log
        try:
            if on_many_hosts:
                log._host_lock = HostLock(log.path, str(log.topic_partition))
                if cls._managed:
                    log._unlock_host()  # no other writer had it, and none goes past the lock of the data directory
            forgo_copy_on_write(log.path)
            recovery.recover(log, progress)
        except BaseException:
            writable.abandon(log)
            log._unlock_host()
            raise
        _writers.add(log)
        return log

    def close(self) -> None:
        """Flush, write indexes and checkpoints, and release the directory. Closing twice does nothing.

        Raises LogFailedError if the records could not be made durable, now or after an earlier failure; the log is
        closed nevertheless.
        """
        try:
            super().close()
        finally:
            if self.closed:
                self._unlock_host()

    def _unlock_host(self) -> None:
        lock, self._host_lock = self._host_lock, None
        if lock is not None:
            lock.release()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<kreplog.Log {self.path} {state}>"

    def appender(self, batch_bytes: int = 65536, linger_ms: float = 5, compression: str | None = None) -> Appender:
        """Return a buffered appender.

        batch_bytes: maximum size of a batch. compression: the log's compression_type by default.
        linger_ms: the longest time for which a record is buffered, approximately.
        Raises UsageError, UnsupportedCompressionError, LogClosedError.
        """
        if self.read_only:
            raise UsageError(
                f"{self.topic_partition}: this log was opened read-only; open it with read_only=False to change it",
                path=self.path,
            )
        return Appender(self, batch_bytes, linger_ms, compression)

    def append_batches(
        self,
        buffer: Buffer | encoded.InspectedBatches,
        leader_epoch: int | None = None,
        *,
        strict: bool = False,
        new_producers: bool = True,
        transactional: bool = False,
        sequenced: bool = True,
        verified_by: int = ANY_COORDINATOR,
    ) -> AppendInfo:
        """Append encoded batches as a leader: check every record, assign offsets and leader epoch; return AppendInfo.

        buffer: one or more whole batches of magic 2; an idempotent producer's batch must stand alone. A repeated batch
        (same producer id, epoch and sequence) writes nothing and returns its original offsets.
        leader_epoch: the epoch of this leader; by default that of the log. strict: an unknown idempotent producer must
        start with sequence 0; otherwise it may start anywhere, since its state may have expired (KIP-360).
        new_producers: whether batches of unknown producers are accepted. transactional: whether one may be of a
        transaction, which begins with the producer's first such batch and ends with append_transaction_marker.
        sequenced: False for what a coordinator writes for a producer, whose sequence numbers are not checked then.
        verified_by: the epoch of the coordinator that has confirmed the transaction which a batch begins; -1 for none.
        Raises CorruptBatchError, UnsupportedFormatError, UnsupportedCompressionError, RecordTooLargeError,
        RecordBatchTooLargeError (in a broker's log a producer's batch has to fit in a segment),
        InvalidRecordError (a compacted log needs keys), InvalidTimestampError, OutOfOrderSequenceError,
        ProducerFencedError, DuplicateSequenceError, InvalidTransactionStateError, UnverifiedTransactionError,
        FencedLeaderEpochError, TooManyProducersError (nothing written), LogFailedError, LogClosedError.
        """
        return encoded.append_batches(
            self, buffer, leader_epoch, strict, new_producers, transactional, sequenced, verified_by
        )

    def append_transaction_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        leader_epoch: int | None = None,
    ) -> AppendInfo:
        """Append the marker that commits or aborts a producer's open transaction here; return AppendInfo.

        A producer without an open transaction gets a marker too: it fences older epochs of the producer.
        Raises UsageError, ProducerFencedError (an older epoch), CoordinatorFencedError (an older coordinator),
        FencedLeaderEpochError (nothing written), LogFailedError, LogClosedError. Source: KIP-98, WriteTxnMarkers.
        """
        return encoded.append_marker(self, producer_id, producer_epoch, committed, coordinator_epoch, leader_epoch)

    def append_once(self, batches: Iterable[Buffer], *, writer: str, sequence: int) -> range | None:
        """Append encoded batches atomically, once per writer and sequence; durable on return. Return the range of their
        offsets, or None if `sequence` is not above the writer's latest.

        batches: buffers of whole batches of magic 2, as for append_batches, but not of an idempotent producer. writer:
        up to 255 bytes of UTF-8; the log stores the latest sequences of the 1,000 writers that appended last. sequence:
        0 or more. After a crash or an error either all batches are in the log or none: repeat the call to find out.
        Other threads that change the log wait for the end of the call.
        Raises as append_batches does, and UsageError (the log is replicated), CorruptCheckpointError (the ledger).
        """
        return bulk.append_once(self, batches, writer, sequence)

    def append_as_follower(self, buffer: Buffer) -> AppendInfo:
        """Append a leader's batches unchanged, with their offsets and epochs; return AppendInfo.

        The first must begin at the log end offset, and each at the next offset of the batch before; in a log that is
        compacted, there or later. Open such a log with LogConfig(replicated=True): others begin leader epochs of their
        own where they have lost records, and then refuse the leader's.
        Raises CorruptBatchError, OffsetOutOfRangeError (not contiguous), FencedLeaderEpochError (an epoch that falls),
        LogFailedError, LogClosedError. max_message_bytes does not count: the leader has accepted them.
        """
        return encoded.append_as_follower(self, buffer)

    def read(
        self, start: int | None = None, stop: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Iterator[Record]:
        """Iterate over the committed records of [start, stop); by default the whole log up to the high watermark now.

        isolation: "read_committed" for those below the last stable offset alone, and none of aborted transactions.
        Raises OffsetOutOfRangeError, UsageError; while iterating CorruptBatchError with file, position and offset
        (reading can continue after the damage), and OffsetOutOfRangeError if records are deleted during the read.
        Where the log is truncated during the read, the rest is read as it is committed after that.
        """
        return reader.Records(self, start, stop, False, isolation)

    def values(
        self, start: int | None = None, stop: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Iterator[bytes | None]:
        """Iterate over the values of the records that `read` returns."""
        return reader.Records(self, start, stop, True, isolation)

    def fetch(self, offset: int, max_bytes: int = 1048576, isolation: str = "committed") -> Fetched:
        """Return about max_bytes of whole batches, unchanged as on disk, from the batch that contains `offset`.

        Returns at least one batch, however large, if there is one below the end: the high watermark, or with isolation
        "log_end" the log end offset, "last_stable" the last stable offset. Batches are neither decompressed nor are
        their CRCs checked: the receiver does so.
        Raises OffsetOutOfRangeError below the log start or past the log end, CorruptBatchError, UsageError.
        """
        return reader.fetch(self, offset, max_bytes, isolation)

    def to_arrow(
        self,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        timestamp_unit: str = "ms",
        max_bytes: int = 4 << 20,
        isolation: str = "read_uncommitted",
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the committed records of [start, stop) as pyarrow.RecordBatches of about max_bytes.

        columns, in any order: offset (int64), timestamp (timestamp[ms or us, UTC]), timestampType (int32), key and
        value (binary), headers (list of struct<key: string, value: binary>); all but timestampType by default.
        isolation: as of `read`. Needs pyarrow (`pip install 'kreplog[arrow]'`), else UsageError. Raises as `read` does.
        """
        pa = _pyarrow("to_arrow")
        pieces = reader.ArrowPieces(
            self, start, stop, _ARROW_COLUMNS if columns is None else columns, timestamp_unit, max_bytes, isolation
        )
        return map(pa.record_batch, pieces)

    def wait(self, offset: int, timeout: float | None = None, *, across_writers: bool = False) -> bool:
        """Wait until the record at `offset` is committed; True then, False after `timeout` seconds.

        The writer wakes the readers that wait, in any process. A reader of another user, on a read-only mount or on
        another system than Linux cannot be woken: it looks again after pauses from 50 us to 1 ms, and for a directory
        that another program writes, after 10 ms. To be woken, a reader writes to a few bytes of `kreplog.state`.
        Raises WriterClosedError and WriterDiedError (unless across_writers: then it waits for the next writer),
        within 20 ms; PartitionDeletedError, LogClosedError (this log, by another thread), UsageError. The death of a
        broker is seen by processes of its user alone.
        """
        return waiting.wait(self, offset, timeout, across_writers)

    async def wait_async(self, offset: int, timeout: float | None = None, *, across_writers: bool = False) -> bool:
        """`wait` for asyncio. All tasks that wait for a log share one thread. Can be cancelled."""
        return await wait_async(self, offset, timeout, across_writers)

    def follow(
        self,
        start: int | None = None,
        timeout: float | None = None,
        *,
        across_writers: bool = False,
        isolation: str = "read_uncommitted",
    ) -> Follow[Record]:
        """Iterate over the committed records from `start` on, by default from the log start, and wait for more.

        For `for` and `async for`; a task that is cancelled while it waits has lost no record. Ends after `timeout`
        seconds without a record, when the writer closes the log or has closed it, and when this log is closed.
        across_writers: the writer may close and die; goes on with the next one. Waiting is as in `wait`.
        isolation: as of `read`; with "read_committed" an open transaction holds back all records from its first one on,
        until it is committed or aborted.
        Raises as `read` does; while iterating LogTruncatedError (records that were returned are gone; iterate again
        from its offset), WriterDiedError (after all that was committed), PartitionDeletedError.
        """
        return Follow(self, reader.Records(self, start, None, False, isolation), timeout, across_writers)

    def follow_batches(
        self,
        start: int | None = None,
        timeout: float | None = None,
        *,
        max_records: int = 1000,
        across_writers: bool = False,
        isolation: str = "read_uncommitted",
    ) -> Follow[list[Record]]:
        """`follow` in lists of 1 to `max_records` records: those that are committed, without a wait for a full list."""
        if isinstance(max_records, bool) or not isinstance(max_records, int):
            raise ArgumentTypeError(f"max_records is an int, not {type(max_records).__name__}")
        if max_records < 1:
            raise UsageError(f"max_records = {max_records} must be at least 1")
        records = reader.Records(self, start, None, False, isolation)
        return Follow(self, records, timeout, across_writers, max_records)

    def follow_arrow(
        self,
        start: int | None = None,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        *,
        timestamp_unit: str = "ms",
        max_bytes: int = 4 << 20,
        across_writers: bool = False,
        isolation: str = "read_uncommitted",
    ) -> Follow[pa.RecordBatch]:
        """`follow` in pyarrow.RecordBatches of 1 record to about max_bytes; arguments as of `to_arrow`."""
        pa = _pyarrow("follow_arrow")
        pieces = reader.ArrowPieces(
            self, start, None, _ARROW_COLUMNS if columns is None else columns, timestamp_unit, max_bytes, isolation
        )
        return Follow(self, pieces, timeout, across_writers, convert=pa.record_batch)

    def to_numpy(
        self,
        start: int | None = None,
        stop: int | None = None,
        value_dtype: npt.DTypeLike | None = None,
        *,
        max_bytes: int = 4 << 20,
        isolation: str = "read_uncommitted",
    ) -> Iterator[NumpyColumns]:
        """Iterate over the committed records of [start, stop) as NumPy arrays of about max_bytes, without a copy.

        value_dtype: the type of the values, each of which must have its size, as `append_many` writes an array's items;
        it may be structured, but not contain Python objects. Without it values are not decoded.
        isolation: as of `read`.
        Raises ArgumentTypeError, UsageError (the dtype, and while iterating a value of another size, with its offset);
        else as `read` does.
        """
        import numpy as np

        try:
            dtype = None if value_dtype is None else np.dtype(value_dtype)
        except TypeError as error:
            raise ArgumentTypeError(f"value_dtype = {value_dtype!r} is no NumPy dtype: {error}") from None
        if dtype is not None and (dtype.hasobject or dtype.itemsize == 0):
            raise UsageError(f"value_dtype = {dtype!r} has no fixed size in bytes: give one, as in 'S10' or '<f8'")
        columns = ("offset", "timestamp") if dtype is None else ("offset", "timestamp", "value")
        pieces = reader.ArrowPieces(self, start, stop, columns, "ms", max_bytes, isolation)

        def arrays(piece: ArrowColumns) -> NumpyColumns:
            return NumpyColumns(
                np.frombuffer(fixed_width.offsets(piece), np.int64),
                np.frombuffer(fixed_width.timestamps(piece), np.int64),
                None if dtype is None else np.frombuffer(fixed_width.values(piece, dtype.itemsize), dtype),
            )

        return map(arrays, pieces)

    def batches(
        self, start: int | None = None, stop: int | None = None, *, max_bytes: int = 4 << 20
    ) -> Iterator[npt.NDArray[Any]]:
        """Iterate over the headers of the committed batches with records of [start, stop), as structured NumPy arrays,
        each for about max_bytes of the log; no record is decoded, every CRC is checked.

        Fields: base_offset, last_offset, max_timestamp (ms), producer_id (int64); size (bytes), leader_epoch (int32);
        crc (uint32, CRC-32C of all but the first 21 bytes); record_count, base_sequence (int32); attributes,
        producer_epoch (int16). Two batches with equal rows are identical, unless their CRCs collide.
        Raises OffsetOutOfRangeError, UsageError; while iterating CorruptBatchError with the offset.
        """
        import numpy as np

        dtype = np.dtype(_BATCH_FIELDS)
        first = self.log_start_offset if start is None else start
        end = self.high_watermark if stop is None else stop
        while first < end:
            fetched = reader.fetch(self, first, max_bytes, "committed")
            rows = np.frombuffer(batch_headers.packed(self, fetched.data, first), dtype)
            if not len(rows):
                return
            yield rows[rows["base_offset"] < end]
            first = fetched.next_offset

    def verify(
        self,
        start: int | None = None,
        stop: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> VerifyReport:
        """Check every batch's position and CRC and every record's lengths, up to the log end; report all damage.

        Uses the processors that this process may run on, eight at most. progress: called with (bytes checked, bytes to
        check). Raises OffsetOutOfRangeError; damage is reported, not raised.
        """
        return verification.verify(self, start, stop, progress)

    def truncate_to(self, offset: int) -> int:
        """Drop every batch whose last offset is >= `offset`; return the log end offset reached.

        Batches are never split: with [0,9] [10,19], truncate_to(15) leaves [0,9] and returns 10, as it does if there is
        a gap from 10 on. The log start offset never moves back: truncation within the batch that contains it leaves an
        empty log at the log start offset.
        log_start_offset <= offset <= log_end_offset, else OffsetOutOfRangeError (nothing changed). To readers it is
        atomic; a high watermark above the new end is lowered to it. Raises LogFailedError.
        Source: Kafka LogSegment.truncateTo; KIP-101 for choosing `offset`.
        """
        return truncation.truncate_to(self, offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all records; the log is then empty and its next record gets `offset`.

        For a follower whose log ends below its leader's log start offset. Raises UsageError, LogFailedError.
        """
        truncation.truncate_fully_and_start_at(self, offset)

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to `offset` and delete segments wholly below it; return the log start offset.

        offset: at most the high watermark, else OffsetOutOfRangeError; below the log start it changes nothing.
        Raises LogFailedError. Source: Kafka's DeleteRecords (KIP-107).
        """
        return retention.delete_records_before(self, offset)

    def configure(self, config: LogConfig) -> None:
        """Apply other settings; open appenders keep their limits, and the active segment its index interval.

        Raises UsageError (`replicated` cannot change), UnsupportedCompressionError, LogFailedError, LogClosedError.
        """
        if not isinstance(config, LogConfig):
            raise ArgumentTypeError(f"config is a LogConfig, not {type(config).__name__}")
        directory.configure(self, config)

    def enforce_retention(self, now_ms: int | None = None) -> int:
        """Delete the segments that retention_ms, retention_bytes or the log start offset exclude; return their number.

        now_ms: wall clock in ms, now by default. Keeps the newest segment and all at or above the high watermark.
        Raises LogFailedError.
        """
        return retention.enforce_retention(self, now_ms)

    def compact(
        self,
        now_ms: int | None = None,
        *,
        force: bool = False,
        max_bytes_per_second: int | None = None,
        drop_keyless: bool = False,
    ) -> CompactionReport | None:
        """Drop the records of sealed segments that a newer one of their key supersedes; None if nothing is due.

        now_ms: wall clock in ms, now by default. force: whatever min_cleanable_dirty_ratio says, if only for tombstones
        that have expired; min_compaction_lag_ms counts nevertheless. max_bytes_per_second: of reading, in either of
        two passes; by default there is no limit. drop_keyless: drop records without a key too, as a broker does; by
        default a log that has some to be looked at is refused before anything changes. They were appended while the
        policy had no "compact" in it: cleanup_policy belongs to the opening, and is not kept in the directory.
        Offsets and the order of records stay. Appends and readers go on meanwhile; compactions wait for each other. The
        newest segment, and what is at or above the last stable offset, is not looked at. A tombstone stays for
        delete_retention_ms after the first compaction that meets it.
        Raises UsageError (the cleanup policy; a record without a key, with its offset; dedupe_buffer_size is too small
        for one batch), CorruptBatchError (with its offset, path and position), StorageError (disk full): what was
        compacted before stays so; LogFailedError, LogClosedError.
        Source: Kafka's log cleaner; KIP-58 and KIP-354 for the lags, KIP-534 for tombstones.
        """
        return compaction.compact(self, now_ms, force, max_bytes_per_second, drop_keyless)

    @property
    def producer_count(self) -> int:
        """Number of idempotent producers with state in the log."""
        return encoded.producer_count(self)

    def expire_producers(self, now_ms: int) -> None:
        """Remove the state of producers idle for producer_id_expiration_ms. now_ms: wall clock.

        Raises LogFailedError, LogClosedError."""
        encoded.expire_producers(self, now_ms)

    @property
    def size(self) -> int:
        """Bytes of all segment files, whole batches only."""
        return lookup.steadily(self, lookup.size)

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments, oldest first; next_offset is exclusive, max_timestamp in ms, -1 in an empty one."""
        return lookup.steadily(self, lookup.segments)

    def size_from(self, offset: int) -> int:
        """Bytes from the batch that contains `offset` to the log end: the lag of a reader at `offset`.

        Reads indexes and headers only. offset: in [log_start_offset, log_end_offset]. Raises OffsetOutOfRangeError,
        CorruptBatchError."""
        return sum(piece.bytes for piece in self.offset_ranges(offset, self.log_end_offset, 1 << 62))

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """The first committed offset with a timestamp >= `timestamp_ms`; None if there is none.

        Raises ArgumentTypeError, UsageError, CorruptBatchError, StorageError (the log's first segment is missing).
        """
        found = self.record_for_timestamp(timestamp_ms)
        return None if found is None else found[0]

    def record_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the record that offset_for_timestamp finds; raises as that."""
        return lookup.steadily(self, lookup.record_for_timestamp, timestamp_ms)

    def offset_ranges(self, start: int, stop: int, max_bytes: int) -> list[OffsetRange]:
        """Cut [start, stop) at batch boundaries into contiguous pieces of about max_bytes, for parallel readers.

        A piece is `compressed` if its first batch is. A single batch may be larger than max_bytes. Reads indexes and
        headers only.
        Raises OffsetOutOfRangeError, UsageError, CorruptBatchError.
        """
        return lookup.steadily(self, lookup.offset_ranges, start, stop, max_bytes)

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The topic id in partition.metadata, None without that file (KIP-516).

        Raises CorruptCheckpointError, StorageError."""
        return partition_metadata.read_topic_uuid(self.path, str(self.topic_partition))


def _pyarrow(call: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError(f"{call} needs pyarrow, which is not installed: pip install 'kreplog[arrow]'") from error
    return pyarrow


def _after_fork_in_child() -> None:
    for log in list(_writers):
        writable.abandon_in_child(log)
        if log._host_lock is not None:
            log._host_lock.abandon()
            log._host_lock = None


os.register_at_fork(after_in_child=_after_fork_in_child)
