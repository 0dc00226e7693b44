"""The check of the tail of a log after a crash, before the next append: every batch that may be damaged.

The longest prefix of valid batches is kept; the rest is truncated, and listed in the log's `cuts`. The indexes are
rebuilt over the checked batches. Zeros at the end of a file are blocks preallocated by a killed writer, not damage.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BAD_LEADER_EPOCH,
    BATCH_OK,
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    BATCH_SHORT,
    BatchHeader,
    batch_size,
    check_crc,
    next_offset_of,
    read_header,
    reason_of,
)
from kreplog._native.files cimport Mapping
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment
from kreplog._native.state cimport WITH_PRODUCERS, WITH_TRANSACTIONS

import logging

from kreplog.errors import CorruptBatchError
from kreplog.types import Cut

_logger = logging.getLogger("kreplog")

cdef enum:
    CUT_HERE = 1  # sound, but an interrupted truncation was about to drop it
    READ_AHEAD = 8 << 20


cdef class TailCheck:
    """A walk over every batch from an offset on: indexes are rebuilt, the log is cut at the first bad batch."""

    def __init__(self, SegmentedLog log, int64_t limit, epochs, progress):
        self.log = log
        self.limit = limit
        self.epochs = epochs
        self.progress = progress
        self.expected = -1
        self.epoch = -1
        self.code = BATCH_OK
        self.cuts = []

    cdef int64_t run(self, int64_t start) except -1:
        """Check from `start` on; return the log end offset, which no interrupted truncation leaves in a gap beyond its
        own end."""
        cdef list segments = self.log._segments
        cdef Py_ssize_t i = max(self.log.segment_index(segments, start), 0)
        cdef Segment segment
        cdef int64_t at
        self.start = start
        self.total = sum((<Segment> s).byte_size() for s in segments[i:])
        while i < len(segments):
            segment = segments[i]
            if not self.follows(segment):
                break
            at = self.walk(segment)
            self.done += at
            segment.synced = False
            segment.timestamps_known = True
            if self.code != BATCH_OK:
                self.cut(segment, at, segments, i)
            if self.code == BATCH_OK and i < len(segments) - 1:
                segment.complete()
                segment.seal()
            i += 1
        if i < len(segments):
            self.drop_from(i)
        self.log.cuts = tuple(self.cuts)
        if self.progress is not None:
            self.progress(self.total, self.total)
        return min(self.expected, self.limit) if self.code == CUT_HERE else self.expected

    cdef bint follows(self, Segment segment) except -1:
        """Whether the check continues in this segment."""
        if self.code == BATCH_OK and self.expected >= 0 and segment.base_offset != self.expected:
            if 0 <= self.limit <= segment.base_offset:
                self.code = CUT_HERE
            elif segment.base_offset < self.expected or self.expected >= self.log.position.dense_from:
                self.code = BAD_BASE_OFFSET
        return self.code == BATCH_OK

    cdef int64_t walk(self, Segment segment) except -1:
        """Check the batches of a segment; return the position at which those that hold end."""
        cdef BatchHeader h
        cdef int64_t size = segment.byte_size()
        cdef int64_t at = 0
        self.expected = segment.base_offset
        segment.load_indexes()
        if self.start > segment.base_offset:
            try:
                at = segment.locate(self.start, self.log.position.dense_from, &h)
                if at >= size:
                    at = segment.position_near(self.start)
            except CorruptBatchError:  # damage before the recovery point is for readers to report
                at = 0
            if at and segment.header_at(at, &h) == BATCH_OK:
                self.expected = h.base_offset
        _rewind_indexes(segment, at)
        while at < size:
            self.code = self.check(segment, at, size, &h)
            if self.code != BATCH_OK:
                break
            segment.note(&h, at)
            if h.producer_id >= 0:
                self.log.position.has_producers |= WITH_PRODUCERS
                if h.attributes & (TRANSACTIONAL | CONTROL):
                    self.log.position.has_producers |= WITH_TRANSACTIONS
            if h.leader_epoch > self.epoch:
                self.epoch = h.leader_epoch
            self.expected = next_offset_of(&h)
            at += batch_size(&h)
            if self.progress is not None and (self.done + at) >> 24 != (self.done + at - batch_size(&h)) >> 24:
                self.progress(self.done + at, self.total)
        return at

    cdef int check(self, Segment segment, int64_t at, int64_t size, BatchHeader* h) except 2:
        """The code of the batch at byte `at`: BATCH_OK, CUT_HERE, or why it does not hold."""
        cdef int code = _check_batch(self.log, segment, at, size, self.expected, self.epoch, h)
        if code == BATCH_OK and self.epochs is not None:
            known_epoch = self.epochs.epoch_for_offset(h.base_offset)[0]
            if 0 <= known_epoch != h.leader_epoch:
                code = BAD_LEADER_EPOCH
        if code == BATCH_OK and 0 <= self.limit < next_offset_of(h):
            code = CUT_HERE
        return code

    cdef int cut(self, Segment segment, int64_t at, list segments, Py_ssize_t i) except -1:
        """Cut the segment at byte `at`; the walk goes on where only blocks allocated ahead are lost."""
        cdef int64_t junk = _junk(segment, at, segment.byte_size())
        if self.code != CUT_HERE and 0 < junk <= HEADER_SIZE - <int64_t> sizeof(int32_t):  # the record count comes last
            self.code = BATCH_SHORT
        if self.code != CUT_HERE and junk:
            self.cuts.append(Cut(segment.path, at, self.expected, junk, reason_of(self.code)))
            _logger.warning(
                "%s: %s at offset %d, byte %d of %s; the log is cut there (%d bytes dropped from this segment)",
                self.log.name, reason_of(self.code), self.expected, at, segment.path, junk,
            )
        if i == len(segments) - 1 and not segment.exposed and self.limit < 0:
            segment.mapping = None
            segment.open().truncate(at)
            segment.size = at
        else:
            segment.cut(at)
        if self.code != CUT_HERE and junk == 0 and i < len(segments) - 1:
            if (<Segment> segments[i + 1]).base_offset == self.expected:  # sealed, but the trim was not durable
                self.code = BATCH_OK
        return 0

    cdef int drop_from(self, Py_ssize_t i) except -1:
        """Delete the segments from number `i` on."""
        cdef list segments = self.log._segments
        cdef Segment segment
        if self.code != CUT_HERE:
            _logger.warning(
                "%s: %d segments from offset %d on do not follow the log, which ends at %d; they are deleted",
                self.log.name, len(segments) - i, (<Segment> segments[i]).base_offset, self.expected,
            )
        for segment in reversed(segments[i:]):
            if self.code != CUT_HERE:
                reason = reason_of(BAD_BASE_OFFSET)
                self.cuts.append(Cut(segment.path, 0, segment.base_offset, segment.byte_size(), reason))
            segment.delete()
        self.log._segments = segments[:i]
        self.log.directory_changed = True
        return 0


cdef int trim_sealed(SegmentedLog log, int64_t end) except -1:
    """Cut blocks allocated ahead off the segment that ends at `end`, if a loss of power undid the trim at its roll."""
    cdef Py_ssize_t i = log.segment_index(log._segments, end) - 1
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t at
    if i < 0 or (<Segment> log._segments[i + 1]).base_offset != end:
        return 0
    segment = log._segments[i]
    at = segment.position_near(end - 1)
    while at < segment.byte_size() and segment.header_at(at, &h) == BATCH_OK and next_offset_of(&h) <= end:
        at += batch_size(&h)
    if at < segment.size and _junk(segment, at, segment.size) == 0:
        segment.cut(at)
        segment.complete()
        segment.seal()
    return 0


cdef int _check_batch(
    SegmentedLog log, Segment segment, int64_t at, int64_t size, int64_t expected, int32_t epoch, BatchHeader* h
) except 2:
    cdef Mapping mapping = segment.mapped()
    cdef const uint8_t* p = mapping.data + at
    cdef int code = read_header(p, size - at, h)
    if code != BATCH_OK:
        return code
    if batch_size(h) > size - at:
        return BATCH_SHORT
    if h.base_offset != expected and (h.base_offset < expected or expected >= log.position.dense_from):
        return BAD_BASE_OFFSET
    if h.leader_epoch < epoch:
        return BAD_LEADER_EPOCH
    with nogil:
        if at % READ_AHEAD + batch_size(h) >= READ_AHEAD or at == 0:
            mapping.populate(at, min(at + 2 * READ_AHEAD, size))
        code = check_crc(p, h)
    return code


cdef int64_t _junk(Segment segment, int64_t at, int64_t size) except -1:
    """Bytes from `at` to the last that is not zero; zeros are blocks that a killed writer had allocated ahead."""
    cdef Mapping mapping = segment.mapped()
    cdef const uint8_t* data = mapping.data
    while size > at and data[size - 1] == 0:
        size -= 1
    return size - at


cdef int _rewind_indexes(Segment segment, int64_t at) except -1:
    """Keep the index entries up to the batch at `at`, from which the walk goes on."""
    cdef Py_ssize_t entries = segment.offsets.floor_position(at) + 1
    cdef Py_ssize_t times = segment.times.count
    cdef int32_t last = segment.offsets.offset_at(entries - 1) if entries else -1
    cdef BatchHeader h
    cdef int64_t position
    segment.offsets.keep(entries)
    while times and segment.times.offset_at(times - 1) > last:
        times -= 1
    segment.times.keep(times)
    segment.since_index = 0
    segment.max_timestamp = segment.times.timestamp_at(times - 1) if times else -1
    segment.max_timestamp_offset = segment.base_offset + (segment.times.offset_at(times - 1) if times else 0)
    position = segment.offsets.position_at(entries - 1) if entries else 0
    while position < at and segment.header_at(position, &h) == BATCH_OK:
        segment.note(&h, position)
        position += batch_size(&h)
    if at and segment.header_at(0, &h) == BATCH_OK:
        segment.first_timestamp = h.max_timestamp
    return 0
