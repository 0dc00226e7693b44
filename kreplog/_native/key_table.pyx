"""KeyTable: the newest record of each key and partition, in memory. The layout is at the top of key_table.pxd.

Batches are applied without a Python object for a record. A key that several partitions have counts once: its newest
entry by timestamp is found, and of equal ones that of the highest partition. A tombstone removes the entry of its own
partition. A mutex, and not the lock of the interpreter, keeps readers from a batch that is half applied.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

import os

from kreplog._native.batch cimport BATCH_OK, RecordCursor, RecordView, as_bytes, next_record
from kreplog._native.cursor cimport likely, load32, load64, prefetch, store32, store64
from kreplog._native.key_map cimport siphash

from kreplog.errors import ResourceExhaustedError

cdef enum:
    LEAST_SLOTS = 64
    ENTRY_HEADER = 28
    WRONG_LENGTHS = 3
    TOGETHER = 32  # records whose slots and entries are fetched from memory at the same time


@cython.final
cdef class KeyTable:

    def __cinit__(self):
        cdef bytes secret = os.urandom(16)
        cdef const char* drawn = secret
        memcpy(self.secret, drawn, sizeof(self.secret))
        mutex_init(&self.mutex, NULL)
        self.mask = LEAST_SLOTS - 1
        self.slots = <TableSlot*> calloc(LEAST_SLOTS, sizeof(TableSlot))
        if self.slots == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef uint64_t i
        if self.slots != NULL:
            for i in range(self.mask + 1):
                free(self.slots[i].entry)
        free(self.slots)

    cdef void lock(self) noexcept:
        """Take the mutex, without the interpreter's lock where that takes time."""
        if mutex_trylock(&self.mutex) != 0:
            with nogil:
                mutex_lock(&self.mutex)

    cdef int refuse(self) except -1:
        raise ResourceExhaustedError(
            f"no memory for a table of {self.keys} keys and more, {self.nbytes} bytes of keys and values: compact the "
            "topic, or give the process more memory"
        )

    # Changing

    cdef int apply_batch(self, RecordCursor* c, int32_t partition, int64_t start, int64_t stop) noexcept nogil:
        """Apply the records of a batch that lie in [start, stop), all before any reader looks: BATCH_OK, NO_MEMORY, or
        the code of a wrong record; then those before it are applied, which may be done again. Needs the mutex."""
        cdef RecordView records[TOGETHER]
        cdef uint64_t hashes[TOGETHER]
        cdef uint64_t second
        cdef RecordView* record
        cdef Entry* entry
        cdef int code = 1
        cdef int count
        cdef int i
        while code == 1:
            count = 0
            while count < TOGETHER:
                record = &records[count]
                code = next_record(c, record)
                if code != 1:
                    break
                if record.offset < start or record.key_length < 0:
                    continue
                if record.offset >= stop:
                    code = BATCH_OK
                    break
                siphash(self.secret, record.key, record.key_length, &hashes[count], &second)
                prefetch(&self.slots[hashes[count] & self.mask])
                count += 1
            for i in range(count):
                entry = self.slots[hashes[i] & self.mask].entry
                if entry != NULL:  # its header, key, and the begin of a value of the usual size
                    prefetch(entry)
                    prefetch(<uint8_t*> entry + 64)
                    prefetch(<uint8_t*> entry + 128)
            for i in range(count):
                if self.put(&records[i], hashes[i], partition) != BATCH_OK:
                    return NO_MEMORY
        return code

    cdef int put(self, const RecordView* record, uint64_t hash, int32_t partition) noexcept nogil:
        """The record is the newest of its key in this partition, unless one that is newer has been applied before."""
        cdef uint64_t i = hash & self.mask
        cdef uint64_t found = self.mask + 1
        cdef Entry* entry
        cdef bint shared = False
        cdef TableSlot fresh
        while True:
            entry = self.slots[i].entry
            if entry == NULL:
                break
            if self.slots[i].hash == hash and entry.key_length == record.key_length and (
                memcmp(key_of(entry), record.key, record.key_length) == 0
            ):
                if likely(entry.partition == partition):
                    found = i
                    if likely(record.value_length >= 0):
                        break
                else:
                    shared = True
            i = (i + 1) & self.mask
        if found <= self.mask:
            if self.slots[found].entry.offset > record.offset:
                return BATCH_OK
            if record.value_length < 0:
                self.remove_at(found, shared)
                return BATCH_OK
            return self.replace(&self.slots[found], record)
        if record.value_length < 0:
            return BATCH_OK
        fresh.hash = hash
        fresh.entry = NULL
        if self.replace(&fresh, record) != BATCH_OK:
            return NO_MEMORY
        fresh.entry.partition = partition
        self.slots[i] = fresh
        self.entries += 1
        if not shared:
            self.keys += 1
        if <uint64_t> self.entries > (self.mask >> 2) * 3:
            return self.grow()
        return BATCH_OK

    cdef int replace(self, TableSlot* slot, const RecordView* record) noexcept nogil:
        """Have the record in the slot's entry; in a new one if there is none or it has no room."""
        cdef Entry* entry = slot.entry
        cdef Py_ssize_t needed = record.key_length + record.value_length
        cdef int64_t before = 0
        if entry != NULL:
            before = entry.key_length + entry.value_length
        if entry == NULL or needed > entry.room or needed < entry.room >> 1:
            entry = <Entry*> malloc(sizeof(Entry) + needed)
            if entry == NULL:
                return NO_MEMORY
            entry.room = <int32_t> needed
            entry.key_length = <int32_t> record.key_length
            memcpy(key_of(entry), record.key, record.key_length)
            if slot.entry != NULL:
                entry.partition = slot.entry.partition
                free(slot.entry)
            slot.entry = entry
        entry.value_length = <int32_t> record.value_length
        memcpy(value_of(entry), record.value, record.value_length)
        entry.offset = record.offset
        entry.timestamp = record.timestamp
        self.nbytes += needed - before
        return BATCH_OK

    cdef void remove_at(self, uint64_t i, bint shared) noexcept nogil:
        """Empty a slot. shared: other partitions have the key."""
        cdef uint64_t j = i
        cdef uint64_t home
        cdef Entry* entry = self.slots[i].entry
        self.nbytes -= entry.key_length + entry.value_length
        self.entries -= 1
        if not shared:
            self.keys -= 1
        free(entry)
        while True:
            self.slots[i].entry = NULL
            while True:
                j = (j + 1) & self.mask
                if self.slots[j].entry == NULL:
                    return
                home = self.slots[j].hash & self.mask
                if not (i < home <= j if i <= j else i < home or home <= j):
                    break  # its run began at the empty slot, or before
            self.slots[i] = self.slots[j]
            i = j

    cdef int grow(self) noexcept nogil:
        """Twice the slots. Entries, which are anywhere in memory, are not looked at."""
        cdef uint64_t size = 2 * (self.mask + 1)
        cdef uint64_t i
        cdef uint64_t j
        cdef TableSlot* slots = <TableSlot*> calloc(size, sizeof(TableSlot))
        if slots == NULL:
            return NO_MEMORY
        for i in range(self.mask + 1):
            if self.slots[i].entry != NULL:
                j = self.slots[i].hash & (size - 1)
                while slots[j].entry != NULL:
                    j = (j + 1) & (size - 1)
                slots[j] = self.slots[i]
        free(self.slots)
        self.slots = slots
        self.mask = size - 1
        return BATCH_OK

    cdef int forget(self, int32_t partition, int64_t below) noexcept nogil:
        """Have new slots, without the entries of `partition` at offsets under `below`."""
        cdef TableSlot* before = self.slots
        cdef uint64_t i
        cdef uint64_t j
        cdef Entry* entry
        cdef bint shared
        cdef TableSlot* slots = <TableSlot*> calloc(self.mask + 1, sizeof(TableSlot))
        if slots == NULL:
            return NO_MEMORY
        self.slots = slots
        self.entries = self.keys = self.nbytes = 0
        for i in range(self.mask + 1):
            entry = before[i].entry
            if entry == NULL:
                continue
            if entry.partition == partition and entry.offset < below:
                free(entry)
                continue
            j = before[i].hash & self.mask
            shared = False
            while slots[j].entry != NULL:
                if slots[j].hash == before[i].hash and slots[j].entry.key_length == entry.key_length:
                    shared |= memcmp(key_of(slots[j].entry), key_of(entry), entry.key_length) == 0
                j = (j + 1) & self.mask
            slots[j] = before[i]
            self.entries += 1
            self.nbytes += entry.key_length + entry.value_length
            if not shared:
                self.keys += 1
        free(before)
        return BATCH_OK

    def drop(self, int32_t partition, int64_t below=INT64_MAX):
        """Forget the entries of a partition at offsets under `below`. Raises ResourceExhaustedError: none is gone."""
        cdef int code
        self.lock()
        with nogil:
            code = self.forget(partition, below)
            mutex_unlock(&self.mutex)
        if code != BATCH_OK:
            self.refuse()

    # As bytes: offset 8, timestamp 8, partition 4, key length 4, value length 4, key, value; big-endian

    def encode(self, slot, size):
        """The entries from `slot` on as about `size` bytes, and the slot to go on at, None at the end."""
        cdef uint64_t i = slot
        cdef Py_ssize_t wanted = size
        cdef Py_ssize_t length = 0
        cdef uint64_t first = i
        cdef uint8_t* p
        cdef Entry* entry
        self.lock()
        try:
            while i <= self.mask and length < wanted:
                entry = self.slots[i].entry
                if entry != NULL:
                    length += ENTRY_HEADER + entry.key_length + entry.value_length
                i += 1
            data = PyBytes_FromStringAndSize(NULL, length)
            p = <uint8_t*> PyBytes_AS_STRING(data)
            for first in range(first, i):
                entry = self.slots[first].entry
                if entry != NULL:
                    store64(p, <uint64_t> entry.offset)
                    store64(p + 8, <uint64_t> entry.timestamp)
                    store32(p + 16, <uint32_t> entry.partition)
                    store32(p + 20, <uint32_t> entry.key_length)
                    store32(p + 24, <uint32_t> entry.value_length)
                    memcpy(p + ENTRY_HEADER, key_of(entry), entry.key_length + entry.value_length)
                    p += ENTRY_HEADER + entry.key_length + entry.value_length
            return data, i if i <= self.mask else None
        finally:
            mutex_unlock(&self.mutex)

    def decode(self, buffer, entries):
        """Add as many entries as are in `buffer`; False, and the table is empty, where they do not fill it.

        Raises ResourceExhaustedError: the table is empty."""
        cdef const uint8_t[::1] view = memoryview(buffer).cast("B")
        cdef Py_ssize_t size = view.shape[0]
        cdef int64_t wanted = min(entries, size + 1)  # no entry is smaller than a byte
        cdef const uint8_t* start = &view[0] if size else NULL
        cdef int code
        self.lock()
        with nogil:
            code = self.decode_entries(start, size, wanted)
            if code != BATCH_OK:
                self.clear()
            mutex_unlock(&self.mutex)
        if code == NO_MEMORY:
            self.refuse()
        return code == BATCH_OK

    cdef int decode_entries(self, const uint8_t* p, Py_ssize_t left, int64_t wanted) noexcept nogil:
        cdef RecordView record
        cdef uint64_t hash
        cdef uint64_t second
        cdef int64_t count = 0
        while left >= ENTRY_HEADER:
            record.offset = <int64_t> load64(p)
            record.timestamp = <int64_t> load64(p + 8)
            record.key_length = <int32_t> load32(p + 20)
            record.value_length = <int32_t> load32(p + 24)
            if record.key_length < 0 or record.value_length < 0 or (
                record.key_length + record.value_length > left - ENTRY_HEADER
            ):
                return WRONG_LENGTHS
            record.key = p + ENTRY_HEADER
            record.value = record.key + record.key_length
            siphash(self.secret, record.key, record.key_length, &hash, &second)
            if self.put(&record, hash, <int32_t> load32(p + 16)) != BATCH_OK:
                return NO_MEMORY
            p += ENTRY_HEADER + record.key_length + record.value_length
            left -= ENTRY_HEADER + record.key_length + record.value_length
            count += 1
        return BATCH_OK if left == 0 and count == wanted else WRONG_LENGTHS

    cdef void clear(self) noexcept nogil:
        cdef uint64_t i
        for i in range(self.mask + 1):
            free(self.slots[i].entry)
            self.slots[i].entry = NULL
        self.entries = self.keys = self.nbytes = 0

    # Reading

    cdef Entry* newest(self, const uint8_t* key, Py_ssize_t length) noexcept nogil:
        """The newest entry of a key among all partitions; NULL for none. Needs the mutex."""
        cdef uint64_t hash
        cdef uint64_t second
        cdef uint64_t i
        cdef Entry* entry
        cdef Entry* found = NULL
        siphash(self.secret, key, length, &hash, &second)
        i = hash & self.mask
        while True:
            entry = self.slots[i].entry
            if entry == NULL:
                return found
            if self.slots[i].hash == hash and entry.key_length == length and (
                memcmp(key_of(entry), key, length) == 0
            ) and (
                found == NULL or entry.timestamp > found.timestamp
                or (entry.timestamp == found.timestamp and entry.partition > found.partition)
            ):
                found = entry
                if likely(self.keys == self.entries):
                    return found
            i = (i + 1) & self.mask

    def __len__(self):
        """Distinct keys."""
        return self.keys

    def get(self, key):
        """(partition, offset, timestamp_ms, key, value) of the newest record of a key; None for none.

        Raises ArgumentTypeError."""
        cdef bytes wanted = key if PyBytes_CheckExact(key) else as_bytes(key)
        cdef Entry* entry
        self.lock()
        try:
            entry = self.newest(<const uint8_t*> PyBytes_AS_STRING(wanted), PyBytes_GET_SIZE(wanted))
            return None if entry == NULL else as_tuple(entry)
        finally:
            mutex_unlock(&self.mutex)

    def get_value(self, key):
        """The newest value of a key; None for none. Raises ArgumentTypeError."""
        cdef bytes wanted = key if PyBytes_CheckExact(key) else as_bytes(key)
        cdef Entry* entry
        self.lock()
        try:
            entry = self.newest(<const uint8_t*> PyBytes_AS_STRING(wanted), PyBytes_GET_SIZE(wanted))
            if entry == NULL:
                return None
            return PyBytes_FromStringAndSize(<const char*> value_of(entry), entry.value_length)
        finally:
            mutex_unlock(&self.mutex)

    def records(self, prefix=b""):
        """What `get` returns, of all keys that begin with `prefix` at one moment, in no order; raises as that."""
        cdef bytes wanted = as_bytes(prefix)
        cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(wanted)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(wanted)
        cdef list found = []
        cdef Entry* entry
        cdef uint64_t i
        self.lock()
        try:
            for i in range(self.mask + 1):
                entry = self.slots[i].entry
                if entry == NULL or entry.key_length < length or memcmp(key_of(entry), start, length) != 0:
                    continue
                if self.keys == self.entries or self.newest(key_of(entry), entry.key_length) == entry:
                    found.append(as_tuple(entry))
            return found
        finally:
            mutex_unlock(&self.mutex)


cdef tuple as_tuple(Entry* entry):
    return (
        entry.partition,
        entry.offset,
        entry.timestamp,
        PyBytes_FromStringAndSize(<const char*> key_of(entry), entry.key_length),
        PyBytes_FromStringAndSize(<const char*> value_of(entry), entry.value_length),
    )
