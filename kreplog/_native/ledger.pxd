# WriterLedger: the writers that append exactly once to one partition.


cdef class WriterLedger:
    cdef readonly str path
    cdef dict _committed  # writer: (sequence, first offset, end offset, time in ms)
    cdef tuple _pending  # (writer, sequence, first offset), None where no append is under way

    cdef object _write(self, dict committed)
    cdef object _load(self, bytes data)
    cdef object _corrupt(self, str reason)
