from libc.stdint cimport int64_t

from kreplog._native.batch cimport BatchHeader
from kreplog._native.segment cimport Segment


cdef int64_t boundary(Segment segment, int64_t at, int64_t end, int64_t wanted, BatchHeader* h) except -1
