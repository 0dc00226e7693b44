# ArrowRows and RowSelection: rows of Arrow data, to be encoded into record batches.

from libc.stdint cimport int32_t, int64_t

from kreplog._native.arrow_export cimport ArrowArray, ArrowSchema
from kreplog._native.batch cimport BatchBuilder, Bytes


cdef enum:
    ABSENT = 0
    NARROW = 1  # 32-bit offsets, or int32
    WIDE = 2  # 64-bit offsets, or int64
    VIEW = 3  # 16 bytes a value: length, then the bytes, or their first four with a buffer's number and a position
cdef enum:  # of RowSelection.encode
    DONE = 0
    FULL = 1
    LARGE = -1
    BEHIND = 32  # bytes that the varints of a record may take, and its attributes


cdef struct ArrowStream:
    int (*get_schema)(ArrowStream*, ArrowSchema*) noexcept
    int (*get_next)(ArrowStream*, ArrowArray*) noexcept
    const char* (*get_last_error)(ArrowStream*) noexcept
    void (*release)(ArrowStream*) noexcept
    void* private_data


cdef struct Input:  # a column: how it is laid out, and where its row 0 is
    int kind
    int64_t first
    int64_t factor  # of timestamps: this many make a millisecond; negative: so many milliseconds one of them
    const ArrowArray* array


cdef struct Inputs:
    Input value
    Input key
    Input timestamp
    Input headers
    Input header_key
    Input header_value
    Input partition


cdef class ArrowRows:
    cdef ArrowSchema schema
    cdef ArrowArray array
    cdef bint owned  # schema and array were moved here
    cdef object capsules  # what else owns the columns
    cdef readonly Py_ssize_t length
    cdef Inputs inputs

    cdef int bind(self, const ArrowSchema* schema, const ArrowArray* array) except -1
    cdef int bind_column(
        self, str name, const ArrowSchema* schema, const ArrowArray* array, int64_t first
    ) except -1
    cdef int bind_headers(self, const ArrowSchema* schema, const ArrowArray* array, int64_t first) except -1
    cdef int64_t choose(self, int32_t* chosen, int32_t count, int32_t first) noexcept nogil


cdef class RowOrder:
    cdef int64_t* order


cdef class RowSelection:
    cdef ArrowRows rows
    cdef const Inputs* inputs  # of `rows`
    cdef RowOrder owner
    cdef const int64_t* order  # NULL: all rows as they come
    cdef readonly int32_t partition
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t position
    cdef Py_ssize_t written  # of `position`, what need not be encoded again

    cdef int encode(
        self, BatchBuilder builder, Py_ssize_t max_bytes, Py_ssize_t max_record_bytes, int64_t now, Py_ssize_t* needed
    ) noexcept nogil
    cdef int64_t first_over(self, Py_ssize_t limit) noexcept nogil
    cdef int64_t first_keyless(self) noexcept nogil


cdef Input bytes_column(str name, const ArrowSchema* schema, const ArrowArray* array, int64_t first) except *
cdef void bytes_at(const Input* column, int64_t i, Bytes* out) noexcept nogil
cdef str stream_error(ArrowStream* stream)
