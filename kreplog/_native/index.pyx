"""OffsetIndex and TimeIndex: sparse entries from offsets and timestamps to positions in a segment.

An index is only an optimization: each use of an entry checks it against the batch it points at, and a file that is
missing, torn or out of order is rebuilt from the log by the segment. A growing index lives on the heap and reaches its
file a page at a time; a sealed one is mapped, unless a Kafka broker may write here: it cuts its files when it rolls.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_CREAT, O_RDONLY, O_TRUNC, O_WRONLY

from kreplog._native.cursor cimport load32, load64, store32, store64
from kreplog._native.files cimport map_file, open_file

import os

from kreplog.errors import ResourceExhaustedError

cdef enum:
    SAVE_EVERY = 512  # entries between two writes of a growing index


cdef Py_ssize_t last_entry(const uint8_t* field, int entry_size, Py_ssize_t count, int64_t value) noexcept nogil:
    """The last of `count` rising entries whose number at `field` is at most `value`, -1 when none.

    The number has 32 bits in entries of 8 bytes, 64 in those of 12.
    """
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = count
    cdef Py_ssize_t middle
    cdef int64_t found
    while low < high:
        middle = (low + high) >> 1
        if entry_size == 8:
            found = <int32_t> load32(field + middle * 8)
        else:
            found = <int64_t> load64(field + middle * 12)
        if found <= value:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef class SparseIndex:

    def __cinit__(self):
        self.heap = NULL
        self.data = NULL

    def __dealloc__(self):
        free(self.heap)

    cdef void clear(self) noexcept:
        self.count = 0
        self.saved = 0
        self.mapping = None
        self.data = self.heap

    cdef uint8_t* grow(self) except NULL:
        """Room for one more entry on the heap."""
        cdef uint8_t* grown
        cdef Py_ssize_t capacity
        if self.data != self.heap or self.count == self.capacity:
            capacity = 64 if self.count < 32 else self.count * 2
            grown = <uint8_t*> realloc(self.heap, capacity * self.entry_size)
            if grown == NULL:
                raise MemoryError()
            if self.data != self.heap and self.count:
                memcpy(grown, self.data, self.count * self.entry_size)
            self.heap = grown
            self.data = grown
            self.capacity = capacity
            self.mapping = None
        return self.heap + self.count * self.entry_size

    cdef int load(self, bint mappable) except -1:
        """Map the file, or copy it. A preallocated tail of zeros, as a running Kafka leaves it, does not count.

        Raises FileNotFoundError, StorageError. Torn or unsorted entries are found by `sorted` and by use.
        """
        cdef FileHandle file = open_file(self.path, O_RDONLY)
        cdef int64_t size = file.size()
        cdef uint8_t* grown
        cdef Py_ssize_t i
        self.clear()
        self.count = size // self.entry_size
        if not mappable:
            self.capacity = self.filled(file, self.count)
            self.count = 0
            grown = <uint8_t*> realloc(self.heap, max(self.capacity, 1) * self.entry_size)
            if grown == NULL:
                raise MemoryError()
            self.heap = grown
            self.data = grown
            self.count = file.read_at(grown, self.capacity * self.entry_size, 0) // self.entry_size
        elif self.count:
            self.mapping = map_file(file, self.count * self.entry_size)
            self.data = self.mapping.data
            while self.count:
                for i in range(self.entry_size):
                    if self.data[(self.count - 1) * self.entry_size + i]:
                        break
                else:
                    self.count -= 1
                    continue
                break
        self.saved = self.count
        return 0

    cdef Py_ssize_t filled(self, FileHandle file, Py_ssize_t count) except -1:
        """How many of `count` entries stand before the tail of zeros, if it has one; what is cut off meanwhile is."""
        cdef uint8_t entry[12]
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = count
        cdef Py_ssize_t middle = count - 1
        cdef Py_ssize_t i
        while low < high:
            memset(entry, 0, 12)
            file.read_at(entry, self.entry_size, middle * self.entry_size)
            for i in range(self.entry_size):
                if entry[i]:
                    low = middle + 1
                    break
            else:
                high = middle
            middle = (low + high) >> 1
        return low

    cdef int save(self) except -1:
        """Write the entries the file does not hold yet. Raises StorageError."""
        cdef int64_t start = self.saved * self.entry_size
        if self.saved == self.count:
            return 0
        open_file(self.path, O_WRONLY | O_CREAT).write_at(
            self.heap + start, (self.count - self.saved) * self.entry_size, start
        )
        self.saved = self.count
        return 0

    cdef int save_if_possible(self) except -1:
        """As `save`; without a descriptor it waits for the next entry, or the segment's end."""
        try:
            self.save()
        except ResourceExhaustedError:
            pass
        return 0

    cdef int rewrite(self) except -1:
        """Replace the file by the entries held. Readers that mapped the old one keep it. Raises StorageError."""
        cdef str temporary = self.path + ".tmp"
        cdef FileHandle file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC)
        file.write_at(self.data, self.count * self.entry_size, 0)
        os.replace(temporary, self.path)
        self.saved = self.count
        return 0

    cdef int keep(self, Py_ssize_t count) except -1:
        """Drop all entries from `count` on, here and in the file."""
        if count < self.count:
            self.count = count
            if self.saved > count:
                self.rewrite()
        return 0

    cdef bint sorted(self) noexcept:
        return True


@cython.final
cdef class OffsetIndex(SparseIndex):

    def __init__(self, str path):
        self.path = path
        self.entry_size = 8

    cdef int32_t offset_at(self, Py_ssize_t i) noexcept:
        return <int32_t> load32(self.data + i * 8)

    cdef int32_t position_at(self, Py_ssize_t i) noexcept:
        return <int32_t> load32(self.data + i * 8 + 4)

    cdef int push(self, int32_t relative_offset, int32_t position) except -1:
        cdef uint8_t* p = self.grow()
        store32(p, <unsigned int> relative_offset)
        store32(p + 4, <unsigned int> position)
        self.count += 1
        if self.count - self.saved >= SAVE_EVERY:
            self.save_if_possible()
        return 0

    cdef Py_ssize_t floor_offset(self, int64_t relative_offset) noexcept:
        """The last entry at or below the offset, -1 for none."""
        return last_entry(self.data, 8, self.count, relative_offset)

    cdef Py_ssize_t floor_position(self, int64_t position) noexcept:
        """The last entry at or before the position, -1 when none."""
        return last_entry(self.data + 4, 8, self.count, position)

    cdef bint sorted(self) noexcept:
        cdef Py_ssize_t i
        if self.count and (self.offset_at(0) < 0 or self.position_at(0) < 0):
            return False
        for i in range(1, self.count):
            if self.offset_at(i) <= self.offset_at(i - 1) or self.position_at(i) <= self.position_at(i - 1):
                return False
        return True


@cython.final
cdef class TimeIndex(SparseIndex):

    def __init__(self, str path):
        self.path = path
        self.entry_size = 12

    cdef int64_t timestamp_at(self, Py_ssize_t i) noexcept:
        return <int64_t> load64(self.data + i * 12)

    cdef int32_t offset_at(self, Py_ssize_t i) noexcept:
        return <int32_t> load32(self.data + i * 12 + 8)

    cdef int push(self, int64_t timestamp, int32_t relative_offset) except -1:
        """Kafka's maybeAppend: only a larger timestamp makes a new entry."""
        cdef uint8_t* p
        if self.count and self.timestamp_at(self.count - 1) >= timestamp:
            return 0
        p = self.grow()
        store64(p, <unsigned long long> timestamp)
        store32(p + 8, <unsigned int> relative_offset)
        self.count += 1
        if self.count - self.saved >= SAVE_EVERY:
            self.save_if_possible()
        return 0

    cdef Py_ssize_t floor_timestamp(self, int64_t timestamp) noexcept:
        """The last entry whose timestamp is below the one given, -1 when none."""
        return last_entry(self.data, 12, self.count, timestamp - 1)

    cdef bint sorted(self) noexcept:
        cdef Py_ssize_t i
        for i in range(1, self.count):
            if self.timestamp_at(i) <= self.timestamp_at(i - 1) or self.offset_at(i) < self.offset_at(i - 1):
                return False
        return True
