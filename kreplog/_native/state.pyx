"""The published state of a log: from its writer to readers in other processes, and to recovery after a crash.

Kafka's checkpoint files are written rarely and have no checksum. This one is a mapped page: publishing is a few
stores, a reader sees the high watermark advance at once, and a checksum detects a torn or damaged slot.
"""

cimport cython
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.stat cimport fstat, stat, struct_stat
from posix.unistd cimport getpid

from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.files cimport FileHandle, open_file, storage_error

import os

from kreplog.errors import PartitionDeletedError

STATE_NAME = "kreplog.state"

cdef extern from *:
    """
    #define kreplog_release() __atomic_thread_fence(__ATOMIC_RELEASE)
    #define kreplog_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    """
    void kreplog_release() noexcept nogil
    void kreplog_acquire() noexcept nogil

cdef enum:
    STATE_SIZE = 4096
    FIRST_SLOT = 128
    SLOT_STRIDE = 128
    BULK_APPEND = 384
    INCARNATION = 512
    CHECKED = sizeof(Position) - 4

cdef const char* MAGIC = b"KREPLOG1"


@cython.final
cdef class StateFile:

    def __cinit__(self):
        self.data = NULL

    def __dealloc__(self):
        if self.data != NULL:
            munmap(self.data, STATE_SIZE)

    cdef void publish(self, Position* position) noexcept nogil:
        """Write `position` into the older slot, numbering it one up."""
        position.sequence += 1
        position.crc = crc32c_update(0, <const uint8_t*> position, CHECKED)
        kreplog_release()  # the bytes it speaks of come first
        memcpy(self.data + FIRST_SLOT + (position.sequence & 1) * SLOT_STRIDE, position, sizeof(Position))

    cdef bint read(self, Position* out) noexcept nogil:
        """The newest whole slot, never one older than was read before; False when there is none."""
        cdef Position slot
        cdef bint found = False
        cdef int _attempt
        cdef int i
        for _attempt in range(100):
            for i in range(2):
                memcpy(&slot, self.data + FIRST_SLOT + i * SLOT_STRIDE, sizeof(Position))
                if slot.sequence == 0 or crc32c_update(0, <const uint8_t*> &slot, CHECKED) != slot.crc:
                    continue
                if not found or slot.sequence > out.sequence:
                    out[0] = slot
                    found = True
            if found and out.sequence >= self.seen:
                kreplog_acquire()
                self.seen = out.sequence
                return True
        return False

    cdef int writer_pid(self) noexcept:
        """The pid of the last writer, 0 when unknown."""
        cdef int pid = 0
        cdef uint32_t crc = 0
        memcpy(&crc, self.data + 12, 4)
        if memcmp(self.data, MAGIC, 8) == 0 and crc == crc32c_update(0, self.data, 12):
            memcpy(&pid, self.data + 8, 4)
        return pid

    cdef int sync(self) except -1:
        return open_file(self.path, O_RDONLY).sync()

    cdef void mark_bulk_append(self, int64_t start, bint under_way) noexcept nogil:
        """Record where a bulk append begins, or that it has ended; durable after `sync`."""
        cdef uint8_t mark[16]
        cdef uint32_t flag = under_way
        cdef uint32_t crc
        memcpy(mark, &start, 8)
        memcpy(mark + 8, &flag, 4)
        crc = crc32c_update(0, mark, 12)
        memcpy(mark + 12, &crc, 4)
        memcpy(self.data + BULK_APPEND, mark, 16)

    cdef int64_t bulk_append_start(self) noexcept nogil:
        """The first offset of the bulk append under way, -1 for none."""
        cdef int64_t start
        cdef uint32_t flag
        cdef uint32_t crc
        memcpy(&start, self.data + BULK_APPEND, 8)
        memcpy(&flag, self.data + BULK_APPEND + 8, 4)
        memcpy(&crc, self.data + BULK_APPEND + 12, 4)
        if flag != 1 or start < 0 or crc != crc32c_update(0, self.data + BULK_APPEND, 12):
            return -1
        return start

    cdef void set_incarnation(self, uint64_t incarnation) noexcept nogil:
        cdef uint32_t crc
        memcpy(self.data + INCARNATION, &incarnation, 8)
        crc = crc32c_update(0, self.data + INCARNATION, 8)
        memcpy(self.data + INCARNATION + 8, &crc, 4)

    cdef uint64_t incarnation(self) noexcept nogil:
        """0 for none, or a damaged one."""
        cdef uint64_t incarnation
        cdef uint32_t crc
        memcpy(&incarnation, self.data + INCARNATION, 8)
        memcpy(&crc, self.data + INCARNATION + 8, 4)
        return incarnation if crc == crc32c_update(0, self.data + INCARNATION, 8) else 0

    cdef int require_at_path(self, str partition) except -1:
        """Raise PartitionDeletedError unless the path names the file that is mapped; no other gets its inode meanwhile.
        """
        cdef struct_stat status
        cdef bytes name = os.fsencode(self.path)
        cdef bint found = stat(name, &status) == 0
        if not found or status.st_dev != self.device or status.st_ino != self.inode:
            raise_deleted(partition, os.path.dirname(self.path), found)
        return 0


def raise_deleted(str partition, str path, bint recreated):
    """Raise PartitionDeletedError for the directory `path`."""
    raise PartitionDeletedError(
        f"{partition}: {path} was deleted{' and created again' if recreated else ''} since this log was opened: open "
        "it again", partition=partition, path=path,
    )


cdef StateFile open_state(str path, bint writable):
    """Open the state file; a writer creates it where it is missing or too short, and signs it with its pid.

    Returns None to a reader when there is none. Raises StorageError.
    """
    cdef StateFile state = StateFile.__new__(StateFile)
    cdef FileHandle file
    cdef struct_stat status
    cdef uint8_t blank[STATE_SIZE]
    cdef int64_t size
    cdef int pid
    cdef uint32_t crc
    try:
        file = open_file(path, O_RDWR | O_CREAT if writable else O_RDONLY)
    except FileNotFoundError:
        if writable:
            raise
        return None
    state.path = path
    if fstat(file.fd, &status) != 0:
        raise storage_error("cannot stat", path, errno)
    state.device, state.inode = status.st_dev, status.st_ino
    size = status.st_size
    if size < STATE_SIZE:
        if not writable:
            return None
        for pid in range(STATE_SIZE):
            blank[pid] = 0
        file.write_at(blank, STATE_SIZE - size, size)
    state.data = <uint8_t*> mmap(
        NULL, STATE_SIZE, PROT_READ | PROT_WRITE if writable else PROT_READ, MAP_SHARED, file.fd, 0
    )
    if state.data == <uint8_t*> MAP_FAILED:
        state.data = NULL
        raise storage_error("cannot map", path, errno)
    if writable:
        pid = getpid()
        memcpy(state.data, MAGIC, 8)
        memcpy(state.data + 8, &pid, 4)
        crc = crc32c_update(0, state.data, 12)
        memcpy(state.data + 12, &crc, 4)
    elif memcmp(state.data, MAGIC, 8) != 0:
        return None
    return state
