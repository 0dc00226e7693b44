"""Reading: a walk over batches, and on top of it records, values, raw fetches, and verification.

A sealed segment is mapped; so is the active one in its writer's own process, where a cut replaces the file instead of
shrinking it. Another process reads the active segment with pread. A batch is accepted after its header, its place in
the sequence of offsets, its leader epoch and its CRC have been checked. If a check fails, the writer's generation shows
whether the log was truncated in the meantime (then the reader seeks again) or the bytes are damaged.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kreplog._native.aborted cimport AbortedFilter
from kreplog._native.arrow cimport ArrowBuilder
from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BAD_LEADER_EPOCH,
    BATCH_OK,
    BATCH_SHORT,
    HEADER_SIZE,
    BatchHeader,
    RecordView,
    batch_size,
    check_crc,
    is_control,
    make_record,
    next_offset_of,
    next_record,
    open_batch,
    raise_corrupt,
    read_header,
)
from kreplog._native.columns cimport integer
from kreplog._native.files cimport FileHandle, HeapBuffer, Mapping, allocate, view_of
from kreplog._native.segment cimport Segment
from kreplog._native.state cimport StateFile
from kreplog._native.view cimport LogView

from kreplog.errors import CorruptBatchError, LogTruncatedError, OffsetOutOfRangeError, UsageError
from kreplog.types import FileRegion

cdef enum:
    WINDOW = 256 << 10  # one pread of the active segment
    FIRST_AHEAD = 512 << 10  # bytes after a seek whose pages come one by one
    READ_AHEAD = 4 << 20  # most that is faulted in at once of a mapping
    RETRIES = 1000  # looks at a log that is being cut all the time
    MAX_ROWS = 1 << 16  # of one piece for Arrow


@cython.final
cdef class BatchReader:

    cdef int seek(self) except -1:
        """Find the batch that holds `expected`. Raises OffsetOutOfRangeError below the log start."""
        cdef Segment segment
        cdef int64_t generation
        cdef int _attempt
        for _attempt in range(RETRIES):
            generation = self.log.steady_generation()
            if self.watched >= 0 and self.watched != generation:
                self.check_truncations(generation)
                self.stop = self.expected  # what is committed by now, or stable, is for `extend`
            elif self.watched < 0 and self.committed and self.generation != generation:
                self.start = max(self.start, self.expected)
                self.limit_to_committed()
            self.generation = generation
            self.stop = min(self.stop, self.log.position.leo)
            if self.expected >= self.stop:
                return 0
            if self.expected < self.log.position.log_start_offset:
                refuse_deleted(self.log, self.expected)
            try:
                segment = self.log.segment_for(self.expected)
                if segment is None:
                    refuse_deleted(self.log, self.expected)
                segment.check_whole()
                self.at = segment.locate(self.expected, self.log.position.dense_from, &self.header)
            except FileNotFoundError:
                if self.log.read_only:
                    self.log.relist()
                continue
            except CorruptBatchError:
                if self.moved():
                    continue
                raise
            self.segment = segment
            self.chain = -1
            self.window_start = self.window_end = 0
            self.populated = self.at + FIRST_AHEAD
            self.ahead = FIRST_AHEAD
            if segment.mapping is not None and self.at < segment.mapping.size:
                segment.mapping.visit(self.at, min(segment.size, <int64_t> segment.mapping.size))
            if not self.moved():
                return 0
        self.log.check_files()
        raise CorruptBatchError(
            f"{self.log.name}: offset {self.expected} cannot be found, the log keeps changing under the reader",
            partition=self.log.name, offset=self.expected, path=self.log.path,
        )

    cdef int limit_to_committed(self) except -1:
        """Read up to what is committed, or stable, now: the log may have been truncated since the read began. Raises as
        `filter_of`."""
        self.stop = min(self.stop, self.log.last_stable() if self.stable else self.log.position.high_watermark)
        if self.stable and self.expected < self.stop:
            self.aborted = filter_of(self.log, self.expected, self.stop)
        return 0

    cdef int check_truncations(self, int64_t generation) except -1:
        """For a reader that follows: raise LogTruncatedError if records that it has read are no longer in the log."""
        cdef int64_t end
        cdef StateFile state = self.log.state
        if generation == self.watched or state is None:
            return 0
        end = state.lowest_truncation(self.watched, generation)
        if end < 0 and self.log.steady_generation() != generation:  # the note may have been overwritten meanwhile
            generation = self.log.position.generation
            end = state.lowest_truncation(self.watched, generation)
        if end < self.expected:
            raise LogTruncatedError(
                f"{self.log.name}: " + (
                    f"the log was truncated to offset {end}, below {self.expected}, up to which it had been read: "
                    f"drop what was read from {end} on, and read on from there" if end >= 0 else
                    f"the log was truncated more often than is noted since offset {self.expected} was read, perhaps "
                    "below it: read again what matters"
                ), partition=self.log.name, offset=end if end >= 0 else None, path=self.log.path,
            )
        self.watched = generation
        return 0

    cdef int extend(self, int64_t stop) except -1:
        """Go on to `stop`, at most the high watermark of the position as it is now. Bytes past the former one that
        were read with it had not been published."""
        cdef Segment segment = self.segment
        self.stop = stop
        if segment is not None and (
            self.generation != self.log.position.generation or segment.base_offset != self.log.position.active_base
        ):
            self.segment = None
        elif self.mapping is None:
            self.window_start = self.window_end = 0
        return 0

    cdef bint moved(self) except -1:
        """Whether files were cut since the last seek."""
        self.log.refresh()
        return self.log.position.generation != self.generation

    cdef int fill(self, Py_ssize_t wanted) except -1:
        """Have at least `wanted` bytes from `at` in the window, where the segment has them."""
        cdef Segment segment = self.segment
        cdef Mapping mapping
        cdef HeapBuffer buffer
        cdef Py_ssize_t size
        mapping = segment.mapped()
        if mapping is not None:
            segment.check_whole()
            self.mapping = mapping
            self.owner = mapping
            self.window = mapping.data
            self.window_start = 0
            self.window_end = segment.byte_size()
            return 0
        self.mapping = None
        size = max(wanted, <Py_ssize_t> WINDOW)
        if segment.base_offset == self.log.position.active_base and self.log.position.active_size > self.at:
            size = max(wanted, min(size, self.log.position.active_size - self.at))  # behind it are zeros
        if (
            not isinstance(self.owner, HeapBuffer) or (<HeapBuffer> self.owner).size < size
            or (<PyObject*> self.owner).ob_refcnt > 1
        ):
            self.owner = allocate(size)
        buffer = self.owner
        self.window = buffer.data
        self.window_start = self.at
        self.window_end = self.at + segment.open().read_at(buffer.data, buffer.size, self.at)
        return 0

    cdef int next(self) except -1:
        """1 with the next batch in `data`, `header`, `position`; 0 at the end. Its CRC is for `check`.

        Raises CorruptBatchError, OffsetOutOfRangeError, StorageError.
        """
        cdef int _attempt
        cdef int code
        for _attempt in range(RETRIES):
            if self.expected >= self.stop:
                return 0
            if self.segment is None:
                self.seek()
                if self.expected >= self.stop:
                    return 0
            if self.segment.sealed and self.at >= self.segment.byte_size():
                self._next_segment()
                continue
            code = self.judge()
            if code == BATCH_OK:
                self.position = self.at
                self.at += batch_size(&self.header)
                self.chain = self.expected = next_offset_of(&self.header)
                return 1
            if self.moved():
                self.segment = None
                continue
            if self.is_at_padding():
                self._next_segment()
                continue
            raise_corrupt(code, self.log.name, self.expected, self.segment.path, self.at)
        raise_corrupt(BATCH_SHORT, self.log.name, self.expected, self.log.path, -1)

    cdef bint is_at_padding(self) except -1:
        """Whether the segment was sealed here: only zeros follow in it, and the next begins at the expected offset."""
        return self.expected == self.log.sealed_end(self.segment) and self.segment.is_padding(self.at)

    cdef int _next_segment(self) except -1:
        """Continue with the next segment; only a compacted log may have a gap there."""
        cdef list segments = self.log._segments
        cdef Py_ssize_t i = self.log.segment_index(segments, self.segment.base_offset) + 1
        if i < len(segments) and self.expected < (<Segment> segments[i]).base_offset and not self.moved():
            if self.expected < self.log.position.log_start_offset:
                refuse_deleted(self.log, self.expected)
            if self.expected >= self.log.position.dense_from:
                raise_corrupt(BATCH_SHORT, self.log.name, self.expected, self.segment.path, self.at)
            self.expected = (<Segment> segments[i]).base_offset
        self.segment = None
        self.owner = None
        self.mapping = None
        return 0

    cdef int judge(self) except 1:
        """Read the header at `at` and check all but the CRC."""
        cdef BatchHeader* h = &self.header
        cdef Mapping mapping
        cdef int64_t dense_from = self.log.position.dense_from
        cdef int code
        if self.window_end - self.at < HEADER_SIZE or self.at < self.window_start:
            self.fill(HEADER_SIZE)
        code = read_header(self.window + (self.at - self.window_start), self.window_end - self.at, h)
        if code != BATCH_OK:
            return code
        if batch_size(h) > self.window_end - self.at:
            self.fill(batch_size(h))
            if batch_size(h) > self.window_end - self.at:
                return BATCH_SHORT
        mapping = self.mapping
        if mapping is not None and self.populated < self.at + batch_size(h):
            with nogil:
                mapping.populate(self.at, min(self.at + self.ahead, self.window_end))
            self.populated = self.at + self.ahead
            self.ahead = min(2 * self.ahead, <int64_t> READ_AHEAD)
        if mapping is None and self.moved():
            return BATCH_SHORT
        if self.chain < 0:
            if next_offset_of(h) <= self.expected or (h.base_offset > self.expected and self.expected >= dense_from):
                return BAD_BASE_OFFSET
        elif h.base_offset != self.chain and (h.base_offset < self.chain or self.chain >= dense_from):
            return BAD_BASE_OFFSET
        if not self.epoch_fits(h):
            return BAD_LEADER_EPOCH
        self.data = self.window + (self.at - self.window_start)
        return BATCH_OK

    cdef bint epoch_fits(self, const BatchHeader* h) except -1:
        cdef int _attempt
        if h.leader_epoch == self.epoch and h.base_offset < self.epoch_until:
            return True
        if self.log.read_only and not self.log.epochs_loaded:
            self.log.load_epochs()
        for _attempt in range(2):
            if self.log.epochs is None or self.log.epochs.latest_epoch < 0:
                return True
            self.epoch, self.epoch_until = self.log.epochs.epoch_for_offset(h.base_offset)
            if self.epoch < 0 or self.epoch == h.leader_epoch:
                return True
            if not self.log.read_only:
                return False
            self.log.load_epochs()
        return False

    cdef int check(self) except -1:
        """Check the CRC of the latest batch. Raises CorruptBatchError."""
        cdef int code
        if batch_size(&self.header) > 8192:
            with nogil:
                code = check_crc(self.data, &self.header)
        else:
            code = check_crc(self.data, &self.header)
        if code != BATCH_OK:
            raise_corrupt(code, self.log.name, self.header.base_offset, self.segment.path, self.position)
        return 0


cdef int refuse_deleted(LogView log, int64_t offset) except -1:
    raise OffsetOutOfRangeError(
        f"{log.name}: offset {offset} is below the first one kept (the log start offset is "
        f"{log.position.log_start_offset}); its records were deleted", partition=log.name, offset=offset,
    )


cdef BatchReader reader_of(LogView log, int64_t start, int64_t stop):
    cdef BatchReader reader = BatchReader.__new__(BatchReader)
    reader.log = log
    reader.expected = start
    reader.stop = stop
    reader.chain = -1
    reader.epoch = -2
    reader.watched = -1
    return reader


cdef int located_corruption(BatchReader reader, object error) except -1:
    """Raise `error` again with the place of the batch delivered last."""
    raise CorruptBatchError(
        f"{reader.log.name}: {error}, offset {reader.header.base_offset}, file {reader.segment.path}, byte "
        f"{reader.position}", partition=reader.log.name, offset=reader.header.base_offset,
        path=reader.segment.path, position=reader.position,
    ) from error


cdef bint reads_committed(object isolation) except -1:
    """Raises UsageError."""
    if isolation not in ("read_uncommitted", "read_committed"):
        raise UsageError(f"isolation = {isolation!r} is not known: choose 'read_uncommitted' or 'read_committed'")
    return isolation == "read_committed"


cdef AbortedFilter filter_of(LogView log, int64_t start, int64_t stop):
    """What leaves out the records of aborted transactions; None if there are none between the two. Raises as
    `aborted_between`, and CorruptBatchError."""
    cdef int64_t generation
    cdef int _attempt
    for _attempt in range(RETRIES):
        generation = log.steady_generation()
        found = log.aborted_between(start, stop)
        log.refresh()
        if generation == log.position.generation:  # else an index may have gone into one that was looked at before
            return AbortedFilter(found) if found else None
    raise CorruptBatchError(
        f"{log.name}: the aborted transactions from offset {start} on cannot be found, the log keeps changing under "
        "the reader", partition=log.name, offset=start, path=log.path,
    )


cdef (int64_t, int64_t) committed_range(LogView log, object start, object stop, bint stable) except *:
    """[start, stop) clamped to what is committed now, or stable. Raises OffsetOutOfRangeError, UsageError."""
    cdef int64_t first
    cdef int64_t last
    log.refresh()
    first = log.position.log_start_offset if start is None else integer(start, "start")
    last = log.last_stable() if stable else log.position.high_watermark
    if stop is not None:
        last = min(last, integer(stop, "stop"))
    if not log.position.log_start_offset <= first <= log.position.leo:
        raise OffsetOutOfRangeError(
            f"{log.name}: offset {first} is outside the log, which holds {log.position.log_start_offset} to "
            f"{log.position.leo}", partition=log.name, offset=first,
        )
    if first >= last:
        log.require_directory()
    if stop is not None and last < first and stop < first:
        raise UsageError(f"{log.name}: stop = {stop} lies before start = {first}")
    return first, last


cdef BatchReader committed_reader(LogView log, object start, object stop, object isolation):
    """A reader of what is committed now, or stable, from `start` to `stop`. Raises as `committed_range` and
    `filter_of`."""
    cdef BatchReader reader = reader_of(log, 0, 0)
    reader.committed = True
    reader.stable = reads_committed(isolation)
    reader.generation = log.steady_generation()
    reader.expected, reader.stop = committed_range(log, start, stop, reader.stable)
    reader.start = reader.expected
    if reader.stable:
        reader.aborted = filter_of(log, reader.expected, reader.stop)
    return reader


@cython.final
cdef class Records:
    """Iterator over the records of [start, stop), or over their values alone. For one thread at a time."""

    def __init__(self, LogView log, start, stop, bint values_only, isolation="read_uncommitted"):
        self.reader = committed_reader(log, start, stop, isolation)
        self.values_only = values_only

    def __iter__(self):
        return self

    def __length_hint__(self):
        """About how many records are left, so that a list of a few thousand grows once; compacted logs have fewer."""
        cdef int64_t left = self.reader.stop - max(self.reader.start, self.reader.expected - self.cursor.remaining)
        return max(0, min(left, <int64_t> MAX_ROWS))

    def __next__(self):
        cdef RecordView view
        cdef int code
        while True:
            if self.in_batch:
                code = next_record(&self.cursor, &view)
                if code == 1:
                    if view.offset < self.reader.start:
                        continue
                    if view.offset >= self.reader.stop:
                        self.in_batch = False
                        raise StopIteration
                    if not self.values_only:
                        return make_record(&view)
                    if view.value_length < 0:
                        return None
                    return PyBytes_FromStringAndSize(<const char*> view.value, view.value_length)
                self.in_batch = False
                if code != 0:
                    self._corrupt(code)
            if self.busy:
                raise UsageError("this iterator is in use in another thread; make one for each")
            self.busy = True
            try:
                if not self._open_next():
                    raise StopIteration
            finally:
                self.busy = False

    cdef bint _open_next(self) except -1:
        cdef BatchReader reader = self.reader
        while reader.next():
            reader.check()
            if reader.aborted is not None and reader.aborted.skips(&reader.header) or is_control(&reader.header):
                continue
            try:
                self.plain = open_batch(&self.cursor, reader.data, &reader.header)
            except CorruptBatchError as error:
                located_corruption(reader, error)
            self.in_batch = True
            return True
        return False

    def _corrupt(self, int code):
        cdef BatchReader reader = self.reader
        raise_corrupt(code, reader.log.name, reader.header.base_offset, reader.segment.path, reader.position)


@cython.final
cdef class ArrowPieces:
    """Iterator over the records of [start, stop) as ArrowColumns of about `max_bytes` or MAX_ROWS each."""

    def __init__(self, LogView log, start, stop, columns, timestamp_unit, max_bytes, isolation="read_uncommitted"):
        cdef int64_t wanted = integer(max_bytes, "max_bytes")
        if wanted < 1:
            raise UsageError(f"max_bytes = {wanted} must be at least 1")
        self.builder = ArrowBuilder(columns, timestamp_unit)
        self.reader = committed_reader(log, start, stop, isolation)
        self.max_bytes = wanted

    def __iter__(self):
        return self

    def __next__(self):
        cdef BatchReader reader = self.reader
        if self.busy:
            raise UsageError("this iterator is in use in another thread; make one for each")
        self.busy = True
        try:
            while reader.next():
                if reader.aborted is not None:
                    reader.check()
                    if reader.aborted.skips(&reader.header):
                        continue
                try:
                    self.builder.add(reader.data, batch_size(&reader.header), reader.start, reader.stop)
                except CorruptBatchError as error:
                    located_corruption(reader, error)
                if self.builder.rows and self.builder.nbytes >= self.max_bytes or self.builder.rows >= MAX_ROWS:
                    break
        finally:
            self.busy = False
        if self.builder.rows == 0:
            raise StopIteration
        return self.builder.finish()


@cython.final
cdef class Fetched:
    """Whole batches of one segment, unchanged as on disk, from the batch that contains start_offset.

    data: a read-only memoryview, zero-copy over the mapped segment; the receiver checks the CRCs, as in Kafka.
    next_offset: the offset of the next fetch. file_region: the same bytes as (fd, position, count) for os.sendfile; the
    fd is open while this object exists, and -1 in a process that reads more segments than it may have files open. The
    other four offsets are the log's at the time of the fetch. aborted: (producer id, first offset) of the aborted
    transactions that have records in it, of a fetch up to the last stable offset.
    """

    cdef readonly object data
    cdef readonly int64_t start_offset
    cdef readonly int64_t next_offset
    cdef readonly int64_t high_watermark
    cdef readonly int64_t log_start_offset
    cdef readonly int64_t log_end_offset
    cdef readonly int64_t last_stable_offset
    cdef readonly list aborted
    cdef FileHandle file
    cdef int64_t position

    @property
    def file_region(self):
        if self.file is None:
            return FileRegion(-1, 0, 0)
        return FileRegion(self.file.fd, self.position, len(self.data))

    def __repr__(self):
        return f"Fetched(start_offset={self.start_offset}, next_offset={self.next_offset}, {len(self.data)} bytes)"


def fetch(LogView log, start, size, isolation):
    """Whole batches from `offset` on; see Log.fetch."""
    cdef Fetched fetched
    cdef int64_t offset = integer(start, "offset")
    cdef int64_t max_bytes = integer(size, "max_bytes")
    cdef int64_t bound
    cdef int64_t stable
    cdef int64_t generation
    cdef int _attempt
    if isolation not in ("committed", "log_end", "last_stable"):
        raise UsageError(f"isolation = {isolation!r} is not known: choose 'committed', 'log_end' or 'last_stable'")
    if max_bytes < 0:
        raise UsageError(f"max_bytes = {max_bytes} must not be negative")
    for _attempt in range(RETRIES):
        generation = log.steady_generation()
        log._check_range(offset)
        stable = log.last_stable()
        bound = log.position.leo
        if isolation != "log_end":
            bound = stable if isolation == "last_stable" else log.position.high_watermark
        fetched = Fetched.__new__(Fetched)
        fetched.data = memoryview(b"")
        fetched.start_offset = fetched.next_offset = offset
        fetched.high_watermark = log.position.high_watermark
        fetched.log_start_offset = log.position.log_start_offset
        fetched.log_end_offset = log.position.leo
        fetched.last_stable_offset = stable
        fetched.aborted = []
        if offset >= bound:
            log.require_directory()
            return fetched
        try:
            _take(log, fetched, offset, bound, max_bytes)
            if isolation == "last_stable":
                fetched.aborted = log.aborted_between(offset, fetched.next_offset)
        except (FileNotFoundError, CorruptBatchError) as error:
            log.refresh()
            if generation == log.position.generation and isinstance(error, CorruptBatchError):
                raise
            if log.read_only:
                log.relist()
            continue
        log.refresh()
        if generation == log.position.generation:
            return fetched
    log.check_files()
    raise CorruptBatchError(
        f"{log.name}: offset {offset} cannot be fetched, the log keeps changing under the reader",
        partition=log.name, offset=offset, path=log.path,
    )


cdef int _take(LogView log, Fetched fetched, int64_t offset, int64_t bound, int64_t max_bytes) except -1:
    """Fill `fetched` from the segment that holds `offset`."""
    cdef BatchHeader h
    cdef Segment segment = log.segment_for(offset)
    cdef Mapping mapping
    cdef HeapBuffer buffer
    cdef int64_t at
    cdef int64_t end
    cdef int64_t stop
    cdef int64_t limit
    cdef int64_t next_offset
    cdef Py_ssize_t i
    if segment is None:
        refuse_deleted(log, offset)
    segment.check_whole()
    at = segment.locate(offset, log.position.dense_from, &h)
    while at >= segment.size and segment.sealed:  # a gap that compaction left at the segment's end
        fetched.next_offset = log.segment_end(log._segments, log.segment_index(log._segments, segment.base_offset))
        if fetched.next_offset >= bound:
            return 0
        segment = log.segment_for(fetched.next_offset)
        at = segment.locate(segment.base_offset, log.position.dense_from, &h)
    if at >= segment.size or next_offset_of(&h) > bound:
        return 0
    limit = at + max(max_bytes, <int64_t> batch_size(&h))
    end = at + batch_size(&h)
    next_offset = next_offset_of(&h)
    stop = segment.byte_size()
    i = segment.offsets.floor_position(limit)
    if i >= 0 and segment.offsets.position_at(i) > end:
        if segment.header_at(segment.offsets.position_at(i), &h) == BATCH_OK and h.base_offset <= bound:
            end = segment.offsets.position_at(i)
            next_offset = h.base_offset
    while end < stop and next_offset < bound:
        if segment.header_at(end, &h) != BATCH_OK or next_offset_of(&h) > bound or end + batch_size(&h) > limit:
            break
        end += batch_size(&h)
        next_offset = next_offset_of(&h)
    mapping = segment.mapped()
    if mapping is not None:
        fetched.data = memoryview(view_of(mapping, mapping.data + at, end - at))
    else:
        buffer = allocate(end - at)
        if segment.open().read_at(buffer.data, end - at, at) != end - at:
            raise_corrupt(BATCH_SHORT, log.name, offset, segment.path, at)
        fetched.data = memoryview(view_of(buffer, buffer.data, end - at))
    fetched.file = segment.open() if segment.writable or mapping is None else segment.file
    fetched.position = at
    fetched.next_offset = next_offset
    return 0
