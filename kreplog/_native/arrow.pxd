from libc.stdint cimport int32_t, int64_t, uint8_t


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


cdef enum:
    LENT = 2  # finished columns that a builder remembers, to take back


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


cdef class ArrowBuilder:
    cdef Columns* _columns
    cdef Columns* _lent[LENT]
    cdef int _order[6]
    cdef int _count
    cdef bint _busy
    cdef int add(self, const uint8_t* data, Py_ssize_t length, int64_t start, int64_t stop) except -1
    cpdef ArrowColumns finish(self)
    cdef Columns* _take_back(self) except NULL


cdef class ArrowColumns:
    cdef Columns* _columns
    cdef int _order[6]
    cdef int _count
