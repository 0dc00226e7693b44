# Replacement of segments by what compaction left of them.

from libc.stdint cimport int64_t

from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment


cdef bint swap(SegmentedLog log, int64_t cut_count, list sources, Segment cleaned) except -1
cdef int make_durable(SegmentedLog log) except -1
cdef Segment create_cleaned(str directory, str partition, int64_t base_offset, Py_ssize_t index_interval)
