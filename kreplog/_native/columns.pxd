# Many keys or values at once, whatever they came in: a list, an Arrow binary array, or a 2-D byte array.

from cpython.list cimport PyList_GET_ITEM
from libc.stdint cimport int64_t

from kreplog._native.batch cimport Bytes, Payload


cdef enum:
    LIST = 0
    ARROW_32 = 1
    ARROW_64 = 2
    ROWS = 3


cdef class Column:
    cdef readonly Py_ssize_t length
    cdef list items
    cdef Payload payload
    cdef Py_buffer view
    cdef bint viewed
    cdef object capsules
    cdef void* array
    cdef int kind

    cdef int at_row(self, Py_ssize_t i, Bytes* out) noexcept

    cdef inline int at(self, Py_ssize_t i, Bytes* out) except -1:
        """Item `i`, valid until the next call. Raises ArgumentTypeError."""
        if self.kind == LIST:
            return self.payload.take(<object> PyList_GET_ITEM(self.items, i), out)
        return self.at_row(i, out)


cdef class Timestamps:
    cdef Py_ssize_t length
    cdef Py_buffer view
    cdef bint viewed
    cdef list items

    cdef int64_t at(self, Py_ssize_t i) except? -1


cdef Column column_of(object values, str name)
cdef Timestamps timestamps_of(object values, Py_ssize_t expected)
cdef int64_t integer(object value, str name) except? -1
cdef int64_t timestamp_of(object value) except? -1
