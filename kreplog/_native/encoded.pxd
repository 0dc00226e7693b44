# What other appends of encoded batches share: the copy that is checked and written, and the check of one batch.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.batch cimport BatchHeader
from kreplog._native.log cimport SegmentedLog


cdef const uint8_t[::1] bytes_of(SegmentedLog log, object buffer)
cdef int check(SegmentedLog log, const uint8_t* p, Py_ssize_t available, BatchHeader* h) except 1
cdef int64_t stamp(
    SegmentedLog log, uint8_t* p, const BatchHeader* h, int64_t base_offset, int32_t epoch, int64_t batch_max,
    int64_t now
) noexcept
