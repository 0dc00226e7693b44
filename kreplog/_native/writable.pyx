"""WritableLog: the lock, the failed state and the fsyncs of a log that this process writes.

Allows one writing thread at a time, and none after a failed write or fsync. Tracks what is durable: the recovery point,
group commit, and the files that a managed log replaced without an fsync. SegmentedLog appends and rolls.
"""

from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
)
from libc.stdint cimport INT64_MAX, int64_t
from posix.fcntl cimport O_RDONLY

from kreplog._native.commit_gate cimport gate_enter, gate_init, gate_leave
from kreplog._native.files cimport FileHandle, open_file, sync_directory
from kreplog._native.segment cimport Segment, remove
from kreplog._native.state cimport StateFile
from kreplog._native.swap_recovery cimport checkpoint_path
from kreplog._native.transaction_index cimport aborted_path
from kreplog._native.view cimport LogView

import logging

from kreplog._native.files import error_of
from kreplog.errors import LogFailedError, ResourceExhaustedError, StorageError, UsageError

_logger = logging.getLogger("kreplog")

cdef int64_t MAX_OFFSET = INT64_MAX - (<int64_t> 1 << 33)  # leaves more offsets than any single call appends


cdef int sync_if_there(str path) except -1:
    """fsync a file, unless it has been deleted meanwhile. Raises StorageError."""
    try:
        open_file(path, O_RDONLY).sync()
    except FileNotFoundError:
        pass
    return 0


cdef class Pending:
    """Records that have offsets but are not written yet; the next holder of the log's lock writes them first."""

    cdef int flush_locked(self) except -1:
        return 0


cdef class LockHolder:
    """What holds the log's lock and its gate over several calls of the thread `thread_id`, until `held` is cleared."""


cdef class WritableLog(LogView):

    def __cinit__(self):
        self.mutex = PyThread_allocate_lock()
        self.compaction_mutex = PyThread_allocate_lock()
        gate_init(&self.sync_gate)
        if self.mutex == NULL or self.compaction_mutex == NULL:
            raise MemoryError()
        self.old_tails = []

    def __dealloc__(self):
        if self.mutex != NULL:
            PyThread_free_lock(self.mutex)
        if self.compaction_mutex != NULL:
            PyThread_free_lock(self.compaction_mutex)

    def __init__(self, *_arguments, **_settings):
        raise UsageError("open a log with kreplog.Log.open(path)")

    cdef void lock(self) noexcept:
        if PyThread_acquire_lock(self.mutex, NOWAIT_LOCK) == 0:
            with nogil:
                PyThread_acquire_lock(self.mutex, WAIT_LOCK)

    cdef void unlock(self) noexcept:
        cdef StateFile state = self.state
        PyThread_release_lock(self.mutex)
        if state is not None:
            state.wake_at(self.position.high_watermark)

    cdef int begin_write(self) except -1:
        """Take the lock with everything pending written. Raises, without the lock, where the log takes no writes."""
        self.lock_for_write()
        if self.pending is not None:
            try:
                self.flush_pending()
            except BaseException:
                self.unlock()
                raise
        return 0

    cdef int flush_pending(self) except -1:
        """Write what is buffered, under the lock. Raises LogFailedError."""
        cdef Pending pending = self.pending  # ours may be the last reference
        if pending is not None:
            pending.flush_locked()
        return 0

    cdef int lock_for_write(self) except -1:
        """Take the lock. Raises, without the lock, where the log takes no writes."""
        if self.read_only:
            raise UsageError(
                f"{self.name}: this log was opened read-only; open it with read_only=False to change it",
                partition=self.name, path=self.path,
            )
        self.check_not_in_bulk_append()
        self.lock()
        try:
            self.check_open()
            if self.failure is not None:
                raise LogFailedError(
                    f"{self.name}: the log refuses writes since an earlier failure ({self.failure}); "
                    "mend the cause, then reopen it", partition=self.name, path=self.path,
                ) from self.cause
            if self.position.leo > MAX_OFFSET:
                raise UsageError(f"{self.name}: no offsets are left past {self.position.leo}", partition=self.name)
        except BaseException:
            self.unlock()
            raise
        return 0

    cdef int check_not_in_bulk_append(self) except -1:
        """Other threads wait for the lock that a bulk append holds; its own would wait for itself. Raises UsageError.
        """
        cdef LockHolder bulk_append = self.bulk_append
        if bulk_append is not None and bulk_append.thread_id == PyThread_get_thread_ident():
            raise UsageError(
                f"{self.name}: this thread's bulk append is under way; commit and publish it, or abort it, before the "
                "log changes otherwise: leaving the `with` statement of a BulkAppend ends it",
                partition=self.name, path=self.path,
            )
        return 0

    cdef int stop_compaction(self) except -1:
        """Before the log closes: the compaction under way in another thread ends, and no other begins."""
        self.closing = True
        with nogil:
            PyThread_acquire_lock(self.compaction_mutex, WAIT_LOCK)
        PyThread_release_lock(self.compaction_mutex)
        return 0

    @property
    def failed(self):
        """The error after which the log refuses writes; None while it accepts them."""
        return self.failure

    cdef int fail(self, object error) except -1:
        """Refuse all further writes, after a failed write or fsync or an interrupted change.

        Always raises: LogFailedError from its cause, or `error` itself if it is not a storage error (an interrupt).
        """
        if isinstance(error, OSError):
            error = error_of("cannot change a file of", self.path, error)
        if self.failure is None:
            self.failure = str(error) or repr(error)
            self.cause = error
            if self.position.generation & 1:  # what was to be cut stays out of sight
                self.position.generation += 1
                self.state.publish(&self.position)
            if not self.failure_expected:
                _logger.error("%s: %r; the log refuses further writes until it is reopened", self.name, error)
        if not isinstance(error, StorageError):
            raise error
        raise LogFailedError(
            f"{self.name}: {error}; this call is not acknowledged and the log refuses further writes: "
            "mend the cause (is the disk full?), then reopen it", partition=self.name, path=self.path,
        ) from error

    cdef int fail_unless_exhausted(self, object error) except -1:
        """As `fail`, of a call that can be made again as if it had not been: where only a descriptor or memory was
        missing, that is raised, and the log goes on."""
        if isinstance(error, ResourceExhaustedError):
            raise error
        return self.fail(error)

    cdef int forget(self) except -1:
        """Take no more calls, and let go of the files without a last write."""
        self.closed = self.closing = True
        self.pending = None
        if self.bulk_append is not None:
            self.bulk_append.held = False  # it ends here, and changes nothing as its thread unwinds through it
            self.bulk_append = None
        self.writer_lock = None
        self.broker_lock = None
        return 0

    # Durability

    def flush(self):
        """Make everything appended so far durable (fdatasync). Raises LogFailedError, which is never retried over, and
        ResourceExhaustedError: nothing was synced, flush again."""
        cdef int64_t target
        self.begin_write()
        target = self.position.leo
        self.unlock()
        self.flush_to(target, False)

    cdef int flush_sealed(self) except -1:
        return self.flush_to(INT64_MAX, True)

    cdef int flush_due(self, int64_t offset) except -1:
        """After an append, without the lock: the fsyncs that are due. Sealed segments are left to an owner."""
        if self.segments_unflushed and not self.managed:
            try:
                self.flush_to(offset, True)
            except ResourceExhaustedError:
                pass  # nobody was promised it: it stays due, and the next append tries again
        if offset - self.position.recovery_point >= self.flush_messages:
            try:
                self.flush_to(offset, False)
            except ResourceExhaustedError as error:
                self.fail(error)  # it is written: whoever took it for refused would append it again
        return 0

    cdef int flush_to(self, int64_t offset, bint sealed_only) except -1:
        """fsync so that all below `offset` is durable; one fsync serves every thread that waits for it.

        sealed_only: of segments only those before the newest sealed one, whose pages the kernel has long begun to
        write.
        """
        cdef bint entered
        with nogil:
            entered = gate_enter(&self.sync_gate, &self.position.recovery_point, offset)
        if not entered:
            return self.check_flushable()
        try:
            self.sync_due(sealed_only)
        finally:
            gate_leave(&self.sync_gate)
        return 0

    cdef int sync_due(self, bint sealed_only) except -1:
        """Inside the gate: fsync what is due, without the lock, then move the recovery point."""
        try:
            self.sync_all_due(sealed_only)
        except ResourceExhaustedError:
            if not self.sync_open_segments():
                raise
            self.sync_all_due(sealed_only)
        return 0

    cdef bint sync_open_segments(self) except -1:
        """Inside the gate: fsync the segments through the descriptors that they hold already, which may be closed then
        for want of others. Returns whether there was any; the recovery point stays."""
        cdef Segment segment
        cdef list files = []
        self.lock()
        try:
            for segment in self._segments:
                if not segment.synced and segment.file is not None:
                    files.append(segment.file)
                    segment.synced = True  # an append meanwhile says otherwise
        finally:
            self.unlock()
        self.sync_each(files)
        return bool(files)

    cdef int sync_each(self, list files) except -1:
        """Raises LogFailedError."""
        cdef FileHandle file
        try:
            for file in files:
                file.sync()
        except BaseException as error:
            self.fail(error)
        return 0

    cdef int sync_all_due(self, bint sealed_only) except -1:
        """As sync_due, where there are descriptors for it. Raises ResourceExhaustedError where not."""
        cdef int64_t target
        cdef int64_t generation
        cdef str snapshot
        cdef list files
        cdef list tails
        self.lock()
        try:
            self.check_open()
            self.check_flushable()
            generation = self.position.generation
            snapshot = self.unsynced_snapshot
            files = self.take_due(sealed_only, snapshot, &target)
            tails, self.old_tails = self.old_tails, []
        finally:
            self.unlock()
        self.sync_each(files)
        tails.clear()  # unmapped without the lock
        self.lock()
        try:
            if self.unsynced_snapshot is snapshot:
                self.unsynced_snapshot = None
            if not self.closed and self.position.generation == generation and self.position.recovery_point < target:
                self.position.recovery_point = target
                if not self.replicated and self.position.high_watermark < target:
                    self.position.high_watermark = target
                self.state.publish(&self.position)
                self.watermark_moved()
        finally:
            self.unlock()
        return 0

    cdef list take_due(self, bint sealed_only, str snapshot, int64_t* target):
        """The open files that a flush syncs, after which all below `target` is durable. Caller holds the lock.

        Raises LogFailedError, and ResourceExhaustedError: nothing has changed."""
        cdef Segment segment
        cdef list files
        cdef list dirty = []
        segments = self._segments
        if sealed_only:
            segments = segments[:max(len(segments) - 2, 0)]
            target[0] = (<Segment> self._segments[len(segments)]).base_offset
        else:
            target[0] = self.position.leo
        for segment in reversed(segments):
            if not segment.synced or segment.aborted_unsynced:
                dirty.append(segment)
            if segment.base_offset < self.position.recovery_point:
                break  # the segments before it are durable, which a later segment being durable does not imply
        files = self.open_for_sync(snapshot, dirty)
        for segment in dirty:
            segment.synced = True
            segment.aborted_unsynced = False
        self.segments_unflushed = self.epochs_unsynced = self.directory_changed = False
        return files

    cdef list open_for_sync(self, str snapshot, list segments):
        """All that a flush syncs, in order. Caller holds the lock: without it a segment may be deleted.

        Raises LogFailedError, and ResourceExhaustedError: nothing has changed."""
        cdef list files = []
        cdef list names = [] if snapshot is None else [snapshot]
        cdef Segment segment
        if self.epochs_unsynced:
            names.append(f"{self.path}/leader-epoch-checkpoint")
        try:
            for name in names:
                try:
                    files.append(open_file(name, O_RDONLY))
                except FileNotFoundError:  # deleted meanwhile
                    pass
            for segment in segments:
                if segment.aborted_unsynced:  # before the recovery point covers its markers
                    files.append(open_file(aborted_path(segment), O_RDONLY))
                if not segment.synced:
                    files.append(segment.open())
            if self.directory_changed or self.epochs_unsynced:
                files.append(open_file(self.path, O_RDONLY))
        except BaseException as error:
            self.fail_unless_exhausted(error)
        return files

    cdef int check_flushable(self) except -1:
        if self.failure is not None:
            raise LogFailedError(
                f"{self.name}: cannot flush since an earlier failure ({self.failure}); reopen the log",
                partition=self.name, path=self.path,
            ) from self.cause
        return 0

    cdef int finish_swap(self) except -1:
        """Under the lock, before segments change otherwise: what compaction has replaced is durable, what it was about
        to replace will not be. Raises LogFailedError, ResourceExhaustedError."""
        if self.pending_swap is None:
            return 0
        try:
            sync_directory(self.path)
            remove(self.pending_swap)
            sync_directory(self.path)
            remove(checkpoint_path(self.pending_swap.removesuffix(".log.swap")))
        except BaseException as error:
            self.fail_unless_exhausted(error)
        self.pending_swap = None
        return 0

    cdef int sync_snapshot(self) except -1:
        """Under the lock, before segments are deleted: what they say of producers is durable in a snapshot alone."""
        if self.unsynced_snapshot is None:
            return 0
        try:
            sync_if_there(self.unsynced_snapshot)
            sync_directory(self.path)
        except BaseException as error:
            self.fail_unless_exhausted(error)
        self.unsynced_snapshot = None
        return 0

    cdef int watermark_moved(self) except -1:
        """Under the lock: the high watermark has advanced."""
        return 0

    cdef int sync_files(self) except -1:
        cdef int64_t unsynced
        with nogil:
            gate_enter(&self.sync_gate, &self.position.recovery_point, INT64_MAX)
        try:
            self.lock()
            unsynced, state = self.unsynced, self.state
            ended = self.closed or self.failure is not None
            self.unlock()
            if ended or not unsynced:
                return 0
            try:
                self.sync_unsynced(state)
            except BaseException as error:
                self.fail_unless_exhausted(error)
            self.lock()
            if self.unsynced == unsynced:
                self.mark_synced()
            self.unlock()
        finally:
            gate_leave(&self.sync_gate)
        return 0

    cdef int sync_unsynced(self, object state) except -1:
        """fsync what was replaced, and the names of it. Raises StorageError."""
        for name in ("leader-epoch-checkpoint", "partition.metadata") if self.parent_unsynced else (
            "leader-epoch-checkpoint",
        ):
            sync_if_there(f"{self.path}/{name}")
        if self.parent_unsynced:
            (<StateFile> state).sync()
        sync_directory(self.path)
        if self.parent_unsynced:
            sync_directory(self.path.rpartition("/")[0] or "/")
            self.parent_unsynced = False
        return 0

    cdef void mark_synced(self) noexcept:
        """Under the lock: all that was published or replaced so far is durable."""
        self.unsynced = 0
        if self.position.unsettled and not self.parent_unsynced and not self.position.generation & 1:
            self.position.unsettled = 0
            self.state.publish(&self.position)


# What only the manager of a log calls


def has_unflushed_segments(WritableLog log not None):
    """Whether a segment was sealed, or an epoch begun, that no flush has covered."""
    return bool(log.segments_unflushed)


def flush_sealed(WritableLog log not None):
    """Make durable what lies before the newest sealed segment, and the epochs that records have, and unmap what was
    sealed. Raises LogFailedError."""
    log.flush_sealed()


def sync_files(WritableLog log not None):
    """Make durable what a managed log has made or dropped; others may use the log meanwhile. Raises LogFailedError."""
    log.sync_files()


def expect_failure(WritableLog log not None):
    """What threads still do with the log may fail, and is not logged: its directory is moved or deleted. A compaction
    under way ends, and changes no file by its path from now on: another partition may soon be in its place."""
    log.lock()
    log.failure_expected = log.closing = True
    log.unlock()


def end_compaction(WritableLog log not None):
    """A compaction under way in another thread ends soon, and no other begins."""
    log.closing = True


def abandon(WritableLog log not None):
    """Forget the log without a last write, touching none of its files, as if it were killed. Threads that use it, or
    wait for it, get LogClosedError."""
    held = log.bulk_append is not None
    log.forget()
    if held:
        log.unlock()
        gate_leave(&log.sync_gate)


def abandon_in_child(WritableLog log not None):
    """As `abandon`, in a forked child, where threads that hold the log's locks do not exist."""
    log.mutex = PyThread_allocate_lock()
    log.compaction_mutex = PyThread_allocate_lock()
    gate_init(&log.sync_gate)
    log.forget()
