"""Retention: records are removed from the start of a log, by age, by size and by DeleteRecords.

The log start offset moves up, durably, before a file is deleted.
"""

from libc.stdint cimport int64_t

from kreplog._native.batch cimport wall_clock_ms
from kreplog._native.columns cimport integer
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment
from kreplog._native.truncation cimport check_descriptors, publish_durably

from kreplog._native.files import status_of
from kreplog.errors import OffsetOutOfRangeError


def delete_records_before(SegmentedLog log, offset):
    """See Log.delete_records_before."""
    cdef int64_t start = integer(offset, "offset")
    cdef Py_ssize_t count = 0
    log.begin_write()
    try:
        if start > log.position.high_watermark:
            raise OffsetOutOfRangeError(
                f"{log.name}: records are deleted up to the high watermark {log.position.high_watermark} at "
                f"most, not up to {offset}", partition=log.name, offset=offset,
            )
        if start > log.position.log_start_offset:
            check_descriptors(log)
            log.position.log_start_offset = start
            publish_durably(log)
            while log.segment_end(log._segments, count) <= start and count < len(log._segments) - 1:
                count += 1
            drop_segments(log, count)
        return log.position.log_start_offset
    finally:
        log.unlock()


def enforce_retention(SegmentedLog log, now_ms=None):
    """See Log.enforce_retention."""
    cdef int64_t now = wall_clock_ms() if now_ms is None else integer(now_ms, "now_ms")
    cdef int64_t total
    cdef int64_t keep_ms = log.config.retention_ms if log.config.deletes else -1
    cdef int64_t keep_bytes = log.config.retention_bytes if log.config.deletes else -1
    cdef Py_ssize_t count = 0
    cdef Segment segment
    log.begin_write()
    try:
        if keep_ms >= 0 and log.active.size and newest_of(log.active) < now - keep_ms:
            log.roll_segment()
        total = log.byte_size()
        while count < len(log._segments) - 1:
            segment = log._segments[count]
            if log.segment_end(log._segments, count) > log.position.high_watermark:
                break
            if not (
                log.segment_end(log._segments, count) <= log.position.log_start_offset
                or (keep_ms >= 0 and newest_of(segment) < now - keep_ms)
                or (keep_bytes >= 0 and total - segment.byte_size() >= keep_bytes)
            ):
                break
            total -= segment.byte_size()
            count += 1
        if count:
            check_descriptors(log)
        drop_segments(log, count)
        return count
    except FileNotFoundError:
        log.check_files()
        raise
    finally:
        log.unlock()


cdef int64_t newest_of(Segment segment) except? -1:
    """The largest timestamp of a segment; if no record has one or a batch is damaged, its file's modification time."""
    segment.learn_timestamps()
    if segment.max_timestamp >= 0 and not segment.suspect:
        return segment.max_timestamp
    return status_of(segment.path).st_mtime_ns // 1000000


cdef int drop_segments(SegmentedLog log, Py_ssize_t count) except -1:
    """Delete the oldest `count` segments; the log start offset moves up first. Raises LogFailedError."""
    cdef Segment segment
    cdef list gone = log._segments[:count]
    cdef int64_t start
    if count == 0:
        return 0
    log.finish_swap()
    log.sync_snapshot()
    start = (<Segment> log._segments[count]).base_offset
    log._segments = log._segments[count:]
    if log.position.log_start_offset < start:
        log.position.log_start_offset = start
    log.state.publish(&log.position)
    try:
        for segment in gone:
            segment.delete()
        log.producers.delete_snapshots(log.path, to_offset=start)
        log.epochs.truncate_from_start(log.position.log_start_offset)
        log.epochs.flush()
        log.publish_epochs()
    except BaseException as error:
        log.fail(error)
    return 0
