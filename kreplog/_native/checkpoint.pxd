cpdef object atomic_write(str path, bytes data, bint durable=*)


cdef class EpochCache:
    cdef readonly object path
    cdef list _epochs
    cdef list _starts
    cdef Py_ssize_t _in_file  # entries in the file, -1 when unknown
    cdef Py_ssize_t _same  # so many of the first are as there

    cpdef bint assign(self, int epoch, long long start_offset) except -1
    cpdef tuple epoch_for_offset(self, long long offset)
    cpdef object end_offset_for(self, int epoch, long long leo)
    cpdef bint truncate_from_end(self, long long offset) except -1
    cpdef bint truncate_from_start(self, long long offset) except -1
    cpdef object clear(self)
    cpdef bint flush(self, bint durable=*) except -1
    cdef object _load(self)
    cdef object _keep(self, Py_ssize_t count)
