# The lock of a partition directory's writer, as its readers see it.

from libc.stdint cimport uint32_t


cdef bint is_writer_alive(str path, uint32_t flags) except -1
