"""TableReader: applies the committed records of one partition to a KeyTable, from where it is to the end of now.

After each `advance` the table holds of this partition what a new one would that reads the log from its start: entries
below a log start offset that has moved are forgotten, and where records that were applied have been truncated the
partition is read again as a whole, since older values of their keys count then.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t

from kreplog._native.aborted cimport AbortedFilter
from kreplog._native.batch cimport BATCH_OK, RecordCursor, batch_size, is_control, open_batch, raise_corrupt
from kreplog._native.columns cimport integer
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.key_table cimport NO_MEMORY, KeyTable, mutex_lock, mutex_unlock
from kreplog._native.reader cimport BatchReader, filter_of, located_corruption, reader_of
from kreplog._native.view cimport LogView

from kreplog.errors import CorruptBatchError, LogTruncatedError, OffsetOutOfRangeError

cdef enum:
    WITHOUT_GIL = 8192  # bytes of a batch from which on the lock of the interpreter is let go of meanwhile


cpdef uint32_t crc_in_epoch(uint32_t crc, int32_t leader_epoch) noexcept:
    """The CRC of a batch, carried on over its leader epoch, which it does not cover itself."""
    return crc32c_update(crc, <const uint8_t*> &leader_epoch, sizeof(leader_epoch))


@cython.final
cdef class TableReader:
    """Fills a key table from the records of committed transactions, up to the last stable offset. For one thread at a
    time."""

    cdef KeyTable table
    cdef LogView log
    cdef int32_t partition
    cdef int64_t limit
    cdef readonly int64_t log_start
    cdef readonly int64_t next_offset  # what lies below has been applied
    cdef readonly int64_t base_offset  # of the last batch that was, -1 for none
    cdef readonly uint32_t crc  # of that batch, by `crc_in_epoch`
    cdef readonly int64_t reloads  # after truncations
    cdef BatchReader reader

    def __init__(self, KeyTable table not None, LogView log not None, partition, limit=None):
        """limit: apply the records below this offset alone."""
        self.table = table
        self.log = log
        self.partition = <int32_t> integer(partition, "partition")
        self.limit = INT64_MAX if limit is None else integer(limit, "limit")
        log.refresh()
        self.log_start = self.next_offset = log.position.log_start_offset
        self.base_offset = -1

    def resume(self, log_start, next_offset, base_offset, crc):
        """Go on where another reader was, whose entries the table has. False, and nothing is changed, where the log no
        longer has the batch at `base_offset` with this `crc`: it was truncated since, or compacted. Of another leader
        epoch it may be the same byte by byte, and those before it not (KIP-101).

        Raises PartitionDeletedError, LogClosedError, StorageError."""
        cdef BatchReader reader
        cdef int64_t base = integer(base_offset, "base_offset")
        cdef int64_t place = integer(next_offset, "next_offset")
        self.log.refresh()
        if not self.log.position.log_start_offset <= base < place <= self.log.position.high_watermark:
            return False
        reader = reader_of(self.log, base, place)
        try:
            if not reader.next():
                return False
            reader.check()
        except (CorruptBatchError, OffsetOutOfRangeError):
            return False
        if reader.header.base_offset != base or crc_in_epoch(reader.header.crc, reader.header.leader_epoch) != crc:
            return False
        self.log_start, self.next_offset, self.base_offset, self.crc = log_start, place, base, crc
        return True

    def advance(self):
        """Apply what is committed now.

        Raises CorruptBatchError, PartitionDeletedError, LogClosedError, StorageError, ResourceExhaustedError, and what
        a signal's handler raises: the batches before have been applied, and the next call goes on there."""
        while True:
            try:
                self.follow_log_start()
                if self.apply():
                    return
            except LogTruncatedError:
                self.table.drop(self.partition)
                self.reader = None
                self.base_offset = -1
                self.log.refresh()
                self.next_offset = self.log_start = self.log.position.log_start_offset
                self.reloads += 1
            except OffsetOutOfRangeError:
                self.log.refresh()
                if self.log.position.log_start_offset <= self.next_offset:
                    raise

    cdef int follow_log_start(self) except -1:
        cdef int64_t log_start
        self.log.refresh()
        log_start = self.log.position.log_start_offset
        if log_start > self.log_start:
            self.table.drop(self.partition, log_start)
            self.log_start = log_start
        if log_start > self.next_offset:
            self.next_offset = log_start
            self.reader = None
        return 0

    cdef bint apply(self) except -1:
        """False where the log was cut meanwhile, so that its end is another."""
        cdef BatchReader reader = self.reader
        cdef AbortedFilter aborted
        cdef RecordCursor cursor
        cdef int64_t stop
        cdef int code
        cdef int64_t generation = self.log.steady_generation()
        if reader is None:
            reader = self.reader = reader_of(self.log, self.next_offset, self.next_offset)
            reader.watched = generation
        if reader.expected != self.next_offset:  # the end was within a batch
            reader.expected = self.next_offset
            reader.segment = None
        reader.check_truncations(generation)
        stop = min(self.log.last_stable(), self.limit)
        if stop <= self.next_offset:
            self.log.require_directory()
            return True
        aborted = filter_of(self.log, self.next_offset, stop)
        reader.extend(stop)
        while reader.next():
            reader.check()
            if not (aborted is not None and aborted.skips(&reader.header) or is_control(&reader.header)):
                try:
                    plain = open_batch(&cursor, reader.data, &reader.header)
                except CorruptBatchError as error:
                    located_corruption(reader, error)
                code = self.apply_batch(&cursor, stop)
                if code == NO_MEMORY:
                    reader.segment = None
                    reader.expected = self.next_offset
                    self.table.refuse()
                if code != BATCH_OK:
                    raise_corrupt(
                        code, self.log.name, reader.header.base_offset, reader.segment.path, reader.position
                    )
                del plain
            self.base_offset = reader.header.base_offset
            self.crc = crc_in_epoch(reader.header.crc, reader.header.leader_epoch)
            self.next_offset = min(reader.expected, stop)
            PyErr_CheckSignals()
        self.next_offset = min(reader.expected, reader.stop)
        return reader.stop == stop

    cdef int apply_batch(self, RecordCursor* cursor, int64_t stop) except? -1000:
        cdef int code
        cdef KeyTable table = self.table
        cdef int32_t partition = self.partition
        cdef int64_t start = self.next_offset
        if batch_size(&self.reader.header) < WITHOUT_GIL:
            table.lock()
            code = table.apply_batch(cursor, partition, start, stop)
            mutex_unlock(&table.mutex)
            return code
        with nogil:
            mutex_lock(&table.mutex)
            code = table.apply_batch(cursor, partition, start, stop)
            mutex_unlock(&table.mutex)
        return code
