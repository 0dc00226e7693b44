"""LogView: the segments and offsets of a log, for its writer and for readers in other processes.

Has the list of segments and the position (offsets, generation, epochs' checksum), and updates both in a reader. Reads
are in `reader`, lookups in `lookup`, changes in `log`. A reader gets the writer's published state from the state file,
and lists the directory again after a roll or a truncation.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t

from kreplog._native.columns cimport integer
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.segment cimport Segment, new_segment
from kreplog._native.shown_lock cimport is_writer_alive
from kreplog._native.state cimport SESSION_OPEN, WITH_TRANSACTIONS, Session
from kreplog._native.transaction_index cimport collect_aborted

import os
import struct
import time

from kreplog._native.checkpoint import EpochCache
from kreplog._native.files import names_in
from kreplog.errors import CorruptCheckpointError, LogClosedError, OffsetOutOfRangeError, StorageError
from kreplog.types import EpochEndOffset

cdef enum:
    REINDEX = 4 << 20  # a reader rereads the index of a segment that has grown by this much


cdef uint32_t epochs_crc(object epochs) except? 0:
    """CRC-32C over the entries, by which a changed digit in their file is noticed."""
    cdef bytes packed = b"".join([struct.pack("<iq", epoch, start) for epoch, start in epochs.entries])
    return crc32c_update(0, <const uint8_t*> PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))


cdef class LogView:

    def __cinit__(self):
        self._segments = []
        self.cuts = ()
        self.closed = True
        self.first_unstable = INT64_MAX

    cdef int check_open(self) except -1:
        if self.closed:
            raise LogClosedError(f"{self.name}: the log is closed", partition=self.name, path=self.path)
        return 0

    # Offsets and epochs

    @property
    def high_watermark(self):
        """Records below it are committed."""
        self.refresh()
        return self.position.high_watermark

    @property
    def last_stable_offset(self):
        """Below it all transactions are decided and committed: where read_committed ends (KIP-98)."""
        self.refresh()
        return self.last_stable()

    @property
    def first_unstable_offset(self):
        """A writer's: where the oldest transaction begins that is open, or whose marker is not committed yet; None for
        none."""
        return None if self.first_unstable == INT64_MAX else self.first_unstable

    @property
    def log_end_offset(self):
        """The offset that the next record will get."""
        self.refresh()
        return self.position.leo

    @property
    def log_start_offset(self):
        """The log start offset: the first offset in the log."""
        self.refresh()
        return self.position.log_start_offset

    @property
    def recovery_point(self):
        """Below it everything has been fsynced."""
        self.refresh()
        return self.position.recovery_point

    @property
    def generation(self):
        """Rises twice with every truncation; odd while one is under way."""
        self.refresh()
        return self.position.generation

    @property
    def leader_epoch(self):
        """The leader epoch of the next append; for a reader the latest in the log, 0 for none."""
        if not self.read_only:
            return self.current_epoch
        self.refresh()
        if self.state is not None:
            return max(0, self.position.leader_epoch)
        self.load_epochs()
        return 0 if self.epochs is None else max(0, self.epochs.latest_epoch)

    @property
    def leader_epochs(self):
        """(leader epoch, start offset) of every epoch known, oldest first."""
        self.refresh()
        if self.read_only:
            self.load_epochs()
        return [] if self.epochs is None else self.epochs.entries

    @property
    def incarnation_id(self):
        """16 hex digits, drawn when the directory was made; None where a broker made it, or for a replicated log.

        A partition that is deleted and created again beside others of its topic has their topic id, but another
        incarnation id."""
        self.check_open()
        incarnation = 0 if self.state is None else self.state.incarnation()
        return f"{incarnation:016x}" if incarnation else None

    def end_offset_for_epoch(self, epoch):
        """Where the largest known leader epoch at or below `epoch` ends: EpochEndOffset (KIP-101, KIP-279)."""
        self.refresh()
        if self.read_only:
            self.load_epochs()
        if self.epochs is None:
            return EpochEndOffset(-1, -1)
        return self.epochs.end_offset_for(integer(epoch, "epoch"), self.position.leo)

    cdef int _check_range(self, int64_t offset) except -1:
        if not self.position.log_start_offset <= offset <= self.position.leo:
            raise OffsetOutOfRangeError(
                f"{self.name}: offset {offset} is outside the log, which holds {self.position.log_start_offset} to "
                f"{self.position.leo}", partition=self.name, offset=offset,
            )
        return 0

    # Finding

    cdef int refresh(self) except -1:
        """A reader's view of the writer's position, read again."""
        cdef Position position
        self.check_open()
        if self.read_only:
            if self.state is not None:
                if self.state.read(&position):
                    self.position = position
            elif self.watermark_source is not None:
                self.watermark_source(self)
        return 0

    cdef int64_t last_stable(self) except -1:
        """The last stable offset at the position as it is: for a reader after `refresh`."""
        cdef int64_t unstable = self.first_unstable
        if self.read_only:
            unstable = self.find_unstable() if self.state is None else self.state.first_unstable()
        return max(min(self.position.high_watermark, unstable), self.position.log_start_offset)

    cdef int64_t find_unstable(self) except -1:
        """The first unstable offset of a directory without a state file, as another program leaves it."""
        return INT64_MAX

    cdef list aborted_between(self, int64_t start, int64_t stop):
        """(producer id, first offset) of the aborted transactions that have records in [start, stop), where `stop` is
        at most the last stable offset. Raises StorageError, CorruptCheckpointError."""
        cdef list found = []
        cdef list segments = self._segments
        cdef Py_ssize_t i
        if start >= stop:
            return found
        self.refresh()  # the transaction may have been decided since `stop` was read, in a later segment
        if self.state is not None and not self.position.has_producers & WITH_TRANSACTIONS:
            return found
        if self.read_only and (
            not segments or self.listed_generation != self.position.generation
            or self.position.active_base != (<Segment> segments[len(segments) - 1]).base_offset
        ):
            self.relist()
        segments = self._segments
        for i in range(max(self.segment_index(segments, start), 0), len(segments)):
            if collect_aborted(segments[i], start, stop, found):
                break
        return found

    cdef int require_directory(self) except -1:
        """For a reader that finds no records: raise PartitionDeletedError where none will ever come."""
        if self.read_only and self.state is not None:
            self.state.require_at_path(self.name)
        return 0

    cdef int64_t steady_generation(self) except -1:
        """The generation, once no file is being cut. It stays odd where the writer died while cutting; where the system
        does not show locks, after two seconds without a change."""
        cdef int64_t generation
        cdef int waited = 0
        cdef Session session
        self.refresh()
        generation = self.position.generation
        while generation & 1 and waited < 2000:
            if waited % 20 == 10 and self.state is not None:
                session = self.state.session()
                if session.flags & SESSION_OPEN and not is_writer_alive(self.path, session.flags):
                    break
            time.sleep(0.001)  # a cut takes about as long, and nothing signals its end to other processes
            self.refresh()
            waited = waited + 1 if self.position.generation == generation else 0
            generation = self.position.generation
        return generation

    cdef int load_epochs(self) except -1:
        """A reader's view of the epoch entries; None, so that epochs go unchecked, while their file is in doubt."""
        cdef Position position
        self.epochs_loaded = True
        try:
            self.epochs = EpochCache(os.path.join(self.path, "leader-epoch-checkpoint"))
        except CorruptCheckpointError:
            self.epochs = None
        if self.state is not None and self.epochs is not None:
            if not self.state.read(&position) or epochs_crc(self.epochs) != position.epochs_crc:
                self.epochs = None
            elif position.epoch_noted:
                self.epochs.assign(position.leader_epoch, position.leo)
        return 0

    cdef int relist(self) except -1:
        """Find the segments in the directory. Raises StorageError."""
        cdef Segment segment
        cdef bint last
        cdef list found = []
        cdef dict known = {}
        cdef int64_t base
        if self.position.generation == self.listed_generation:
            known = {(<Segment> listed).base_offset: listed for listed in self._segments}
        self.listed_generation = self.position.generation
        for name in names_in(self.path):
            if len(name) == 24 and name.endswith(".log") and name[:20].isdigit():
                base = int(name[:20])
                found.append(base)
        found.sort()
        for i, base in enumerate(found):
            segment = known.get(base)
            last = i == len(found) - 1
            if segment is None or (self.read_only and segment.sealed and last):  # the file may be another now
                segment = new_segment(
                    self.path, self.name, base, not self.read_only, self.config.segment_bytes,
                    self.config.index_interval_bytes,
                )
            elif self.read_only and not segment.sealed and not last:
                segment.size = -1
                segment.forget_indexes()
                segment.timestamps_known = segment.suspect = False
                segment.max_timestamp = -1
            segment.sealed = not last
            segment.mappable = not self.read_only or self.state is not None
            if self.read_only:
                segment.state = self.state
                segment.generation = self.listed_generation
            found[i] = segment
            if self.read_only and not segment.sealed:
                try:
                    segment.size = self.published_size(segment)
                except FileNotFoundError:  # deleted since; whoever needs it looks again
                    segment.size = -1
        self._segments = found
        return 0

    cdef Py_ssize_t segment_index(self, list segments, int64_t offset) noexcept:
        """The last segment that begins at or before `offset`, -1 when none."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = len(segments)
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) >> 1
            if (<Segment> segments[middle]).base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low - 1

    cdef int64_t published_size(self, Segment segment) except -1:
        """Bytes of an active segment that its writer has published; past them blocks may be allocated ahead."""
        cdef int64_t size = segment.open().size()
        if self.state is None or self.position.active_base != segment.base_offset or self.position.active_size < 0:
            return size
        return min(size, self.position.active_size)

    cdef int64_t segment_end(self, list segments, Py_ssize_t i) noexcept:
        if i + 1 < len(segments):
            return (<Segment> segments[i + 1]).base_offset
        return self.position.leo

    cdef int64_t sealed_end(self, Segment segment) noexcept:
        """Where the segment after this one begins; -1 for the last, and for one that is not listed any more."""
        cdef Py_ssize_t i = self.segment_index(self._segments, segment.base_offset) + 1
        if 0 < i < len(self._segments) and (<Segment> self._segments[i - 1]) is segment:
            return (<Segment> self._segments[i]).base_offset
        return -1

    cdef Segment segment_for(self, int64_t offset):
        """The segment to look for `offset` in; a reader lists the directory again when the log may have rolled.

        Returns None when no segment begins at or before it.
        """
        cdef Segment segment
        cdef Py_ssize_t i
        cdef list segments = self._segments
        if self.read_only and (
            not segments or self.listed_generation != self.position.generation or (
                self.position.active_base != (<Segment> segments[len(segments) - 1]).base_offset
                and offset >= (<Segment> segments[len(segments) - 1]).base_offset
            )
        ):
            self.relist()
            segments = self._segments
        i = self.segment_index(segments, offset)
        if i < 0:
            return None
        segment = segments[i]
        if self.read_only and not segment.sealed:
            segment.size = self.published_size(segment)
            if segment.indexed and segment.size - segment.indexed_size > REINDEX:
                segment.forget_indexes()
        return segment

    cdef int64_t byte_size(self) except -1:
        cdef int64_t total = 0
        cdef Segment segment
        for segment in self._segments:
            total += segment.byte_size()
        return total

    cdef int check_files(self) except -1:
        """Raises StorageError for a segment that is listed here and whose file is gone, which only another program
        removes."""
        cdef list listed = self._segments
        cdef Py_ssize_t i
        cdef Segment segment
        for i in range(len(listed)):
            segment = listed[i]
            if segment.replaced or os.path.exists(segment.path):
                continue
            end = self.segment_end(listed, i)
            raise StorageError(
                f"{self.name}: another program has deleted {segment.path}, with offsets {segment.base_offset} to "
                f"{end - 1}: restore the file, or go on without it after delete_records_before({end})",
                partition=self.name, offset=segment.base_offset, path=segment.path,
            )
        return 0
