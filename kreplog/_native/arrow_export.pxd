# ArrowColumns and the two structs of the Arrow C data interface.

from libc.stdint cimport int64_t

from kreplog._native.arrow_memory cimport Columns


cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept nogil
    void* private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept nogil
    void* private_data


cdef class ArrowColumns:
    cdef Columns* _columns
    cdef int _order[6]
    cdef int _count
