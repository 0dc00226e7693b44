from libc.stdint cimport int16_t, int32_t, int64_t


cdef enum:
    REMEMBERED = 5


cdef struct Batch:
    int32_t base_sequence
    int32_t last_sequence
    int64_t first_offset
    int64_t last_offset
    int64_t timestamp


cdef class ProducerEntry:
    cdef int16_t epoch
    cdef int64_t timestamp          # of its last batch
    cdef int64_t heard_ms           # when that came, or was loaded, by the wall clock
    cdef int count      # batches remembered; the newest stands at batches[newest], older ones before it, round the end
    cdef int newest
    cdef int64_t transaction        # the first offset of its open transaction, -1 when there is none
    cdef int32_t coordinator_epoch
    cdef int64_t run    # records, up to the newest, known to follow one another without a gap
    cdef Batch batches[REMEMBERED]


cdef class ProducerState:
    cdef dict _producers
    cdef dict _open  # producer id: first offset of its open transaction, in the order of these
    cdef int64_t made_room_ms

    cpdef tuple check(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count, bint strict=*
    )
    cpdef object update(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int64_t first_offset, int64_t last_offset,
        int64_t timestamp_ms
    )
    cpdef object begin_transaction(self, int64_t producer_id, int64_t offset)
    cpdef int64_t end_transaction(
        self, int64_t producer_id, int16_t epoch, int64_t timestamp_ms, int32_t coordinator_epoch=*
    ) except? -1
    cpdef object check_transaction(self, int64_t producer_id, bint transactional)
    cpdef object check_verified(self, int64_t producer_id, int16_t epoch, int32_t verified_by)
    cpdef object check_epoch(self, int64_t producer_id, int16_t epoch)
    cpdef object check_marker(self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch)
    cpdef int64_t first_open(self) except? -1
    cpdef object expire(self, int64_t now_ms, int64_t expiration_ms)
    cpdef object admit(self, int64_t producer_id, int64_t now_ms, int64_t most, bint more)
    cpdef object clear(self)
    cdef set ids(self)
    cpdef list active(self)
    cpdef bytes snapshot(self)
    cpdef object load(self, bytes data)
    cdef object _load(self, bytes data, int64_t end_offset)
    cpdef str write_snapshot(self, str directory, int64_t offset, bint durable=*)
    cpdef object latest_snapshot(self, str directory, int64_t max_offset, bint discard=*)
    cpdef object delete_snapshots(self, str directory, int64_t from_offset=*, int64_t to_offset=*)
