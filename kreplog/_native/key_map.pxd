# KeyMap: the largest offset of each key, in a bounded piece of memory: what compaction knows of the records to come.
#
# A key stands there as 128 bits of SipHash under a random secret: that two keys of one log have the same is not to be
# expected, nor can a producer make it happen. A slot has 24 bytes; the table is probed linearly.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from kreplog._native.cursor cimport prefetch


cdef extern from *:
    """
    #include "siphash_impl.h"
    #define kreplog_scale(x, n) ((uint64_t) (((unsigned __int128) (x) * (n)) >> 64))
    """
    void siphash "kreplog_siphash"(
        const uint64_t* key, const uint8_t* data, size_t length, uint64_t* first, uint64_t* second
    ) noexcept nogil
    uint64_t scale "kreplog_scale"(uint64_t x, uint64_t n) noexcept nogil


cdef struct KeyHash:
    uint64_t first
    uint64_t second


cdef struct Slot:
    KeyHash key
    int64_t end  # the offset after the key's newest record; 0 for an empty slot


cdef class KeyMap:
    cdef Slot* slots
    cdef uint64_t capacity
    cdef readonly int64_t count
    cdef readonly int64_t limit  # of keys
    cdef uint64_t secret[2]

    cdef inline KeyHash hash_of(self, const uint8_t* key, Py_ssize_t length) noexcept nogil:
        """The hash of a key, whose slot is on its way from memory then."""
        cdef KeyHash found
        siphash(self.secret, key, length, &found.first, &found.second)
        prefetch(&self.slots[scale(found.first, self.capacity)])
        return found

    cdef inline Slot* slot_of(self, const KeyHash* key) noexcept nogil:
        """The key's slot, or the empty one where it belongs."""
        cdef uint64_t i = scale(key.first, self.capacity)
        while self.slots[i].end != 0 and (
            self.slots[i].key.first != key.first or self.slots[i].key.second != key.second
        ):
            i += 1
            if i == self.capacity:
                i = 0
        return &self.slots[i]

    cdef inline void put(self, const KeyHash* key, int64_t offset) noexcept nogil:
        """Note a record of the key; the caller sees to it that `count` stays below `limit`."""
        cdef Slot* slot = self.slot_of(key)
        if slot.end == 0:
            slot.key = key[0]
            self.count += 1
        if slot.end <= offset:
            slot.end = offset + 1

    cdef inline int64_t newest(self, const KeyHash* key) noexcept nogil:
        """The largest offset noted of the key, -1 for none."""
        return self.slot_of(key).end - 1
