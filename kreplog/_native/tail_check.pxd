# TailCheck: a walk over every batch from an offset on.

from libc.stdint cimport int32_t, int64_t

from kreplog._native.batch cimport BatchHeader
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment


cdef class TailCheck:
    cdef SegmentedLog log
    cdef int64_t limit  # the end that an interrupted truncation was heading for, -1 for none
    cdef object epochs  # the batches must agree with them; None when they may be wrong
    cdef object progress
    cdef int64_t start
    cdef int64_t expected  # the offset at which the next batch begins, -1 before the first segment
    cdef int32_t epoch  # of the batch before
    cdef int64_t done  # bytes
    cdef int64_t total
    cdef int code  # BATCH_OK, or why the walk has ended
    cdef list cuts

    cdef int64_t run(self, int64_t start) except -1
    cdef bint follows(self, Segment segment) except -1
    cdef int64_t walk(self, Segment segment) except -1
    cdef int check(self, Segment segment, int64_t at, int64_t size, BatchHeader* h) except 2
    cdef int cut(self, Segment segment, int64_t at, list segments, Py_ssize_t i) except -1
    cdef int drop_from(self, Py_ssize_t i) except -1


cdef int trim_sealed(SegmentedLog log, int64_t end) except -1
