"""FetchedBatches: the record batches of one partition in a Fetch response, checked and turned into Arrow columns.

The bytes come from another process and are untrusted. Headers are checked when the object is made: sizes, the order of
offsets and of leader epochs, which no CRC covers. The CRC and the records are checked while rows are built, piece by
piece, so that compressed batches never expand to much more than a caller wants to hold.

A response may end inside a batch: that part is ignored, and the next fetch begins with it.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kreplog._native.aborted cimport AbortedFilter
from kreplog._native.arrow cimport ArrowBuilder
from kreplog._native.arrow_memory cimport bytes_used
from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BAD_LEADER_EPOCH,
    BATCH_OK,
    BATCH_SHORT,
    HEADER_SIZE,
    BatchHeader,
    batch_size,
    check_crc,
    codec_of,
    next_offset_of,
    raise_corrupt,
    read_header,
)

from kreplog.errors import KreplogError, UsageError


@cython.final
cdef class FetchedBatches:
    """`records`: a partition's bytes in the response to a fetch from offset `start`. Rows from `stop` on are left out.

    aborted: (producer id, first offset) of aborted transactions, whose records are left out, as Kafka's consumer does
    under read_committed.

    next_offset: of the next row to add. end_offset: behind the last whole batch, where the next fetch begins; `start`
    where no batch is whole. last_epoch: the leader epoch of the last whole batch, -1 where there is none. exhausted: no
    row is left to add, nor an error to raise. For one thread at a time.
    """

    cdef const uint8_t[::1] data
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef int64_t stop
    cdef readonly int64_t next_offset
    cdef readonly int64_t end_offset
    cdef readonly int32_t last_epoch
    cdef object failure
    cdef AbortedFilter aborted  # None where nothing is left out

    def __init__(self, records, int64_t start, int64_t stop=INT64_MAX, aborted=()):
        cdef int code = BATCH_OK
        if start < 0:
            raise UsageError(f"start = {start}: an offset is 0 or more")
        self.data = memoryview(records).cast("B")
        self.at = 0
        self.end = 0
        self.stop = stop
        self.next_offset = self.end_offset = start
        self.last_epoch = -1
        if aborted:
            self.aborted = AbortedFilter(aborted)
        if self.data.shape[0]:
            with nogil:
                code = _scan(
                    &self.data[0], self.data.shape[0], start, &self.end, &self.end_offset, &self.last_epoch
                )
        if code != BATCH_OK:
            try:
                raise_corrupt(code, None, self.end_offset, None, self.end)
            except KreplogError as error:
                self.failure = error

    @property
    def exhausted(self):
        return (self.at >= self.end or self.next_offset >= self.stop) and self.failure is None

    def add_to(self, ArrowBuilder builder not None, Py_ssize_t max_bytes):
        """Add rows until the builder holds about `max_bytes`, or none is left; then `exhausted` says which.

        Raises CorruptBatchError, UnsupportedCompressionError and UsageError as ArrowBuilder.add does, but only with no
        row in the builder: rows before the batch at fault come first, by a call of their own.
        """
        cdef Py_ssize_t span
        cdef int64_t behind = 0
        cdef int64_t base = 0
        while self.at < self.end and self.next_offset < self.stop:
            if bytes_used(builder._columns) >= max_bytes and builder._columns.rows:
                return
            with nogil:
                span = _span(&self.data[self.at], self.end - self.at, max_bytes, &base, &behind)
            try:
                if span == 0:
                    raise_corrupt(BATCH_SHORT, None, self.next_offset, None, self.at)
                if self.aborted is not None:
                    span = self.next_batch(&behind)
                    if self.is_aborted(&self.data[self.at], span):
                        self.at += span
                        self.next_offset = behind
                        continue
                builder.add(&self.data[self.at], span, self.next_offset, self.stop)
            except KreplogError as error:
                self.failure = error
                if error.offset is not None:
                    base = error.offset
                self.next_offset = max(self.next_offset, base)
                self.end = self.at
                break
            self.at += span
            self.next_offset = behind
        if self.failure is not None and not builder._columns.rows:
            raise self.failure

    cdef Py_ssize_t next_batch(self, int64_t* behind) except -1:
        """Bytes of the next batch alone; `behind` is the offset after it."""
        cdef BatchHeader header
        read_header(&self.data[self.at], self.end - self.at, &header)  # checked by _scan
        behind[0] = next_offset_of(&header)
        return batch_size(&header)

    cdef bint is_aborted(self, const uint8_t* batch, Py_ssize_t size) except -1:
        """Whether the batch, a whole one, is of an aborted transaction. Raises CorruptBatchError."""
        cdef BatchHeader header
        cdef int code
        read_header(batch, size, &header)
        code = check_crc(batch, &header)
        if code != BATCH_OK:
            raise_corrupt(code, None, header.base_offset, None, self.at)
        return self.aborted.skips(&header)


cdef int _scan(
    const uint8_t* data, Py_ssize_t length, int64_t start, Py_ssize_t* end, int64_t* end_offset, int32_t* epoch
) noexcept nogil:
    """Find the whole batches and check their places; on a fault, `end` and `end_offset` are those of the sound ones."""
    cdef BatchHeader header
    cdef int code
    while length - end[0] >= HEADER_SIZE:
        code = read_header(data + end[0], length - end[0], &header)
        if code != BATCH_OK:
            return code
        if batch_size(&header) > length - end[0]:
            return BATCH_OK
        if next_offset_of(&header) <= end_offset[0] or (end[0] and header.base_offset < end_offset[0]):
            return BAD_BASE_OFFSET
        if header.leader_epoch < epoch[0]:
            return BAD_LEADER_EPOCH
        epoch[0] = header.leader_epoch
        end_offset[0] = next_offset_of(&header)
        end[0] += batch_size(&header)
    return BATCH_OK


cdef Py_ssize_t _span(
    const uint8_t* data, Py_ssize_t length, Py_ssize_t room, int64_t* base, int64_t* behind
) noexcept nogil:
    """Bytes of the next batches to add together: plain ones up to about `room`, or one that is compressed.

    The headers have been checked; `base` is the first offset of them, `behind` the one after their last.
    """
    cdef BatchHeader header
    cdef Py_ssize_t span = 0
    while span < length:
        if read_header(data + span, length - span, &header) != BATCH_OK:
            break
        if span and (codec_of(&header) or span + batch_size(&header) > room):
            break
        if span == 0:
            base[0] = header.base_offset
        span += batch_size(&header)
        behind[0] = next_offset_of(&header)
        if codec_of(&header):
            break
    return span
