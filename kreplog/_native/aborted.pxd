# AbortedFilter: which batches belong to aborted transactions.

from libc.stdint cimport int64_t

from kreplog._native.batch cimport BatchHeader


cdef class AbortedFilter:
    cdef list pending  # (first offset, producer id) of transactions that begin further on, the last first
    cdef set aborting  # producers of aborted transactions that have begun and not ended

    cdef bint skips(self, const BatchHeader* header) except -1
