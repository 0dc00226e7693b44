# BatchReader: walks the batches of a log in order, whatever happens to the files meanwhile.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.aborted cimport AbortedFilter
from kreplog._native.arrow cimport ArrowBuilder
from kreplog._native.batch cimport BatchHeader, RecordCursor
from kreplog._native.files cimport Mapping
from kreplog._native.segment cimport Segment
from kreplog._native.view cimport LogView


cdef class BatchReader:
    cdef LogView log
    cdef int64_t expected  # the next offset to deliver
    cdef int64_t stop
    cdef int64_t chain  # where the batch before ended, -1 after a seek
    cdef int64_t generation
    cdef Segment segment
    cdef int64_t at  # position of the next batch
    cdef const uint8_t* window  # bytes of the file from window_start to window_end
    cdef int64_t window_start
    cdef int64_t window_end
    cdef object owner  # keeps `window` alive
    cdef Mapping mapping  # the owner where it is one
    cdef int64_t populated
    cdef int64_t ahead
    cdef int32_t epoch  # of offsets below epoch_until
    cdef int64_t epoch_until
    cdef int64_t start  # the first record to deliver, of what begins in the middle of a batch
    cdef bint committed  # `stop` is no further than the high watermark or, where `stable`, the last stable offset
    cdef bint stable
    cdef AbortedFilter aborted  # None where nothing is left out
    cdef int64_t watched  # of a reader that follows: no truncation up to this generation took what it had; else -1
    # the batch delivered last
    cdef const uint8_t* data
    cdef BatchHeader header
    cdef int64_t position

    cdef int next(self) except -1
    cdef int check(self) except -1
    cdef int extend(self, int64_t stop) except -1
    cdef int limit_to_committed(self) except -1
    cdef int check_truncations(self, int64_t generation) except -1
    cdef int seek(self) except -1
    cdef int fill(self, Py_ssize_t wanted) except -1
    cdef int judge(self) except 1
    cdef bint is_at_padding(self) except -1
    cdef int _next_segment(self) except -1
    cdef bint moved(self) except -1
    cdef bint epoch_fits(self, const BatchHeader* h) except -1


cdef class Records:
    cdef BatchReader reader
    cdef RecordCursor cursor
    cdef bytes plain
    cdef bint values_only
    cdef bint in_batch
    cdef bint busy

    cdef bint _open_next(self) except -1


cdef class ArrowPieces:
    cdef BatchReader reader
    cdef ArrowBuilder builder
    cdef Py_ssize_t max_bytes
    cdef bint busy


cdef int refuse_deleted(LogView log, int64_t offset) except -1
cdef BatchReader reader_of(LogView log, int64_t start, int64_t stop)
cdef AbortedFilter filter_of(LogView log, int64_t start, int64_t stop)
cdef int located_corruption(BatchReader reader, object error) except -1
