"""Waiting for one of several logs: the thread sleeps on all their wake words at once (futex_waitv, Linux 5.16).

Where it cannot be woken it looks again after a pause: of 1 ms for up to 128 logs, as for a single one, and of 20 ms for
more, since each look takes its time. So it is on an older kernel, where the state file may only be read, and for more
logs than the kernel takes.
"""

from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kreplog._native.waiting cimport HighWatermarkWait

cdef extern from *:
    """
    #include "wake_impl.h"

    /* Sleep for `ns` at most while each page's word is the one seen: the number of a page whose word is another, or was
       raised meanwhile; KREPLOG_NOT_WOKEN, or KREPLOG_NO_SUCH_CALL where the kernel has none. Sleeps with all bits. */
    enum { KREPLOG_MOST_WORDS = 128, KREPLOG_NOT_WOKEN = -1, KREPLOG_NO_SUCH_CALL = -2 };

    static inline int kreplog_sleep_any(uint8_t* const* pages, const uint32_t* seen, int count, int64_t ns) {
    #if defined(__linux__)
        enum { FUTEX_WAITV_CALL = 449, SIZE_OF_32_BITS = 2 };  /* headers older than Linux 5.16 have no names of them */
        struct { uint64_t value, address; uint32_t flags, reserved; } waiters[KREPLOG_MOST_WORDS];
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += ns % 1000000000;
        until.tv_sec += ns / 1000000000 + until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        for (int i = 0; i < count; i++) {
            waiters[i].value = seen[i];
            waiters[i].address = (uint64_t) (uintptr_t) kreplog_wake_word(pages[i]);
            waiters[i].flags = SIZE_OF_32_BITS;
            waiters[i].reserved = 0;
        }
        long woken = syscall(FUTEX_WAITV_CALL, waiters, count, 0, &until, CLOCK_MONOTONIC);
        if (woken >= 0) return (int) woken;
        if (errno == ETIMEDOUT || errno == EINTR) return KREPLOG_NOT_WOKEN;
        if (errno == EAGAIN) {
            for (int i = 0; i < count; i++)
                if (kreplog_read_word(pages[i]) != seen[i]) return i;
            return KREPLOG_NOT_WOKEN;
        }
    #endif
        (void) pages; (void) seen; (void) count; (void) ns;
        return KREPLOG_NO_SUCH_CALL;
    }
    """
    enum: KREPLOG_MOST_WORDS
    enum: KREPLOG_NO_SUCH_CALL
    int kreplog_sleep_any(uint8_t* const* pages, const uint32_t* seen, int count, int64_t ns) noexcept nogil
    void kreplog_wake_sleepers(const uint8_t* page, uint32_t seen, int count) noexcept nogil
    int kreplog_sleep(const uint8_t* page, uint32_t seen, int64_t ns) noexcept nogil

cdef enum:
    SLICE_NS = 20_000_000
    PAUSE_NS = 1_000_000


def sleep_any(list waits not None):
    """Sleep until a writer wakes one of the waits, each of which has just found nothing; for 20 ms at most."""
    cdef uint8_t* pages[KREPLOG_MOST_WORDS]
    cdef uint32_t seen[KREPLOG_MOST_WORDS]
    cdef HighWatermarkWait wait
    cdef Py_ssize_t count = len(waits)
    cdef Py_ssize_t i
    cdef int woken
    cdef bint can_be_woken = 0 < count <= KREPLOG_MOST_WORDS
    cdef int64_t pause = PAUSE_NS if can_be_woken else SLICE_NS
    if can_be_woken:
        for i in range(count):
            wait = waits[i]
            if wait.page == NULL or (wait.session == 0 and wait.log.read_only):
                can_be_woken = False
                break
            pages[i], seen[i] = wait.page, wait.seen
    with nogil:
        woken = KREPLOG_NO_SUCH_CALL
        if can_be_woken:
            woken = kreplog_sleep_any(pages, seen, <int> count, SLICE_NS)
        if woken >= 0:
            kreplog_wake_sleepers(pages[woken], seen[woken], INT_MAX)
        elif woken == KREPLOG_NO_SUCH_CALL:
            kreplog_sleep(NULL, 0, pause)
