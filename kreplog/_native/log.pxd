# SegmentedLog: the segments of one replica of a partition, their offsets, and the one writer's lock.

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kreplog._native.batch cimport BatchBuilder, BatchHeader, Payload
from kreplog._native.files cimport FileHandle
from kreplog._native.segment cimport Segment
from kreplog._native.state cimport Position, StateFile


cdef class Pending:
    cdef int flush_locked(self) except -1


cdef int32_t epoch_of(object value) except? -1
cdef uint32_t epochs_crc(object epochs) except? 0


cdef class SegmentedLog:
    cdef readonly str path
    cdef readonly object topic_partition
    cdef readonly object config
    cdef readonly bint read_only
    cdef readonly bint closed
    cdef readonly tuple cuts  # Cut of each file that recovery shortened
    cdef str name

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

    cdef list _segments  # by base offset; replaced, never changed in place
    cdef Segment active
    cdef Position position
    cdef StateFile state
    cdef FileHandle directory
    cdef bint directory_changed
    cdef int32_t current_epoch  # that records are appended in
    cdef int32_t last_epoch  # of the newest epoch entry, -1 when none
    cdef object epochs
    cdef object producers
    cdef tuple checkpoints  # recovery points, high watermarks, log start offsets of the data directory
    cdef Pending pending
    cdef str failure
    cdef bint sealed_unsynced
    cdef int64_t listed_generation  # when the segments were listed
    cdef object watermark_source  # read-only without a state file: where the high watermark comes from
    cdef BatchBuilder builder
    cdef Payload key_payload
    cdef Payload value_payload
    cdef PyThread_type_lock mutex
    cdef PyThread_type_lock sync_mutex

    cdef void lock(self) noexcept
    cdef void unlock(self) noexcept
    cdef int check_open(self) except -1
    cdef int begin_write(self) except -1
    cdef int flush_pending(self) except -1
    cdef int lock_for_write(self) except -1
    cdef int fail(self, object error) except -1
    cdef int write(
        self, const uint8_t* data, Py_ssize_t length, int64_t next_offset, int64_t max_timestamp
    ) except -1
    cdef int assign_epoch(self, int32_t epoch) except -1
    cdef int roll_segment(self) except -1
    cdef int publish_epochs(self) except -1
    cdef int settle(self, int64_t offset) except -1
    cdef int settle_files(self) except -1
    cdef int flush_to(self, int64_t offset, bint sealed_only) except -1
    cdef int checkpoint(self) except -1
    cdef int refresh(self) except -1
    cdef int load_epochs(self) except -1
    cdef int64_t steady_generation(self) except -1
    cdef int relist(self) except -1
    cdef Py_ssize_t segment_index(self, list segments, int64_t offset) noexcept
    cdef Segment segment_for(self, int64_t offset)
    cdef int64_t published_size(self, Segment segment) except -1
    cdef int64_t segment_end(self, list segments, Py_ssize_t i) noexcept
    cdef int load_producers(self) except -1
    cdef int replay_producers(self, int64_t start) except -1
    cdef int note_producer(self, const BatchHeader* h) except -1
    cdef int _close_batch(self, BatchBuilder builder, int64_t base_offset, int64_t* max_timestamp) except -1
    cdef int _check_range(self, int64_t offset) except -1
    cdef int64_t byte_size(self) except -1
