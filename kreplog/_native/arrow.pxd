# ArrowBuilder: record batches to Arrow columns.

from libc.stdint cimport int64_t, uint8_t

from kreplog._native.arrow_export cimport ArrowColumns
from kreplog._native.arrow_memory cimport Columns

cdef enum:
    LENT = 2  # finished columns that a builder remembers, to take back


cdef class ArrowBuilder:
    cdef Columns* _columns
    cdef Columns* _lent[LENT]
    cdef int _order[6]
    cdef int _count
    cdef bint _busy
    cdef int add(self, const uint8_t* data, Py_ssize_t length, int64_t start, int64_t stop) except -1
    cpdef ArrowColumns finish(self)
    cdef Columns* _take_back(self) except NULL
