# The wall clock of calls that are made for each record: see clock_impl.h.

from libc.stdint cimport int64_t

cdef extern from "clock_impl.h" nogil:
    ctypedef struct Clock "kreplog_clock":
        pass
    int64_t clock_ms "kreplog_clock_ms"(Clock* clock) noexcept
