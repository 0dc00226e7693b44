"""Truncation: records are removed from the end of a log.

The records are hidden from all readers, durably, before a file changes; the generation is odd until the end, so that
readers wait and recovery completes a change that a crash interrupted.
"""

from libc.stdint cimport int64_t
from posix.fcntl cimport O_RDONLY

from kreplog._native.batch cimport BATCH_OK, BatchHeader, batch_size, next_offset_of
from kreplog._native.columns cimport integer
from kreplog._native.files cimport open_file, sync_directory
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment, create_segment

from kreplog.errors import UsageError

cdef enum:
    HELD_AT_ONCE = 4  # more than any change here has open at a time


def truncate_to(SegmentedLog log, offset):
    """See Log.truncate_to."""
    cdef int64_t wanted = integer(offset, "offset")
    log.begin_write()
    try:
        return cut_at(log, wanted)
    finally:
        log.unlock()


cdef int64_t cut_at(SegmentedLog log, int64_t wanted) except -1:
    """Log.truncate_to for a caller that holds the lock."""
    cdef Py_ssize_t i
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t at
    cdef int64_t end
    log._check_range(wanted)
    if wanted == log.position.leo:
        drop_empty_epochs(log)
        return wanted
    i = log.segment_index(log._segments, wanted)
    segment = log._segments[i]
    at = segment.locate(wanted, log.position.dense_from, &h)
    end = h.base_offset if at < segment.size and h.base_offset > log.position.dense_from else end_before(segment, at)
    if end < log.position.log_start_offset:  # what was deleted does not come back
        end = log.position.log_start_offset
        start_anew(log, end)
        return end
    check_descriptors(log)
    begin_cut(log, end, False)
    try:
        for later in reversed(log._segments[i + 1:]):
            (<Segment> later).delete()
        segment.cut(at)
        log._segments = log._segments[:i + 1]
        log.active = segment
        end_cut(log)
    except BaseException as error:
        log.fail(error)
    return end


cdef int64_t end_before(Segment segment, int64_t at) except -1:
    """The offset after the batch before byte `at`: where a log ends that is cut in a gap that compaction left."""
    cdef BatchHeader h
    cdef int64_t end = segment.base_offset
    cdef Py_ssize_t i = segment.offsets.floor_position(at - 1)
    cdef int64_t position = segment.offsets.position_at(i) if i >= 0 else 0
    while position < at and segment.header_at(position, &h) == BATCH_OK:
        end = next_offset_of(&h)
        position += batch_size(&h)
    return end


cdef int drop_empty_epochs(SegmentedLog log) except -1:
    """An epoch in which nothing was written must not stand in an older one's way (Kafka's truncateTo)."""
    try:
        if log.epochs.truncate_from_end(log.position.leo):
            log.write_epochs()  # unless it was only noted
            log.publish_epochs()
    except BaseException as error:
        log.fail(error)
    return 0


def truncate_fully_and_start_at(SegmentedLog log, offset):
    """See Log.truncate_fully_and_start_at."""
    cdef int64_t start = integer(offset, "offset")
    if not 0 <= start <= 1 << 62:
        raise UsageError(f"{log.name}: a log cannot start at {offset}", partition=log.name, offset=offset)
    log.begin_write()
    try:
        start_anew(log, start)
    finally:
        log.unlock()


cdef int start_anew(SegmentedLog log, int64_t start) except -1:
    """Drop everything; the log is then empty and starts at `start`. Raises LogFailedError, ResourceExhaustedError."""
    check_descriptors(log)
    begin_cut(log, min(start, log.position.leo), True)
    try:
        for segment in reversed(log._segments):
            (<Segment> segment).delete()
        log.position.leo = start
        log.position.high_watermark = start
        log.position.log_start_offset = start
        log.position.recovery_point = start
        log.position.dense_from = start
        log.active = create_segment(log.path, log.name, start, log.segment_bytes, log.config.index_interval_bytes)
        log._segments = [log.active]
        log.epochs.clear()
        log.producers.delete_snapshots(log.path)
        log.position.has_producers = 0
        if log.ledger is not None:
            log.ledger.clear()
        end_cut(log)
    except BaseException as error:
        log.fail(error)
    return 0


cdef int check_descriptors(SegmentedLog log) except -1:
    """Before a change that, half done, fails the log. Raises ResourceExhaustedError where it would find no descriptors,
    unless other threads take them meanwhile."""
    cdef list held = [open_file(log.path, O_RDONLY) for _ in range(HELD_AT_ONCE)]
    held.clear()
    return 0


cdef int begin_cut(SegmentedLog log, int64_t end, bint everything) except -1:
    """Hide the records that will be truncated from all readers, durably, before a file changes.

    everything: committed records below `end` are removed too, for which the high watermark does not move back.
    """
    log.finish_swap()
    log.cut_count += 1
    log.state.note_truncation(log.position.generation + 2, end)
    log.position.generation += 1
    log.position.unsettled = 1
    log.position.leo = end
    log.position.high_watermark = min(log.position.high_watermark, end)
    log.position.recovery_point = min(log.position.recovery_point, end)
    if everything:
        log.position.log_start_offset = log.position.high_watermark
    log.position.log_start_offset = min(log.position.log_start_offset, end)
    log.position.active_size = -1
    publish_durably(log)
    return 0


cdef int publish_durably(SegmentedLog log) except -1:
    """Before files change: readers see the new bounds, and so does recovery after a crash. Raises LogFailedError."""
    log.state.publish(&log.position)
    try:
        log.state.sync()
        log.checkpoint()
    except BaseException as error:
        log.fail(error)
    return 0


cdef int end_cut(SegmentedLog log) except -1:
    """The files are cut: bring epochs and producers back to the new end; publish once all that is durable."""
    log.epochs.truncate_from_end(log.position.leo)
    log.epochs.flush()
    log.publish_epochs()
    log.producers.delete_snapshots(log.path, from_offset=log.position.leo + 1)
    log.load_producers()
    log.active.sync()
    sync_directory(log.path)
    if log.ledger is not None:  # before an offset is given away again
        log.ledger.settle(log.position.leo)
    log.position.generation += 1
    log.position.dense_from = min(log.position.dense_from, log.position.leo)  # only now: an error may leave more
    log.position.active_base = log.active.base_offset
    log.position.active_size = log.active.size
    log.state.publish(&log.position)
    log.state.sync()
    if not log.parent_unsynced:  # only now: killed in between, the next writer must sync the page before it appends
        log.position.unsettled = 0
        log.state.publish(&log.position)
    log.state.wake_all()
    return 0
