# Truncation for an append that is given up, and what it shares with retention.

from libc.stdint cimport int64_t

from kreplog._native.log cimport SegmentedLog


cdef int64_t cut_at(SegmentedLog log, int64_t offset) except -1
cdef int check_descriptors(SegmentedLog log) except -1
cdef int publish_durably(SegmentedLog log) except -1
