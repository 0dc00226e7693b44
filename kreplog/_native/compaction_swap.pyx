"""Replacement of segments by what compaction left of them: atomic to readers, and to whatever ends the process.

    <base>.log.cleaned        being written; recovery deletes it
    <base>.swap-checkpoint    what the next one is, and which segments it replaces; see `swap_recovery`
    <base>.log.swap           whole and durable: replaces segments from <base> on; recovery completes that
    <base>.log                the first of the segments, then what replaces them all

1. The checkpoint is written; then, under the log's lock, .cleaned becomes .swap. Until 3, whatever changes the segments
   that it replaces first calls `WritableLog.finish_swap`, or recovery would bring back what that has removed.
2. Once that is durable, under the lock again: the transaction indexes become one, durably, if there are any; .swap
   becomes <base>.log as well, by a link; the other segments are deleted. The generation is odd meanwhile, so that
   readers wait; `unsettled` says that nothing is to be cut.
3. Once that is durable, the name .swap is removed, and once that is, the checkpoint.

So, in whatever order the disk got the changes of 2, the .swap is there until all of them are durable. Where the file
system has no links, step 2 makes the deletions durable before the file gets its new name, under the lock.
Source: Kafka's UnifiedLog.replaceSegments, LogLoader.
"""

from libc.stdint cimport INT64_MAX, int64_t
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR, O_TRUNC, O_WRONLY

from kreplog._native.commit_gate cimport gate_enter, gate_leave
from kreplog._native.files cimport FileHandle, open_file, sync_directory
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment, new_segment, remove
from kreplog._native.state cimport SWAPPING
from kreplog._native.swap_recovery cimport checkpoint_path, link_at, write_checkpoint
from kreplog._native.transaction_index cimport merge_aborted
from kreplog._native.truncation cimport check_descriptors

import os

from kreplog._native.files import error_of
from kreplog.errors import StorageError


cdef Segment create_cleaned(str directory, str partition, int64_t base_offset, Py_ssize_t index_interval):
    """A new segment for what compaction leaves of others, beside the one that begins there.

    Raises StorageError."""
    cdef Segment segment = new_segment(directory, partition, base_offset, True, 0, index_interval)
    segment.path += ".cleaned"
    segment.offsets.path += ".cleaned"
    segment.times.path += ".cleaned"
    segment.delete()
    for path in (segment.offsets.path, segment.times.path):
        open_file(path, O_WRONLY | O_CREAT | O_EXCL)
    segment.file = open_file(segment.path, O_RDWR | O_CREAT | O_EXCL)
    segment.size = 0
    segment.allocated = -1
    segment.indexed = True
    segment.timestamps_known = True
    segment.synced = False
    return segment


cdef bint swap(SegmentedLog log, int64_t cut_count, list sources, Segment cleaned) except -1:
    """Put `cleaned`, which is durable, in the place of `sources`; False, with nothing changed, where these are no
    longer segments of the log, or were cut: cut_count is the log's when they were read.

    Raises LogClosedError, LogFailedError, ResourceExhaustedError."""
    cdef str stem = (<Segment> sources[0]).path.removesuffix(".log")
    cdef str marker = stem + ".log.swap"
    cdef FileHandle checkpoint
    cdef list held
    cdef bint done
    log.lock_for_write()  # so that the directory is not moved away meanwhile
    try:
        log.finish_swap()  # of a swap before, which an error has ended
        checkpoint = open_file(checkpoint_path(stem), O_WRONLY | O_CREAT | O_TRUNC)
    finally:
        log.unlock()
    write_checkpoint(checkpoint, cleaned.file, [(<Segment> segment).base_offset for segment in sources])
    log.lock_for_write()
    try:
        if log.cut_count != cut_count or log.closing or not holds(log, sources):
            return False
        check_descriptors(log)
        try:
            os.replace(cleaned.path, marker)
        except OSError as error:
            raise error_of("cannot rename", cleaned.path, error) from error
        log.pending_swap = marker
    finally:
        log.unlock()
    make_durable(log)
    with nogil:  # a flush that a swap would overtake would not move the recovery point
        gate_enter(&log.sync_gate, &log.position.recovery_point, INT64_MAX)
    try:
        log.lock_for_write()
        try:
            done = is_pending(log, marker)  # else something else has changed the segments
            if done:
                check_descriptors(log)
                held = [(<Segment> segment).open() for segment in sources]
                replace(log, sources, cleaned, stem, marker)
        finally:
            log.unlock()
    finally:
        gate_leave(&log.sync_gate)
    held = None  # the kernel frees what was deleted at its last close, which takes long and not the lock
    make_durable(log)
    log.lock_for_write()
    try:
        if is_pending(log, marker):
            remove(marker)
    finally:
        log.unlock()
    make_durable(log)
    log.lock_for_write()
    try:
        if log.pending_swap == marker:
            log.pending_swap = None
    finally:
        log.unlock()
    return done


cdef int make_durable(SegmentedLog log) except -1:
    """The names of the files. Raises LogFailedError, since after a failed fsync no other makes sure of them;
    ResourceExhaustedError."""
    try:
        sync_directory(log.path)
    except StorageError as error:
        log.lock()
        try:
            if log.closed or log.failure_expected:
                raise
            log.fail_unless_exhausted(error)
        finally:
            log.unlock()
    return 0


cdef bint is_pending(SegmentedLog log, str marker) except -1:
    """Under the lock: whether the swap goes on. Its directory may have been moved, and be another partition's now."""
    return log.pending_swap == marker and not log.failure_expected


cdef bint holds(SegmentedLog log, list sources) except -1:
    """Whether the segments are in the log still, one after the other."""
    cdef Py_ssize_t i = log.segment_index(log._segments, (<Segment> sources[0]).base_offset)
    cdef list found = log._segments[i:i + len(sources)] if i >= 0 else []
    return len(found) == len(sources) and all([a is b for a, b in zip(found, sources)])


cdef int replace(SegmentedLog log, list sources, Segment cleaned, str stem, str marker) except -1:
    """Step 2, under the lock."""
    cdef Segment segment
    cdef Py_ssize_t i = log.segment_index(log._segments, (<Segment> sources[0]).base_offset)
    cdef unsigned char unsettled = log.position.unsettled
    log.state.note_swap(log.position.generation + 2)  # before readers see the generation: no record is cut
    log.position.generation += 1
    log.position.unsettled = SWAPPING
    log.state.publish(&log.position)
    try:
        for segment in sources:
            segment.replaced = True  # before a file changes: see Segment.open
        merge_aborted(stem, [(<Segment> segment).path.removesuffix(".log") for segment in sources[1:]])
        if link_at(marker, stem + ".log.cleaned"):
            os.replace(stem + ".log.cleaned", stem + ".log")
            for segment in reversed(sources[1:]):
                segment.delete()
        else:
            for segment in reversed(sources[1:]):
                segment.delete()
            remove(stem + ".log")
            sync_directory(log.path)
            os.replace(marker, stem + ".log")
        cleaned.rename_from(stem, ".cleaned")
    except BaseException as error:
        log.fail(error)
    log._segments = log._segments[:i] + [cleaned] + log._segments[i + len(sources):]
    log.position.generation += 1
    log.position.unsettled = unsettled
    log.state.publish(&log.position)
    return 0
