"""Lookups in a log without reading all of its records: segments, offsets by time, ranges by size.

Each lookup needs a stable view: if files were truncated or deleted during it, it is repeated.
"""

from libc.stdint cimport int64_t, uint8_t

from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BAD_CRC,
    BATCH_OK,
    BatchHeader,
    RecordCursor,
    RecordView,
    batch_size,
    codec_of,
    next_offset_of,
    next_record,
    open_batch,
    raise_corrupt,
)
from kreplog._native.columns cimport integer, timestamp_of
from kreplog._native.reader cimport refuse_deleted
from kreplog._native.segment cimport Segment
from kreplog._native.view cimport LogView

import os
from collections import namedtuple

from kreplog.errors import StorageError, UsageError

SegmentInfo = namedtuple("SegmentInfo", "base_offset next_offset size path max_timestamp")
OffsetRange = namedtuple("OffsetRange", "start stop bytes compressed")

cdef enum:
    RETRIES = 1000


def steadily(LogView log, look, *arguments):
    """`look(log, *arguments)` over a view that nobody cut meanwhile. Raises what it raises, StorageError."""
    cdef int64_t generation
    cdef int _attempt
    for _attempt in range(RETRIES):
        generation = log.steady_generation()
        if log.read_only and (log.listed_sequence != log.position.sequence or not log.listed_sequence):
            log.relist()
        log.listed_sequence = 0
        try:
            found = look(log, *arguments)
        except FileNotFoundError:
            continue
        except StorageError:  # damage, or what a cut under way looks like
            log.refresh()
            if log.position.generation == generation:
                raise
            continue
        log.refresh()
        if log.position.generation == generation:
            return found
    log.check_files()
    raise StorageError(
        f"{log.name}: {log.path} keeps changing; nothing steady was seen in {RETRIES} looks",
        partition=log.name, path=log.path,
    )


def size(LogView log):
    """Bytes of all segments."""
    return log.byte_size()


def segments(LogView log):
    """SegmentInfo of each segment, oldest first."""
    cdef Segment segment
    cdef list listed = log._segments
    cdef list out = []
    for i, segment in enumerate(listed):
        segment.learn_timestamps()
        out.append(SegmentInfo(
            segment.base_offset, log.segment_end(listed, i), segment.byte_size(), segment.path, segment.max_timestamp
        ))
    return tuple(out)


cdef int prepare(LogView log, Segment segment) except -1:
    """Prepare for a lookup in a segment that another process may be appending to."""
    if log.read_only and not segment.sealed:
        segment.size = log.published_size(segment)
        segment.timestamps_known = False
    return 0


def record_for_timestamp(LogView log, timestamp_ms):
    """(offset, timestamp) of the first committed record whose timestamp is >= `timestamp_ms`, or None."""
    cdef int64_t wanted = timestamp_of(timestamp_ms)
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t at
    cdef int64_t chain
    cdef int64_t entry
    cdef Py_ssize_t i
    cdef list listed = log._segments
    if listed and (<Segment> listed[0]).base_offset > log.position.log_start_offset:
        log.refresh()  # the log start offset moves up before a segment is deleted
        if (<Segment> listed[0]).base_offset > log.position.log_start_offset:
            raise StorageError(
                f"{log.name}: the segment that holds offset {log.position.log_start_offset}, the first of the log, is "
                f"missing from {log.path}: put it back, or open the log for writing, which goes on without it",
                partition=log.name, offset=log.position.log_start_offset, path=log.path,
            )
    for segment in listed:
        prepare(log, segment)
        segment.learn_timestamps()
        if segment.max_timestamp < wanted and not segment.suspect:
            continue
        at = 0
        chain = segment.base_offset
        i = segment.times.floor_timestamp(wanted)
        if i >= 0:
            entry = segment.times.timestamp_at(i)  # looking for its batch may rebuild the indexes
            at = segment.locate(segment.base_offset + segment.times.offset_at(i), log.position.dense_from, &h)
            chain = h.base_offset
            if at >= segment.size or (
                h.max_timestamp != entry and segment.crc_holds(at, &h)
            ):
                segment.rebuild_indexes(f"an entry of {os.path.basename(segment.times.path)} does not fit the log")
                at = 0
                chain = segment.base_offset
        while at < segment.size and chain < log.position.high_watermark:
            chain = chain_at(log, segment, at, chain, &h)
            if h.base_offset >= log.position.high_watermark:
                return None
            if h.max_timestamp >= wanted and chain > log.position.log_start_offset:
                found = first_at(log, segment, at, &h, wanted)
                if found is not None:
                    return found if found[0] < log.position.high_watermark else None
            at += batch_size(&h)
    return None


cdef int64_t chain_at(LogView log, Segment segment, int64_t at, int64_t chain, BatchHeader* h) except -1:
    """Read and fully check the batch at `at`, which should begin at offset `chain`; return where it ends."""
    cdef int code = segment.header_at(at, h)
    if code == BATCH_OK and h.base_offset != chain and (h.base_offset < chain or chain >= log.position.dense_from):
        code = BAD_BASE_OFFSET
    if code == BATCH_OK and not segment.crc_holds(at, h):
        code = BAD_CRC
    if code != BATCH_OK:
        raise_corrupt(code, log.name, chain, segment.path, at)
    return next_offset_of(h)


cdef object first_at(LogView log, Segment segment, int64_t at, BatchHeader* h, int64_t wanted):
    """(offset, timestamp) of the batch's first record at or past the log start, of a timestamp >= `wanted`; None."""
    cdef RecordCursor c
    cdef RecordView view
    cdef bytearray raw = bytearray(batch_size(h))
    cdef uint8_t[::1] data = raw
    cdef int code
    segment.open().read_at(&data[0], batch_size(h), at)
    _plain = open_batch(&c, &data[0], h)
    cdef int64_t start = log.position.log_start_offset
    with nogil:
        while True:
            code = next_record(&c, &view)
            if code <= 0 or view.timestamp >= wanted and view.offset >= start:
                break
    if code > 0:
        return view.offset, view.timestamp
    if code != BATCH_OK:
        raise_corrupt(code, log.name, h.base_offset, segment.path, at)
    return None


def offset_ranges(LogView log, start, stop, max_bytes):
    """[start, stop) in contiguous pieces of about `max_bytes`, by indexes and headers alone.

    A piece is `compressed` if its first batch is: a topic seldom changes its codec.
    """
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t offset = integer(start, "start")
    cdef int64_t last = integer(stop, "stop")
    cdef int64_t limit = integer(max_bytes, "max_bytes")
    cdef int64_t piece_start = offset
    cdef int64_t piece_bytes = 0
    cdef int64_t segment_stop
    cdef int64_t at
    cdef int64_t end
    cdef int64_t cut
    cdef bint compressed = False
    cdef bint next_compressed = False
    cdef Py_ssize_t i
    cdef list out = []
    cdef list listed = log._segments
    if limit < 1:
        raise UsageError(f"max_bytes = {limit} must be at least 1")
    log._check_range(offset)
    log._check_range(last)
    if last < offset:
        raise UsageError(f"{log.name}: stop = {last} lies before start = {offset}")
    i = log.segment_index(listed, offset)
    if i < 0 and offset < last:
        refuse_deleted(log, offset)
    while offset < last and i < len(listed):
        segment = listed[i]
        prepare(log, segment)
        segment_stop = min(last, log.segment_end(listed, i))
        at = segment.locate(offset, log.position.dense_from, &h) if offset > segment.base_offset else 0
        next_compressed = segment.header_at(at, &h) == BATCH_OK and codec_of(&h) != 0
        if segment_stop == log.segment_end(listed, i):
            end = segment.byte_size()
        else:
            end = position_before(log, segment, segment_stop)
        while at < end:
            if piece_bytes >= limit:
                out.append(OffsetRange(piece_start, offset, piece_bytes, compressed))
                piece_start = offset
                piece_bytes = 0
            if piece_bytes == 0:
                compressed = next_compressed
            cut = boundary(segment, at, end, limit - piece_bytes, &h)
            piece_bytes += cut - at
            if cut < end:
                next_compressed = codec_of(&h) != 0
            offset = segment_stop if cut >= end else h.base_offset
            at = cut
        offset = segment_stop
        i += 1
    if piece_start < last:
        out.append(OffsetRange(piece_start, last, piece_bytes, compressed))
    return out


cdef int64_t position_before(LogView log, Segment segment, int64_t stop) except -1:
    """Where in the segment the batches end that have records before the offset `stop`."""
    cdef BatchHeader h
    cdef int64_t at = segment.locate(stop - 1, log.position.dense_from, &h)
    if at < segment.byte_size() and h.base_offset < stop:  # else stop - 1 lies in a gap
        at += batch_size(&h)
    return at


cdef int64_t boundary(Segment segment, int64_t at, int64_t end, int64_t wanted, BatchHeader* h) except -1:
    """The first batch boundary that the index knows at or past at + wanted, with its header; `end` when none."""
    cdef Py_ssize_t i
    cdef int64_t cut
    if at + wanted >= end:
        return end
    segment.load_indexes()
    i = segment.offsets.floor_position(at + wanted)
    if i < 0 or segment.offsets.position_at(i) < at + wanted:
        i += 1
    if i >= segment.offsets.count:
        return end
    cut = segment.offsets.position_at(i)
    if cut >= end or cut <= at or segment.header_at(cut, h) != BATCH_OK:
        return end
    return cut
