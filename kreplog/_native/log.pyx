"""SegmentedLog: the segments of one replica of a partition and all that changes them.

Owns the appending of records, rolling, closing and the high watermark. The content is LogView's, the lock and the
fsyncs WritableLog's, the directory and its lock `directory`'s, opening an existing one `recovery`'s, reading
`reader`'s, appending encoded batches `encoded`'s, truncation `truncation`'s, retention `retention`'s. Everything that
changes the log runs under one lock; file calls release the GIL. Bytes are in their file before the state file publishes
them to other processes.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t

from kreplog._native.batch cimport (
    BATCH_OK,
    TRANSACTIONAL,
    BatchBuilder,
    BatchHeader,
    Bytes,
    Payload,
    batch_size,
    encode_headers,
    is_control,
    next_offset_of,
    wall_clock_ms,
)
from kreplog._native.clock cimport clock_ms
from kreplog._native.columns cimport Column, Timestamps, at_both, column_of, integer, timestamp_of, timestamps_of
from kreplog._native.commit_gate cimport gate_enter, gate_leave
from kreplog._native.files cimport FileHandle
from kreplog._native.markers cimport Marker, read_marker
from kreplog._native.segment cimport Segment, create_segment
from kreplog._native.state cimport WITH_PRODUCERS, WITH_TRANSACTIONS
from kreplog._native.transaction_index cimport aborted_entry, add_aborted, replace_aborted
from kreplog._native.view cimport epochs_crc
from kreplog._native.writable cimport WritableLog

import logging

from kreplog._native.producers import ProducerState
from kreplog.errors import (
    CorruptCheckpointError,
    FencedLeaderEpochError,
    InvalidRecordError,
    LogClosedError,
    LogFailedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    ResourceExhaustedError,
    StorageError,
    UsageError,
)

_logger = logging.getLogger("kreplog")

cdef enum:
    COALESCE = 1 << 20  # append_many hands this many bytes to one write
    RECORD_SPACE = 61 + 36  # a batch of one record takes at most this beside key and value

cdef int32_t epoch_of(object value) except? -1:
    cdef int64_t epoch = integer(value, "leader epoch")
    if not 0 <= epoch <= INT32_MAX:
        raise UsageError(f"leader epoch {epoch} is out of range: 0 to {INT32_MAX}")
    return <int32_t> epoch


cdef class SegmentedLog(WritableLog):

    def __cinit__(self):
        self.builder = BatchBuilder()
        self.key_payload = Payload()
        self.value_payload = Payload()

    # Appending

    def append(self, value, key=None, timestamp_ms=None, headers=()):
        """Append one record as a batch of its own; return its offset. It is in the page cache on return.

        value, key: bytes-like or None. timestamp_ms: int, now by default. headers: pairs of (str, bytes or None).
        Raises ArgumentTypeError, RecordTooLargeError, InvalidRecordError (a compacted log needs keys),
        ResourceExhaustedError (nothing written), LogFailedError, LogClosedError.
        """
        cdef Bytes value_bytes
        cdef Bytes key_bytes
        cdef Py_ssize_t size
        cdef int64_t offset
        cdef int64_t timestamp = timestamp_of(timestamp_ms) if timestamp_ms is not None else clock_ms(&self.clock)
        cdef BatchBuilder builder = self.builder
        cdef bytes encoded = encode_headers(headers) if headers else None
        self.begin_write()
        try:
            if self.needs_keys and key is None:
                self.refuse_keyless()
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
        self.flush_due(offset + 1)
        return offset

    cdef int refuse_keyless(self) except -1:
        raise InvalidRecordError(
            f"{self.name}: a record without a key; its cleanup_policy is {self.config.cleanup_policy!r}, by which a "
            "newer record takes the place of an older one of its key: nothing was written, give every record a key",
            partition=self.name,
        )

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
        Raises ArgumentTypeError, UsageError, RecordTooLargeError, InvalidRecordError (a compacted log needs keys;
        nothing written), LogFailedError, LogClosedError, and
        ResourceExhaustedError: of several batches the first may be written, log_end_offset says how many records.
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
        self.begin_write()
        try:
            first = next_offset = self.position.leo
            if self.needs_keys:
                self._check_keys(key_column, n)
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
                            self._look_ahead(value_column, key_column, i)
                            self.write(builder.buffer, builder.length, next_offset, max_timestamp)
                            builder.reset()
                        at_both(value_column, key_column, i, &value, &key)  # the GIL was released meanwhile
                if builder.length == builder.start:
                    self._check_size(value_column, value.length + key.length + RECORD_SPACE)
                    builder.begin()
                builder.add(timestamp, key, value, None)
            if n:
                next_offset += self._close_batch(builder, next_offset, &max_timestamp)
                self.write(builder.buffer, builder.length, next_offset, max_timestamp)
        finally:
            self.unlock()
        self.flush_due(next_offset)
        return range(first, next_offset)

    cdef int _check_keys(self, Column keys, Py_ssize_t n) except -1:
        cdef Bytes key
        cdef Py_ssize_t i
        if keys is None and n:
            self.refuse_keyless()
        for i in range(n):
            keys.at(i, &key)
            if key.length < 0:
                self.refuse_keyless()
        return 0

    cdef int _look_ahead(self, Column values, Column keys, Py_ssize_t start) except -1:
        """Check the items from `start` on, unless that was done: nothing of this call has been written yet."""
        cdef Bytes value
        cdef Bytes key
        cdef Py_ssize_t i
        if values.settled:
            return 0
        key.length = -1
        for i in range(start, values.length):
            at_both(values, keys, i, &value, &key)
            self._check_size(values, value.length + key.length + RECORD_SPACE)
        values.settled = True
        if keys is not None:
            keys.settled = True
        return 0

    cdef int _check_size(self, Column values, Py_ssize_t size) except -1:
        if size > self.record_limit:
            if values.settled:
                values.refuse_change()
            self._refuse_size(size)
        return 0

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
        """Put whole batches at the end and publish them; the caller holds the lock.

        Raises LogFailedError, and ResourceExhaustedError before anything is written."""
        cdef Segment segment = self.active
        if self.unsynced:
            try:
                self.sync_unsynced(self.state)
            except BaseException as error:
                self.fail_unless_exhausted(error)
            self.mark_synced()
        if segment.size > 0 and (
            segment.size + length > self.segment_bytes
            or segment.offsets.count >= self.max_index_entries
            or next_offset - 1 - segment.base_offset > INT32_MAX
            or max_timestamp - segment.first_timestamp > self.segment_ms and segment.first_timestamp >= 0
        ):
            self.roll_segment()
            segment = self.active
        if segment.synced or segment.file is None or segment.size + length > segment.allocated >= 0:
            try:
                segment.make_ready(length)
            except BaseException as error:
                self.fail_unless_exhausted(error)
        try:
            segment.append(data, length)
        except BaseException as error:
            self.fail(error)
        self.position.leo = next_offset
        self.position.active_size = segment.size
        self.position.in_use = 1
        if not self.replicated and self.flush_messages > 1 and self.bulk_append is None:
            self.position.high_watermark = next_offset
        self.state.publish(&self.position)
        return 0

    cdef int assign_epoch(self, int32_t epoch) except -1:
        """Begin `epoch` at the log end offset. Raises LogFailedError, and ResourceExhaustedError: then retry."""
        try:
            self.epochs.assign(epoch, self.position.leo)
            self.flush_epochs()
        except ResourceExhaustedError:
            self.epochs.truncate_from_end(self.position.leo)
            self.last_epoch = self.epochs.latest_epoch
            raise
        except BaseException as error:
            self.fail(error)
        self.current_epoch = epoch
        self.publish_epochs()
        return 0

    cdef bint flush_epochs(self) except -1:
        """Replace the file of the epochs, if they have changed, before the first records of one are written, and say
        whether. Raises StorageError.

        It is durable then (KAFKA-7415). In a managed log it is when those records are, and nobody waits for it here: a
        leader of thousands of partitions that are written to would wait for thousands of fsyncs. What was not flushed
        is cut, or its epochs are found again in its batches, where a loss of power leaves an older file.
        """
        cdef bint changed = self.epochs.flush(not self.managed)
        if changed and self.managed:
            self.epochs_unsynced = self.segments_unflushed = True
        return changed

    cdef int publish_epochs(self) except -1:
        """The epoch entries have changed and are in their file."""
        self.last_epoch = self.epochs.latest_epoch
        self.position.epoch_noted = 0
        self.position.leader_epoch = self.current_epoch
        self.position.epochs_crc = epochs_crc(self.epochs)
        self.state.publish(&self.position)
        return 0

    cdef int write_epochs(self) except -1:
        """Replace the file of the epochs, for nothing that is in the log yet. Raises StorageError.

        In a managed log it is not durable before `sync_files`, or the first record: who follows in thousands of
        partitions would wait for thousands of fsyncs before it follows the first of them.
        """
        if self.managed and self.epochs.flush(False):
            self.unsynced += 1
        else:
            self.epochs.flush()
        return 0

    def assign_leader_epoch(self, epoch):
        """Assign leader epoch `epoch` from the log end offset on. Raises FencedLeaderEpochError for a lower one.

        A managed log records it only in its state file, where it survives the process, until the first record of the
        epoch: a leader of thousands of partitions would wait for thousands of files before it serves the first of them.
        """
        cdef int32_t wanted = epoch_of(epoch)
        self.begin_write()
        try:
            if wanted < self.current_epoch:
                raise FencedLeaderEpochError(
                    f"{self.name}: leader epoch {wanted} is older than the log's {self.current_epoch}",
                    partition=self.name,
                )
            if not self.managed:
                self.assign_epoch(wanted)
                return
            self.epochs.assign(wanted, self.position.leo)
            self.current_epoch = self.position.leader_epoch = wanted
            self.position.epoch_noted = self.epochs.dirty
            self.state.publish(&self.position)
        finally:
            self.unlock()

    cdef int note_producer(self, const BatchHeader* h, const uint8_t* batch, Segment segment) except -1:
        """Add a batch of `segment`, which is now in the log, to the state of its producer."""
        if h.producer_id >= 0 and not (self.read_only or self.position.has_producers & WITH_PRODUCERS):
            self.position.has_producers |= WITH_PRODUCERS
            self.state.publish(&self.position)
        if h.producer_id >= 0 and h.base_sequence >= 0:
            self.producers.update(
                h.producer_id, h.producer_epoch, h.base_sequence, h.base_offset,
                h.base_offset + h.last_offset_delta, h.max_timestamp,
            )
            if h.attributes & TRANSACTIONAL:
                self.producers.begin_transaction(h.producer_id, h.base_offset)
        elif h.producer_id >= 0 and is_control(h):
            self.note_marker(h, batch, segment)
        return 0

    cdef int note_marker(self, const BatchHeader* h, const uint8_t* batch, Segment segment) except -1:
        cdef Marker marker
        cdef int64_t first
        cdef int64_t last = h.base_offset + h.last_offset_delta
        if not read_marker(batch, h, &marker):
            return 0
        first = self.producers.end_transaction(
            h.producer_id, h.producer_epoch, h.max_timestamp, marker.coordinator_epoch
        )
        if first < 0:
            return 0
        if not marker.committed and not self.read_only:
            entry = aborted_entry(h.producer_id, first, last, min(<int64_t> self.producers.first_open(), last + 1))
            if self.replayed_aborted is not None:
                self.replayed_aborted.setdefault(segment, bytearray()).extend(entry)
            elif add_aborted(segment, entry):
                self.directory_changed = True
        if last >= self.position.high_watermark:
            self.decided.append((first, last))
        elif self.replayed_aborted is None:  # else it would publish an end past transactions that it has not met yet
            self.settle_transactions()
        return 0

    cdef int announce_transaction(self, int64_t first_offset) except -1:
        """Before the first batch of a transaction is written: a reader that sees it must not take it for stable."""
        if not self.position.has_producers & WITH_TRANSACTIONS:
            self.position.has_producers |= WITH_TRANSACTIONS
            self.state.publish(&self.position)
        if first_offset < self.first_unstable:
            self.first_unstable = first_offset
            self.state.publish_unstable(first_offset)
        return 0

    cdef int settle_transactions(self) except -1:
        """Find the first unstable offset, after the high watermark or a transaction has changed."""
        cdef int64_t unstable = self.producers.first_open()
        cdef Py_ssize_t passed = 0
        while passed < len(self.decided) and self.decided[passed][1] < self.position.high_watermark:
            passed += 1
        if passed:
            self.decided = self.decided[passed:]
        for first, _last in self.decided:
            unstable = min(unstable, <int64_t> first)
        if unstable != self.first_unstable:
            self.first_unstable = unstable
            if self.state is not None:
                self.state.publish_unstable(unstable)
        return 0

    cdef int watermark_moved(self) except -1:
        if self.decided:
            self.settle_transactions()
        return 0

    # Rolling and closing

    cdef int roll_segment(self) except -1:
        """Seal the active segment and start the next at the log end offset.

        Raises LogFailedError, and ResourceExhaustedError: the active segment is then as it was."""
        cdef Segment old = self.active
        cdef Segment new
        if self.managed and old.tail is not None:
            self.old_tails.append(old.tail)  # else it would be unmapped here, which takes an append too long
        try:
            old.complete()
            if self.position.has_producers:
                self.producers.expire(wall_clock_ms(), self.config.producer_id_expiration_ms)
                snapshot = self.producers.write_snapshot(self.path, self.position.leo, durable=not self.managed)
                if self.managed:
                    self.unsynced_snapshot = snapshot
            new = create_segment(
                self.path, self.name, self.position.leo, self.segment_bytes, self.config.index_interval_bytes
            )
            old.seal()
        except BaseException as error:
            self.fail_unless_exhausted(error)
        self._segments = self._segments + [new]
        self.active = new
        self.directory_changed = True
        self.segments_unflushed = True
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

    cdef tuple offsets_to_checkpoint(self):
        """Recovery point, high watermark, and the log start offset, None where it is that of the first segment."""
        start = self.position.log_start_offset
        within = start > (<Segment> self._segments[0]).base_offset
        return self.position.recovery_point, self.position.high_watermark, start if within else None

    cdef int checkpoint(self) except -1:
        """Bring Kafka's checkpoint files in the data directory up to date. Raises StorageError, OSError."""
        for checkpoint, offset in zip(self.checkpoints, self.offsets_to_checkpoint(), strict=True):
            checkpoint.update(self.topic_partition, offset)
        if self.compacts and self.compacted_to() > self.position.leo:
            self.cleaner_checkpoint.update(self.topic_partition, self.position.leo)  # what follows was never compacted
        return 0

    cdef int64_t compacted_to(self) except -1:
        """The cleaner checkpoint, 0 without one. Raises StorageError."""
        try:
            return self.cleaner_checkpoint.latest().get(self.topic_partition, 0)
        except CorruptCheckpointError as error:
            _logger.warning("%s: %s; compacting from the log start offset on", self.name, error)
            return 0

    def close(self):
        """Flush, write indexes and checkpoints, and release the directory. Closing twice does nothing.

        The checkpoints of a managed log, or one in a topic, are written by its owner, once for thousands of logs.

        Raises LogFailedError if the records could not be made durable, now or after an earlier failure; the log is
        closed nevertheless. Not of a managed log that has failed before: its owner knows.
        """
        cdef str failure = self.failure
        if self.closed:
            return
        if self.read_only:
            self.closed = True
            self._segments = []
            return
        self.check_not_in_bulk_append()
        self.stop_compaction()
        try:
            if self.failure is None:
                self.flush()
        except LogClosedError:
            return
        finally:
            with nogil:
                gate_enter(&self.sync_gate, &self.position.recovery_point, INT64_MAX)
            self.lock()
            try:
                if not self.closed and self.failure is None:
                    self.finish_files()
            finally:
                self.closed = True
                self.pending = None
                self._segments = []
                self.active = None
                if self.state is not None:
                    self.state.end_session()
                self.state = None
                self.release_locks()
                self.unlock()
                gate_leave(&self.sync_gate)
        if failure is not None and not self.managed and isinstance(self.cause, StorageError):  # else interrupted
            if self.position.recovery_point < self.position.leo:
                raise LogFailedError(
                    f"{self.name}: the records from offset {self.position.recovery_point} on were not made durable "
                    f"since an earlier failure ({failure}); the log is closed: mend the cause, then reopen it",
                    partition=self.name, path=self.path, offset=self.position.recovery_point,
                ) from self.cause

    cdef void release_locks(self) noexcept:
        for file in (self.writer_lock, self.broker_lock):
            if file is not None:
                (<FileHandle> file).unlock()
        self.writer_lock = None
        self.broker_lock = None

    cdef int finish_files(self) except -1:
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
            if self.active.allocated > self.active.size:
                self.position.unsettled = 1
                self.state.publish(&self.position)
                self.active.trim()
                self.active.sync()
            if self.position.has_producers:
                self.producers.write_snapshot(self.path, self.position.leo)
            if self.unsynced or self.epochs_unsynced or self.directory_changed:  # the last by a roll since a flush
                self.sync_unsynced(self.state)
            self.closed_with = self.offsets_to_checkpoint()
            if not (self.managed or self.in_topic):
                self.checkpoint()
            self.position.unsettled = self.position.in_use = 0
            self.state.publish(&self.position)
        except BaseException as error:
            self.fail(error)
        return 0

    # The high watermark

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
                if self.decided:
                    self.settle_transactions()
            return self.position.high_watermark
        finally:
            self.unlock()

    # Producers

    cdef int load_producers(self, bint recovered=False) except -1:
        """The producer state at the log end offset: the newest sound snapshot, then the batches after it. With it come
        the transactions that have ended since: entries of their index that are missing or wrong are replaced.

        recovered: the process that wrote last may have been killed, or the power lost. Then no snapshot counts beyond
        the recovery point, since the entries of the index may be lost that were written before it.
        """
        cdef Segment segment
        cdef int64_t limit = self.position.leo
        self.producers = ProducerState()
        self.decided = []
        if self.position.has_producers:
            if self.position.has_producers & WITH_TRANSACTIONS:
                limit = self.position.high_watermark  # no snapshot has what is decided beyond it
                if recovered:
                    limit = min(max(self.position.recovery_point, self.position.log_start_offset), limit)
            self.producers.delete_snapshots(self.path, self.position.leo + 1)  # of records that are gone
            start = self.producers.latest_snapshot(self.path, limit, limit == self.position.leo)
            start = start if start is not None else -1
            self.replayed_aborted = {}
            try:
                self.replay_producers(start)
                if self.position.has_producers & WITH_TRANSACTIONS:
                    for segment in self._segments:
                        entries = bytes(self.replayed_aborted.get(segment, b""))
                        self.directory_changed |= replace_aborted(segment, start, entries)
            finally:
                self.replayed_aborted = None
        self.first_unstable = -1  # so that it is published
        return self.settle_transactions()

    cdef int64_t find_unstable(self) except -1:
        cdef int64_t leo = self.position.leo
        if self.producers is None or self.replayed[0] != leo or self.replayed[1] != self.position.high_watermark:
            self.producers = ProducerState()
            self.decided = []
            start = self.producers.latest_snapshot(self.path, self.position.high_watermark)
            self.replay_producers(start if start is not None else -1)
            self.settle_transactions()
            self.replayed = (leo, self.position.high_watermark)
        return self.first_unstable

    cdef int replay_producers(self, int64_t start) except -1:
        """Add the producers of all batches from offset `start` on to the state; damaged batches are skipped."""
        cdef Segment segment
        cdef BatchHeader h
        cdef int64_t at
        cdef int64_t chain
        cdef uint8_t[::1] batch
        cdef Py_ssize_t i = self.segment_index(self._segments, start) if start > 0 else 0
        for i in range(max(i, 0), len(self._segments)):
            segment = self._segments[i]
            at = segment.position_near(start) if start > segment.base_offset else 0
            chain = -1 if at else segment.base_offset
            while at < segment.byte_size():
                if (
                    segment.header_at(at, &h) != BATCH_OK or not segment.crc_holds(at, &h)
                    or h.base_offset < chain or chain >= self.position.dense_from and h.base_offset != chain
                    or next_offset_of(&h) > self.segment_end(self._segments, i)  # the offset is not in the CRC
                ):
                    at = segment.resync(at, max(chain, segment.base_offset))
                    chain = -1
                    continue
                if h.base_offset >= start and h.producer_id >= 0:
                    if is_control(&h):
                        batch = bytearray(batch_size(&h))
                        if segment.open().read_at(&batch[0], batch_size(&h), at) < batch_size(&h):
                            break
                        self.note_producer(&h, &batch[0], segment)
                    else:
                        self.note_producer(&h, NULL, segment)
                chain = next_offset_of(&h)
                at += batch_size(&h)
        return 0


def mark_created(SegmentedLog log not None):
    """The new directory, all that is in it, and its name are durable: the log's maker has synced them."""
    log.lock()
    log.parent_unsynced = log.directory_changed = False
    log.mark_synced()
    log.unlock()


def closed_with(SegmentedLog log not None):
    """The offsets that a closed log has for Kafka's checkpoint files; None where it is open, or closing it failed."""
    return log.closed_with


def checkpoint_offsets(SegmentedLog log not None):
    """The offsets that an open log has for Kafka's checkpoint files at the moment; None where it is closed."""
    log.lock()
    try:
        return None if log.closed else log.offsets_to_checkpoint()
    finally:
        log.unlock()


def session_number(SegmentedLog log not None):
    """The number of the writer session in the state file: another, once some process has opened the log for writing."""
    log.lock()
    try:
        log.check_open()
        return log.state.session().number
    finally:
        log.unlock()
