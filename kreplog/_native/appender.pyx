"""The buffered appender: one record a call into a batch, written when it is full, flushed, or has lingered.

Buffered records have the log's next offsets, and every other change of the log writes them first; so an offset is
known at once, and the order is that of the calls. A call that finds room in the buffer takes no lock: with the GIL held
nothing runs between the check and the copy. A buffer that is being closed or written is hidden from such calls, which
wait for the log's lock instead. The thread that enforces `linger_ms` is in kreplog/log.py.
"""

from libc.stdint cimport int64_t, uint8_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, nanosleep, timespec

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE

from kreplog._native.batch cimport BatchBuilder, Bytes, as_bytes, codec_id, encode_headers, wall_clock_ms
from kreplog._native.clock cimport Clock, clock_ms
from kreplog._native.columns cimport integer, timestamp_of
from kreplog._native.log cimport SegmentedLog
from kreplog._native.writable cimport Pending

from kreplog._native.batch import MAX_DECOMPRESSED_BYTES
from kreplog._native.compression import compress
from kreplog.errors import LogClosedError, ResourceExhaustedError, UsageError

cdef tuple NO_HEADERS = ()

cdef enum:
    GATHERED = 256 << 10  # bytes of whole batches that go out in one write
    RECORD_OVERHEAD = 36  # at most, beside key, value and headers
    NAP = 50000000  # ns between two looks at whether the appender was closed


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec


cdef void sleep_ns(int64_t duration) noexcept nogil:
    cdef timespec t
    t.tv_sec = duration // 1000000000
    t.tv_nsec = duration % 1000000000
    nanosleep(&t, NULL)  # woken early by a signal is early enough: the caller looks at the clock again


cdef inline void borrow(object value, Bytes* out) noexcept:
    if value is None:
        out.data = NULL
        out.length = -1
    else:
        out.data = <const uint8_t*> PyBytes_AS_STRING(value)
        out.length = PyBytes_GET_SIZE(value)


cdef class BufferedAppender(Pending):
    """The buffer behind `Log.appender`."""

    cdef readonly SegmentedLog log
    cdef readonly bint closed
    cdef BatchBuilder builder  # what calls add to; empty while the other one is being closed or written
    cdef BatchBuilder spare
    cdef Clock clock
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t write_bytes
    cdef Py_ssize_t record_limit
    cdef int codec
    cdef int64_t base_offset  # of the open batch
    cdef int64_t max_timestamp  # of the closed ones
    cdef int64_t started_ns  # when the oldest buffered record came
    cdef bint idle  # the lingering thread sleeps until `wake` is called
    cdef object wake

    def __init__(self, SegmentedLog log, batch_bytes, compression, wake):
        cdef int64_t wanted = integer(batch_bytes, "batch_bytes")
        if wanted < 1:
            raise UsageError(f"batch_bytes = {wanted} must be at least 1")
        self.log = log
        self.codec = log.codec if compression is None else codec_id(compression)
        self.record_limit = log.max_message_bytes
        if self.codec:
            compress(self.codec, b"")  # its package is there
            self.record_limit = min(self.record_limit, MAX_DECOMPRESSED_BYTES // 2)
        self.batch_bytes = min(wanted, self.record_limit, log.segment_bytes)
        self.write_bytes = min(max(self.batch_bytes, <Py_ssize_t> GATHERED), log.segment_bytes)
        self.builder = BatchBuilder()
        self.spare = BatchBuilder()
        self.wake = wake
        self.idle = True

    def append(self, value, key=None, timestamp_ms=None, headers=NO_HEADERS):
        """Buffer one record; return the offset it will have. Arguments and errors as for Log.append."""
        cdef Bytes value_bytes
        cdef Bytes key_bytes
        cdef bytes encoded = None if headers is NO_HEADERS or not headers else encode_headers(headers)
        cdef int64_t timestamp = timestamp_of(timestamp_ms) if timestamp_ms is not None else clock_ms(&self.clock)
        cdef Py_ssize_t size
        cdef BatchBuilder builder
        if value is not None and not PyBytes_CheckExact(value):
            value = as_bytes(value)
        if key is not None and not PyBytes_CheckExact(key):
            key = as_bytes(key)
        if key is None and self.log.needs_keys:
            self.log.refuse_keyless()
        borrow(value, &value_bytes)
        borrow(key, &key_bytes)
        size = value_bytes.length + key_bytes.length + RECORD_OVERHEAD
        if encoded is not None:
            size += PyBytes_GET_SIZE(encoded)
        while True:
            builder = self.builder
            if builder.length and not self.closed and not self.log.closed:
                if builder.count == 0 or builder.length - builder.start + size <= self.batch_bytes:
                    break
            self._make_room(size)
        builder.add(timestamp, key_bytes, value_bytes, encoded)
        return self.base_offset + builder.count - 1

    cdef int _make_room(self, Py_ssize_t size) except -1:
        """Close the open batch, write what is gathered if it is enough, and open the next batch."""
        cdef SegmentedLog log = self.log
        cdef BatchBuilder builder
        cdef bint written = False
        if size + 61 > self.record_limit:
            log._refuse_size(size + 61)
        log.lock_for_write()
        try:
            if self.closed:
                raise LogClosedError(f"{log.name}: the appender is closed", partition=log.name)
            builder = self.builder
            if builder.length and builder.count:
                self._close_hidden(builder)
                if builder.length + self.batch_bytes > self.write_bytes:
                    self._write(builder)
                    written = True
                else:
                    builder.begin()
                    self.spare = self.builder
                    self.builder = builder
            if self.builder.length == 0:
                log.flush_pending()
                if log.current_epoch != log.last_epoch:
                    log.assign_epoch(log.current_epoch)
                self.base_offset = log.position.leo
                self.max_timestamp = -1
                self.started_ns = monotonic_ns()
                self.builder.begin()
                log.pending = self
                if self.idle:
                    self.idle = False
                    self.wake()
        finally:
            log.unlock()
        if written:
            log.flush_due(log.position.leo)
        return 0

    cdef int _hide(self) except -1:
        self.builder, self.spare = self.spare, self.builder
        return 0

    cdef int _close_hidden(self, BatchBuilder builder) except -1:
        """Close the open batch out of sight; where that fails its records stay buffered."""
        self._hide()
        try:
            self._close_batch(builder)
        except BaseException:
            self._hide()
            raise
        return 0

    cdef int _close_batch(self, BatchBuilder builder) except -1:
        if self.log.log_append_time:
            builder.max_timestamp = wall_clock_ms()
        builder.finish(
            self.base_offset, self.log.current_epoch, self.codec, self.log.log_append_time, -1, -1, -1
        )
        if builder.max_timestamp > self.max_timestamp:
            self.max_timestamp = builder.max_timestamp
        self.base_offset += builder.count
        return 0

    cdef int _write(self, BatchBuilder builder) except -1:
        """Write the closed batches of a hidden builder. Raises LogFailedError, and ResourceExhaustedError: they are
        buffered as before, since their offsets are known to the caller."""
        self.log.pending = None
        try:
            self.log.write(builder.buffer, builder.length, self.base_offset, self.max_timestamp)
        except ResourceExhaustedError:
            builder.begin()
            self._hide()
            self.log.pending = self
            raise
        except BaseException:
            builder.reset()
            raise
        builder.reset()
        return 0

    cdef int flush_locked(self) except -1:
        cdef BatchBuilder builder = self.builder
        if builder.count:
            self._close_hidden(builder)
        else:
            self._hide()
            builder.length = builder.start
        if builder.length:
            return self._write(builder)
        self.log.pending = None
        builder.reset()
        return 0

    @property
    def next_offset(self):
        """The offset that the next record would get."""
        if self.builder.length:
            return self.base_offset + self.builder.count
        return self.log.log_end_offset

    def flush(self):
        """Write what is buffered; readers see it on return (Log.flush makes it durable). Raises LogFailedError, and
        ResourceExhaustedError: it is buffered still."""
        cdef int64_t end
        self.log.begin_write()
        end = self.log.position.leo
        self.log.unlock()
        self.log.flush_due(end)

    def linger(self, int64_t linger_ns):
        """Write records buffered for `linger_ns`, until the buffer is empty or the appender is closed.

        Sleeps without the GIL, and takes it only when something is due: an appending thread is not held up.
        """
        cdef int64_t left
        while self.log.pending is self and not self.closed:
            left = self.started_ns + linger_ns - monotonic_ns()
            if left <= 0:
                try:
                    self.flush()
                except ResourceExhaustedError:
                    self.started_ns = monotonic_ns()
                left = linger_ns
            with nogil:
                while left > 0 and not self.closed and not self.log.closed:
                    sleep_ns(min(left, <int64_t> NAP))
                    left = self.started_ns + linger_ns - monotonic_ns()
        self.idle = True

    def close(self):
        """Write the buffered records and close. Closing twice does nothing. Raises LogFailedError."""
        if not self.closed:
            try:
                if self.log.pending is self:
                    self.flush()
                elif self.builder.count:
                    raise LogClosedError(
                        f"{self.log.name}: the log was closed (or this process forked) with {self.builder.count} "
                        "records of this appender unwritten", partition=self.log.name,
                    )
            finally:
                self.closed = True
