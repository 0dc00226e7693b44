# LogView: the segments and offsets of a log, for its writer and its readers.

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from kreplog._native.segment cimport Segment
from kreplog._native.state cimport Position, StateFile


cdef class LogView:
    cdef readonly str path
    cdef readonly object topic_partition
    cdef readonly object config
    cdef readonly bint read_only
    cdef readonly bint closed
    cdef readonly tuple cuts  # Cut of each file that recovery shortened
    cdef str name

    cdef list _segments  # by base offset; replaced, never changed in place
    cdef Position position
    cdef StateFile state
    cdef int32_t current_epoch  # that records are appended in
    cdef object epochs
    cdef bint epochs_loaded  # a reader looks at them when it first needs one
    cdef int64_t listed_generation  # when the segments were listed
    cdef uint64_t listed_sequence  # of the position for which they were listed by `attach`, 0 once that is used
    cdef int64_t first_unstable  # a writer's: where the oldest transaction begins that is not decided and committed
    cdef uint64_t paced_sequence  # of the position at the latest wait that began with nothing to read, and its time
    cdef int64_t paced_ns
    cdef object watermark_source  # read-only without a state file: where the high watermark comes from

    cdef int check_open(self) except -1
    cdef int refresh(self) except -1
    cdef int64_t last_stable(self) except -1
    cdef int64_t find_unstable(self) except -1
    cdef list aborted_between(self, int64_t start, int64_t stop)
    cdef int require_directory(self) except -1
    cdef int load_epochs(self) except -1
    cdef int64_t steady_generation(self) except -1
    cdef int relist(self) except -1
    cdef Py_ssize_t segment_index(self, list segments, int64_t offset) noexcept
    cdef int64_t sealed_end(self, Segment segment) noexcept
    cdef Segment segment_for(self, int64_t offset)
    cdef int64_t published_size(self, Segment segment) except -1
    cdef int64_t segment_end(self, list segments, Py_ssize_t i) noexcept
    cdef int _check_range(self, int64_t offset) except -1
    cdef int64_t byte_size(self) except -1
    cdef int check_files(self) except -1


cdef uint32_t epochs_crc(object epochs) except? 0
