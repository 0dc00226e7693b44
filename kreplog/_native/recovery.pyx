"""Opening an existing directory, for writing (`recover`) or for reading only (`attach`).

A writer checks everything past the recovery point: `tail_check` checks the CRC and position of every batch after it.
Derived files (indexes, epochs, producers, the state file, Kafka's checkpoint files) are rebuilt from the log if they
are missing or contradict it. A reader changes nothing.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t

from kreplog._native.batch cimport (
    BATCH_OK,
    BatchHeader,
    batch_size,
    check_crc,
    next_offset_of,
)
from kreplog._native.files cimport sync_directory
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment, create_segment
from kreplog._native.state cimport (
    AFTER_DEATH,
    SESSION_CLOSED,
    SESSION_OPEN,
    SWAPPING,
    WITH_PRODUCERS,
    WITH_TRANSACTIONS,
    Position,
    Session,
    StateFile,
    open_state,
)
from kreplog._native.tail_check cimport TailCheck, trim_sealed
from kreplog._native.view cimport epochs_crc

import logging
import os
import time
import uuid

from kreplog._native.checkpoint import EpochCache, offsets_by_partition
from kreplog._native.directory import is_brokers_directory, require_directory
from kreplog._native.files import error_of, names_in, status_of
from kreplog._native.ledger import WriterLedger, ledger_path
from kreplog._native.partition_metadata import METADATA_NAME, read_topic_id, write_topic_id
from kreplog._native.state import STATE_NAME, raise_deleted
from kreplog._native.swap_recovery import settle_swaps
from kreplog.boot import boot_id
from kreplog.errors import CorruptBatchError, CorruptCheckpointError, StorageError
from kreplog.types import topic_id_text

_logger = logging.getLogger("kreplog")

OFFSETS_TOPIC = "__consumer_offsets"  # as in core/group_messages


cdef enum:
    CONTRADICTIONS = 50  # looks before a checkpoint ahead of the state file is put down to another program
    RETRIES = 1000


cdef dict _checkpoint(SegmentedLog log, str name):
    """The offsets of all partitions in the file, not to be changed."""
    return offsets_by_partition(f"{log.path.rpartition('/')[0]}/{name}", log.name, log.read_only)


def recover(SegmentedLog log, progress=None):
    """Bring a locked directory to a sound state and open it for appending.

    progress: called with (bytes done, bytes to check) now and then. Raises StorageError: the directory is unlocked, and
    its writer session closed, or that of a writer that died as long as nothing has recovered the log.
    """
    cdef Recovery recovery = Recovery(log)
    try:
        recovery.read_state()
        recovery.open_segments()
        recovery.check_tail(progress)
        recovery.bound_offsets()
        recovery.load_derived()
        recovery.publish()
    except BaseException as error:
        recovery.end_session()
        log.forget()  # only now: the next writer's session is its own
        if isinstance(error, OSError) and error.filename is not None:  # else it is of `progress`
            raise error_of("cannot open the log: a call failed on", error.filename, error) from error
        raise


cdef class Recovery:
    """One opening for writing, in the order of its methods."""

    cdef SegmentedLog log
    cdef bint known  # the state file is there and sound
    cdef Session before  # that of the former writer
    cdef bint in_session  # this writer's has begun
    cdef bint fresh  # the directory holds no segment yet
    cdef bint unsettled  # the disk may hold an older state than was last published
    cdef bint trusted  # the epochs' file is the one that the state file describes
    cdef int64_t limit  # the end that an interrupted truncation was heading for, -1 for none
    cdef bytes boot  # the id of this boot; empty if unknown, or where whoever replicates, such as a broker, has epochs
    cdef int64_t checkpointed  # the high watermark in Kafka's checkpoint file
    cdef int64_t seen  # the log end offset in the state file

    def __init__(self, SegmentedLog log):
        self.log = log
        self.limit = -1
        self.boot = b"" if log.managed or log.replicated else boot_id().encode()

    cdef int read_state(self) except -1:
        """The position from the state file; without a usable one, from Kafka's checkpoint files."""
        cdef SegmentedLog log = self.log
        cdef Position* position = &log.position
        watermarks = _checkpoint(log, "replication-offset-checkpoint")
        log.state = open_state(os.path.join(log.path, STATE_NAME), True)
        self.before = log.state.session()
        if self.before.number:  # before any change: who opens the log by turns learns of one that is killed half-way
            self.begin_session()
        settle_swaps(log.path)
        _remove_leftovers(log)
        log.ledger = _load_ledger(log)
        log.relist()
        self.fresh = not log._segments
        self.known = log.state.read(position)
        self.unsettled = not self.known or position.unsettled or position.generation & 1
        self.checkpointed = watermarks.get(log.topic_partition, 0)
        if not self.known:
            if not self.fresh:
                _logger.warning("%s: no usable %s; checking the log from its checkpoint", log.name, STATE_NAME)
            position.high_watermark = self.checkpointed
            position.recovery_point = _checkpoint(log, "recovery-point-offset-checkpoint").get(log.topic_partition, 0)
            position.log_start_offset = _checkpoint(log, "log-start-offset-checkpoint").get(log.topic_partition, 0)
            position.dense_from = 0 if self.fresh else INT64_MAX
            position.has_producers = 0 if self.fresh else WITH_PRODUCERS | WITH_TRANSACTIONS
        self.limit = log.state.bulk_append_start() if log.ledger is None else log.ledger.pending_start
        if self.limit >= 0:
            self.unsettled = True
            _begin_cut_of_pending(log, self.limit, self.known)
        if self.known and position.generation & 1:
            position.generation += 1
            if position.unsettled != SWAPPING:
                self.limit = position.leo
        return 0

    cdef int open_segments(self) except -1:
        """The segments from the log start offset on, at least one, and the epochs."""
        cdef SegmentedLog log = self.log
        cdef Position* position = &log.position
        if self.fresh:
            # What an earlier partition of the name has left: before a file, with which another start finds no new log
            log.cleaner_checkpoint.update(log.topic_partition, None)
            log._segments = [create_segment(
                log.path, log.name, position.log_start_offset, log.segment_bytes, log.config.index_interval_bytes
            )]
            log.directory_changed = True
            position.recovery_point = position.leo = position.log_start_offset
            if not (log.replicated or log.managed or log.state.incarnation()):
                log.state.set_incarnation(int.from_bytes(os.urandom(8), "little") or 1)
        self.seen = position.leo if self.known else 0
        log.epochs = _load_epochs(log)
        self.trusted = self.known and epochs_crc(log.epochs) == position.epochs_crc
        if self.known and self.limit < 0:
            _drop_deleted(log)
        position.log_start_offset = max(position.log_start_offset, (<Segment> log._segments[0]).base_offset)
        return 0

    cdef int check_tail(self, progress) except -1:
        """Check the batches not durable at the last stop, truncate invalid ones, and choose the active segment."""
        cdef SegmentedLog log = self.log
        cdef Position* position = &log.position
        cdef Segment segment
        cdef Segment last = log._segments[len(log._segments) - 1]
        cdef int64_t scan_from = position.recovery_point
        if self.known and last.base_offset >= position.active_base or self.fresh:
            last.exposed = False  # also one that a killed writer had begun: readers may have it open, and go on in it
        clean = (
            not self.unsettled and position.recovery_point == position.leo
            and last.base_offset == position.active_base and last.byte_size() == position.active_size
        )
        if not self.fresh and (self.unsettled or position.in_use):
            trim_sealed(log, scan_from)
        if not clean and not self.fresh:
            position.leo = TailCheck(log, self.limit, log.epochs if self.trusted else None, progress).run(
                max(scan_from, 0)
            )
            if 0 <= position.leo < position.log_start_offset and self.limit >= 0:
                _start_anew(log)
        log.active = log._segments[len(log._segments) - 1]
        log.active.sealed = False
        if self.known and log.active.exposed:  # sealed once: appends, and cuts in place, belong to another inode
            log.active.cut(log.active.byte_size())
        if self.unsettled or position.in_use:  # a killed writer may have rolled, and not synced what was trimmed
            log.directory_changed = True
            for segment in reversed(log._segments):
                segment.synced = False
                if segment.base_offset < position.recovery_point:
                    break
        log.active.learn_timestamps()
        return 0

    cdef int bound_offsets(self) except -1:
        """Bring the offsets of the position into the bounds of the log as it is now."""
        cdef SegmentedLog log = self.log
        cdef Position* position = &log.position
        if self.unsettled:  # a truncation may have been broken off
            position.dense_from = min(position.dense_from, position.leo)
        if self.checkpointed > self.seen and self.known and position.leo > self.seen:
            position.high_watermark = self.checkpointed  # another program, Kafka say, went on where we left off
        if not log.replicated:
            position.high_watermark = position.leo
        if position.log_start_offset > position.leo:  # deleted, and lost before they were flushed
            position.log_start_offset = position.leo
            self.unsettled = True
        position.high_watermark = max(min(position.high_watermark, position.leo), position.log_start_offset)
        position.recovery_point = min(position.recovery_point, position.leo)
        position.active_base = log.active.base_offset
        position.active_size = log.active.size
        return 0

    cdef int load_derived(self) except -1:
        """Epochs and producers, rebuilt where they contradict the log."""
        cdef SegmentedLog log = self.log
        cdef Position* position = &log.position
        cdef Segment segment
        if position.recovery_point < position.leo and log.epochs.latest_epoch < _last_epoch(log):
            self.trusted = False  # a loss of power left a file, and a state that fits it, from before all epochs
        _settle_epochs(log, self.known, self.trusted, position.leo == self.seen, self.begins_epoch())
        if position.recovery_point < position.leo:  # a killed writer may not have flushed it
            log.epochs_unsynced = log.directory_changed = True
            log.segments_unflushed = log.managed
        log.load_producers(recovered=True)
        for segment in log._segments:
            segment.file = None  # of thousands of logs most are not read for a long time
        if len(log.producers) == 0:
            position.has_producers &= WITH_TRANSACTIONS
        if not self.known and log.first_unstable == INT64_MAX and not _has_aborted(log):
            position.has_producers &= WITH_PRODUCERS
        return 0

    cdef bint begins_epoch(self) except -1:
        """Whether records that were visible may be gone, so that what is appended in their place is of another leader
        epoch, by which readers find that out (KIP-320). Brokers agree on the epochs of their logs themselves.

        Not in the log of cursors: nobody reads on in it, and hosts that commit by turns would begin one at each commit,
        with its fsyncs, in a file that grows for ever."""
        cdef SegmentedLog log = self.log
        if self.fresh or log.managed or log.replicated or log.topic_partition.topic == OFFSETS_TOPIC:
            return False
        if self.known and log.position.leo >= self.seen and log.state.is_of_boot(self.boot):
            return False
        return not is_brokers_directory(os.path.dirname(log.path))

    cdef int publish(self) except -1:
        cdef SegmentedLog log = self.log
        cdef Segment segment
        log.closed = False
        if self.limit >= 0:
            for segment in log._segments:
                segment.sync()
            sync_directory(log.path)
        if log.ledger is not None:
            log.ledger.settle(log.position.leo)
        if log.state.bulk_append_start() >= 0:
            log.state.mark_bulk_append(log.position.leo, False)
            self.unsettled = True
        if self.unsettled or log.position.in_use:
            self.lower_checkpoints()
        log.position.unsettled = self.unsettled
        if self.known and log.position.leo < self.seen:  # damage: what readers may have read is gone
            log.position.generation += 2
            log.state.note_truncation(log.position.generation, log.position.leo)
        log.state.publish(&log.position)
        log.state.set_boot(self.boot)  # only now: until then it is not in the page that an epoch begins
        if not self.in_session:
            self.begin_session()
        if self.fresh:
            _write_topic_id(log)
        if self.unsettled:
            log.parent_unsynced = True
            log.unsynced += 1
            if not (log.managed or log.in_topic):
                log.sync_files()
        return 0

    cdef int lower_checkpoints(self) except -1:
        """Bring down Kafka's checkpoint files after a truncation, or a loss of power, that they are ahead of.

        By an old log start the next records would be deleted ones, for Kafka and where the state file is lost; and with
        a high watermark beyond the end readers take the state file for outdated. Before the new state is published: a
        recovery that is killed in between is done again. An owner of thousands of logs soon writes high watermarks."""
        cdef SegmentedLog log = self.log
        start = _checkpoint(log, "log-start-offset-checkpoint").get(log.topic_partition, 0)
        outdated = self.checkpointed > log.position.leo and not (self.fresh or log.managed)
        if outdated or start > log.position.log_start_offset:
            log.checkpoint()
        return 0

    cdef void begin_session(self) noexcept:
        self.log.state.begin_session(self.log.session_lock)
        self.in_session = True

    cdef void end_session(self) noexcept:
        """After an opening that failed: no writer has the log, and none has died meanwhile. The number stays, since
        files may have changed."""
        cdef StateFile state = self.log.state
        cdef bint died
        if self.in_session:
            died = self.before.flags & SESSION_OPEN
            state.write_session(state.session().number, self.before.flags | AFTER_DEATH if died else SESSION_CLOSED)
            state.wake_all()


cdef bint _has_aborted(SegmentedLog log) except -1:
    return any([name.endswith(".txnindex") for name in names_in(log.path)])


cdef int _begin_cut_of_pending(SegmentedLog log, int64_t start, bint known) except -1:
    """Treat a bulk append that was not committed as an interrupted truncation to its first offset, `start`."""
    cdef Position* position = &log.position
    _logger.warning(
        "%s: an append of many batches was broken off before it was committed; the log is cut at offset %d, where it "
        "began", log.name, start,
    )
    if not known:  # no reader goes by the page
        position.recovery_point = min(position.recovery_point, start)
        return 0
    position.generation |= 1
    log.state.note_truncation(position.generation + 1, start)
    position.unsettled = 1
    position.leo = start
    position.high_watermark = min(position.high_watermark, start)
    position.recovery_point = min(position.recovery_point, start)
    position.active_size = -1
    log.state.publish(position)
    return log.state.sync()


cdef object _load_ledger(SegmentedLog log):
    """The ledger of bulk appends; None if the directory has none, or a damaged one."""
    path = ledger_path(log.path)
    if not os.path.exists(path):
        return None
    try:
        return WriterLedger(path)
    except CorruptCheckpointError as error:  # a bulk append is refused by it
        _logger.warning("%s: %s", log.name, error)
        return None


cdef int _start_anew(SegmentedLog log) except -1:
    """Finish an interrupted full truncation: records before the log start do not reappear."""
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
    """Assign a topic id to a new partition: that of another partition of the topic in this directory, or a new one."""
    if os.path.exists(os.path.join(log.path, METADATA_NAME)):
        return
    topic_id = None
    parent = os.path.dirname(log.path)
    for name in names_in(parent):
        if name.rpartition("-")[0] == log.topic_partition.topic:
            try:
                topic_id = read_topic_id(f"{parent}/{name}")
            except StorageError:
                continue
            if topic_id is not None:
                break
    write_topic_id(log.path, topic_id_text(uuid.uuid4()) if topic_id is None else topic_id)


def _remove_leftovers(SegmentedLog log):
    for name in names_in(log.path):
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


cdef int _settle_epochs(SegmentedLog log, bint known, bint trusted, bint same_end, bint begins) except -1:
    """Compare the epoch entries with the log, and rebuild them if they differ.

    known: the state file has their checksum; trusted: and it matches; same_end: the log ends where the state file says.
    begins: the next append begins an epoch, which is written before its first record, or here with others.
    """
    epochs = log.epochs
    latest = epochs.latest_epoch
    epochs.truncate_from_end(log.position.leo + 1)  # an epoch that has no records yet stays known
    if not trusted and (known or not _epochs_fit(log)):
        _logger.warning("%s: leader-epoch-checkpoint does not fit the log; rebuilding it", log.name)
        epochs.clear()
        _rebuild_epochs(log)
    log.current_epoch = max(0, latest, epochs.latest_epoch, log.position.leader_epoch)
    if begins and log.current_epoch < INT32_MAX:
        log.current_epoch += 1
        if epochs.dirty:  # else the latest, whose records are lost, would be in no durable file
            epochs.assign(log.current_epoch, log.position.leo)
    epochs.flush()
    log.last_epoch = epochs.latest_epoch
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
                if start < log.position.dense_from:
                    continue  # compaction has left nothing of it in this segment
                return False
        except CorruptBatchError:
            continue  # damage below the recovery point is for readers to report
        if h.base_offset > start and start < log.position.dense_from:
            epoch = log.epochs.epoch_for_offset(h.base_offset)[0]  # its first batch, or all of them, may be gone
        elif start > first and h.base_offset != start:
            return False
        if h.leader_epoch != epoch:
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
    """Open for reading only: nothing on disk is changed. Raises UsageError where the path is no directory, StorageError
    where there is no segment."""
    cdef Position position
    cdef int _attempt
    try:
        log.state = open_state(f"{log.path}/{STATE_NAME}", False)
    except StorageError:
        require_directory(log)
        raise
    if log.state is None:
        require_directory(log)
    for _attempt in range(CONTRADICTIONS):
        if log.state is None or (
            log.state.read(&position)
            and _checkpoint(log, "replication-offset-checkpoint").get(log.topic_partition, 0) <= position.leo
        ):
            break
        time.sleep(0.01)  # a writer that truncates brings both down one after the other; one may just make the log
    else:
        log.state = None
    if log.state is not None:
        log.position = position
    log.relist()
    log.closed = False
    if log.state is not None:
        log.listed_sequence = position.sequence
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
        self.directory = None
        self.metadata = None

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
        checkpoint = _replacement_of(path)
        status = status_of(log.path)
        self.require_same(log, (status.st_dev, status.st_ino), _replacement_of(os.path.join(log.path, METADATA_NAME)))
        now = (checkpoint, status.st_mtime_ns, status_of(last.path).st_size)
        if now == self.seen:
            return
        log.relist()
        last = log._segments[len(log._segments) - 1]
        last.size = last.open().size()
        last.forget_indexes()
        leo = _sound_end(last)
        ledger = _load_ledger(log)
        if ledger is not None and ledger.pending_start >= 0:
            leo = max(min(leo, ledger.pending_start), (<Segment> log._segments[0]).base_offset)
        watermark = _checkpoint(log, "replication-offset-checkpoint").get(log.topic_partition)
        start = (<Segment> log._segments[0]).base_offset
        if watermark is None and checkpoint is not None and is_brokers_directory(os.path.dirname(log.path)):
            watermark = 0  # the broker names each of its partitions soon after it has made it
        if watermark is None:  # any other file there may be about its neighbours alone
            if self.seen is None:
                _logger.warning(
                    "%s: neither %s nor %s holds the high watermark; taking all sound batches, up to offset %d",
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

    def require_same(self, SegmentedLog log, directory, metadata):
        """Raise PartitionDeletedError where it was created again: by its inode, or by that of partition.metadata, which
        Kafka writes once, perhaps only after the first segment."""
        if self.directory not in (None, directory) or self.metadata not in (None, metadata):
            raise_deleted(log.name, log.path, True)
        self.directory, self.metadata = directory, metadata


cdef tuple _replacement_of(str path):
    """What changes when the file is replaced, even within one tick of the clock; None where there is none."""
    try:
        status = status_of(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


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
