# SegmentedLog: the segments of one replica of a partition, their offsets, and the one writer's lock.

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.batch cimport BatchBuilder, BatchHeader, Payload
from kreplog._native.columns cimport Column
from kreplog._native.files cimport FileHandle
from kreplog._native.segment cimport Segment
from kreplog._native.turn cimport Turn
from kreplog._native.view cimport LogView


cdef class Pending:
    cdef int flush_locked(self) except -1


cdef int32_t epoch_of(object value) except? -1


cdef class SegmentedLog(LogView):
    cdef bint replicated
    cdef bint log_append_time
    cdef int codec
    cdef int64_t segment_bytes
    cdef int64_t segment_ms
    cdef int64_t flush_messages
    cdef Py_ssize_t max_index_entries
    cdef Py_ssize_t max_message_bytes
    cdef Py_ssize_t record_limit
    cdef Py_ssize_t batch_bytes

    cdef Segment active
    cdef FileHandle writer_lock  # None in a managed log: its owner's lock keeps others out
    cdef FileHandle broker_lock
    cdef bint directory_changed
    cdef int32_t last_epoch  # of the newest epoch entry in its file, -1 when none
    cdef object producers
    cdef bint managed  # somebody looks after the data directory: its checkpoints, and what _sync_files makes durable
    cdef int64_t unsynced  # files were replaced so many times, and not synced, since they last all were
    cdef public bint _given_up  # its owner moves its folder away: what threads still do with it may fail unheard
    cdef bint parent_unsynced  # neither the state file nor the names in the directory and its parent are durable
    cdef tuple checkpoints  # recovery points, high watermarks, log start offsets of the data directory
    cdef Pending pending
    cdef str failure
    cdef readonly object cause  # the error it comes from
    cdef readonly bint _has_unflushed_segments  # or epochs: their files are to be synced
    cdef bint epochs_unsynced  # there are, or after a kill may be, records of epochs whose file is not durable yet
    cdef str unsynced_snapshot  # path of a managed log's newest producer snapshot, until a flush syncs it
    cdef list old_tails  # mappings of a managed log's sealed segments, until a flush drops them
    cdef BatchBuilder builder
    cdef Payload key_payload
    cdef Payload value_payload
    cdef PyThread_type_lock mutex
    cdef Turn sync_turn  # at fsync, of one thread for all

    cdef void lock(self) noexcept
    cdef void unlock(self) noexcept
    cdef int begin_write(self) except -1
    cdef int flush_pending(self) except -1
    cdef int lock_for_write(self) except -1
    cdef int fail(self, object error) except -1
    cdef int refuse(self, object error) except -1
    cdef int write(
        self, const uint8_t* data, Py_ssize_t length, int64_t next_offset, int64_t max_timestamp
    ) except -1
    cdef int assign_epoch(self, int32_t epoch) except -1
    cdef int write_epochs(self) except -1
    cdef int sync_unsynced(self, object state) except -1
    cdef void settled(self) noexcept
    cdef int roll_segment(self) except -1
    cdef bint flush_epochs(self) except -1
    cdef int publish_epochs(self) except -1
    cdef int settle(self, int64_t offset) except -1
    cdef void release_locks(self) noexcept
    cdef int settle_files(self) except -1
    cdef int flush_to(self, int64_t offset, bint sealed_only) except -1
    cdef int keep_snapshot(self) except -1
    cdef list open_for_sync(self, str snapshot, list segments)
    cdef int check_flushable(self) except -1
    cdef int checkpoint(self) except -1
    cdef int load_producers(self) except -1
    cdef int replay_producers(self, int64_t start) except -1
    cdef int note_producer(self, const BatchHeader* h) except -1
    cdef int _look_ahead(self, Column values, Column keys, Py_ssize_t start) except -1
    cdef int _check_size(self, Column values, Py_ssize_t size) except -1
    cdef int _close_batch(self, BatchBuilder builder, int64_t base_offset, int64_t* max_timestamp) except -1
