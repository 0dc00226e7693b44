# Columns: the buffers behind Arrow columns, counted by reference; see arrow_memory.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from *:
    """
    #define kreplog_ref_add(counter, by) __atomic_add_fetch((counter), (by), __ATOMIC_ACQ_REL)
    """
    int32_t ref_add "kreplog_ref_add"(int32_t* counter, int32_t by) noexcept nogil

cdef enum:
    OFFSET
    TIMESTAMP
    TIMESTAMP_TYPE
    KEY
    VALUE
    HEADERS

cdef enum:  # beside the negative codes of batch.pxd
    NO_MEMORY = 2
    TOO_LARGE = 3


cdef struct Buffer:
    uint8_t* data
    size_t capacity


cdef struct ByteColumn:
    Buffer offsets
    Buffer bytes
    Buffer validity


cdef struct Columns:
    int32_t references
    int wanted
    int64_t timestamp_factor
    int64_t rows
    int64_t row_capacity
    int64_t header_capacity
    Buffer offset
    Buffer timestamp
    Buffer timestamp_type
    ByteColumn key
    ByteColumn value
    Buffer header_lists
    Buffer header_lists_validity
    ByteColumn header_key
    ByteColumn header_value


cdef inline int64_t bytes_of(const ByteColumn* column, int64_t rows) noexcept nogil:
    """Bytes that the column's first `rows` values take; 0 when the column is not wanted."""
    return (<int32_t*> column.offsets.data)[rows] if column.offsets.data != NULL else 0


cdef inline int64_t headers_used(const Columns* c) noexcept nogil:
    return (<int32_t*> c.header_lists.data)[c.rows]


cdef Columns* new_columns(int wanted, int64_t timestamp_factor) noexcept nogil
cdef void release_columns(Columns* c) noexcept nogil
cdef bint grow(Buffer* buffer, size_t used, size_t needed) noexcept nogil
cdef bint grow_offsets(Buffer* buffer, int64_t used, int64_t needed) noexcept nogil
cdef bint reserve_rows(Columns* c, int64_t needed) noexcept nogil
cdef bint reserve_headers(Columns* c, int64_t needed) noexcept nogil
cdef int reserve_batch(Columns* c, int64_t records, Py_ssize_t length) noexcept nogil
cdef int reserve_header_batch(Columns* c, int64_t used, int64_t room) noexcept nogil
cdef void empty(Columns* c) noexcept nogil
cdef bint same_room(Columns* fresh, const Columns* old) noexcept nogil
cdef int64_t bytes_used(const Columns* c) noexcept nogil
