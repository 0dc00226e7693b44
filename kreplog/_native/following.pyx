"""Following a log: a read that goes on, as records are committed, from where it is.

The read is that of `reader`, whose end is moved to the high watermark, or to the last stable offset, each time that it
has been reached; the waiting in between is that of `waiting`.
"""

from libc.stdint cimport int64_t

from kreplog._native.aborted cimport AbortedFilter
from kreplog._native.reader cimport ArrowPieces, BatchReader, Records, filter_of
from kreplog._native.view cimport LogView
from kreplog._native.waiting cimport (
    REACHED,
    TRUNCATED,
    WRITER_DIED,
    HighWatermarkWait,
    deadline_of,
    wait_of,
)

from kreplog.errors import LogClosedError, UsageError

END = object()
"""Returned by `FollowIterator.take` where a wait has to come first."""


cdef class FollowIterator:
    """Iterator over committed records that waits for more. For one thread at a time."""

    cdef readonly LogView log
    cdef readonly HighWatermarkWait wait
    cdef readonly object timeout
    cdef readonly bint ended
    cdef Records records  # or
    cdef ArrowPieces pieces
    cdef BatchReader reader
    cdef Py_ssize_t at_once
    cdef object convert
    cdef bint busy

    def __init__(self, LogView log, items, timeout, bint across_writers, Py_ssize_t at_once=0, convert=None):
        """items: Records or ArrowPieces from the first offset on. at_once: up to so many items in a list; 0: each.
        convert: applied to each item, or None."""
        deadline_of(timeout)
        self.log = log
        self.timeout = timeout
        self.at_once = at_once
        self.convert = convert
        if isinstance(items, Records):
            self.records = items
            self.reader = self.records.reader
        else:
            self.pieces = items
            self.reader = self.pieces.reader
        self.wait = wait_of(log, across_writers, self.reader.stable)
        self.reader.watched = self.reader.generation
        self.reader.stop = max(self.reader.expected, self.reader.stop)

    def __iter__(self):
        return self

    def __next__(self):
        cdef int outcome
        cdef int64_t deadline_ns = -1
        while True:
            item = self.take()
            if item is not END:
                return item
            if deadline_ns < 0:
                deadline_ns = deadline_of(self.timeout)
            if self.busy:
                raise UsageError("this iterator is in use in another thread; make one for each")
            self.busy = True
            try:
                outcome = self.wait.wait(self.place(), self.reader.watched, deadline_ns)
                if not self.go_on(outcome):
                    raise StopIteration
            finally:
                self.busy = False

    cpdef object take(self):
        """The next item that is committed, END if there is none yet. Raises as Log.read does."""
        cdef list items
        if self.ended:
            raise StopIteration
        if self.log.closed:
            return END
        iterator = self.records if self.records is not None else self.pieces
        if self.at_once == 0:
            item = next(iterator, END)
            return item if self.convert is None or item is END else self.convert(item)
        items = []
        while len(items) < self.at_once:
            item = next(iterator, END)
            if item is END:
                break
            items.append(item)
        return items if items else END

    cpdef int64_t place(self) except -1:
        """The offset from which on nothing was returned yet."""
        return min(self.reader.expected, self.reader.stop)

    def poll(self):
        """The outcome of the wait as it is now; WAITING with the wake-up registered."""
        return self.wait.look(self.place(), self.reader.watched)

    cpdef bint go_on(self, int outcome) except -1:
        """After a wait: whether the iteration goes on.

        Raises LogTruncatedError, WriterDiedError, and for read_committed CorruptCheckpointError."""
        cdef int64_t place = self.place()
        if outcome == REACHED or outcome == TRUNCATED:
            if self.reader.expected > place:  # the high watermark was within a batch
                self.reader.expected = place
                self.reader.segment = None
            try:
                self._extend(place)
            except LogClosedError:
                self.ended = True
                return False
            return True
        self.ended = True
        if outcome == WRITER_DIED:
            self.wait.refuse(outcome, place)
        return False

    cdef int _extend(self, int64_t place) except -1:
        """From `place`, the end of what was read, go on to the end that it has by now."""
        cdef AbortedFilter aborted = None
        cdef int64_t generation = self.log.steady_generation()
        cdef int64_t stop
        self.reader.check_truncations(generation)
        stop = self.wait.end()
        if stop <= place:
            return 0
        if self.wait.stable:
            aborted = filter_of(self.log, place, stop)
            self.log.refresh()
            if self.log.position.generation != generation:  # the index, or the end, is of a log that is being cut
                return 0
        self.reader.extend(stop)
        if place < self.log.position.log_start_offset:
            self.reader.segment = None  # the next read finds that the records were deleted
        self.reader.aborted = aborted
        self.reader.start = place
        return 0
