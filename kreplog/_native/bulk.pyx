"""BulkAppend: many encoded batches that become visible together or not at all, and once per writer and sequence.

Crash safety: before the first byte is written, the ledger records the offset at which the append begins, so that the
next opening for writing truncates the log there; the high watermark does not advance. Once all batches are durable, the
ledger records the writer's sequence instead: the atomic replacement of this file is the commit. Only then does the high
watermark advance. The state file has the offset as well, for an opening that finds a damaged ledger.

From begin to end it holds the log's lock, so that nothing else is appended, and the fsync gate. The log knows only the
LockHolder: an append that is dropped is collected, and its end runs in a thread of its own, since the collector may
stop any thread anywhere.
"""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from kreplog._native.batch cimport (
    BAD_ATTRIBUTES,
    BATCH_OK,
    BATCH_SHORT,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchBuilder,
    BatchHeader,
    RecordsFound,
    batch_size,
    check_records,
    raise_corrupt,
    read_header,
    wall_clock_ms,
)
from kreplog._native.columns cimport integer
from kreplog._native.commit_gate cimport gate_enter, gate_leave
from kreplog._native.truncation cimport cut_at
from kreplog._native.encoded cimport bytes_of, check, stamp
from kreplog._native.files cimport FileHandle
from kreplog._native.log cimport SegmentedLog
from kreplog._native.writable cimport LockHolder

import _thread
import warnings

from kreplog._native.ledger import WriterLedger, ledger_path
from kreplog.errors import ArgumentTypeError, LogFailedError, ResourceExhaustedError, UsageError

cdef enum:
    COALESCE = 1 << 20  # bytes that go out in one write
    LONGEST_NAME = 255


def append_once(SegmentedLog log, batches, writer, sequence):
    """See Log.append_once."""
    append = BulkAppend(log, writer, sequence)
    if append.duplicate:
        return None
    with append:
        for buffer in batches:
            if append.append(buffer) < len(memoryview(buffer).cast("B")):
                raise_corrupt(BATCH_SHORT, log.name, -1, None, 0)
        append.commit()
        append.publish()
    return range(append.first_offset, append.end_offset)


def last_sequence(SegmentedLog log, writer):
    """The sequence of the writer's latest committed bulk append, None for an unknown writer.

    Raises CorruptCheckpointError, UsageError, LogFailedError, LogClosedError."""
    log.begin_write()
    try:
        known = _ledger_of(log).committed(_writer_name(writer))
        return None if known is None else known[0]
    finally:
        log.unlock()


@cython.final
cdef class BulkAppend:
    """One bulk append to a log that is not replicated, from begin to commit or abort; a context manager, which aborts
    an append that was not committed.

    writer: up to 255 bytes of UTF-8. sequence: 0 or more; one that is not above the writer's latest makes the append a
    `duplicate`, which must not write. Other threads that change the log wait until the append has ended; such calls of
    this thread are refused. The thread that begins it also writes and ends it. Use it in a `with` statement: one that
    is dropped ends when it is collected, with a ResourceWarning.

    Raises UsageError, CorruptCheckpointError, ResourceExhaustedError, LogFailedError, LogClosedError.
    """

    cdef readonly SegmentedLog log
    cdef readonly bint duplicate
    cdef readonly int64_t first_offset  # of what this append writes; a duplicate's as they were, -1 where forgotten
    cdef readonly int64_t end_offset
    cdef int64_t sequence
    cdef bint durable
    cdef bint committed
    cdef BatchBuilder builder
    cdef LockHolder holder

    def __init__(self, SegmentedLog log not None, writer, sequence):
        name = _writer_name(writer)
        self.sequence = integer(sequence, "sequence")
        if self.sequence < 0:
            raise UsageError(f"sequence {sequence} is below 0")
        if log.managed or log.replicated:
            raise UsageError(
                f"{log.name}: only a log that is not replicated takes bulk appends; a replicated one commits by its "
                "high watermark", partition=log.name, path=log.path,
            )
        log.check_not_in_bulk_append()
        self.log = log
        with nogil:
            gate_enter(&log.sync_gate, &log.position.recovery_point, 9223372036854775807)
        try:
            log.begin_write()
        except BaseException:
            gate_leave(&log.sync_gate)
            raise
        self.holder = LockHolder()
        self.holder.held = True
        self.holder.thread_id = PyThread_get_thread_ident()
        try:
            self._begin(name)
        except BaseException:
            self._release()
            raise

    cdef int _begin(self, str name) except -1:
        cdef SegmentedLog log = self.log
        log.ledger = _ledger_of(log)
        known = log.ledger.committed(name)
        if known is not None and self.sequence <= known[0]:
            self.duplicate = True
            self.first_offset, self.end_offset = known[1:] if self.sequence == known[0] else (-1, -1)
            self._release()
            return 0
        self.first_offset = self.end_offset = log.position.leo
        self.builder = BatchBuilder()
        try:
            if log.unsynced:  # else a page from before an older cut may come back, and hide this append's begin
                log.sync_unsynced(log.state)
                log.mark_synced()
        except BaseException as error:
            log.fail_unless_exhausted(error)
        log.position.unsettled = 1
        log.state.publish(&log.position)
        log.state.mark_bulk_append(self.first_offset, True)
        try:
            log.state.sync()
            log.ledger.begin(name, self.sequence, self.first_offset)
        except ResourceExhaustedError:
            self._take_back()
            raise
        except BaseException as error:
            log.fail(error)
        log.bulk_append = self.holder
        return 0

    cdef int _take_back(self) except -1:
        """Remove the pending append from the ledger and the state file. Raises LogFailedError."""
        try:
            self.log.ledger.settle(self.first_offset)
            self._remove_mark()
        except BaseException as error:
            self.log.fail(error)
        return 0

    cdef int _remove_mark(self) except -1:
        """From the state file, before a record follows that it would cut off. Raises StorageError."""
        cdef SegmentedLog log = self.log
        log.state.mark_bulk_append(self.first_offset, False)
        log.state.sync()
        log.position.unsettled = 0
        log.state.publish(&log.position)
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        self.abort()

    def append(self, buffer, *, bint inspect=True):
        """Append whole batches from the start of `buffer`, and return how many of its bytes they take.

        The rest, less than a batch, must be passed again before the bytes that follow it. Batches are as for
        Log.append_batches, but not of an idempotent producer. inspect: whether to check every record; the CRC and the
        header of each batch are always checked. Raises CorruptBatchError, UnsupportedFormatError,
        RecordTooLargeError (abort, then), LogFailedError, ResourceExhaustedError.
        """
        cdef SegmentedLog log = self.log
        cdef const uint8_t[::1] given
        cdef BatchBuilder builder = self.builder
        cdef BatchHeader h
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t length
        cdef Py_ssize_t piece = min(log.segment_bytes, <int64_t> COALESCE)
        cdef int64_t end = self.end_offset
        cdef int64_t max_timestamp = -1
        cdef int64_t batch_max
        cdef int64_t now = wall_clock_ms()
        self._check_under_way()
        given = bytes_of(log, buffer)
        length = given.shape[0]
        self.durable = False
        if log.current_epoch != log.last_epoch:
            log.assign_epoch(log.current_epoch)
        builder.reset()
        while taken < length:
            code = read_header(&given[taken], length - taken, &h)
            if length - taken < 61 or code == BATCH_OK and batch_size(&h) > length - taken:
                break
            if code == BATCH_OK and builder.length and builder.length + batch_size(&h) > piece:
                log.write(builder.buffer, builder.length, end, max_timestamp)
                builder.reset()
                self.end_offset = end
                max_timestamp = -1
            if code != BATCH_OK:
                raise_corrupt(code, log.name, -1, None, taken)
            start = builder.length
            builder.reserve(batch_size(&h))
            memcpy(builder.buffer + start, &given[taken], batch_size(&h))
            batch_max = checked(log, builder.buffer + start, &h, inspect, taken)
            batch_max = stamp(log, builder.buffer + start, &h, end, log.current_epoch, batch_max, now)
            if batch_max > max_timestamp:
                max_timestamp = batch_max
            builder.length += batch_size(&h)
            end += h.last_offset_delta + 1
            taken += batch_size(&h)
        if builder.length:
            log.write(builder.buffer, builder.length, end, max_timestamp)
            self.end_offset = end
        return taken

    def flush(self):
        """Fsync the appended batches and everything before them in the log. Raises LogFailedError,
        ResourceExhaustedError."""
        cdef SegmentedLog log = self.log
        cdef FileHandle file
        cdef int64_t end
        self._check_under_way()
        files = log.take_due(False, log.unsynced_snapshot, &end)
        try:
            for file in files:
                file.sync()
        except BaseException as error:
            log.fail(error)
        log.unsynced_snapshot = None
        self.durable = True

    def commit(self):
        """Commit the appended batches: durable on return, and visible to readers after `publish`. Raises
        LogFailedError: whether it is committed is then known only after the log has been reopened."""
        self._check_under_way()
        if not self.durable:
            self.flush()
        try:
            self.log.ledger.commit(self.end_offset, wall_clock_ms())
            self._remove_mark()
        except BaseException as error:
            self.log.fail(error)
        self.committed = True

    def publish(self):
        """Make the committed batches visible to readers, by one store into mapped memory. Ends the append."""
        if not self.holder.held:
            return
        self.log.check_open()
        self._check_thread()
        if not self.committed:
            raise UsageError(f"{self.log.name}: a bulk append is published once it is committed")
        self._publish()

    cdef void _publish(self) noexcept:
        cdef SegmentedLog log = self.log
        log.position.recovery_point = log.position.high_watermark = self.end_offset
        log.state.publish(&log.position)
        if log.decided:
            log.settle_transactions()
        self._release()

    def abort(self):
        """End the append; truncate uncommitted batches, which readers never saw. Does nothing once it has ended. Raises
        LogFailedError: the next opening for writing truncates them."""
        if not self.holder.held:
            return
        if self.log.closed:  # by a fork, in the child
            self.holder.held = False
            return
        self._check_thread()
        self._end()

    cdef int _end(self) except -1:
        cdef SegmentedLog log = self.log
        if self.committed:
            self._publish()
            return 0
        try:
            if log.failure is None:
                try:
                    cut_at(log, self.first_offset)
                except BaseException as error:  # what was appended must not come into sight
                    log.fail(error)
                self._take_back()
        finally:
            self._release()
        return 0

    def __del__(self):
        if self.holder is None or not self.holder.held:
            return
        if self.log.closed:
            self.holder.held = False
            return
        self.holder.thread_id = 0  # calls of this thread wait for the end, as those of others do
        try:
            _thread.start_new_thread(_end_dropped, (self,))
        except RuntimeError:  # the interpreter is ending
            self._end()
        warnings.warn(
            f"{self.log.name}: a bulk append was dropped, neither committed nor aborted; it is aborted now: use it in "
            "a `with` statement", ResourceWarning, stacklevel=1,
        )

    cdef int _check_under_way(self) except -1:
        if not self.holder.held or self.committed:
            raise UsageError(f"{self.log.name}: this bulk append has ended")
        self.log.check_open()
        self._check_thread()
        if self.log.failure is not None:
            raise LogFailedError(
                f"{self.log.name}: the log refuses writes since an earlier failure ({self.log.failure}); "
                "mend the cause, then reopen it", partition=self.log.name, path=self.log.path,
            ) from self.log.cause
        return 0

    cdef int _check_thread(self) except -1:
        if self.holder.thread_id != PyThread_get_thread_ident():
            raise UsageError(
                f"{self.log.name}: a bulk append is written and ended by the thread that began it"
            )
        return 0

    cdef void _release(self) noexcept:
        cdef SegmentedLog log = self.log
        if self.holder.held:
            self.holder.held = False
            if log.closed:  # by a fork: the parent holds the lock and the gate, this child neither
                return
            if log.failure is not None and not self.committed and log.bulk_append is self.holder:
                log.position.leo = self.first_offset  # the next to open it goes by the ledger, not by this
                log.position.active_size = -1
                log.state.publish(&log.position)
            log.bulk_append = None
            log.unlock()
            gate_leave(&log.sync_gate)


cdef int64_t checked(
    SegmentedLog log, const uint8_t* copied, BatchHeader* h, bint inspect, Py_ssize_t taken
) except? -2:
    """The largest timestamp of a batch that a bulk append may take. taken: its place in the caller's buffer.

    Raises what BulkAppend.append does."""
    cdef RecordsFound found
    cdef int64_t max_timestamp = h.max_timestamp
    cdef int code = check(log, copied, batch_size(h), h)
    if code == BATCH_OK and h.attributes & (CONTROL | TRANSACTIONAL | LOG_APPEND_TIME | DELETE_HORIZON):
        code = BAD_ATTRIBUTES
    if code == BATCH_OK and (inspect or log.needs_keys):
        code = check_records(copied, h, True, &found)
        max_timestamp = found.max_timestamp
    if code != BATCH_OK:
        raise_corrupt(code, log.name, -1, None, taken)
    if log.needs_keys and found.keyless:
        log.refuse_keyless()
    if h.producer_id >= 0 or h.record_count == 0 or h.record_count != h.last_offset_delta + 1:
        raise UsageError(f"{log.name}: a bulk append takes no empty batches, and none with a producer id")
    return max_timestamp


def _end_dropped(BulkAppend append):
    append._end()


cdef object _ledger_of(SegmentedLog log):
    return WriterLedger(ledger_path(log.path)) if log.ledger is None else log.ledger


cdef str _writer_name(object writer):
    if not isinstance(writer, str):
        raise ArgumentTypeError(f"writer is a str, not {type(writer).__name__}")
    try:
        if not 0 < len(writer.encode()) <= LONGEST_NAME:
            raise UsageError(f"writer {writer!r} must have 1 to {LONGEST_NAME} bytes in UTF-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"writer {writer!r} is no text that UTF-8 can hold: {error}") from None
    return writer
