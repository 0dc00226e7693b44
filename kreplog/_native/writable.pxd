# WritableLog: a log that one process writes. Its lock, its failure, and its fsyncs.

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint32_t

from kreplog._native.commit_gate cimport CommitGate
from kreplog._native.files cimport FileHandle
from kreplog._native.view cimport LogView


cdef class Pending:
    cdef int flush_locked(self) except -1


cdef class LockHolder:
    cdef readonly unsigned long thread_id
    cdef bint held


cdef class WritableLog(LogView):
    cdef bint replicated
    cdef bint managed  # a manager owns the data directory: its checkpoints, and when sync_files runs
    cdef bint in_topic  # a topic holds the lock of all its partitions, and writes their checkpoints
    cdef int64_t flush_messages

    cdef PyThread_type_lock mutex
    cdef FileHandle writer_lock  # None in a managed log: its owner's lock keeps others out
    cdef FileHandle broker_lock
    cdef uint32_t session_lock  # flag of the lock by which readers see that this writer lives, 0 for none
    cdef Pending pending
    cdef LockHolder bulk_append  # of the BulkAppend under way, whose records stay above the high watermark
    cdef str failure
    cdef readonly object cause  # the error it comes from
    cdef bint failure_expected  # its owner moves its folder away: failures of threads that still use it are not logged

    cdef CommitGate sync_gate  # one thread fsyncs for all
    cdef bint directory_changed
    cdef bint parent_unsynced  # neither the state file nor the names in the directory and its parent are durable
    cdef int64_t unsynced  # files replaced without an fsync since all of them were last synced
    cdef bint segments_unflushed  # or epochs: their files are to be synced
    cdef bint epochs_unsynced  # records exist, or after a kill may exist, of epochs whose file is not durable yet
    cdef str unsynced_snapshot  # path of a managed log's newest producer snapshot, until a flush syncs it
    cdef str pending_swap  # path of what replaces segments after a crash, until that is durable; see `compaction_swap`
    cdef PyThread_type_lock compaction_mutex  # held by the one compaction at a time
    cdef int64_t cut_count  # truncations begun, by which a compaction sees that its segments are not what they were
    cdef bint closing  # which a compaction notices
    cdef list old_tails  # mappings of a managed log's sealed segments, until a flush drops them

    cdef void lock(self) noexcept
    cdef void unlock(self) noexcept
    cdef int begin_write(self) except -1
    cdef int flush_pending(self) except -1
    cdef int lock_for_write(self) except -1
    cdef int check_not_in_bulk_append(self) except -1
    cdef int stop_compaction(self) except -1
    cdef int fail(self, object error) except -1
    cdef int fail_unless_exhausted(self, object error) except -1
    cdef int flush_due(self, int64_t offset) except -1
    cdef int flush_to(self, int64_t offset, bint sealed_only) except -1
    cdef int sync_due(self, bint sealed_only) except -1
    cdef bint sync_open_segments(self) except -1
    cdef int sync_each(self, list files) except -1
    cdef int sync_all_due(self, bint sealed_only) except -1
    cdef list take_due(self, bint sealed_only, str snapshot, int64_t* target)
    cdef list open_for_sync(self, str snapshot, list segments)
    cdef int flush_sealed(self) except -1
    cdef int sync_files(self) except -1
    cdef int forget(self) except -1
    cdef int check_flushable(self) except -1
    cdef int finish_swap(self) except -1
    cdef int sync_snapshot(self) except -1
    cdef int watermark_moved(self) except -1
    cdef int sync_unsynced(self, object state) except -1
    cdef void mark_synced(self) noexcept
