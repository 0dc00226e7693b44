# HighWatermarkWait: one reader's wait for records that are not committed yet.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kreplog._native.state cimport StateFile
from kreplog._native.view cimport LogView


cpdef enum Outcome:
    WAITING
    REACHED  # the record is committed
    TIMED_OUT
    LOG_CLOSED  # by this process
    WRITER_CLOSED
    WRITER_DIED
    TRUNCATED  # the generation is another than at the begin of the wait


cdef class HighWatermarkWait:
    cdef LogView log
    cdef StateFile state  # None where another program writes
    cdef bint across_writers
    cdef bint stable  # waits for the last stable offset in place of the high watermark
    cdef uint64_t session  # number of the writer session that the wait belongs to, 0 when unknown
    cdef uint8_t* page  # with the wake word, where this process may register; else NULL
    cdef uint32_t seen  # the wake word before the latest look
    cdef int64_t pause_ns  # of the next sleep, without a wake-up
    cdef int64_t checked_ns  # when this reader last looked at the writer and the directory
    cdef bint covered  # another reader looks for this one

    cdef int64_t end(self) except -1
    cdef int look(self, int64_t offset, int64_t generation) except -1
    cdef int look_at_writer(self) except -1
    cdef int sleep(self, int64_t most_ns) except -1
    cdef bint is_writer_fast(self, int64_t now) noexcept
    cdef int nap(self, int64_t offset, int64_t deadline_ns) except -1
    cdef int wait(self, int64_t offset, int64_t generation, int64_t deadline_ns) except -1
    cdef int refuse(self, int outcome, int64_t offset) except -1


cdef int64_t monotonic_ns() noexcept nogil
cdef int64_t deadline_of(object timeout) except? -1
cdef HighWatermarkWait wait_of(LogView log, bint across_writers, bint stable=*)
