# SegmentedLog: the segments of one replica of a partition, their offsets, and the one writer.

from libc.stdint cimport int32_t, int64_t, uint8_t

from kreplog._native.batch cimport BatchBuilder, BatchHeader, Payload
from kreplog._native.clock cimport Clock
from kreplog._native.columns cimport Column
from kreplog._native.segment cimport Segment
from kreplog._native.writable cimport WritableLog


cdef int32_t epoch_of(object value) except? -1


cdef class SegmentedLog(WritableLog):
    cdef bint log_append_time
    cdef bint compacts  # its cleanup policy has "compact" in it, or had
    cdef int64_t oldest_ms  # how much older, and newer, than now a producer's record may be
    cdef int64_t newest_ms
    cdef bint needs_keys  # a record without a key is refused: its cleanup policy has "compact" in it
    cdef int codec
    cdef int64_t segment_bytes
    cdef int64_t segment_ms
    cdef Py_ssize_t max_index_entries
    cdef Py_ssize_t max_message_bytes
    cdef Py_ssize_t record_limit
    cdef Py_ssize_t batch_bytes

    cdef Segment active
    cdef int32_t last_epoch  # of the newest epoch entry in its file, -1 when none
    cdef object producers
    cdef list decided  # (first offset, marker's) of transactions whose marker the high watermark has not passed
    cdef dict replayed_aborted  # while the producers are loaded: entries of transaction indexes, by segment; else None
    cdef (int64_t, int64_t) replayed  # log end and high watermark for which a reader has the producers
    cdef object ledger  # WriterLedger of the appends that are made once; None where the directory has none
    cdef tuple checkpoints  # recovery points, high watermarks, log start offsets of the data directory
    cdef tuple closed_with  # the offsets for them; None while it is open, and where closing failed
    cdef object cleaner_checkpoint  # to where the logs of the data directory are compacted
    cdef BatchBuilder builder
    cdef Clock clock
    cdef Payload key_payload
    cdef Payload value_payload

    cdef int write(
        self, const uint8_t* data, Py_ssize_t length, int64_t next_offset, int64_t max_timestamp
    ) except -1
    cdef int assign_epoch(self, int32_t epoch) except -1
    cdef int write_epochs(self) except -1
    cdef int roll_segment(self) except -1
    cdef bint flush_epochs(self) except -1
    cdef int publish_epochs(self) except -1
    cdef void release_locks(self) noexcept
    cdef int finish_files(self) except -1
    cdef tuple offsets_to_checkpoint(self)
    cdef int checkpoint(self) except -1
    cdef int64_t compacted_to(self) except -1
    cdef int load_producers(self, bint recovered=*) except -1
    cdef int replay_producers(self, int64_t start) except -1
    cdef int note_producer(self, const BatchHeader* h, const uint8_t* batch, Segment segment) except -1
    cdef int note_marker(self, const BatchHeader* h, const uint8_t* batch, Segment segment) except -1
    cdef int announce_transaction(self, int64_t first_offset) except -1
    cdef int settle_transactions(self) except -1
    cdef int _look_ahead(self, Column values, Column keys, Py_ssize_t start) except -1
    cdef int refuse_keyless(self) except -1
    cdef int _check_keys(self, Column keys, Py_ssize_t n) except -1
    cdef int _check_size(self, Column values, Py_ssize_t size) except -1
    cdef int _close_batch(self, BatchBuilder builder, int64_t base_offset, int64_t* max_timestamp) except -1
