# The aborted transactions of a segment, in its file `.txnindex`.

from libc.stdint cimport int64_t

from kreplog._native.segment cimport Segment


cdef bytes aborted_entry(int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t last_stable_offset)
cdef bint add_aborted(Segment segment, bytes entry) except -1
cdef bint replace_aborted(Segment segment, int64_t offset, bytes entries) except -1
cdef bint collect_aborted(Segment segment, int64_t start, int64_t stop, list found) except -1
cdef int list_aborted(Segment segment, int64_t stop, list found) except -1
cdef bytes aborted_without(Segment segment, set last_offsets)
cdef int write_index(str path, bytes entries) except -1
cdef int put_aborted(Segment segment, str path, bytes entries) except -1
cdef int merge_aborted(str stem, list others) except -1
cdef str aborted_path(Segment segment)
