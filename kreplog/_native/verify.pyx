"""Verification: every batch's place and CRC and every record's lengths, without a Python object per record.

Damage is collected, not raised; the scan continues at the next valid batch. A mapped segment is scanned in
place, by all processors at once: its index has positions of batches further on, each processor takes the next piece as
soon as it has finished one, and a piece counts if the previous one ends where it begins. A segment that another process
may be writing is scanned through a window of its own.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BAD_LEADER_EPOCH,
    BATCH_OK,
    BATCH_SHORT,
    HEADER_SIZE,
    BatchHeader,
    RecordsFound,
    RecordCursor,
    RecordView,
    batch_size,
    check_crc,
    check_records,
    codec_of,
    next_offset_of,
    next_record,
    open_records,
    read_header,
    reason_of,
)
from kreplog._native.columns cimport integer
from kreplog._native.cursor cimport load32, load64
from kreplog._native.files cimport HeapBuffer, Mapping, allocate
from kreplog._native.lookup cimport boundary
from kreplog._native.reader cimport BatchReader, reader_of
from kreplog._native.segment cimport Segment
from kreplog._native.state cimport SWAPPING
from kreplog._native.view cimport LogView

import os
from concurrent.futures import ThreadPoolExecutor

from kreplog.errors import CorruptBatchError, StorageError
from kreplog.types import Damage, VerifyReport

cdef enum:
    PIECE = 1 << 20  # bytes that one processor scans at once
    ROUND = 64  # pieces before the results are taken over
    WINDOW = 4 << 20  # bytes read at once of what is not mapped
    WORKERS = 8  # processors that one pass uses at most
    ATTEMPTS = 10  # when files are cut while they are verified
    COMPRESSED = 1  # the batch at `at` waits to be decompressed and walked
    NEW_EPOCH = 2  # the batch at `at` has an epoch to be looked up


cdef extern from *:
    int fetch_add "__sync_fetch_and_add"(int* at, int value) noexcept nogil


cdef struct Scan:
    int64_t at
    int64_t chain
    int64_t dense_from
    int32_t epoch
    int64_t epoch_until
    int64_t batches
    int64_t records


cdef struct Piece:
    int64_t begin
    int64_t until
    int64_t chain  # the offset it begins with
    Scan s
    int code


cdef int scan(const uint8_t* data, int64_t start, int64_t end, int64_t until, Scan* s) noexcept nogil:
    """Check batches from s.at on, up to byte `until`, where `data` holds the file's bytes from `start` to `end`.

    BATCH_OK, COMPRESSED, NEW_EPOCH or the code of damage at s.at; BATCH_SHORT also when `data` ends within a batch.
    """
    cdef BatchHeader h
    cdef RecordCursor c
    cdef RecordView view
    cdef const uint8_t* p
    cdef int code
    while s.at < until:
        p = data + (s.at - start)
        code = read_header(p, end - s.at, &h)
        if code != BATCH_OK:
            return code
        if batch_size(&h) > end - s.at:
            return BATCH_SHORT
        if h.base_offset != s.chain and (h.base_offset < s.chain or s.chain >= s.dense_from):
            return BAD_BASE_OFFSET
        if h.leader_epoch != s.epoch or h.base_offset >= s.epoch_until:
            return NEW_EPOCH
        code = check_crc(p, &h)
        if code != BATCH_OK:
            return code
        if codec_of(&h) != 0:
            return COMPRESSED
        open_records(&c, &h, p + HEADER_SIZE, batch_size(&h) - HEADER_SIZE)
        while True:
            code = next_record(&c, &view)
            if code <= 0:
                break
        if code != BATCH_OK:
            return code
        s.batches += 1
        s.records += h.record_count
        s.chain = next_offset_of(&h)
        s.at += batch_size(&h)
    return BATCH_OK


def verify(LogView log, start, stop, progress):
    """Check every byte of [start, stop); see Log.verify."""
    cdef int64_t generation
    cdef int64_t log_start
    cdef int _attempt
    for _attempt in range(ATTEMPTS):
        generation = log.steady_generation()
        log_start = log.position.log_start_offset
        if log.read_only:
            log.relist()
        try:
            report = Verifier(log, start, stop, progress).run()
        except FileNotFoundError:
            continue
        log.refresh()
        if not report.damages or (
            log.position.generation == generation and log.position.log_start_offset == log_start
        ):
            return report
    raise StorageError(
        f"{log.name}: {log.path} keeps changing; nothing steady was verified in {ATTEMPTS} passes",
        partition=log.name, path=log.path,
    )


@cython.final
cdef class Round:
    """The next pieces of a mapped segment, each scanned before it is known whether what precedes it ends there."""

    cdef Mapping mapping
    cdef int64_t size
    cdef Piece pieces[ROUND]
    cdef int count
    cdef int taken  # by a processor that scans it
    cdef int done  # taken over, or left out

    def run(self):
        """Scan one piece after another, each for the epoch it begins with, together with any other thread that does."""
        cdef const uint8_t* data = self.mapping.data
        cdef BatchHeader h
        cdef Piece* piece
        cdef int i
        with nogil:
            i = fetch_add(&self.taken, 1)
            while i < self.count:
                piece = &self.pieces[i]
                self.mapping.populate(piece.begin, piece.until)
                if read_header(data + piece.begin, self.size - piece.begin, &h) == BATCH_OK:
                    piece.s.epoch = h.leader_epoch
                piece.code = scan(data, 0, self.size, piece.until, &piece.s)
                i = fetch_add(&self.taken, 1)


@cython.final
cdef class Verifier:
    """One pass over the segments of a range."""

    cdef LogView log
    cdef object progress
    cdef BatchReader epochs
    cdef Scan s
    cdef int64_t first
    cdef int64_t last
    cdef int64_t done  # bytes of earlier segments
    cdef int64_t total
    cdef int64_t read
    cdef list segments
    cdef list damages
    cdef Mapping mapping
    cdef HeapBuffer buffer
    cdef const uint8_t* data  # of the current segment, from byte `window_start` to `window_end`
    cdef int64_t window_start
    cdef int64_t window_end
    cdef int workers
    cdef object pool

    def __init__(self, LogView log, start, stop, progress):
        cdef Segment segment
        self.log = log
        self.progress = progress
        self.epochs = reader_of(log, 0, 0)
        self.first = log.position.log_start_offset if start is None else integer(start, "start")
        self.last = log.position.leo if stop is None else integer(stop, "stop")
        log._check_range(self.first)
        log._check_range(self.last)
        self.damages = []
        self.segments = []
        for i, segment in enumerate(log._segments):
            if segment.base_offset < self.last and log.segment_end(log._segments, i) > self.first:
                self.segments.append(segment)
                self.total += segment.byte_size()
        self.s.dense_from = log.position.dense_from
        self.s.epoch = -2
        self.s.chain = -1
        self.workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, WORKERS)
        self.pool = None

    def run(self):
        try:
            return self.run_all()
        finally:
            if self.pool is not None:
                self.pool.shutdown()

    def run_all(self):
        cdef Segment segment = None
        cdef int64_t begin = (<Segment> self.segments[0]).base_offset if self.segments else self.last
        if self.first < begin:
            self.damages.append(Damage(self.log.path, 0, self.first, f"no segment holds offsets up to {begin}"))
        for segment in self.segments:
            self.run_segment(segment)
            self.done += segment.byte_size()
        if 0 <= self.s.chain < self.last and self.s.chain >= self.s.dense_from:
            self.note(segment, self.s.chain, f"the log should go on to offset {self.last}")
        if self.progress is not None:
            self.progress(self.total, self.total)
        return VerifyReport(
            self.first, self.last, len(self.segments), self.s.batches, self.s.records, self.read, tuple(self.damages)
        )

    cdef int note(self, Segment segment, int64_t offset, str reason) except -1:
        self.damages.append(Damage(segment.path, self.s.at, offset, reason))
        return 0

    cdef int run_segment(self, Segment segment) except -1:
        cdef BatchHeader h
        cdef Scan* s = &self.s
        cdef int64_t end = segment.byte_size()
        cdef int64_t begin
        cdef int64_t until
        cdef int code
        cdef Round ahead = None
        s.at = 0
        if self.log.position.unsettled == SWAPPING and s.chain >= self.end_of(segment):
            return 0  # an error has ended the swap before it had deleted the segment
        if s.chain >= 0 and s.chain != segment.base_offset and (
            s.chain > segment.base_offset or s.chain >= s.dense_from
        ):
            self.note(segment, s.chain, reason_of(BAD_BASE_OFFSET))
        s.chain = segment.base_offset
        if self.first > segment.base_offset:
            s.at = self.place_of(segment, self.first, &h)
            s.chain = h.base_offset if s.at else segment.base_offset
        if not segment.sealed or self.last < self.end_of(segment):  # what lies past the log end is not ours to judge
            until = self.place_of(segment, self.last - 1, &h)
            if until or self.last - 1 == segment.base_offset:
                end = min(until + batch_size(&h), end)
        begin = s.at
        self.open_window(segment)
        while s.at < end:
            if ahead is None or ahead.done == ahead.count:
                ahead = self.scan_ahead(segment, end)
            code = self.advance(ahead, end)
            if code == BATCH_SHORT and self.refill(segment):
                continue
            if self.progress is not None:
                self.progress(self.done + s.at, self.total)
            if code != BATCH_OK:
                self.resolve(segment, code, end)
        self.read += end - begin
        self.mapping = None
        return 0

    cdef int advance(self, Round ahead, int64_t end) except? -1:
        """Go on by the next piece ahead where it follows, else by a scan from here to where the next one may."""
        cdef Piece* piece
        cdef Scan* s = &self.s
        cdef int64_t until = min(s.at + WINDOW, end)
        cdef bint follows
        cdef int code
        while ahead is not None and ahead.done < ahead.count:
            piece = &ahead.pieces[ahead.done]
            if piece.begin > s.at:
                until = min(until, piece.begin)
                break
            follows = piece.begin == s.at and (
                piece.chain == s.chain or s.chain < piece.chain and s.chain < s.dense_from
            )
            if follows and piece.s.epoch != s.epoch:
                until = s.at + 1  # its first batch is to be looked at before
                break
            ahead.done += 1
            if follows and piece.s.chain <= s.epoch_until:
                s.at = piece.s.at
                s.chain = piece.s.chain
                s.batches += piece.s.batches
                s.records += piece.s.records
                return piece.code
        with nogil:
            if self.mapping is not None:
                self.mapping.populate(s.at, until)
            code = scan(self.data, self.window_start, self.window_end, until, s)
        return code

    cdef Round scan_ahead(self, Segment segment, int64_t end):
        """The next pieces, scanned by all processors; None where one is enough."""
        cdef BatchHeader h
        cdef Piece* piece
        cdef Round ahead
        cdef int64_t begin = self.s.at
        cdef int64_t chain = self.s.chain
        if self.mapping is None or self.workers < 2 or end - begin <= PIECE:
            return None
        segment.load_indexes()
        ahead = Round.__new__(Round)
        ahead.mapping = self.mapping
        ahead.size = self.window_end
        while begin < end and ahead.count < ROUND:
            piece = &ahead.pieces[ahead.count]
            piece.s.at = piece.begin = begin
            piece.s.chain = piece.chain = chain
            piece.s.dense_from = self.s.dense_from
            piece.s.epoch = -2
            piece.s.epoch_until = INT64_MAX
            piece.until = begin = boundary(segment, begin, end, PIECE, &h)
            chain = h.base_offset
            ahead.count += 1
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.workers - 1, "kreplog-verify")
        helpers = [self.pool.submit(ahead.run) for _ in range(self.workers - 1)]
        ahead.run()
        for helper in helpers:
            helper.cancel() or helper.result()  # one that came too late is not waited for
        return ahead

    cdef int64_t end_of(self, Segment segment) except -1:
        return self.log.segment_end(
            self.log._segments, self.log.segment_index(self.log._segments, segment.base_offset)
        )

    cdef int64_t place_of(self, Segment segment, int64_t offset, BatchHeader* h) except -1:
        """Position of the batch that holds `offset`; 0 where damage hides it."""
        try:
            return segment.locate(offset, self.log.position.dense_from, h)
        except CorruptBatchError:
            return 0

    cdef int open_window(self, Segment segment) except -1:
        self.mapping = segment.mapped()
        if self.mapping is not None:
            segment.check_whole()
            self.data = self.mapping.data
            self.window_start = 0
            self.window_end = segment.byte_size()
        else:
            self.window_start = self.window_end = self.s.at
            self.refill(segment)
        return 0

    cdef bint refill(self, Segment segment) except -1:
        """Move the window up to s.at; False when that gives nothing new."""
        cdef int64_t before = self.window_end
        cdef Py_ssize_t wanted = WINDOW
        if self.mapping is not None:
            return False
        if self.window_start == self.s.at and self.window_end > self.s.at:
            wanted = 2 * (self.window_end - self.window_start)
        if self.buffer is None or self.buffer.size < wanted:
            self.buffer = allocate(wanted)
        self.data = self.buffer.data
        self.window_start = self.s.at
        self.window_end = self.s.at + segment.open().read_at(self.buffer.data, self.buffer.size, self.s.at)
        return self.window_end > before

    cdef int resolve(self, Segment segment, int code, int64_t end) except -1:
        """The scan stopped at s.at: look up an epoch, walk a compressed batch, or note damage and find the way on."""
        cdef BatchHeader h
        cdef Scan* s = &self.s
        cdef const uint8_t* p = self.data + (s.at - self.window_start)
        cdef RecordsFound ignored
        cdef str reason = None
        read_header(p, self.window_end - s.at, &h)
        if code == NEW_EPOCH:
            self.epochs.epoch = -2
            if self.epochs.epoch_fits(&h) and (s.epoch == -2 or h.leader_epoch >= s.epoch):
                s.epoch = h.leader_epoch
                s.epoch_until = self.epochs.epoch_until if self.epochs.epoch == h.leader_epoch else INT64_MAX
                return 0
            code = BAD_LEADER_EPOCH
        elif code == COMPRESSED:
            try:
                code = check_records(p, &h, False, &ignored)
            except CorruptBatchError as error:
                code = BATCH_SHORT
                reason = str(error)
            if code == BATCH_OK:
                s.batches += 1
                s.records += h.record_count
            else:
                self.note(segment, s.chain, reason if reason is not None else reason_of(code))
            s.chain = next_offset_of(&h)
            s.at += batch_size(&h)
            return 0
        if s.chain == self.log.sealed_end(segment) and segment.is_padding(s.at):
            s.at = end
            return 0
        self.note(segment, s.chain, reason_of(code))
        s.at = segment.resync(s.at, s.chain)
        if s.at >= end:
            s.at = end
            s.chain = min(self.last, self.end_of(segment))
            return 0
        if s.at + HEADER_SIZE > self.window_end and not self.refill(segment):
            s.at = end
            return 0
        p = self.data + (s.at - self.window_start)
        s.chain = <int64_t> load64(p)
        s.epoch = <int32_t> load32(p + 12)
        s.epoch_until = s.chain
        return 0
