"""Opening an existing directory: what is believed, what is checked, and what is cut.

A writer believes nothing past the recovery point: it checks the CRC and the place of every batch after it, keeps the
longest prefix that holds, and cuts the rest. What is derived (indexes, epochs, producers, the state file, Kafka's
checkpoint files) is rebuilt from the log where it is missing or contradicts it. A reader changes nothing.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BAD_LEADER_EPOCH,
    BATCH_OK,
    BATCH_SHORT,
    BatchHeader,
    batch_size,
    check_crc,
    next_offset_of,
    read_header,
    reason_of,
)
from kreplog._native.files cimport Mapping, sync_directory
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment, create_segment
from kreplog._native.state cimport Position, open_state
from kreplog._native.view cimport epochs_crc

import logging
import os
import time
import uuid
from base64 import urlsafe_b64encode

from kreplog._native.checkpoint import EpochCache, OffsetCheckpoint, atomic_write
from kreplog._native.directory import is_brokers_directory
from kreplog._native.state import STATE_NAME
from kreplog.errors import CorruptBatchError, CorruptCheckpointError, StorageError
from kreplog.types import Cut

_logger = logging.getLogger("kreplog")

METADATA_NAME = "partition.metadata"

cdef enum:
    CUT_HERE = 1  # sound, but an interrupted truncation was about to drop it
    READ_AHEAD = 8 << 20
    CONTRADICTIONS = 50  # looks before a checkpoint ahead of the state file is put down to another program
    RETRIES = 1000
    SETTLED_NS = 50_000_000
    KEPT_CHECKPOINTS = 32


cdef dict _read_before = {}  # path of a checkpoint file: (what its stat said, what was in it)


cdef dict _checkpoint(SegmentedLog log, str name):
    """What the file says of all partitions, not to be changed.

    The logs of a data directory are opened one after the other, each for one line of it: unchanged, it is read once.
    """
    path = os.path.join(os.path.dirname(log.path), name)
    try:
        status = os.stat(path)
        identity = status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
    except OSError:
        identity = None
    before = _read_before.get(path)
    if before is not None and before[0] == identity:
        return before[1]
    try:
        offsets = OffsetCheckpoint(path).read()
    except CorruptCheckpointError as error:
        _logger.warning("%s: %s; going by the log instead", log.name, error)
        return {}
    except StorageError:
        if log.read_only and not os.access(path, os.R_OK):  # the partition's directory alone is open to this reader
            return {}
        raise
    # One written just now may be written again without its stat showing it: clocks of file systems tick slowly.
    if identity is not None and identity[1] < time.time_ns() - SETTLED_NS:
        if len(_read_before) >= KEPT_CHECKPOINTS:
            _read_before.clear()
        _read_before[path] = identity, offsets
    return offsets


def recover(SegmentedLog log, progress=None):
    """Bring a locked directory to a sound state and open it for appending.

    progress: called with (bytes done, bytes to check) now and then. Raises StorageError.
    """
    cdef Position* position = &log.position
    cdef Segment last
    cdef Segment segment
    cdef int64_t limit = -1
    cdef int64_t scan_from
    cdef bint known
    cdef bint fresh
    cdef bint clean
    cdef bint unsettled
    watermarks = _checkpoint(log, "replication-offset-checkpoint")
    _remove_leftovers(log)
    log.relist()
    fresh = not log._segments
    log.state = open_state(os.path.join(log.path, STATE_NAME), True)
    known = log.state.read(position)
    unsettled = not known or position.unsettled or position.generation & 1
    checkpointed = watermarks.get(log.topic_partition, 0)
    if not known:
        if not fresh:
            _logger.warning("%s: no usable %s; checking the log from its checkpoint", log.name, STATE_NAME)
        position.high_watermark = checkpointed
        position.recovery_point = _checkpoint(log, "recovery-point-offset-checkpoint").get(log.topic_partition, 0)
        position.log_start_offset = _checkpoint(log, "log-start-offset-checkpoint").get(log.topic_partition, 0)
        position.dense_from = 0 if fresh else INT64_MAX
        position.has_producers = not fresh
    elif position.generation & 1:
        position.generation += 1
        limit = position.leo
    if fresh:
        log._segments = [create_segment(
            log.path, log.name, position.log_start_offset, log.segment_bytes, log.config.index_interval_bytes
        )]
        log.directory_changed = True
        position.recovery_point = position.leo = position.log_start_offset
    seen = position.leo if known else 0
    log.epochs = _load_epochs(log)
    trusted = known and epochs_crc(log.epochs) == position.epochs_crc
    if known and limit < 0:
        _drop_deleted(log)
    position.log_start_offset = max(position.log_start_offset, (<Segment> log._segments[0]).base_offset)
    last = log._segments[len(log._segments) - 1]
    if known and last.base_offset == position.active_base or fresh:
        last.exposed = False
    clean = (
        not unsettled and position.recovery_point == position.leo
        and last.base_offset == position.active_base and last.byte_size() == position.active_size
    )
    scan_from = position.recovery_point
    if not fresh and (unsettled or position.in_use):
        _trim_sealed(log, scan_from)
    if not clean and not fresh:
        position.leo = _check_tail(log, max(scan_from, 0), limit, log.epochs if trusted else None, progress)
        if 0 <= position.leo < position.log_start_offset and limit >= 0:
            _start_anew(log)
    log.active = log._segments[len(log._segments) - 1]
    log.active.sealed = False
    if known and log.active.exposed:  # sealed once: what is appended, and cut in place, belongs to another inode
        log.active.cut(log.active.byte_size())
    if unsettled or position.in_use:  # whoever was killed may have rolled, and not synced what was trimmed
        for segment in reversed(log._segments):
            segment.synced = False
            if segment.base_offset < position.recovery_point:
                break
    log.active.learn_timestamps()
    if not known and not fresh:
        position.dense_from = position.leo
    if checkpointed > seen and known and position.leo > seen:
        position.high_watermark = checkpointed  # another program, Kafka say, went on where we left off
    if not log.replicated:
        position.high_watermark = position.leo
    position.log_start_offset = min(position.log_start_offset, position.leo)
    position.high_watermark = max(min(position.high_watermark, position.leo), position.log_start_offset)
    position.recovery_point = min(position.recovery_point, position.leo)
    position.active_base = log.active.base_offset
    position.active_size = log.active.size
    if position.recovery_point < position.leo and log.epochs.latest_epoch < _last_epoch(log):
        trusted = False  # a loss of power left a file, and a state that fits it, from before all epochs
    _settle_epochs(log, known, trusted, position.leo == seen)
    if position.recovery_point < position.leo:  # whoever wrote it may have been killed before a flush
        log.epochs_unsynced = log.directory_changed = True
        log._has_unflushed_segments = log.managed
    log.load_producers()
    for segment in log._segments:
        segment.file = None  # of thousands of logs most are never asked for anything
    if position.has_producers and len(log.producers) == 0:
        position.has_producers = 0
    log.closed = False
    if limit >= 0:
        for segment in log._segments:
            segment.sync()
        sync_directory(log.path)
    position.unsettled = unsettled
    log.state.publish(position)
    if fresh:
        _write_topic_id(log)
    if unsettled:
        log.parent_unsynced = True
        log.unsynced += 1
        if not log.managed:
            log._sync_files()


cdef int _start_anew(SegmentedLog log) except -1:
    """Finish an interrupted truncation that left nothing: what lies before the log start does not come back."""
    cdef Segment segment
    for segment in reversed(log._segments):
        segment.delete()
    log.position.leo = log.position.log_start_offset
    log._segments = [create_segment(
        log.path, log.name, log.position.leo, log.segment_bytes, log.config.index_interval_bytes
    )]
    log.directory_changed = True
    return 0


cdef int _drop_deleted(SegmentedLog log) except -1:
    """Finish an interrupted deletion: segments wholly below the log start offset."""
    cdef Segment segment
    while len(log._segments) > 1 and (<Segment> log._segments[1]).base_offset <= log.position.log_start_offset:
        segment = log._segments[0]
        segment.delete()
        log._segments = log._segments[1:]
        log.directory_changed = True
    return 0


def _write_topic_id(SegmentedLog log):
    """Give a new partition the id of its topic: that of another partition of it beside this one, or a new one."""
    parent = os.path.dirname(log.path)
    path = os.path.join(log.path, METADATA_NAME)
    if os.path.exists(path):
        return
    content = f"version: 0\ntopic_id: {urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')}\n".encode()
    for name in os.listdir(parent):
        if name.rpartition("-")[0] == log.topic_partition.topic:
            try:
                with open(os.path.join(parent, name, METADATA_NAME), "rb") as file:
                    content = file.read()
                break
            except OSError:
                continue
    atomic_write(path, content)


def _remove_leftovers(SegmentedLog log):
    for name in os.listdir(log.path):
        if name.endswith(".tmp") or name.endswith(".deleted"):
            try:
                os.unlink(os.path.join(log.path, name))
            except OSError as error:
                raise StorageError(f"cannot delete {name} in {log.path}: {error.strerror}", path=log.path) from error


cdef object _load_epochs(SegmentedLog log):
    path = os.path.join(log.path, "leader-epoch-checkpoint")
    try:
        return EpochCache(path)
    except CorruptCheckpointError as error:
        _logger.warning("%s: %s; rebuilding it from the log", log.name, error)
        return EpochCache(path, ())


cdef int64_t _check_tail(
    SegmentedLog log, int64_t start, int64_t limit, object epochs, object progress
) except -1:
    """Check every batch from `start` on, rebuild the indexes over them, cut at the first that fails; return the leo.

    limit: the end an interrupted truncation was heading for, -1 when there was none. epochs: what the batches must
    agree with, None when that is not certain.
    """
    cdef list segments = log._segments
    cdef Py_ssize_t i = log.segment_index(segments, start)
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t at
    cdef int64_t expected = -1
    cdef int64_t size
    cdef int32_t epoch = -1
    cdef int64_t done = 0
    cdef int code = BATCH_OK
    cdef list cuts = []
    cdef int64_t junk = 0
    if i < 0:
        i = 0
    total = sum((<Segment> s).byte_size() for s in segments[i:])
    while i < len(segments):
        segment = segments[i]
        if code == BATCH_OK and expected >= 0 and segment.base_offset != expected and (
            segment.base_offset < expected or expected >= log.position.dense_from
        ):
            code = BAD_BASE_OFFSET
        if code != BATCH_OK:
            break
        size = segment.byte_size()
        at = 0
        expected = segment.base_offset
        segment.load_indexes()
        if start > segment.base_offset:
            try:
                at = segment.locate(start, log.position.dense_from, &h)
                if at >= size:
                    at = segment.position_near(start)
            except CorruptBatchError:  # damage before the recovery point is for readers to tell
                at = 0
            if at and segment.header_at(at, &h) == BATCH_OK:
                expected = h.base_offset
        _rewind_indexes(segment, at)
        while at < size:
            code = _check_one(log, segment, at, size, expected, epoch, &h)
            if code == BATCH_OK and epochs is not None:
                known_epoch = epochs.epoch_for_offset(h.base_offset)[0]
                if 0 <= known_epoch != h.leader_epoch:
                    code = BAD_LEADER_EPOCH
            if code == BATCH_OK and 0 <= limit < next_offset_of(&h):
                code = CUT_HERE
            if code != BATCH_OK:
                break
            segment.note(&h, at)
            log.position.has_producers |= h.producer_id >= 0
            if h.leader_epoch > epoch:
                epoch = h.leader_epoch
            expected = next_offset_of(&h)
            at += batch_size(&h)
            if progress is not None and (done + at) >> 24 != (done + at - batch_size(&h)) >> 24:
                progress(done + at, total)
        done += at
        segment.synced = False
        segment.timestamps_known = True
        if code != BATCH_OK:
            junk = _junk(segment, at, size)
            if code != CUT_HERE and junk:
                cuts.append(Cut(segment.path, at, expected, junk, reason_of(code)))
                _logger.warning(
                    "%s: %s at offset %d, byte %d of %s; the log is cut there (%d bytes dropped from this segment)",
                    log.name, reason_of(code), expected, at, segment.path, junk,
                )
            if i == len(segments) - 1 and not segment.exposed and limit < 0:
                segment.mapping = None
                segment.open().truncate(at)
                segment.size = at
            else:
                segment.cut(at)
        if code not in (BATCH_OK, CUT_HERE) and junk == 0 and i < len(segments) - 1:
            if (<Segment> segments[i + 1]).base_offset == expected:  # sealed, but the trim was not durable
                code = BATCH_OK
        if code == BATCH_OK and i < len(segments) - 1:
            segment.complete()
            segment.seal()
        i += 1
    if i < len(segments):
        _logger.warning(
            "%s: %d segments from offset %d on do not follow the log, which ends at %d; they are deleted",
            log.name, len(segments) - i, (<Segment> segments[i]).base_offset, expected,
        )
        for segment in reversed(segments[i:]):
            cuts.append(Cut(segment.path, 0, segment.base_offset, segment.byte_size(), reason_of(BAD_BASE_OFFSET)))
            segment.delete()
        log._segments = segments[:i]
        log.directory_changed = True
    log.cuts = tuple(cuts)
    if progress is not None:
        progress(total, total)
    return expected


cdef int _check_one(
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


cdef int _trim_sealed(SegmentedLog log, int64_t end) except -1:
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


cdef int _rewind_indexes(Segment segment, int64_t at) except -1:
    """Keep the index entries up to the batch at `at`, from which the walk goes on."""
    cdef Py_ssize_t kept = segment.offsets.floor_position(at) + 1
    cdef Py_ssize_t times = segment.times.count
    cdef int32_t last = segment.offsets.offset_at(kept - 1) if kept else -1
    cdef BatchHeader h
    cdef int64_t position
    segment.offsets.keep(kept)
    while times and segment.times.offset_at(times - 1) > last:
        times -= 1
    segment.times.keep(times)
    segment.since_index = 0
    segment.max_timestamp = segment.times.timestamp_at(times - 1) if times else -1
    segment.max_timestamp_offset = segment.base_offset + (segment.times.offset_at(times - 1) if times else 0)
    position = segment.offsets.position_at(kept - 1) if kept else 0
    while position < at and segment.header_at(position, &h) == BATCH_OK:
        segment.note(&h, position)
        position += batch_size(&h)
    if at and segment.header_at(0, &h) == BATCH_OK:
        segment.first_timestamp = h.max_timestamp
    return 0


cdef int _settle_epochs(SegmentedLog log, bint known, bint trusted, bint same_end) except -1:
    """Make the epoch entries agree with the log, rebuilding them where they do not.

    known: the state file speaks of them; trusted: and agrees with them; same_end: the log ends where it says.
    """
    epochs = log.epochs
    latest = epochs.latest_epoch
    epochs.truncate_from_end(log.position.leo + 1)  # an epoch that has no records yet stays known
    if not trusted and (known or not _epochs_fit(log)):
        _logger.warning("%s: leader-epoch-checkpoint does not fit the log; rebuilding it", log.name)
        epochs.clear()
        _rebuild_epochs(log)
    epochs.flush()
    log.last_epoch = epochs.latest_epoch
    log.current_epoch = max(0, latest, log.last_epoch, log.position.leader_epoch)
    log.position.epochs_crc = epochs_crc(epochs)
    if log.position.epoch_noted and same_end and log.position.leader_epoch == log.current_epoch > log.last_epoch:
        epochs.assign(log.current_epoch, log.position.leo)
    log.position.epoch_noted = epochs.dirty
    log.position.leader_epoch = log.current_epoch
    return 0


cdef bint _epochs_fit(SegmentedLog log) except -1:
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t start
    cdef int64_t first = log.position.log_start_offset
    cdef list entries = log.epochs.entries
    if log.position.leo == (<Segment> log._segments[0]).base_offset:
        return True
    if not entries:
        segment = log._segments[0]
        return segment.header_at(0, &h) != BATCH_OK or h.leader_epoch < 0
    for epoch, start in entries:
        if start == log.position.leo:
            continue
        if start < first and epoch != entries[0][0]:
            return False
        segment = log._segments[max(log.segment_index(log._segments, max(start, first)), 0)]
        try:
            if segment.locate(max(start, first), log.position.dense_from, &h) >= segment.size:
                return False
        except CorruptBatchError:
            continue  # damage below the recovery point is told by whoever reads it
        if h.leader_epoch != epoch or (start > first and h.base_offset != start):
            return False
    return _last_epoch(log) <= log.epochs.latest_epoch


cdef int32_t _last_epoch(SegmentedLog log) except? -2:
    """That of a batch near the end, -1 where none can be read."""
    cdef BatchHeader h
    cdef Segment segment
    for segment in reversed(log._segments):
        if segment.byte_size():
            if segment.header_at(segment.position_near(log.position.leo - 1), &h) == BATCH_OK:
                return h.leader_epoch
            break
    return -1


cdef int _rebuild_epochs(SegmentedLog log) except -1:
    cdef Segment segment
    cdef BatchHeader h
    cdef int64_t at
    cdef int32_t epoch = -1
    for segment in log._segments:
        at = 0
        while at < segment.byte_size() and segment.header_at(at, &h) == BATCH_OK:
            if h.leader_epoch > epoch:
                epoch = h.leader_epoch
                log.epochs.assign(epoch, max(h.base_offset, log.position.log_start_offset))
            at += batch_size(&h)
    return 0


def attach(SegmentedLog log):
    """Open for reading only: nothing on disk is changed. Raises StorageError where there is no segment."""
    cdef Position position
    cdef int _attempt
    log.state = open_state(os.path.join(log.path, STATE_NAME), False)
    for _attempt in range(CONTRADICTIONS):
        if log.state is None or not log.state.read(&position):
            log.state = None
            break
        if _checkpoint(log, "replication-offset-checkpoint").get(log.topic_partition, 0) <= position.leo:
            break
        time.sleep(0.01)  # a writer that truncates brings both down, one after the other
    else:
        log.state = None
    log.relist()
    log.closed = False
    log.load_epochs()
    if log.state is not None:
        log.position = position
        return
    if not log._segments:
        log.closed = True
        raise StorageError(f"{log.path} holds no log segment", partition=log.name, path=log.path)
    log.watermark_source = _CheckpointWatermark()
    log.refresh()


class _CheckpointWatermark:
    """The high watermark of a directory that another program writes: its checkpoint file, clamped to sound batches."""

    def __init__(self):
        self.seen = None

    def __call__(self, SegmentedLog log):
        cdef int _attempt
        for _attempt in range(RETRIES):
            try:
                return self.look(log)
            except FileNotFoundError:  # a segment was deleted meanwhile
                log.relist()
        raise StorageError(f"{log.path} keeps changing", partition=log.name, path=log.path)

    def look(self, SegmentedLog log):
        cdef Segment last
        if not log._segments:
            raise StorageError(f"{log.path} holds no log segment", partition=log.name, path=log.path)
        path = os.path.join(os.path.dirname(log.path), "replication-offset-checkpoint")
        last = log._segments[len(log._segments) - 1]
        try:
            status = os.stat(path)
            checkpoint = (status.st_ino, status.st_mtime_ns)  # a new file even within one tick of the clock
        except FileNotFoundError:
            checkpoint = None
        now = (checkpoint, os.stat(log.path).st_mtime_ns, os.stat(last.path).st_size)
        if now == self.seen:
            return
        log.relist()
        last = log._segments[len(log._segments) - 1]
        last.size = last.open().size()
        last.forget_indexes()
        leo = _sound_end(last)
        watermark = _checkpoint(log, "replication-offset-checkpoint").get(log.topic_partition)
        start = (<Segment> log._segments[0]).base_offset
        if watermark is None and checkpoint is not None and is_brokers_directory(os.path.dirname(log.path)):
            watermark = 0  # the broker names each of its partitions soon after it has made it
        if watermark is None:  # any other file there may be about its neighbours alone
            if self.seen is None:
                _logger.warning(
                    "%s: neither %s nor %s tells the high watermark; taking all sound batches, up to offset %d",
                    log.name, STATE_NAME, path, leo,
                )
            watermark = leo
        log.position.leo = leo
        log.position.log_start_offset = min(
            max(start, _checkpoint(log, "log-start-offset-checkpoint").get(log.topic_partition, 0)), leo
        )
        log.position.high_watermark = max(min(watermark, leo), log.position.log_start_offset)
        log.position.recovery_point = log.position.high_watermark
        log.position.active_base = last.base_offset
        log.position.dense_from = INT64_MAX
        self.seen = now


cdef int64_t _sound_end(Segment last) except -1:
    """The end of the last whole batch with a matching CRC, from the last index entry on."""
    cdef BatchHeader h
    cdef int64_t end = last.base_offset
    cdef int64_t at
    cdef bytearray raw
    cdef uint8_t[::1] data
    last.load_indexes()
    at = last.position_near(INT64_MAX // 2) if last.offsets.count else 0
    while at < last.size and last.header_at(at, &h) == BATCH_OK and h.base_offset >= end:
        raw = bytearray(batch_size(&h))
        data = raw
        if last.open().read_at(&data[0], batch_size(&h), at) < batch_size(&h) or check_crc(&data[0], &h) != BATCH_OK:
            break
        end = next_offset_of(&h)
        at += batch_size(&h)
    return end
