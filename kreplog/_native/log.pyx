"""SegmentedLog: the segments of one replica of a partition, their offsets, and the one writer's lock.

Owns the appending of records, rolling, flushing and the high watermark. Opening an existing directory is `recovery`'s
work, reading `reader`'s, appending encoded batches `encoded`'s, taking records away `deletion`'s. Everything that
changes the log runs under one lock; file calls release the GIL. What another process may see is published through the
state file after the bytes are in their file.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
)
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from posix.fcntl cimport O_RDONLY

from kreplog._native.batch cimport (
    BATCH_OK,
    BatchBuilder,
    BatchHeader,
    Bytes,
    Payload,
    batch_size,
    codec_id,
    encode_headers,
    wall_clock_ms,
)
from kreplog._native.columns cimport Column, Timestamps, at_both, column_of, integer, timestamp_of, timestamps_of
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.files cimport FileHandle, open_file
from kreplog._native.segment cimport Segment, create_segment, new_segment

import fcntl
import logging
import os
import struct
import time

from kreplog._native.batch import MAX_DECOMPRESSED_BYTES
from kreplog._native.checkpoint import EpochCache, OffsetCheckpoint
from kreplog._native.compression import compress
from kreplog._native.producers import ProducerState
from kreplog.errors import (
    ArgumentTypeError,
    CorruptCheckpointError,
    FencedLeaderEpochError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
    UsageError,
)
from kreplog.types import EpochEndOffset, TopicPartition

_logger = logging.getLogger("kreplog")

cdef int64_t MAX_OFFSET = INT64_MAX - (<int64_t> 1 << 33)  # room for whatever one call appends

cdef enum:
    COALESCE = 1 << 20  # append_many hands this many bytes to one write
    RECORD_SPACE = 61 + 36  # a batch of one record takes at most this beside key and value
    REINDEX = 4 << 20  # a reader rereads the index of a segment that has grown by this much


cdef uint32_t epochs_crc(object epochs) except? 0:
    """CRC-32C over the entries, by which a changed digit in their file is noticed."""
    cdef bytes packed = b"".join([struct.pack("<iq", epoch, start) for epoch, start in epochs.entries])
    return crc32c_update(0, <const uint8_t*> PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))


cdef int32_t epoch_of(object value) except? -1:
    cdef int64_t epoch = integer(value, "leader epoch")
    if not 0 <= epoch <= INT32_MAX:
        raise UsageError(f"leader epoch {epoch} is out of range: 0 to {INT32_MAX}")
    return <int32_t> epoch


cdef class Pending:
    """Records that have their offsets but are not written yet; whoever takes the log's lock writes them first."""

    cdef int flush_locked(self) except -1:
        return 0


cdef class SegmentedLog:

    def __cinit__(self):
        self.mutex = PyThread_allocate_lock()
        self.sync_mutex = PyThread_allocate_lock()
        if self.mutex == NULL or self.sync_mutex == NULL:
            raise MemoryError()
        self.builder = BatchBuilder()
        self.key_payload = Payload()
        self.value_payload = Payload()
        self._segments = []
        self.cuts = ()
        self.closed = True

    def __dealloc__(self):
        if self.mutex != NULL:
            PyThread_free_lock(self.mutex)
        if self.sync_mutex != NULL:
            PyThread_free_lock(self.sync_mutex)

    # Locking and state

    cdef void lock(self) noexcept:
        if PyThread_acquire_lock(self.mutex, NOWAIT_LOCK) == 0:
            with nogil:
                PyThread_acquire_lock(self.mutex, WAIT_LOCK)

    cdef void unlock(self) noexcept:
        PyThread_release_lock(self.mutex)

    cdef int check_open(self) except -1:
        if self.closed:
            raise LogClosedError(f"{self.name}: the log is closed", partition=self.name, path=self.path)
        return 0

    cdef int begin_write(self) except -1:
        """Take the lock with everything pending written. Raises, without the lock, where the log takes no writes."""
        self.lock_for_write()
        if self.pending is not None:
            try:
                self.flush_pending()
            except BaseException:
                self.unlock()
                raise
        return 0

    cdef int flush_pending(self) except -1:
        """Write what is buffered, under the lock. Raises LogFailedError."""
        cdef Pending pending = self.pending  # ours may be the last reference
        if pending is not None:
            pending.flush_locked()
        return 0

    cdef int lock_for_write(self) except -1:
        """Take the lock. Raises, without the lock, where the log takes no writes."""
        if self.read_only:
            raise UsageError(
                f"{self.name}: this log was opened read-only; open it with read_only=False to change it",
                partition=self.name, path=self.path,
            )
        self.lock()
        try:
            self.check_open()
            if self.failure is not None:
                raise LogFailedError(
                    f"{self.name}: the log refuses writes since an earlier failure ({self.failure}); "
                    "mend the cause, then reopen it", partition=self.name, path=self.path,
                )
            if self.position.leo > MAX_OFFSET:
                raise UsageError(f"{self.name}: no offsets are left past {self.position.leo}", partition=self.name)
        except BaseException:
            self.unlock()
            raise
        return 0

    cdef int fail(self, object error) except -1:
        """A write or fsync failed, or a change was interrupted half way: take no more.

        Always raises: LogFailedError, or `error` itself where it is none of storage (an interrupt, say).
        """
        if self.failure is None:
            self.failure = str(error) or repr(error)
            if self.position.generation & 1:  # what was to be cut stays out of sight
                self.position.generation += 1
                self.state.publish(&self.position)
            _logger.error("%s: %r; the log refuses further writes until it is reopened", self.name, error)
        if not isinstance(error, (StorageError, OSError)):
            raise error
        raise LogFailedError(
            f"{self.name}: {error}; this call is not acknowledged and the log refuses further writes: "
            "mend the cause (is the disk full?), then reopen it", partition=self.name, path=self.path,
        ) from error

    def __init__(self, *_arguments, **_settings):
        raise UsageError("open a log with kreplog.Log.open(path)")

    def _prepare(self, path, object config, bint read_only):
        """Check the path, read the settings, and for a writer lock the directory.

        Raises InvalidTopicError, UsageError, StorageError, LogLockedError.
        """
        try:
            self.path = os.path.abspath(os.fsdecode(path))
        except TypeError:
            raise ArgumentTypeError(f"path is a str or os.PathLike, not {type(path).__name__}") from None
        except ValueError as error:
            raise UsageError(f"path {path!r} cannot be used: {error}") from None
        self.topic_partition = TopicPartition.parse(os.path.basename(self.path))
        self.name = str(self.topic_partition)
        self.config = config
        self.read_only = read_only
        self.replicated = config.replicated
        self.log_append_time = config.message_timestamp_type == "LogAppendTime"
        self.codec = codec_id(config.compression_type)
        self.segment_bytes = config.segment_bytes
        self.segment_ms = config.segment_ms
        self.flush_messages = config.flush_messages
        self.max_index_entries = config.segment_index_bytes // 12
        self.max_message_bytes = config.max_message_bytes
        self.batch_bytes = min(config.batch_bytes, config.max_message_bytes, config.segment_bytes)
        self.record_limit = config.max_message_bytes
        if self.codec:
            compress(self.codec, b"")  # its package is there
            self.record_limit = min(self.record_limit, MAX_DECOMPRESSED_BYTES // 2)
            self.batch_bytes = min(self.batch_bytes, self.record_limit)
        if not os.path.isdir(self.path):
            if os.path.lexists(self.path):
                raise UsageError(f"{self.path} is no directory, so no partition", path=self.path)
            if read_only:
                raise StorageError(f"{self.path} does not exist", partition=self.name, path=self.path)
            try:
                os.makedirs(self.path, exist_ok=True)
            except OSError as error:
                raise StorageError(f"cannot make {self.path}: {error.strerror}", path=self.path) from error
        self.checkpoints = tuple([
            OffsetCheckpoint(os.path.join(os.path.dirname(self.path), name + "-offset-checkpoint"))
            for name in ("recovery-point", "replication", "log-start")
        ])
        if not read_only:
            self._lock_directory()

    def _lock_directory(self):
        cdef FileHandle directory = open_file(self.path, O_RDONLY)
        kafka_lock = os.path.join(os.path.dirname(self.path), ".lock")
        try:
            fcntl.flock(directory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LogLockedError(
                f"{self.name}: {self.path} is open for writing in {self._holder()}; close it there, or open it here "
                "with read_only=True", partition=self.name, path=self.path,
            ) from None
        if os.path.exists(kafka_lock):
            with open(kafka_lock, "r+b") as file:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise LogLockedError(
                        f"{self.name}: a Kafka broker holds {kafka_lock}; stop it, or open the log with "
                        "read_only=True", partition=self.name, path=self.path,
                    ) from None
        self.directory = directory

    def _holder(self):
        from kreplog._native.recovery import writer_pid

        pid = writer_pid(self.path)
        if pid == os.getpid():
            return f"this process (pid {pid})"
        return f"process {pid}" if pid else "another process"

    def _abandon(self):
        """In a forked child: forget the parent's log, touching none of its files, whoever held its locks."""
        self.mutex = PyThread_allocate_lock()
        self.sync_mutex = PyThread_allocate_lock()
        self.closed = True
        self.pending = None
        self.directory = None

    # Appending

    def append(self, value, key=None, timestamp_ms=None, headers=()):
        """Append one record as a batch of its own; return its offset. It is in the page cache on return.

        value, key: bytes-like or None. timestamp_ms: int, now by default. headers: pairs of (str, bytes or None).
        Raises ArgumentTypeError, RecordTooLargeError (nothing written), LogFailedError, LogClosedError.
        """
        cdef Bytes value_bytes
        cdef Bytes key_bytes
        cdef Py_ssize_t size
        cdef int64_t offset
        cdef int64_t timestamp = timestamp_of(timestamp_ms) if timestamp_ms is not None else wall_clock_ms()
        cdef BatchBuilder builder = self.builder
        cdef bytes encoded = encode_headers(headers) if headers else None
        self.begin_write()
        try:
            self.value_payload.take(value, &value_bytes)
            self.key_payload.take(key, &key_bytes)
            size = max(value_bytes.length, 0) + max(key_bytes.length, 0)
            if encoded is not None:
                size += PyBytes_GET_SIZE(encoded)
            if size > self.record_limit:
                self._refuse_size(size)
            offset = self.position.leo
            builder.reset()
            builder.begin()
            builder.add(timestamp, key_bytes, value_bytes, encoded)
            if self.log_append_time:
                builder.max_timestamp = wall_clock_ms()
            if self.current_epoch != self.last_epoch:
                self.assign_epoch(self.current_epoch)
            builder.finish(offset, self.current_epoch, self.codec, self.log_append_time, -1, -1, -1)
            if builder.length > self.max_message_bytes:
                self._refuse_size(builder.length)
            self.write(builder.buffer, builder.length, offset + 1, builder.max_timestamp)
        finally:
            self.value_payload.release()
            self.key_payload.release()
            self.unlock()
        self.settle(offset + 1)
        return offset

    def _refuse_size(self, size):
        raise RecordTooLargeError(
            f"{self.name}: {size} bytes are over the limit of {self.record_limit} for one batch (max_message_bytes, or "
            "half of what a compressed batch may expand to); nothing was written: split the record or raise the limit",
            partition=self.name,
        )

    def append_many(self, values, keys=None, timestamps_ms=None):
        """Append many records in batches of about batch_bytes; return the range of their offsets.

        values, keys: a sequence of bytes-like or None, an Arrow binary or string array, or a 2-D uint8 array with a
        record a row. timestamps_ms: a sequence of ints or a 1-D int64 array; now by default. All arguments are checked
        before the first byte is written.
        Raises ArgumentTypeError, UsageError, RecordTooLargeError (nothing written), LogFailedError, LogClosedError.
        """
        cdef Column value_column = column_of(values, "values")
        cdef Column key_column = None if keys is None else column_of(keys, "keys")
        cdef Py_ssize_t n = value_column.length
        cdef Timestamps timestamps = None if timestamps_ms is None else timestamps_of(timestamps_ms, n)
        cdef int64_t now = wall_clock_ms()
        cdef int64_t first
        cdef int64_t next_offset
        cdef int64_t max_timestamp = 0
        cdef BatchBuilder builder = self.builder
        cdef Py_ssize_t piece = min(self.segment_bytes, <int64_t> COALESCE)
        cdef Py_ssize_t i
        cdef Py_ssize_t wanted
        cdef int64_t timestamp
        cdef Bytes value
        cdef Bytes key
        if key_column is not None and key_column.length != n:
            raise UsageError(f"keys has {key_column.length} items, values has {n}")
        key.data = NULL
        key.length = -1
        if (
            value_column.longest < 0 or (key_column is not None and key_column.longest < 0)
            or value_column.longest + (0 if key_column is None else key_column.longest) + RECORD_SPACE
            > self.record_limit
        ):
            for i in range(n):
                at_both(value_column, key_column, i, &value, &key)
                if value.length + key.length + RECORD_SPACE > self.record_limit:
                    self._refuse_size(value.length + key.length + RECORD_SPACE)
        self.begin_write()
        try:
            first = next_offset = self.position.leo
            if n and self.current_epoch != self.last_epoch:
                self.assign_epoch(self.current_epoch)
            builder.reset()
            for i in range(n):
                timestamp = now if timestamps is None else timestamps.at(i)
                at_both(value_column, key_column, i, &value, &key)
                if builder.count and builder.length > builder.start:
                    wanted = builder.length - builder.start + value.length + key.length + 40
                    if wanted > self.batch_bytes:
                        next_offset += self._close_batch(builder, next_offset, &max_timestamp)
                        if builder.length + self.batch_bytes > piece:
                            self.write(builder.buffer, builder.length, next_offset, max_timestamp)
                            builder.reset()
                        at_both(value_column, key_column, i, &value, &key)  # the GIL was released meanwhile
                if builder.length == builder.start:
                    if value.length + key.length + RECORD_SPACE > self.record_limit:
                        value_column.refuse_change()
                    builder.begin()
                builder.add(timestamp, key, value, None)
            if n:
                next_offset += self._close_batch(builder, next_offset, &max_timestamp)
                self.write(builder.buffer, builder.length, next_offset, max_timestamp)
        finally:
            self.unlock()
        self.settle(next_offset)
        return range(first, next_offset)

    cdef int _close_batch(self, BatchBuilder builder, int64_t base_offset, int64_t* max_timestamp) except -1:
        if self.log_append_time:
            builder.max_timestamp = wall_clock_ms()
        builder.finish(base_offset, self.current_epoch, self.codec, self.log_append_time, -1, -1, -1)
        if builder.max_timestamp > max_timestamp[0]:
            max_timestamp[0] = builder.max_timestamp
        return builder.count

    cdef int write(
        self, const uint8_t* data, Py_ssize_t length, int64_t next_offset, int64_t max_timestamp
    ) except -1:
        """Put whole batches at the end and publish them; the caller holds the lock. Raises LogFailedError."""
        cdef Segment segment = self.active
        if segment.size > 0 and (
            segment.size + length > self.segment_bytes
            or segment.offsets.count >= self.max_index_entries
            or next_offset - 1 - segment.base_offset > INT32_MAX
            or max_timestamp - segment.first_timestamp > self.segment_ms and segment.first_timestamp >= 0
        ):
            self.roll_segment()
            segment = self.active
        try:
            segment.append(data, length)
        except BaseException as error:
            self.fail(error)
        self.position.leo = next_offset
        self.position.active_size = segment.size
        if not self.replicated and self.flush_messages > 1:
            self.position.high_watermark = next_offset
        self.state.publish(&self.position)
        return 0

    cdef int assign_epoch(self, int32_t epoch) except -1:
        """Records from here on are of `epoch`: durable before the first of them is written (KAFKA-7415)."""
        try:
            self.epochs.assign(epoch, self.position.leo)
            self.epochs.flush()
        except BaseException as error:
            self.fail(error)
        self.current_epoch = epoch
        self.publish_epochs()
        return 0

    cdef int publish_epochs(self) except -1:
        """The epoch entries have changed and are in their file."""
        self.last_epoch = self.epochs.latest_epoch
        self.position.leader_epoch = self.current_epoch
        self.position.epochs_crc = epochs_crc(self.epochs)
        self.state.publish(&self.position)
        return 0

    def assign_leader_epoch(self, epoch):
        """This log's leader leads in `epoch` from the log end offset on. Raises FencedLeaderEpochError if it falls."""
        cdef int32_t wanted = epoch_of(epoch)
        self.begin_write()
        try:
            if wanted < self.current_epoch:
                raise FencedLeaderEpochError(
                    f"{self.name}: leader epoch {wanted} is older than the log's {self.current_epoch}",
                    partition=self.name,
                )
            self.assign_epoch(wanted)
        finally:
            self.unlock()

    cdef int note_producer(self, const BatchHeader* h) except -1:
        if h.producer_id >= 0 and h.base_sequence >= 0:
            if not self.position.has_producers:
                self.position.has_producers = 1
                self.state.publish(&self.position)
            self.producers.update(
                h.producer_id, h.producer_epoch, h.base_sequence, h.base_offset,
                h.base_offset + h.last_offset_delta, h.max_timestamp,
            )
        return 0

    # Rolling and flushing

    cdef int roll_segment(self) except -1:
        """Seal the active segment and start the next at the log end offset. Raises LogFailedError."""
        cdef Segment old = self.active
        cdef Segment new
        try:
            old.seal()
            if self.position.has_producers:
                self.producers.expire(wall_clock_ms(), self.config.producer_id_expiration_ms)
                self.producers.write_snapshot(self.path, self.position.leo)
            new = create_segment(
                self.path, self.name, self.position.leo, self.segment_bytes, self.config.index_interval_bytes
            )
        except BaseException as error:
            self.fail(error)
        self._segments = self._segments + [new]
        self.active = new
        self.directory_changed = True
        self.sealed_unsynced = True
        self.position.active_base = new.base_offset
        self.position.active_size = 0
        self.state.publish(&self.position)
        return 0

    def roll(self):
        """Start a new segment now, unless the active one is empty."""
        self.begin_write()
        try:
            if self.active.size:
                self.roll_segment()
        finally:
            self.unlock()

    cdef int settle(self, int64_t offset) except -1:
        """After an append, without the lock: the fsyncs that are due."""
        if self.sealed_unsynced:
            self.flush_to(offset, True)
        if offset - self.position.recovery_point >= self.flush_messages:
            self.flush_to(offset, False)
        return 0

    cdef int flush_to(self, int64_t offset, bint sealed_only) except -1:
        """fsync so that all below `offset` is durable; one fsync serves every thread that waits for it.

        sealed_only: only segments before the newest sealed one, whose pages the kernel has long begun to write.
        """
        cdef Segment segment
        cdef int64_t target
        cdef int64_t generation
        cdef list due
        cdef bint changed
        cdef FileHandle directory
        if PyThread_acquire_lock(self.sync_mutex, NOWAIT_LOCK) == 0:
            with nogil:
                PyThread_acquire_lock(self.sync_mutex, WAIT_LOCK)
        try:
            if self.failure is None and self.position.recovery_point >= offset:
                return 0
            self.lock()
            try:
                self.check_open()
                if self.failure is not None:
                    raise LogFailedError(
                        f"{self.name}: cannot flush since an earlier failure ({self.failure}); reopen the log",
                        partition=self.name, path=self.path,
                    )
                segments = self._segments
                if sealed_only:
                    segments = segments[:max(len(segments) - 2, 0)]
                    target = (<Segment> self._segments[len(segments)]).base_offset
                    self.sealed_unsynced = False
                else:
                    target = self.position.leo
                generation = self.position.generation
                directory = self.directory
                due = []
                for segment in reversed(segments):
                    if not segment.synced:
                        due.append(segment)
                        segment.synced = True
                    elif segment is not self.active:
                        break
                changed = self.directory_changed
                self.directory_changed = False
            finally:
                self.unlock()
            try:
                for segment in due:
                    segment.open().sync()
                if changed:
                    directory.sync()
            except BaseException as error:
                self.fail(error)
            self.lock()
            try:
                if not self.closed and self.position.generation == generation and self.position.recovery_point < target:
                    self.position.recovery_point = target
                    if not self.replicated and self.position.high_watermark < target:
                        self.position.high_watermark = target
                    self.state.publish(&self.position)
            finally:
                self.unlock()
        finally:
            PyThread_release_lock(self.sync_mutex)
        return 0

    def flush(self):
        """Make everything appended so far durable (fdatasync). Raises LogFailedError; never retried over."""
        cdef int64_t target
        self.begin_write()
        target = self.position.leo
        self.unlock()
        self.flush_to(target, False)

    cdef int checkpoint(self) except -1:
        """Bring Kafka's checkpoint files in the data directory up to date. Raises StorageError, OSError."""
        recovery_points, watermarks, log_starts = self.checkpoints
        recovery_points.update(self.topic_partition, self.position.recovery_point)
        watermarks.update(self.topic_partition, self.position.high_watermark)
        start = self.position.log_start_offset
        log_starts.update(self.topic_partition, start if start > (<Segment> self._segments[0]).base_offset else None)
        return 0

    def close(self):
        """Flush, write indexes and checkpoints, and give the directory up. Closing twice does nothing.

        Raises LogFailedError when what was appended could not be made durable; the log is closed all the same.
        """
        if self.closed:
            return
        if self.read_only:
            self.closed = True
            self._segments = []
            return
        try:
            if self.failure is None:
                self.flush()
        except LogClosedError:
            return
        finally:
            with nogil:
                PyThread_acquire_lock(self.sync_mutex, WAIT_LOCK)
            self.lock()
            try:
                if not self.closed and self.failure is None:
                    self.settle_files()
            finally:
                self.closed = True
                self.pending = None
                self._segments = []
                self.active = None
                self.state = None
                self.directory = None
                self.unlock()
                PyThread_release_lock(self.sync_mutex)

    cdef int settle_files(self) except -1:
        """Before closing, under both locks: everything durable, indexes whole, checkpoints up to date."""
        cdef Segment segment
        try:
            self.flush_pending()
            for segment in self._segments:
                segment.sync()
            self.position.recovery_point = self.position.leo
            if not self.replicated:
                self.position.high_watermark = self.position.leo
            if self.active.max_timestamp >= 0:
                self.active.times.push(
                    self.active.max_timestamp, <int> (self.active.max_timestamp_offset - self.active.base_offset)
                )
            self.active.offsets.save()
            self.active.times.save()
            self.active.trim()
            if self.position.has_producers:
                self.producers.write_snapshot(self.path, self.position.leo)
            self.epochs.flush()
            self.checkpoint()
            self.state.publish(&self.position)
        except BaseException as error:
            self.fail(error)
        return 0

    # Offsets

    @property
    def high_watermark(self):
        """Records below it are committed."""
        self.refresh()
        return self.position.high_watermark

    @property
    def log_end_offset(self):
        """The offset that the next record will get."""
        self.refresh()
        return self.position.leo

    @property
    def log_start_offset(self):
        """The first offset still kept."""
        self.refresh()
        return self.position.log_start_offset

    @property
    def recovery_point(self):
        """Below it everything has been fsynced."""
        self.refresh()
        return self.position.recovery_point

    @property
    def failed(self):
        """Why the log refuses writes; None while it takes them."""
        return self.failure

    def advance_high_watermark(self, offset):
        """Commit all records below `offset`; return the high watermark, which never moves back.

        Raises OffsetOutOfRangeError past the log end offset.
        """
        cdef int64_t wanted = integer(offset, "offset")
        self.begin_write()
        try:
            if wanted > self.position.leo:
                raise OffsetOutOfRangeError(
                    f"{self.name}: the high watermark cannot move to {offset}, past the log end offset "
                    f"{self.position.leo}", partition=self.name, offset=offset,
                )
            if wanted > self.position.high_watermark:
                self.position.high_watermark = wanted
                self.state.publish(&self.position)
            return self.position.high_watermark
        finally:
            self.unlock()

    @property
    def leader_epoch(self):
        """The leader epoch that records are appended in; to a reader the latest that the log knows, 0 when none."""
        if not self.read_only:
            return self.current_epoch
        self.refresh()
        if self.state is not None:
            return max(0, self.position.leader_epoch)
        self.load_epochs()
        return 0 if self.epochs is None else max(0, self.epochs.latest_epoch)

    @property
    def leader_epochs(self):
        """(leader epoch, start offset) of every epoch known, oldest first."""
        self.refresh()
        if self.read_only:
            self.load_epochs()
        return [] if self.epochs is None else self.epochs.entries

    def end_offset_for_epoch(self, epoch):
        """Where the largest known leader epoch at or below `epoch` ends: EpochEndOffset (KIP-101, KIP-279)."""
        self.refresh()
        if self.read_only:
            self.load_epochs()
        if self.epochs is None:
            return EpochEndOffset(-1, -1)
        return self.epochs.end_offset_for(integer(epoch, "epoch"), self.position.leo)

    cdef int _check_range(self, int64_t offset) except -1:
        if not self.position.log_start_offset <= offset <= self.position.leo:
            raise OffsetOutOfRangeError(
                f"{self.name}: offset {offset} is outside the log, which holds {self.position.log_start_offset} to "
                f"{self.position.leo}", partition=self.name, offset=offset,
            )
        return 0

    # Producers

    cdef int load_producers(self) except -1:
        """The producer state at the log end offset: the newest sound snapshot, then the batches after it."""
        self.producers = ProducerState()
        if not self.position.has_producers:
            return 0
        start = self.producers.latest_snapshot(self.path, self.position.leo, True)
        self.replay_producers(start if start is not None else -1)
        return 0

    cdef int replay_producers(self, int64_t start) except -1:
        cdef Segment segment
        cdef BatchHeader h
        cdef int64_t at
        cdef Py_ssize_t i = 0 if start < 0 else self.segment_index(self._segments, start)
        for segment in self._segments[i if i > 0 else 0:]:
            at = segment.position_near(start) if start > segment.base_offset else 0
            while at < segment.byte_size() and segment.header_at(at, &h) == BATCH_OK:
                if h.base_offset >= start:
                    self.note_producer(&h)
                at += batch_size(&h)
        return 0

    # Finding

    cdef int refresh(self) except -1:
        """A reader's view of the writer's position, read anew."""
        cdef Position position
        self.check_open()
        if self.read_only:
            if self.state is not None:
                if self.state.read(&position):
                    self.position = position
            elif self.watermark_source is not None:
                self.watermark_source(self)
        return 0

    cdef int64_t steady_generation(self) except -1:
        """The generation, once no file is being cut. Two seconds without a change mean that the writer died cutting."""
        cdef int64_t generation
        cdef int waited = 0
        self.refresh()
        generation = self.position.generation
        while generation & 1 and waited < 2000:
            time.sleep(0.001)
            self.refresh()
            waited = waited + 1 if self.position.generation == generation else 0
            generation = self.position.generation
        return generation

    cdef int load_epochs(self) except -1:
        """A reader's view of the epoch entries; None, so that epochs go unchecked, while their file is in doubt."""
        cdef Position position
        try:
            self.epochs = EpochCache(os.path.join(self.path, "leader-epoch-checkpoint"))
        except CorruptCheckpointError:
            self.epochs = None
        if self.state is not None and self.epochs is not None:
            if not self.state.read(&position) or epochs_crc(self.epochs) != position.epochs_crc:
                self.epochs = None
        return 0

    cdef int relist(self) except -1:
        """Find the segments in the directory. Raises StorageError."""
        cdef Segment segment
        cdef list found = []
        cdef dict known = {}
        cdef int64_t base
        if self.position.generation == self.listed_generation:
            known = {(<Segment> listed).base_offset: listed for listed in self._segments}
        self.listed_generation = self.position.generation
        try:
            names = os.listdir(self.path)
        except OSError as error:
            raise StorageError(f"cannot list {self.path}: {error.strerror}", path=self.path) from error
        for name in names:
            if len(name) == 24 and name.endswith(".log") and name[:20].isdigit():
                base = int(name[:20])
                found.append(base)
        found.sort()
        for i, base in enumerate(found):
            segment = known.get(base)
            if segment is None:
                segment = new_segment(
                    self.path, self.name, base, not self.read_only, self.segment_bytes,
                    self.config.index_interval_bytes,
                )
            elif self.read_only and not segment.sealed and i < len(found) - 1:
                segment.size = -1
                segment.forget_indexes()
                segment.timestamps_known = segment.suspect = False
                segment.max_timestamp = -1
            segment.sealed = i < len(found) - 1
            segment.mappable = not self.read_only or self.state is not None
            found[i] = segment
            if self.read_only and not segment.sealed:
                try:
                    segment.size = self.published_size(segment)
                except FileNotFoundError:  # deleted since; whoever needs it looks again
                    segment.size = -1
        self._segments = found
        return 0

    cdef Py_ssize_t segment_index(self, list segments, int64_t offset) noexcept:
        """The last segment that begins at or before `offset`, -1 when none."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = len(segments)
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) >> 1
            if (<Segment> segments[middle]).base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    cdef int64_t published_size(self, Segment segment) except -1:
        """Bytes of an active segment that its writer has published; past them blocks may be allocated ahead."""
        cdef int64_t size = segment.open().size()
        if self.state is None or self.position.active_base != segment.base_offset or self.position.active_size < 0:
            return size
        return min(size, self.position.active_size)

    cdef int64_t segment_end(self, list segments, Py_ssize_t i) noexcept:
        if i + 1 < len(segments):
            return (<Segment> segments[i + 1]).base_offset
        return self.position.leo

    cdef Segment segment_for(self, int64_t offset):
        """The segment to look for `offset` in; a reader lists the directory anew when the log may have rolled.

        Returns None when no segment begins at or before it.
        """
        cdef Segment segment
        cdef Py_ssize_t i
        cdef list segments = self._segments
        if self.read_only and (
            not segments or self.listed_generation != self.position.generation or (
                self.position.active_base != (<Segment> segments[len(segments) - 1]).base_offset
                and offset >= (<Segment> segments[len(segments) - 1]).base_offset
            )
        ):
            self.relist()
            segments = self._segments
        i = self.segment_index(segments, offset)
        if i < 0:
            return None
        segment = segments[i]
        if self.read_only and not segment.sealed:
            segment.size = self.published_size(segment)
            if segment.indexed and segment.size - segment.indexed_size > REINDEX:
                segment.forget_indexes()
        return segment

    cdef int64_t byte_size(self) except -1:
        cdef int64_t total = 0
        cdef Segment segment
        for segment in self._segments:
            total += segment.byte_size()
        return total
