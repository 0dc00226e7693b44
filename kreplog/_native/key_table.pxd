# KeyTable: the newest record of each key and partition, in memory; keys and values are copies of the log's bytes.
#
# An entry is one allocation: this struct, the key, the value. Slots hold the SipHash of the key under a random secret,
# and are probed linearly; one key of several partitions has an entry for each, all in the same run of slots. Between
# two slots of a run none is empty, also after a removal, which moves later ones up.

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t

from kreplog._native.batch cimport RecordCursor, RecordView

cdef extern from *:
    """
    #include <pthread.h>
    """
    ctypedef struct Mutex "pthread_mutex_t":
        pass
    int mutex_init "pthread_mutex_init"(Mutex* mutex, const void* attributes) noexcept nogil
    int mutex_destroy "pthread_mutex_destroy"(Mutex* mutex) noexcept nogil
    int mutex_lock "pthread_mutex_lock"(Mutex* mutex) noexcept nogil
    int mutex_trylock "pthread_mutex_trylock"(Mutex* mutex) noexcept nogil
    int mutex_unlock "pthread_mutex_unlock"(Mutex* mutex) noexcept nogil


cdef enum:
    NO_MEMORY = 2  # beside BATCH_OK and the negative codes of batch.pxd


cdef struct Entry:
    int64_t offset
    int64_t timestamp
    int32_t partition
    int32_t key_length
    int32_t value_length
    int32_t room  # bytes for key and value


cdef struct TableSlot:
    uint64_t hash
    Entry* entry  # NULL for an empty slot


cdef inline uint8_t* key_of(Entry* entry) noexcept nogil:
    return <uint8_t*> entry + sizeof(Entry)


cdef inline uint8_t* value_of(Entry* entry) noexcept nogil:
    return <uint8_t*> entry + sizeof(Entry) + entry.key_length


cdef class KeyTable:
    cdef TableSlot* slots
    cdef uint64_t mask  # number of slots - 1
    cdef readonly int64_t entries
    cdef int64_t keys  # distinct ones
    cdef readonly int64_t nbytes  # of keys and values
    cdef uint64_t secret[2]
    cdef Mutex mutex

    cdef void lock(self) noexcept
    cdef int apply_batch(self, RecordCursor* c, int32_t partition, int64_t start, int64_t stop) noexcept nogil
    cdef int put(self, const RecordView* record, uint64_t hash, int32_t partition) noexcept nogil
    cdef int replace(self, TableSlot* slot, const RecordView* record) noexcept nogil
    cdef void remove_at(self, uint64_t i, bint shared) noexcept nogil
    cdef int grow(self) noexcept nogil
    cdef int forget(self, int32_t partition, int64_t below) noexcept nogil
    cdef int decode_entries(self, const uint8_t* p, Py_ssize_t left, int64_t wanted) noexcept nogil
    cdef void clear(self) noexcept nogil
    cdef Entry* newest(self, const uint8_t* key, Py_ssize_t length) noexcept nogil
    cdef int refuse(self) except -1
