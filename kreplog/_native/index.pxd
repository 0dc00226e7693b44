# Kafka's two sparse indexes of a segment, entries big-endian and sorted:
#   .index      8 bytes: int32 relative offset of a batch's last record, int32 position of that batch
#   .timeindex 12 bytes: int64 largest timestamp so far (ms), int32 relative offset of the batch that holds it

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.files cimport FileHandle, Mapping


cdef class SparseIndex:
    cdef readonly str path
    cdef Py_ssize_t entry_size
    cdef Py_ssize_t count  # entries held
    cdef Py_ssize_t saved  # entries of these that the file holds
    cdef const uint8_t* data  # heap or mapping
    cdef uint8_t* heap
    cdef Py_ssize_t capacity
    cdef Mapping mapping

    cdef uint8_t* grow(self) except NULL
    cdef int load(self, bint mappable) except -1
    cdef Py_ssize_t filled(self, FileHandle file, Py_ssize_t count) except -1
    cdef int save(self) except -1
    cdef int save_if_possible(self) except -1
    cdef int rewrite(self) except -1
    cdef int keep(self, Py_ssize_t count) except -1
    cdef void clear(self) noexcept
    cdef bint sorted(self) noexcept


cdef class OffsetIndex(SparseIndex):
    cdef int32_t offset_at(self, Py_ssize_t i) noexcept
    cdef int32_t position_at(self, Py_ssize_t i) noexcept
    cdef int push(self, int32_t relative_offset, int32_t position) except -1
    cdef Py_ssize_t floor_offset(self, int64_t relative_offset) noexcept
    cdef Py_ssize_t floor_position(self, int64_t position) noexcept


cdef class TimeIndex(SparseIndex):
    cdef int64_t timestamp_at(self, Py_ssize_t i) noexcept
    cdef int32_t offset_at(self, Py_ssize_t i) noexcept
    cdef int push(self, int64_t timestamp, int32_t relative_offset) except -1
    cdef Py_ssize_t floor_timestamp(self, int64_t timestamp) noexcept
