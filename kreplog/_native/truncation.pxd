# What an append that is given up shares with Log.truncate_to.

from libc.stdint cimport int64_t

from kreplog._native.log cimport SegmentedLog


cdef int64_t cut_at(SegmentedLog log, int64_t offset) except -1
