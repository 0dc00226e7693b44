"""Waiting for records: a reader sleeps until the high watermark, or the last stable offset, passes an offset.

A reader that may write to the state file registers there, and the writer wakes it through a futex (wake_impl.h). One
that may not (another user, a read-only mount), or whose writer is no kreplog of this version, looks again after pauses
from 50 us to 1 ms, and where the high watermark comes from checkpoint files, after 10 ms.

A wake-up is a system call of the writer, which takes it as long as several appends. So a reader that has read all of a
log which is appended to more often than once in FAST_NS does not register at once: it sleeps for NAP_NS first, and
registers if nothing has come by then. It is late by that at most, and the writer pays for none of it.

The writer wakes by the high watermark alone, which it publishes before the first unstable offset. A reader that waits
for the last stable offset registers at its own offset: once the high watermark is past that, each release of the
writer's lock wakes it, which is behind both, and the one that moves the last stable offset on is among them.

Whoever is killed wakes nobody. So one of the waiting readers looks every SLICE_NS whether the writer still has its lock
and whether the path still names the directory, and wakes the others where not. They sleep for COVERED_NS at most, so
that one of them takes over from a reader that has ended or hangs, and each looks for itself every OWN_LOOK_NS, for its
path or its view of locks may be another.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.limits cimport INT_MAX
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from kreplog._native.columns cimport integer
from kreplog._native.shown_lock cimport is_writer_alive
from kreplog._native.state cimport AFTER_DEATH, LOCKED_BY_TOPIC, SESSION_CLOSED, SESSION_OPEN, Session, StateFile
from kreplog._native.view cimport LogView

from kreplog.errors import (
    ArgumentTypeError,
    LogClosedError,
    PartitionDeletedError,
    UsageError,
    WriterClosedError,
    WriterDiedError,
)

cdef extern from "wake_impl.h" nogil:
    enum: KREPLOG_WOKEN
    uint32_t kreplog_read_word(const uint8_t* page) noexcept
    void kreplog_want_wake(uint8_t* page, int64_t high_watermark) noexcept
    int kreplog_sleep(const uint8_t* page, uint32_t seen, int64_t ns) noexcept
    void kreplog_wake_sleepers(const uint8_t* page, uint32_t seen, int count) noexcept
    bint kreplog_take_look(uint8_t* page, int64_t now, int64_t period) noexcept
    void kreplog_saw_writer(uint8_t* page, int64_t now) noexcept
    void kreplog_saw_no_writer(uint8_t* page) noexcept

cdef enum:
    SLICE_NS = 20_000_000
    COVERED_NS = 100_000_000
    OWN_LOOK_NS = 1_000_000_000
    SHORTEST_PAUSE_NS = 50_000
    LONGEST_PAUSE_NS = 1_000_000
    CHECKPOINT_PAUSE_NS = 10_000_000
    NAP_NS = 50_000
    FAST_NS = 40_000
    FAST_COUNT = 4


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec


cdef int64_t deadline_of(object timeout) except? -1:
    """The monotonic time in ns, `timeout` seconds from now; INT64_MAX for None. Raises UsageError."""
    if timeout is None:
        return INT64_MAX
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ArgumentTypeError(f"timeout is a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise UsageError(f"timeout = {timeout} must be 0 or more seconds")
    if timeout > 1e9:
        return INT64_MAX
    return monotonic_ns() + <int64_t> (timeout * 1e9)


@cython.final
cdef class HighWatermarkWait:

    cdef int64_t end(self) except -1:
        """Where the records end that the reader may have, at the log's position as it is: after `refresh`."""
        return self.log.last_stable() if self.stable else self.log.position.high_watermark

    cdef int look(self, int64_t offset, int64_t generation) except -1:
        """What has become of the wait for the record at `offset`; WAITING with the wake-up registered.

        generation: the log's, at which the wait began, -1 if truncations do not matter. Raises PartitionDeletedError,
        StorageError."""
        cdef LogView log = self.log
        cdef int outcome
        if log.closed:
            return LOG_CLOSED
        log.refresh()
        if self.end() <= offset and self.page != NULL:
            self.seen = kreplog_read_word(self.page)
            kreplog_want_wake(self.page, offset + 1)
            log.refresh()  # else the wake-up for what was published before it was registered would not come
        if self.end() > offset:
            return REACHED
        if generation >= 0 and log.position.generation != generation:
            return TRUNCATED
        outcome = self.look_at_writer()
        if outcome != WAITING:
            if log.closed:
                return LOG_CLOSED
            log.refresh()  # it may have published its last between the two looks
            if self.end() > offset:
                return REACHED
        return outcome

    cdef int look_at_writer(self) except -1:
        """WAITING, WRITER_CLOSED or WRITER_DIED, by the session; now and then by the writer's lock."""
        cdef Session session
        cdef uint8_t* page
        cdef bint looks_at_writer
        cdef int64_t now
        if not self.log.read_only:
            return WAITING
        session.flags = 0
        if self.state is not None:
            session = self.state.session()
            if session.number != self.session and session.number:
                if self.session and not self.across_writers:
                    return WRITER_DIED if session.flags & AFTER_DEATH else WRITER_CLOSED
                self.session = session.number
            if session.flags & SESSION_CLOSED and not self.across_writers:
                return WRITER_CLOSED
        now = monotonic_ns()
        if now - self.checked_ns < SLICE_NS:
            return WAITING
        looks_at_writer = self.state is not None and not self.across_writers and session.flags & SESSION_OPEN
        page = self.page if looks_at_writer else NULL
        self.covered = (
            page != NULL and now - self.checked_ns < OWN_LOOK_NS and not kreplog_take_look(page, now, SLICE_NS)
        )
        if self.covered:
            return WAITING
        self.checked_ns = now
        try:
            self.log.require_directory()
            if not looks_at_writer:
                return WAITING
            if is_writer_alive(self.log.path, session.flags):
                if page != NULL:
                    kreplog_saw_writer(page, now)
                return WAITING
        except PartitionDeletedError:
            if page != NULL:
                kreplog_saw_no_writer(page)
            raise
        if page != NULL:
            kreplog_saw_no_writer(page)
        session = self.state.session()
        if session.number != self.session:
            return WRITER_DIED if session.flags & AFTER_DEATH else WRITER_CLOSED
        return WRITER_CLOSED if session.flags & SESSION_CLOSED else WRITER_DIED

    cdef int sleep(self, int64_t most_ns) except -1:
        """Without the GIL, until woken or for a slice; then look again. Raises what a signal's handler raises."""
        cdef uint8_t* page = self.page
        cdef uint32_t seen = self.seen
        cdef int64_t ns = min(most_ns, <int64_t> (COVERED_NS if self.covered else SLICE_NS))
        if page == NULL or (self.session == 0 and self.log.read_only):
            ns = min(ns, self.pause_ns)
            self.pause_ns = min(2 * self.pause_ns, <int64_t> LONGEST_PAUSE_NS)
            if self.state is None:
                ns = min(most_ns, <int64_t> CHECKPOINT_PAUSE_NS)
        with nogil:
            if kreplog_sleep(page, seen, ns) == KREPLOG_WOKEN:
                kreplog_wake_sleepers(page, seen, INT_MAX)
        PyErr_CheckSignals()
        return 0

    cdef bint is_writer_fast(self, int64_t now) noexcept:
        """Whether so much was published lately that a wake-up for the next would be dear: lately is since a wait of
        this log, FAST_COUNT appends ago or more. Where a reader takes the processor of the writer that wakes it, each
        wait finds a single one."""
        cdef LogView log = self.log
        cdef int64_t published = <int64_t> (log.position.sequence - log.paced_sequence)
        cdef int64_t elapsed = now - log.paced_ns
        if 0 <= published < FAST_COUNT and elapsed < FAST_COUNT * FAST_NS:
            return False
        log.paced_sequence, log.paced_ns = log.position.sequence, now
        return published >= FAST_COUNT and elapsed < published * FAST_NS

    cdef int nap(self, int64_t offset, int64_t deadline_ns) except -1:
        """Before a wait for a fast writer: sleep, and register for nothing. Raises what a signal's handler raises."""
        cdef int64_t now
        if self.page == NULL or self.log.closed:
            return 0
        self.log.refresh()
        if self.end() > offset:
            return 0
        now = monotonic_ns()
        if self.is_writer_fast(now) and now < deadline_ns:
            with nogil:
                kreplog_sleep(NULL, 0, min(deadline_ns - now, <int64_t> NAP_NS))  # in place of a wake-up
            PyErr_CheckSignals()
        return 0

    cdef int wait(self, int64_t offset, int64_t generation, int64_t deadline_ns) except -1:
        """Look and sleep until the outcome is another than WAITING. Raises as both."""
        cdef int outcome
        cdef int64_t now
        self.pause_ns = SHORTEST_PAUSE_NS
        self.nap(offset, deadline_ns)
        while True:
            outcome = self.look(offset, generation)
            if outcome != WAITING:
                return outcome
            now = monotonic_ns()
            if now >= deadline_ns:
                return TIMED_OUT
            self.sleep(deadline_ns - now)

    def poll(self, int64_t offset, int64_t generation):
        """`look`, for waits that do not block: an outcome of `Outcome`."""
        return self.look(offset, generation)

    def begin(self):
        """Before the looks of those who wait with this one: whatever wakes them from now on ends the next pause."""
        if self.page != NULL:
            self.seen = kreplog_read_word(self.page)

    def pause(self):
        """`sleep` for a slice at most, from the latest `begin` on."""
        self.sleep(SLICE_NS)

    def raise_outcome(self, int outcome, int64_t offset):
        self.refuse(outcome, offset)

    cdef int refuse(self, int outcome, int64_t offset) except -1:
        """Raise the error of an outcome after which no record comes."""
        cdef LogView log = self.log
        if outcome == LOG_CLOSED:
            raise LogClosedError(
                f"{log.name}: the log was closed while offset {offset} was waited for", partition=log.name,
                offset=offset, path=log.path,
            )
        if outcome == WRITER_CLOSED:
            raise WriterClosedError(
                f"{log.name}: no process has the log open for writing, and it ends at offset "
                f"{log.position.high_watermark}, before {offset}: wait again once a writer has opened it, or with "
                "across_writers=True", partition=log.name, offset=offset, path=log.path,
            )
        raise WriterDiedError(
            f"{log.name}: the process that wrote the log ended without closing it, " + (
                f"with a transaction open at offset {offset}" if offset < log.position.high_watermark else
                f"at offset {log.position.high_watermark}, before {offset}"
            ) + ": start the writer again, which recovers the log; across_writers=True waits for that",
            partition=log.name, offset=offset, path=log.path,
        )


cdef HighWatermarkWait wait_of(LogView log, bint across_writers, bint stable=False):
    """Raises LogClosedError."""
    cdef HighWatermarkWait wait = HighWatermarkWait.__new__(HighWatermarkWait)
    cdef StateFile state
    log.check_open()
    state = log.state
    wait.log = log
    wait.state = state
    wait.across_writers = across_writers
    wait.stable = stable
    wait.page = NULL
    wait.pause_ns = SHORTEST_PAUSE_NS
    wait.checked_ns = monotonic_ns()
    if state is not None:
        wait.session = state.session().number
        wait.page = state.page_to_wait_on()
    return wait


def new_wait(LogView log, bint across_writers, bint stable=False):
    """stable: a wait for the last stable offset. Raises LogClosedError."""
    return wait_of(log, across_writers, stable)


def writer_outcome(LogView log not None, bint topic_released):
    """WRITER_CLOSED or WRITER_DIED by the session in the state file; WAITING where the writer lives, or that cannot be
    known. For a reader of a topic that is not locked. topic_released: see `was_topic_released`; partitions may have
    been left unopened since they were made, or since a death. Raises LogClosedError."""
    cdef Session session
    log.check_open()
    if log.state is None:
        return WAITING
    session = (<StateFile> log.state).session()
    if session.flags & SESSION_CLOSED or (topic_released and session.flags & LOCKED_BY_TOPIC):
        return WRITER_CLOSED
    return WRITER_DIED if session.flags & SESSION_OPEN and not is_writer_alive(log.path, session.flags) else WAITING


def checked_offset(LogView log, offset):
    """The offset of a record, to wait for. Raises UsageError."""
    cdef int64_t wanted = integer(offset, "offset")
    if not 0 <= wanted < INT64_MAX:
        raise UsageError(f"{log.name}: offset {offset} is no offset of a record", partition=log.name, offset=offset)
    return wanted


def checked_timeout(timeout):
    """Raises UsageError for a timeout that is none."""
    deadline_of(timeout)


def wait(LogView log, offset, timeout, bint across_writers, bint stable=False):
    """See Log.wait. stable: until the record is below the last stable offset."""
    cdef int64_t wanted = checked_offset(log, offset)
    cdef int64_t deadline = deadline_of(timeout)
    cdef HighWatermarkWait wait = wait_of(log, across_writers, stable)
    cdef int outcome
    outcome = wait.wait(wanted, -1, deadline)
    if outcome != REACHED and outcome != TIMED_OUT:
        wait.refuse(outcome, wanted)
    return outcome == REACHED
