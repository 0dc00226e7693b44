# One segment of a log: `<20-digit base offset>.log` and its two indexes.

from libc.stdint cimport int64_t, uint8_t

from kreplog._native.batch cimport BatchHeader
from kreplog._native.files cimport FileHandle, Mapping, Tail
from kreplog._native.index cimport OffsetIndex, TimeIndex
from kreplog._native.state cimport StateFile


cdef class Segment:
    cdef readonly int64_t base_offset
    cdef readonly str path
    cdef str partition
    cdef bint writable
    cdef bint mappable  # no program that cuts files in place writes here
    cdef bint exposed  # a writer's: other processes may have mapped this inode
    cdef StateFile state  # a reader's, and the generation in which it listed the segment: see is_final
    cdef int64_t generation
    cdef int64_t indexed_size  # bytes of the log when the indexes were read
    cdef bint replaced  # by compaction: the file at its path may be another's
    cdef bint sealed  # no more appends; to a reader: as far as it knows
    cdef int64_t size  # bytes of whole batches; -1 until first needed
    cdef int64_t map_size
    cdef Py_ssize_t index_interval
    cdef Py_ssize_t since_index
    cdef int64_t first_timestamp  # of its first batch; -1 when empty
    cdef int64_t max_timestamp
    cdef int64_t max_timestamp_offset
    cdef bint timestamps_known
    cdef bint suspect  # damage was met while looking for the largest timestamp
    cdef bint indexed
    cdef bint synced
    cdef int64_t aborted_count  # entries of its transaction index, -1 until they are counted
    cdef bint aborted_unsynced  # that changed since it was last synced
    cdef FileHandle file
    cdef Mapping mapping
    cdef Tail tail  # the active segment, mapped for small appends
    cdef int64_t allocated  # bytes of the file that have their blocks, -1 where none can be had ahead
    cdef OffsetIndex offsets
    cdef TimeIndex times
    cdef object __weakref__

    cdef FileHandle open(self)
    cdef int64_t byte_size(self) except -1
    cdef Mapping mapped(self)
    cdef bint is_final(self) except -1
    cdef int check_whole(self) except -1
    cdef int header_at(self, int64_t position, BatchHeader* out) except 1
    cdef int note(self, const BatchHeader* h, int64_t position) except -1
    cdef int append(self, const uint8_t* data, Py_ssize_t length) except -1
    cdef int make_ready(self, Py_ssize_t length) except -1
    cdef int make_room(self, Py_ssize_t length) except -1
    cdef int trim(self) except -1
    cdef int load_indexes(self) except -1
    cdef int rebuild_indexes(self, str reason) except -1
    cdef bint entry_fits(self, Py_ssize_t i) except -1
    cdef bint entry_is_wrong(self, Py_ssize_t fit, Py_ssize_t i) except -1
    cdef bint crc_holds(self, int64_t position, const BatchHeader* h) except -1
    cdef bint is_padding(self, int64_t position) except -1
    cdef int64_t locate(self, int64_t offset, int64_t dense_from, BatchHeader* out) except -1
    cdef bint is_followed(self, int64_t position, const BatchHeader* h) except -1
    cdef int64_t resync(self, int64_t damaged, int64_t chain) except -1
    cdef int64_t position_near(self, int64_t offset) except -1
    cdef int learn_timestamps(self) except -1
    cdef int complete(self) except -1
    cdef int seal(self) except -1
    cdef int forget_indexes(self) except -1
    cdef int cut(self, int64_t position) except -1
    cdef int sync(self) except -1
    cdef int delete(self) except -1
    cdef int remove_aborted(self) except -1
    cdef int follow_rename(self, str directory) except -1
    cdef int rename_from(self, str stem, str suffix) except -1


cdef Segment new_segment(
    str directory, str partition, int64_t base_offset, bint writable, int64_t map_size, Py_ssize_t index_interval
)
cdef Segment create_segment(
    str directory, str partition, int64_t base_offset, int64_t map_size, Py_ssize_t index_interval
)
cdef int remove(str path) except -1
