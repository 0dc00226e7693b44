"""Compaction: of the records of a key in sealed segments only the newest stays.

Reads and writes beside appends and readers; only the exchange of the files takes the log's lock, see
`compaction_swap`. Everything up to the cleaner checkpoint has been compacted before; what lies between it and the
first segment that must not be looked at is dirty. Source: Kafka's LogCleaner, LogCleanerManager.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_release_lock
from libc.stdint cimport INT32_MAX, int16_t, int64_t, uint8_t

from kreplog._native.batch cimport (
    BATCH_OK,
    BatchHeader,
    batch_size,
    is_control,
    next_offset_of,
    raise_corrupt,
    read_header,
    wall_clock_ms,
)
from kreplog._native.columns cimport integer
from kreplog._native.compaction_swap cimport create_cleaned, make_durable, swap
from kreplog._native.files cimport FileHandle, Mapping, map_file
from kreplog._native.key_map cimport KeyMap
from kreplog._native.log cimport SegmentedLog
from kreplog._native.markers cimport Marker, read_marker
from kreplog._native.producers cimport ProducerState
from kreplog._native.record_filter cimport CHANGED, COMPRESSED_NEXT, FULL, KEYLESS, UNCONFIRMED, RecordFilter
from kreplog._native.segment cimport Segment, remove
from kreplog._native.swap_recovery cimport checkpoint_path
from kreplog._native.transaction_index cimport aborted_path, aborted_without, list_aborted, put_aborted, write_index

import logging
import os
import time
from array import array
from itertools import chain

from kreplog._native.files import error_of, status_of
from kreplog.errors import CorruptBatchError, CorruptCheckpointError, LogClosedError, UsageError
from kreplog.types import CompactionBacklog, CompactionReport

_logger = logging.getLogger("kreplog")

cdef enum:
    PIECE = 4 << 20  # bytes looked at between two looks at the clock, and at whether the log is to be closed
    PIECE_OF_HEADERS = 512 << 10  # the same where the GIL is held: thousands of small batches
    LONGEST_SLEEP_MS = 50


def compact(SegmentedLog log, now_ms, bint force, max_bytes_per_second, bint drop_keyless, between=None):
    """See Log.compact. between: called without locks after each piece that was looked at; what it raises ends this."""
    cdef int64_t now = wall_clock_ms() if now_ms is None else integer(now_ms, "now_ms")
    cdef int64_t rate = 0 if max_bytes_per_second is None else integer(max_bytes_per_second, "max_bytes_per_second")
    if max_bytes_per_second is not None and rate < 1:
        raise UsageError(f"max_bytes_per_second = {rate} must be at least 1")
    if not log.config.compacts:
        raise UsageError(
            f"{log.name}: its cleanup_policy is {log.config.cleanup_policy!r}: open or configure it with one that has "
            "'compact' in it", partition=log.name,
        )
    log.lock_for_write()  # raises where it takes no writes
    log.unlock()
    if PyThread_acquire_lock(log.compaction_mutex, NOWAIT_LOCK) == 0:
        with nogil:
            PyThread_acquire_lock(log.compaction_mutex, WAIT_LOCK)
    try:
        return Compaction(log, now, rate, between).run(force, drop_keyless)
    finally:
        PyThread_release_lock(log.compaction_mutex)


def copy_checkpoint(SegmentedLog source, SegmentedLog copy):
    """See ManagedLog.copy_cleaner_checkpoint."""
    cdef int64_t cleaned
    source.lock()
    try:
        cleaned = min(source.compacted_to(), source.position.dense_from)
    finally:
        source.unlock()
    copy.lock_for_write()
    try:
        if cleaned > copy.position.leo:
            cleaned = 0
        if copy.position.dense_from < cleaned:  # what `choose` takes for never compacted
            copy.position.dense_from = cleaned
            copy.state.publish(&copy.position)
    finally:
        copy.unlock()
    copy.state.sync()
    copy.cleaner_checkpoint.update(copy.topic_partition, cleaned or None)


def backlog(SegmentedLog log, now_ms):
    """See ManagedLog.compaction_backlog."""
    cdef Compaction compaction = Compaction(log, integer(now_ms, "now_ms"), 0)
    compaction.choose()
    return compaction.backlog()


@cython.final
cdef class Throttle:
    """Keeps the bytes that are looked at below a rate, and ends a compaction whose log is to be closed."""

    cdef SegmentedLog log
    cdef int64_t rate  # bytes a second, 0 for no limit
    cdef int64_t spent
    cdef double started
    cdef object between  # called where no lock is held, or None

    cdef int spend(self, int64_t size) except -1:
        """Wait until `size` bytes more are allowed. Raises LogClosedError, and what `between` or a signal's handler
        raises."""
        cdef double ahead
        self.check()
        PyErr_CheckSignals()
        if self.between is not None:
            self.between()
        self.spent += size
        while self.rate:
            ahead = self.spent / <double> self.rate - (time.monotonic() - self.started)
            if ahead <= 0:
                break
            time.sleep(min(ahead, LONGEST_SLEEP_MS / 1000.0))  # in short pieces, so that close() is noticed
            self.check()
            if self.between is not None:
                self.between()
        return 0

    cdef int check(self) except -1:
        if self.log.closing or self.log.closed:
            raise LogClosedError(
                f"{self.log.name}: the log was closed; what was compacted before stays so", partition=self.log.name,
                path=self.log.path,
            )
        return 0


@cython.final
cdef class Compaction:
    """One run, in the order of its methods."""

    cdef SegmentedLog log
    cdef int64_t now
    cdef Throttle throttle
    cdef int64_t cut_count  # the log's, when the segments were as they are to be
    cdef list segments  # all that may be looked at, oldest first
    cdef int64_t first_dirty
    cdef int64_t end  # where they end
    cdef int64_t written  # below this are the markers of all their transactions
    cdef Py_ssize_t dirty_from  # the first of the segments with dirty records
    cdef RecordFilter filter

    def __init__(self, SegmentedLog log, int64_t now, int64_t rate, between=None):
        self.log = log
        self.now = now
        self.throttle = Throttle()
        self.throttle.between = between
        self.throttle.log = log
        self.throttle.rate = rate
        self.throttle.started = time.monotonic()

    def run(self, bint force, bint drop_keyless):
        """The report; None where nothing is due."""
        cdef int64_t before
        cdef int64_t end
        cdef list group
        cdef Segment segment
        self.choose()
        if not self.segments or not (force or self.backlog().is_due):
            return None
        before = sum([segment.byte_size() for segment in self.segments])
        try:
            self.build_map(drop_keyless)
            end = self.filter.end
            # Else a loss of power takes the newest record of a key, or the marker that commits it, after the others.
            self.log.flush_to(self.written, False)
            self.expect_gaps(end)
            groups = self.groups(end)
        except FileNotFoundError:  # the log was cut, or retention was there first
            return None
        for group in groups:
            if not self.compact_group(group):
                end = self.first_dirty
                break
        if end > self.first_dirty:
            self.note_compacted(end)
        return self.report(before, end)

    cdef int note_compacted(self, int64_t end) except -1:
        """Move the cleaner checkpoint, unless the log was cut: what follows the cut was never compacted.

        Not under the lock, for which an append would wait until the file is durable. If a cut comes in between and the
        process ends before the checkpoint is taken back, `choose` has `dense_from`, which the cut has moved."""
        cdef SegmentedLog log = self.log
        if self.is_cut():
            return 0
        log.cleaner_checkpoint.update(log.topic_partition, end)
        if self.is_cut() and not log.failure_expected:
            log.cleaner_checkpoint.update(log.topic_partition, min(self.first_dirty, log.position.log_start_offset))
        return 0

    cdef bint is_cut(self) except -1:
        """Whether the log was cut since the segments were chosen, or its directory is being moved away."""
        self.log.lock()
        cdef bint cut = self.log.cut_count != self.cut_count or self.log.failure_expected
        self.log.unlock()
        return cut

    cdef int choose(self) except -1:
        """The segments that may be looked at: sealed, stable, and as old as min_compaction_lag_ms wants them."""
        cdef SegmentedLog log = self.log
        cdef Segment segment
        cdef Py_ssize_t i
        cdef int64_t lag = log.config.min_compaction_lag_ms
        log.begin_write()
        try:
            segment = log.active
            if segment.size and 0 <= segment.first_timestamp < self.now - log.config.max_compaction_lag_ms:
                log.roll_segment()
            self.cut_count = log.cut_count
            self.segments = []
            self.end = log.position.log_start_offset
            for i in range(len(log._segments) - 1):
                segment = log._segments[i]
                if log.segment_end(log._segments, i) > log.last_stable():
                    break
                segment.learn_timestamps()
                if 0 < lag > self.now - segment.max_timestamp:
                    break
                self.segments.append(segment)
                self.end = log.segment_end(log._segments, i)
            self.written = log.position.leo
            self.first_dirty = min(log.compacted_to(), log.position.dense_from)
            if self.first_dirty > log.position.leo:
                _logger.warning(
                    "%s: the cleaner checkpoint %d lies beyond the log end offset %d; compacting from the log start "
                    "offset on", log.name, self.first_dirty, log.position.leo,
                )
                self.first_dirty = 0
            self.first_dirty = max(self.first_dirty, log.position.log_start_offset)
        finally:
            log.unlock()
        self.dirty_from = max(log.segment_index(self.segments, self.first_dirty), 0)
        return 0

    cdef object backlog(self):
        """The CompactionBacklog of the segments that were chosen."""
        cdef Segment segment
        cdef int64_t clean = 0
        cdef int64_t dirty = 0
        cdef int64_t overdue = 0
        cdef int64_t most = self.log.config.max_compaction_lag_ms
        cdef Py_ssize_t i
        for i, segment in enumerate(self.segments):
            if i < self.dirty_from:
                clean += segment.byte_size()
            elif self.first_dirty < self.end:
                dirty += segment.byte_size()
                if i == self.dirty_from and 0 <= segment.first_timestamp < self.now - most:
                    overdue = self.now - most - segment.first_timestamp
            else:
                clean += segment.byte_size()
        return CompactionBacklog(clean, dirty, overdue, self.log.config.min_cleanable_dirty_ratio)

    cdef int build_map(self, bint drop_keyless) except -1:
        """Note the newest record of each key, as far as memory goes. Raises CorruptBatchError, CorruptCheckpointError,
        UsageError."""
        cdef SegmentedLog log = self.log
        cdef Segment segment
        cdef Py_ssize_t i
        cdef list aborted = []
        log.lock()
        try:
            producer_ids = (<ProducerState> log.producers).ids()
            segments = list(log._segments)
        finally:
            log.unlock()
        for segment in segments:  # not under the lock: there may be many, and a cut meanwhile ends this run
            list_aborted(segment, self.end, aborted)
        aborted.sort()
        self.filter = RecordFilter(
            KeyMap(log.config.dedupe_buffer_size, self.end - self.first_dirty), log.position.dense_from, self.now,
            log.config.delete_retention_ms, self.newest_of_producers(producer_ids),
            array("q", chain.from_iterable(aborted)), drop_keyless,
        )
        self.filter.first_dirty = self.filter.end = self.first_dirty
        if self.first_dirty >= self.end:  # only tombstones can expire
            self.filter.end = self.end
            return 0
        for i in range(self.dirty_from, len(self.segments)):
            segment = self.segments[i]
            if not self.learn(segment, self.end_of(i)):
                break
        i = self.filter.unconfirmed()
        if i >= 0:
            self.refuse_indexes(self.filter.aborted[3 * i + 2])
        if self.filter.end == self.first_dirty:
            raise UsageError(
                f"{log.name}: dedupe_buffer_size = {log.config.dedupe_buffer_size} has no room for the keys of one "
                f"batch, at offset {self.first_dirty}: raise it", partition=log.name, offset=self.first_dirty,
            )
        return 0

    cdef object newest_of_producers(self, set producer_ids):
        """The last offset of each producer's newest batch with a sequence below the end, or of its newest marker where
        it has no such batch in its epoch; sorted. By these its state is found again where no snapshot has it. What lies
        beyond the end may be truncated yet.

        Raises FileNotFoundError where the log has lost a segment, LogClosedError, StorageError."""
        cdef Segment segment
        cdef Mapping mapping
        cdef Py_ssize_t size
        cdef Py_ssize_t at
        cdef Py_ssize_t start
        cdef Py_ssize_t stop
        cdef dict newest = {}
        for segment in self.segments if producer_ids else ():
            mapping = self.map(segment, &size)
            at = 0
            while at < size:
                start = at
                stop = min(at + PIECE_OF_HEADERS, size)
                with nogil:
                    mapping.populate(at, stop)
                at = note_newest(mapping.data, size, at, stop, newest)
                self.throttle.spend(at - start)
        return array("q", sorted([
            (<NewestBatch> newest[known]).last_offset for known in producer_ids & newest.keys()
        ]))

    cdef int refuse_indexes(self, int64_t offset) except -1:
        """Raise CorruptCheckpointError: what was committed would be taken for aborted."""
        cdef SegmentedLog log = self.log
        raise CorruptCheckpointError(
            f"{log.name}: the transaction indexes and the log disagree about the marker at offset {offset}: one is "
            "damaged; delete the partition's .txnindex and .snapshot files while no process has it open, and they "
            "are written again from the log; nothing was compacted", partition=log.name, offset=offset, path=log.path,
        )

    cdef int64_t end_of(self, Py_ssize_t i) except -1:
        return self.end if i + 1 == len(self.segments) else (<Segment> self.segments[i + 1]).base_offset

    cdef bint learn(self, Segment segment, int64_t bound) except -1:
        """Note the keys of a segment; False when there was no room for all of them. Raises CorruptBatchError,
        CorruptCheckpointError, UsageError (a record without a key, where such are not to be dropped)."""
        cdef RecordFilter filter = self.filter
        cdef Py_ssize_t size
        cdef Mapping mapping = self.map(segment, &size)
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t start
        cdef BatchHeader h
        cdef int code
        filter.begin(segment.base_offset, bound)
        if self.first_dirty > segment.base_offset and size:
            self.log.lock()
            try:
                self.require(segment)
                at = segment.locate(self.first_dirty, self.log.position.dense_from, &h)
            finally:
                self.log.unlock()
            if at < size:
                filter.begin(h.base_offset, bound)
        while at < size:
            start = at
            with nogil:
                mapping.populate(at, min(at + PIECE, size))
                code = filter.learn(mapping.data, size, min(at + PIECE, size), &at)
            if code == COMPRESSED_NEXT:
                code = filter.learn_compressed(mapping.data, size, &at)
            if code == FULL:
                return False
            if code == UNCONFIRMED:
                self.refuse_indexes(filter.chain)
            if code == KEYLESS:
                raise UsageError(
                    f"{self.log.name}: the record at offset {filter.keyless} has no key, and compaction drops such "
                    "records; nothing was dropped. If they may go, pass drop_keyless=True (kreplog log compact: "
                    "--drop-keyless); else leave the log as it is",
                    partition=self.log.name, offset=filter.keyless,
                )
            if code != BATCH_OK:
                raise_corrupt(code, self.log.name, filter.chain, segment.path, at)
            self.throttle.spend(at - start)
        filter.end = bound
        return True

    cdef Mapping map(self, Segment segment, Py_ssize_t* size):
        """Its bytes, until they have been read. Raises FileNotFoundError, also where it was cut; StorageError."""
        cdef FileHandle file
        self.log.lock()
        try:
            self.require(segment)
            file = segment.open()
            size[0] = segment.byte_size()
        finally:
            self.log.unlock()
        return map_file(file, max(size[0], <Py_ssize_t> 1))

    cdef int require(self, Segment segment) except -1:
        """Under the lock, without which a cut or retention takes the files and the indexes away: raise
        FileNotFoundError where the log has lost the segment since it was chosen, LogClosedError."""
        cdef Py_ssize_t i = self.log.segment_index(self.log._segments, segment.base_offset)
        self.throttle.check()
        if (
            self.log.cut_count != self.cut_count or self.log.closed or i < 0 or self.log._segments[i] is not segment
        ):
            raise FileNotFoundError(f"{segment.path} was cut, or deleted")
        return 0

    cdef int expect_gaps(self, int64_t end) except -1:
        """Before files change: gaps below `end` are no damage, also after a loss of power. Raises FileNotFoundError
        where the log was cut, StorageError."""
        cdef SegmentedLog log = self.log
        log.lock_for_write()
        try:
            if log.cut_count != self.cut_count:
                raise FileNotFoundError(f"{log.path} was cut")
            if log.position.dense_from < end:
                log.position.dense_from = end
                log.state.publish(&log.position)
        finally:
            log.unlock()
        return log.state.sync()  # also of what a killed process has published

    cdef list groups(self, int64_t end):
        """The segments with records below `end`, in runs whose bytes, index entries and offsets fit in one segment.

        Raises FileNotFoundError where the log has lost one of them."""
        cdef SegmentedLog log = self.log
        cdef Segment segment
        cdef list groups = []
        cdef int64_t size = 0
        cdef int64_t entries = 0
        cdef int64_t base = 0
        for i, segment in enumerate(self.segments):
            if segment.base_offset >= end:
                break
            log.lock()
            try:
                self.require(segment)
                segment.load_indexes()
                entries += segment.offsets.count
                size += segment.byte_size()
            finally:
                log.unlock()
            if not groups or size > log.segment_bytes or entries > log.max_index_entries or (
                self.end_of(i) - 1 - base > INT32_MAX
            ):
                groups.append([])
                size = segment.byte_size()
                entries = segment.offsets.count
                base = segment.base_offset
            groups[len(groups) - 1].append(segment)
        return groups

    cdef bint compact_group(self, list group) except -1:
        """Put one segment in the place of those of the group, unless it is one already and nothing in it changes.

        Returns False where the log has lost one of them meanwhile. Raises CorruptBatchError, StorageError: nothing has
        changed; LogFailedError, LogClosedError."""
        cdef SegmentedLog log = self.log
        cdef Segment segment = group[0]
        cdef Segment cleaned = self.create(segment.base_offset)
        cdef str index = aborted_path(segment) + ".cleaned"
        cdef tuple made = (cleaned.path, cleaned.offsets.path, cleaned.times.path, index)
        cdef str checkpoint = checkpoint_path(segment.path.removesuffix(".log"))
        try:
            self.filter.copies = len(group) > 1
            self.filter.drops_markers = False
            for segment in group:
                self.filter.ends_group = segment is group[len(group) - 1]
                self.rewrite(segment, cleaned)
            self.forget_transactions(group, index)
            if not self.filter.copies:
                return True
            self.write_out(cleaned)
            cleaned.complete()
            cleaned.sync()
            _give_modification_time(segment.path, made[0])
            return swap(log, self.cut_count, group, cleaned)
        except FileNotFoundError:  # it was deleted
            return False
        except CorruptBatchError:
            if log.cut_count != self.cut_count:
                return False
            raise
        finally:
            self.remove_made(made, checkpoint)

    cdef int forget_transactions(self, list group, str made) except -1:
        """Before markers of the group go, drop what would have their transactions go on, durably: the entries of
        aborted ones of which no batch was left, since a reader skips what the producer has written up to its next
        marker; and older snapshots, from which a recovery that finds no newer one would take a transaction for open.

        made: a path for a new index. Raises FileNotFoundError where the log has lost one of the segments, StorageError,
        LogFailedError."""
        cdef SegmentedLog log = self.log
        cdef Segment segment
        cdef bint changed = self.filter.drops_markers
        for segment in group:
            changed |= self.drop_emptied(segment, made)
        if self.filter.drops_markers:
            log.lock_for_write()
            try:
                self.require(segment)
                log.sync_snapshot()
                log.producers.delete_snapshots(log.path, to_offset=self.filter.end)
            finally:
                log.unlock()
        return make_durable(log) if changed else 0

    cdef bint drop_emptied(self, Segment segment, str made) except -1:
        """Drop a segment's entries of aborted transactions of which no batch was left; whether there were any."""
        cdef SegmentedLog log = self.log
        cdef list aborted = []
        cdef bytes entries
        list_aborted(segment, self.filter.end, aborted)
        emptied = {last for producer, _, last in aborted if self.filter.is_emptied(producer, last)}
        if not emptied:
            return False
        entries = aborted_without(segment, emptied)
        if entries:
            write_index(made, entries)
        log.lock_for_write()
        try:
            self.require(segment)
            put_aborted(segment, made, entries)
        finally:
            log.unlock()
        return True

    cdef Segment create(self, int64_t base_offset):
        """Under the lock, so that its directory is not moved away meanwhile. Raises LogClosedError, StorageError."""
        cdef SegmentedLog log = self.log
        log.lock()
        try:
            self.throttle.check()
            return create_cleaned(log.path, log.name, base_offset, log.config.index_interval_bytes)
        finally:
            log.unlock()

    cdef int remove_made(self, tuple paths, str checkpoint) except -1:
        """Remove what is left of the files that were made, unless their directory is no longer this log's; of a swap
        that an error has ended the checkpoint stays."""
        cdef SegmentedLog log = self.log
        log.lock()
        try:
            if not (log.closed or log.failure_expected):
                for path in paths:
                    remove(path)
                if log.pending_swap is None:
                    remove(checkpoint)
        finally:
            log.unlock()
        return 0

    cdef int rewrite(self, Segment segment, Segment cleaned) except -1:
        """Write what stays of a segment."""
        cdef RecordFilter filter = self.filter
        cdef Py_ssize_t size
        cdef Mapping mapping = self.map(segment, &size)
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t start
        cdef int code
        filter.begin(segment.base_offset, self.end_of(self.log.segment_index(self.segments, segment.base_offset)))
        while at < size:
            start = at
            with nogil:
                mapping.populate(at, min(at + PIECE, size))
                code = filter.run(mapping.data, size, min(at + PIECE, size), &at)
            if code == COMPRESSED_NEXT:
                code = filter.filter_compressed(mapping.data, size, &at)
            if code == CHANGED:
                self.copy(mapping, at, cleaned)
                filter.copies = True
            elif code == FULL and filter.length:
                self.write_out(cleaned)
            elif code == FULL:
                filter.make_room(mapping.data + at, size - at)
            elif code != BATCH_OK:
                raise_corrupt(code, self.log.name, filter.chain, segment.path, at)
            self.throttle.spend(at - start)
        return 0

    cdef int copy(self, Mapping mapping, Py_ssize_t end, Segment cleaned) except -1:
        """Write the batches up to byte `end` as they are, about a PIECE at a time."""
        cdef BatchHeader h
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t at = 0
        while start < end:
            while at < end and at - start < PIECE:
                read_header(mapping.data + at, end - at, &h)
                at += batch_size(&h)
            cleaned.append(mapping.data + start, at - start)
            self.throttle.check()
            start = at
        return 0

    cdef int write_out(self, Segment cleaned) except -1:
        cleaned.append(self.filter.output.data, self.filter.length)
        self.filter.length = 0
        return 0

    cdef object report(self, int64_t before, int64_t end):
        cdef SegmentedLog log = self.log
        cdef Segment segment
        cdef list left
        log.lock()
        try:
            left = [segment for segment in log._segments if segment.base_offset < self.end]
        finally:
            log.unlock()
        return CompactionReport(
            self.first_dirty, end, self.filter.keys.count, self.filter.dropped, before,
            sum([segment.byte_size() for segment in left]), len(self.segments), len(left),
        )


def _give_modification_time(str source, str target):
    """Raises FileNotFoundError, StorageError."""
    modified = status_of(source).st_mtime_ns
    try:
        os.utime(target, ns=(modified, modified))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise error_of("cannot change the time of", target, error) from error


@cython.final
cdef class NewestBatch:
    """The newest batch of a producer, or its newest marker where it has no batch in its epoch."""

    cdef int16_t epoch
    cdef int64_t last_offset
    cdef bint is_marker


cdef Py_ssize_t note_newest(
    const uint8_t* data, Py_ssize_t size, Py_ssize_t at, Py_ssize_t stop, dict newest
) except -1:
    """Note the NewestBatch of each producer by the batches of data[:size] from `at` to `stop`, as
    SegmentedLog.note_producer does; return where the next begins. Nothing follows a damaged one: the passes over the
    records report it."""
    cdef BatchHeader h
    cdef Marker marker
    cdef NewestBatch found
    cdef bint is_marker
    while at < stop:
        if read_header(data + at, size - at, &h) != BATCH_OK or batch_size(&h) > size - at:
            return size
        is_marker = h.base_sequence < 0
        if h.producer_id >= 0 and (not is_marker or is_control(&h) and read_marker(data + at, &h, &marker)):
            found = newest.get(h.producer_id)
            if found is None:
                found = newest[h.producer_id] = NewestBatch.__new__(NewestBatch)
            elif is_marker and found.epoch == h.producer_epoch and not found.is_marker:
                at += batch_size(&h)
                continue
            found.epoch, found.last_offset, found.is_marker = h.producer_epoch, next_offset_of(&h) - 1, is_marker
        at += batch_size(&h)
    return at
