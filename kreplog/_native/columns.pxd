# Many keys or values at once, whatever they came in: a list, an Arrow binary array, or a 2-D byte array.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t

from kreplog._native.batch cimport Bytes, Payload
from kreplog._native.cursor cimport likely, prefetch


cdef enum:
    LIST = 0  # our own copy, of anything bytes-like
    CALLERS_LIST = 1  # the caller's, as long as bytes and None are all that is found in it
    ARROW_32 = 2
    ARROW_64 = 3
    ROWS = 4
    AHEAD = 16  # items looked at before their turn, as the objects of a long list are seldom in cache


cdef class Column:
    cdef readonly Py_ssize_t length
    cdef bint settled  # all items have been looked at: another one now is a change
    cdef str name
    cdef list items
    cdef Payload payload
    cdef Py_buffer view
    cdef Py_ssize_t row_bytes
    cdef bint viewed
    cdef object capsules
    cdef void* array
    cdef int kind

    cdef int at_row(self, Py_ssize_t i, Bytes* out) noexcept
    cdef int take_over(self, Py_ssize_t i, Bytes* out) except -1
    cdef int refuse_change(self) except -1

    cdef inline int at(self, Py_ssize_t i, Bytes* out) except -1:
        """Item `i`, valid until the next call or until the GIL is released. Raises ArgumentTypeError, UsageError."""
        cdef PyObject* item
        if self.kind == CALLERS_LIST:
            if i + AHEAD < PyList_GET_SIZE(self.items):
                item = PyList_GET_ITEM(self.items, i + AHEAD)
                prefetch(item)
                prefetch(<char*> item + 64)
            elif i >= PyList_GET_SIZE(self.items):
                self.refuse_change()
            item = PyList_GET_ITEM(self.items, i)
            if likely(PyBytes_CheckExact(<object> item)):
                out.data = <const uint8_t*> PyBytes_AS_STRING(<object> item)
                out.length = PyBytes_GET_SIZE(<object> item)
                return 0
            if item == <PyObject*> None:
                out.data = NULL
                out.length = -1
                return 0
            return self.take_over(i, out)
        if self.kind == LIST:
            return self.payload.take(<object> PyList_GET_ITEM(self.items, i), out)
        return self.at_row(i, out)


cdef inline int at_both(Column values, Column keys, Py_ssize_t i, Bytes* value, Bytes* key) except -1:
    """Item `i` of both; `key` stays where `keys` is None."""
    if keys is None:
        return values.at(i, value)
    keys.at(i, key)
    values.at(i, value)
    if values.kind == LIST:  # a caller's code may have run and changed the keys
        keys.at(i, key)
    return 0


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
