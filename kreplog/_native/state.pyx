"""The published state of a log: from its writer to readers in other processes, and to recovery after a crash.

Kafka's checkpoint files are written rarely and have no checksum. This one is a mapped page: publishing is a few
stores, a reader sees the high watermark advance at once, and a checksum detects a torn or damaged slot.
"""

cimport cython
from libc.errno cimport errno
from libc.limits cimport INT_MAX
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.stat cimport fstat, stat, struct_stat
from posix.unistd cimport getpid

from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.files cimport FileHandle, open_file, storage_error

import os

from kreplog.errors import PartitionDeletedError, StorageError

STATE_NAME = "kreplog.state"

cdef extern from *:
    """
    #define kreplog_release() __atomic_thread_fence(__ATOMIC_RELEASE)
    #define kreplog_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    """
    void kreplog_release() noexcept nogil
    void kreplog_acquire() noexcept nogil

cdef extern from "wake_impl.h" nogil:
    bint kreplog_is_wake_due(const uint8_t* page, int64_t high_watermark) noexcept
    void kreplog_wake(uint8_t* page, int count) noexcept

cdef enum:
    STATE_SIZE = 4096
    FIRST_SLOT = 128
    SLOT_STRIDE = 128
    BULK_APPEND = 384
    UNSTABLE = 448
    INCARNATION = 512
    SESSION = 640
    CHANGES = 704
    CHANGES_KEPT = 16
    BOOT = 1152
    BOOT_BYTES = 36
    CHANGE_CHECKED = sizeof(Change) - 4
    CHECKED = sizeof(Position) - 4

cdef const char* MAGIC = b"KREPLOG1"


@cython.final
cdef class StateFile:

    def __cinit__(self):
        self.data = NULL
        self.shared = NULL

    def __dealloc__(self):
        if self.shared != NULL and self.shared != self.data:
            munmap(self.shared, STATE_SIZE)
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

    cdef void publish_unstable(self, int64_t offset) noexcept nogil:
        """Publish the first unstable offset, INT64_MAX for none."""
        cdef uint64_t word = 0 if offset == INT64_MAX else <uint64_t> offset + 1
        cdef uint64_t check = 0 if word == 0 else ~word
        kreplog_release()
        memcpy(self.data + UNSTABLE, &word, 8)
        memcpy(self.data + UNSTABLE + 8, &check, 8)

    cdef int64_t first_unstable(self) noexcept nogil:
        """INT64_MAX for none; 0, so that nothing is taken for stable, where it is damaged."""
        cdef uint64_t word
        cdef uint64_t check
        cdef int _attempt
        for _attempt in range(1000):  # the writer may be between the two
            memcpy(&word, self.data + UNSTABLE, 8)
            memcpy(&check, self.data + UNSTABLE + 8, 8)
            kreplog_acquire()
            if word == 0 and check == 0:
                return INT64_MAX
            if word != 0 and check == ~word:
                return <int64_t> (word - 1)
        return 0

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

    cdef Session session(self) noexcept nogil:
        """The writer's session; SESSION_UNKNOWN for none, or a damaged one."""
        cdef Session session
        cdef int _attempt
        for _attempt in range(3):  # it may just be written
            memcpy(&session, self.data + SESSION, sizeof(Session))
            if session.number and session.crc == crc32c_update(0, <const uint8_t*> &session, 12):
                return session
        session.number = 0
        session.flags = SESSION_UNKNOWN
        return session

    cdef void begin_session(self, uint32_t lock) noexcept nogil:
        """The next session, of this writer. lock: the flag of the lock that the writer holds, 0 for none."""
        cdef Session session = self.session()
        cdef uint32_t died = AFTER_DEATH if session.flags & SESSION_OPEN else 0
        self.write_session(session.number + 1, SESSION_OPEN | died | lock)
        self.wake_all()

    cdef void end_session(self) noexcept nogil:
        """The writer closes the log, and all that it published is there."""
        kreplog_release()
        self.write_session(self.session().number, SESSION_CLOSED)
        self.wake_all()

    cdef void write_session(self, uint64_t number, uint32_t flags) noexcept nogil:
        cdef Session session
        session.number = number if number else 1
        session.flags = flags
        session.crc = crc32c_update(0, <const uint8_t*> &session, 12)
        memcpy(self.data + SESSION, &session, sizeof(Session))

    cdef void note_truncation(self, int64_t generation, int64_t end) noexcept nogil:
        """Before it is published: a truncation to `end`, after which the generation is `generation`."""
        cdef Change change
        change.generation, change.end, change.swaps = generation, end, 0
        self.write_change(&change)

    cdef void note_swap(self, int64_t generation) noexcept nogil:
        """Before it is published: compaction replaces segments, after which the generation is `generation`."""
        cdef Change before
        cdef Change change
        change.generation, change.end, change.swaps = generation, INT64_MAX, 1
        if self.read_change(generation - 2, &before):
            change.swaps += before.swaps
        self.write_change(&change)

    cdef void write_change(self, Change* change) noexcept nogil:
        change.crc = crc32c_update(0, <const uint8_t*> change, CHANGE_CHECKED)
        memcpy(self.data + place_of_change(change.generation), change, sizeof(Change))

    cdef bint is_of_boot(self, bytes id) noexcept:
        """Whether the log was last opened for writing in this boot; False where that is unknown."""
        return len(id) == BOOT_BYTES and memcmp(self.data + BOOT, <const char*> id, BOOT_BYTES) == 0

    cdef void set_boot(self, bytes id) noexcept:
        """id: of this boot; empty where it is unknown."""
        cdef bytes whole = id[:BOOT_BYTES].ljust(BOOT_BYTES, b"\0")
        memcpy(self.data + BOOT, <const char*> whole, BOOT_BYTES)

    cdef bint read_change(self, int64_t generation, Change* change) noexcept nogil:
        """The change to `generation`; False if it is not known."""
        memcpy(change, self.data + place_of_change(generation), sizeof(Change))
        return change.generation == generation and change.crc == crc32c_update(
            0, <const uint8_t*> change, CHANGE_CHECKED
        )

    cdef int64_t lowest_truncation(self, int64_t since, int64_t generation) noexcept nogil:
        """The lowest log end offset of the truncations after generation `since`, up to `generation`; -1 if one of them
        is not known."""
        cdef Change change
        cdef int64_t lowest = INT64_MAX
        cdef int64_t at = (generation + 1) & ~<int64_t> 1
        if generation < since:
            return -1
        while at > since:
            if self.read_change(at, &change):
                lowest = min(lowest, change.end)
                at -= 2 * max(<int64_t> change.swaps, <int64_t> 1)
            elif at > generation:  # is under way, and nothing of it visible
                at -= 2
            else:
                return -1
        return lowest

    cdef void wake_at(self, int64_t high_watermark) noexcept:
        """For a writer that has just let go of its lock: wake a reader if the high watermark has what one waits for."""
        if kreplog_is_wake_due(self.data, high_watermark):
            kreplog_wake(self.data, 1)

    cdef void wake_all(self) noexcept nogil:
        """For a writer: wake all readers that wait, whatever they wait for."""
        kreplog_wake(self.data, INT_MAX)

    cdef uint8_t* page_to_wait_on(self) except? NULL:
        """The page with the wake word for a reader that waits; NULL if this process may not write to the file."""
        cdef FileHandle file
        cdef struct_stat status
        cdef void* page
        if self.tried_to_share:
            return self.shared
        self.tried_to_share = True
        try:
            file = open_file(self.path, O_RDWR)
        except (FileNotFoundError, StorageError):
            return NULL
        if fstat(file.fd, &status) != 0 or status.st_dev != self.device or status.st_ino != self.inode:
            return NULL
        page = mmap(NULL, STATE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0)
        if page != MAP_FAILED:
            self.shared = <uint8_t*> page
        return self.shared


cdef int64_t place_of_change(int64_t generation) noexcept nogil:
    return CHANGES + (generation >> 1) % CHANGES_KEPT * <int64_t> sizeof(Change)


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
        state.shared = state.data
        state.tried_to_share = True
        pid = getpid()
        memcpy(state.data, MAGIC, 8)
        memcpy(state.data + 8, &pid, 4)
        crc = crc32c_update(0, state.data, 12)
        memcpy(state.data + 12, &crc, 4)
    elif memcmp(state.data, MAGIC, 8) != 0:
        return None
    return state
