# RecordFilter: which records of a log that is compacted stay, and the batches that hold them then.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.batch cimport BatchHeader, RecordCursor
from kreplog._native.files cimport HeapBuffer
from kreplog._native.key_map cimport KeyMap


cdef enum:
    COMPRESSED_NEXT = 2  # which needs the GIL: for learn_compressed, filter_compressed
    FULL = 3  # the map of the keys, or the output
    CHANGED = 4  # the next batch does not stay as it is
    KEYLESS = 5  # a record has no key, and is not to be dropped
    UNCONFIRMED = 6  # the next batch is a marker by which a transaction that is given as aborted is another


cdef struct Retained:  # of the records of one batch
    int32_t count
    int32_t tombstones
    int64_t max_timestamp
    Py_ssize_t length  # bytes


cdef class RecordFilter:
    cdef KeyMap keys
    cdef int64_t first_dirty
    cdef int64_t end  # the map has all keyed records from first_dirty to here
    cdef bint drops_keyless  # records without a key go; else `learn` ends at the first
    cdef int64_t keyless  # its offset, after KEYLESS
    cdef int64_t now_ms
    cdef int64_t horizon_ms  # until when tombstones stay that are met for the first time
    cdef int64_t[::1] last_offsets  # of the batch, or marker, by which each producer is found again; sorted
    cdef int64_t[::1] aborted  # producer id, first and last offset of aborted transactions, sorted
    cdef Py_ssize_t confirmed  # those of which the first pass has met the marker
    cdef uint8_t[::1] met  # for each of them, whether the second pass has met a batch of it
    cdef int64_t[::1] undecided  # producers of whose transaction it has met a batch, and no marker yet; sorted
    cdef Py_ssize_t undecided_count
    cdef bint drops_markers  # it has, since the caller has last set this

    cdef int64_t chain  # the offset at which the next batch begins, or after which where there are gaps
    cdef int64_t bound  # where the segment ends
    cdef int64_t dense_from

    cdef bint copies  # else batches that stay as they are are not written to the output, which CHANGED ends
    cdef bint ends_group  # the segment is the last of those that become one
    cdef HeapBuffer output
    cdef Py_ssize_t length  # bytes of it in use, whole batches
    cdef HeapBuffer scratch  # the retained records of a compressed batch
    cdef readonly int64_t records  # looked at
    cdef readonly int64_t dropped  # of them

    cdef void begin(self, int64_t chain, int64_t bound) noexcept nogil
    cdef int learn(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t stop, Py_ssize_t* at) noexcept nogil
    cdef int learn_compressed(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at) except 1
    cdef int run(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t stop, Py_ssize_t* at) noexcept nogil
    cdef int filter_compressed(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at) except 1
    cdef int make_room(self, const uint8_t* p, Py_ssize_t available) except -1
    cdef int reserve(self, Py_ssize_t more) except -1
    cdef int check(self, const uint8_t* p, Py_ssize_t available, BatchHeader* h) noexcept nogil
    cdef int learn_records(self, RecordCursor* c) noexcept nogil
    cdef bint is_aborted(self, const BatchHeader* h) noexcept nogil
    cdef bint is_to_go(self, const BatchHeader* h) noexcept nogil
    cdef bint confirm(self, const uint8_t* p, const BatchHeader* h) noexcept nogil
    cdef Py_ssize_t unconfirmed(self)
    cdef Py_ssize_t find_aborted(self, int64_t producer_id, int64_t offset) noexcept nogil
    cdef bint is_emptied(self, int64_t producer_id, int64_t last_offset) noexcept nogil
    cdef bint is_undecided(self, int64_t producer_id, Py_ssize_t* place) noexcept nogil
    cdef bint note_batch(self, const BatchHeader* h) noexcept nogil
    cdef int run_marker(self, const uint8_t* p, const BatchHeader* h, bint last) noexcept nogil
    cdef bint is_newest(self, const BatchHeader* h) noexcept nogil
    cdef bint is_needed(self, const BatchHeader* h, bint last) noexcept nogil
    cdef int retain(self, RecordCursor* c, const BatchHeader* h, uint8_t* out, Retained* retained) noexcept nogil
    cdef int rebase(self, const BatchHeader* h, uint8_t* records, Retained* retained) noexcept nogil
    cdef bint stays(self, const BatchHeader* h, const Retained* retained) noexcept nogil
    cdef void write_whole(self, const uint8_t* p, const BatchHeader* h) noexcept nogil
    cdef void write_empty(self, const uint8_t* p, const BatchHeader* h) noexcept nogil
    cdef void seal(self, const uint8_t* p, const BatchHeader* h, const Retained* retained) noexcept nogil
