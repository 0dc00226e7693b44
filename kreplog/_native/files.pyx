"""Open files and read-only mappings, freed with the last reference.

Every system call that can block runs without the GIL, is repeated after EINTR, and raises its errno as a StorageError
with the file's name: a DiskFullError or ResourceExhaustedError if the disk has not failed. A failed fsync is reported
once and never repeated: the second could succeed although the data are lost. So it is a plain StorageError whatever
its errno: after ENOSPC the unwritten bytes are lost, even if there is space again.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.errno cimport (
    EDQUOT,
    EEXIST,
    EINTR,
    EINVAL,
    EIO,
    EMFILE,
    ENFILE,
    ENOMEM,
    ENOSPC,
    ENOSYS,
    EOPNOTSUPP,
    errno,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from posix.fcntl cimport O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_TRUNC, open as c_open
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.stat cimport fchmod, fstat, stat, struct_stat
from posix.types cimport mode_t
from posix.unistd cimport close as c_close, ftruncate, pread, pwrite

import grp
import os

from kreplog.errors import DiskFullError, ResourceExhaustedError, StorageError, UsageError

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <stdint.h>
    #include <unistd.h>
    #include <sys/file.h>
    #include <sys/mman.h>
    static int kreplog_sync(int fd) {
    #if defined(__APPLE__)
        return fcntl(fd, F_FULLFSYNC);
    #else
        return fdatasync(fd);
    #endif
    }
    static int kreplog_sync_file_system(int fd) {
    #if defined(__linux__)
        return syncfs(fd);
    #else
        sync();
        return fcntl(fd, F_FULLFSYNC);
    #endif
    }
    #if defined(__linux__)
    #include <sys/statfs.h>
    static int kreplog_file_system(const char* path, uint32_t* type) {
        struct statfs found;
        int result = statfs(path, &found);
        *type = result == 0 ? (uint32_t) found.f_type : 0;
        return result;
    }
    #else
    static int kreplog_file_system(const char* path, uint32_t* type) {
        *type = 0;
        return 0;
    }
    #endif
    static void kreplog_unlock(int fd) {
        flock(fd, LOCK_UN);
    #if defined(F_OFD_SETLK)
        struct flock lock = {0};
        lock.l_type = F_UNLCK;
        lock.l_whence = SEEK_SET;
        fcntl(fd, F_OFD_SETLK, &lock);
    #endif
    }
    /* 0 or an errno. Only where the kernel reserves blocks itself: a library's imitation would write every byte. */
    static int kreplog_allocate(int fd, int64_t start, int64_t length) {
    #if defined(__linux__)
        int failed;
        do {
            failed = fallocate(fd, 0, start, length) != 0;
        } while (failed && errno == EINTR);
        return failed ? errno : 0;
    #else
        (void) fd; (void) start; (void) length;
        return EOPNOTSUPP;
    #endif
    }
    /* Fault a range of a mapping in. With a touched page Linux maps the 64 KiB around it, as far as they are cached:
       that costs half of MADV_POPULATE_READ, which looks at every page, and hinders other threads less. Where a kernel
       maps one page at a time the rest come on first use. */
    static void kreplog_populate(const uint8_t* data, size_t start, size_t stop) {
        const uintptr_t around = 64 << 10, end = (uintptr_t) data + stop;
        for (uintptr_t at = (uintptr_t) data + start; at < end; at = (at & ~(around - 1)) + around)
            (void) *(const volatile uint8_t*) at;
    }
    /* Unmap the pages of [start, stop) in a mapping of [first, end), with those that the kernel maps around them on a
       fault. They stay in the page cache, and whoever touches them has them mapped again. */
    static void kreplog_leave(const uint8_t* start, const uint8_t* stop, const uint8_t* first, const uint8_t* end) {
    #if defined(__linux__)
        uintptr_t around = 64 << 10;
        uintptr_t from = (uintptr_t) start & ~(around - 1), to = ((uintptr_t) stop + around - 1) & ~(around - 1);
        if (from < (uintptr_t) first) from = (uintptr_t) first;
        if (to > (uintptr_t) end) to = (uintptr_t) end;
        (void) madvise((void*) from, to - from, MADV_DONTNEED);
    #else
        (void) start; (void) stop; (void) first; (void) end;
    #endif
    }
    """
    int kreplog_sync(int fd) noexcept nogil
    int kreplog_sync_file_system(int fd) noexcept nogil
    int kreplog_file_system(const char* path, uint32_t* type) noexcept nogil
    void kreplog_unlock(int fd) noexcept nogil
    void kreplog_leave(
        const uint8_t* start, const uint8_t* stop, const uint8_t* first, const uint8_t* end
    ) noexcept nogil
    int kreplog_allocate(int fd, int64_t start, int64_t length) noexcept nogil
    void kreplog_populate(const uint8_t* data, size_t start, size_t stop) noexcept nogil


cdef enum:
    OWNERS_FILE = 0o600
    OWNERS_DIRECTORY = 0o700
    GROUPS_FILE = 0o640
    GROUPS_DIRECTORY = 0o2750
    GROUPS_MARK = 0o2050

cdef int NOFOLLOW = os.O_NOFOLLOW

cdef enum:
    VISITED_PIECE = 2 << 20
    # For more at once Linux takes huge pages, which a virtual machine's host may have to give it first: that made
    # writing four times as slow. Nothing is gained by more.
    WRITTEN_PIECE = 1 << 20

cdef enum:
    PAGE = 4096
    UNSYNCED = 1 << 20
    ZEROS = 64 << 10  # smaller pieces cost more a page, larger ones hold an append up for little more

cdef uint8_t _zeros[ZEROS]

cdef object _close_idle = None  # closes files that nobody uses just then, and says how many


def on_exhaustion(close_idle):
    """Have `close_idle()` called, which says how many files it has closed, where a file finds no descriptor."""
    global _close_idle
    _close_idle = close_idle


cdef object storage_error(str action, str path, int number):
    """The StorageError for `number`, an errno of a call that has changed nothing; its message says what to do."""
    message = f"{action} {path}: {os.strerror(number)} (errno {number})"
    if number in (ENOSPC, EDQUOT):
        return DiskFullError(message, path=path)
    if number in (EMFILE, ENFILE, ENOMEM):
        return ResourceExhaustedError(message, path=path)
    return StorageError(message, path=path)


def names_in(str directory not None):
    """What os.listdir returns. Raises StorageError."""
    try:
        return os.listdir(directory)
    except OSError as error:
        raise error_of("cannot list", directory, error) from error


def status_of(str path not None):
    """What os.stat returns. Raises FileNotFoundError, which callers expect of what may be deleted, and StorageError."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise error_of("cannot look at", path, error) from error


def error_of(str action not None, str path not None, error):
    """As a StorageError, the OSError of a call that has changed nothing."""
    return storage_error(action, path, error.errno or 0)


@cython.final
cdef class FileHandle:
    """One open file descriptor; closed when collected."""

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    cdef int write_at(self, const uint8_t* data, Py_ssize_t length, int64_t position) except -1:
        """Write all of it. Raises StorageError; how much was written before is then unknown."""
        cdef Py_ssize_t done = 0
        cdef Py_ssize_t n = 0
        cdef int number = 0
        with nogil:
            while done < length:
                n = pwrite(self.fd, data + done, min(length - done, WRITTEN_PIECE), position + done)
                if n > 0:
                    done += n
                elif n == 0:
                    number = EIO
                    break
                elif errno != EINTR:
                    number = errno
                    break
        if number:
            raise storage_error(f"cannot write {length} bytes at byte {position} of", self.path, number)
        return 0

    cdef Py_ssize_t read_at(self, uint8_t* out, Py_ssize_t length, int64_t position) except -1:
        """Read up to `length` bytes; fewer only at the end of the file. Raises StorageError."""
        cdef Py_ssize_t done = 0
        cdef Py_ssize_t n = 0
        cdef int number = 0
        with nogil:
            while done < length:
                n = pread(self.fd, out + done, length - done, position + done)
                if n > 0:
                    done += n
                elif n == 0:
                    break
                elif errno != EINTR:
                    number = errno
                    break
        if number:
            raise storage_error(f"cannot read {length} bytes at byte {position} of", self.path, number)
        return done

    cdef int64_t size(self) except -1:
        cdef struct_stat status
        if fstat(self.fd, &status) != 0:
            raise storage_error("cannot stat", self.path, errno)
        return status.st_size

    cdef int sync(self) except -1:
        """Make the file's bytes and size durable. Raises StorageError; unsynced bytes may then be lost."""
        cdef int number = 0
        with nogil:
            if kreplog_sync(self.fd) != 0:
                number = errno
        if number:
            raise StorageError(f"fsync failed on {self.path}: {os.strerror(number)} (errno {number})", path=self.path)
        return 0

    cdef int truncate(self, int64_t size) except -1:
        if ftruncate(self.fd, size) != 0:
            raise storage_error(f"cannot truncate to {size} bytes", self.path, errno)
        return 0

    cdef void unlock(self) noexcept:
        """Release the locks on it now. Closing it would not, while a child between fork and exec has it open too."""
        kreplog_unlock(self.fd)

    cdef bint allocate(self, int64_t start, int64_t length) except -1:
        """Grow the file by zeros that have their blocks; False where the file system cannot. Raises StorageError."""
        cdef int number
        with nogil:
            number = kreplog_allocate(self.fd, start, length)
        if number in (EOPNOTSUPP, ENOSYS, EINVAL):
            return False
        if number:
            raise storage_error(f"cannot allocate {length} bytes at byte {start} of", self.path, number)
        return True


cdef FileHandle open_file(str path, int flags):
    """Open a file; one that is made, or rewritten, is for its user alone, or for the group that its directory is
    open to as well, whatever the umask.

    Raises FileNotFoundError as it is (deletion under a reader is ordinary), StorageError for anything else.
    """
    cdef bytes name = os.fsencode(path)
    cdef FileHandle file = FileHandle.__new__(FileHandle)
    cdef bint made = False
    cdef int fd
    cdef int number = try_open(name, flags, &fd, &made)
    if number in (EMFILE, ENFILE) and _close_idle is not None and _close_idle():
        number = try_open(name, flags, &fd, &made)
    if number:
        error = OSError(number, os.strerror(number), path)
        if isinstance(error, FileNotFoundError):
            raise error
        raise storage_error("cannot open", path, number)
    file.fd = fd
    file.path = path
    if made:
        set_file_mode(fd, GROUPS_FILE if is_open_to_group(name.rpartition(b"/")[0] or b".") else OWNERS_FILE)
    return file


cdef int try_open(const char* name, int flags, int* fd, bint* made) noexcept:
    """0 or an errno. made: whether the file was made, or rewritten."""
    with nogil:
        made[0] = False
        if flags & O_CREAT:
            fd[0] = c_open(name, flags | O_EXCL | O_CLOEXEC, OWNERS_FILE)
            made[0] = fd[0] >= 0
            if fd[0] < 0 and errno == EEXIST and not flags & O_EXCL:
                fd[0] = c_open(name, flags | NOFOLLOW | O_CLOEXEC, OWNERS_FILE)
                made[0] = flags & O_TRUNC
        else:
            fd[0] = c_open(name, flags | O_CLOEXEC)
        return errno if fd[0] < 0 else 0


cdef void set_file_mode(int fd, mode_t mode) noexcept:
    """Where the file system has modes, and it is another one."""
    cdef struct_stat status
    if fstat(fd, &status) == 0 and status.st_mode & 0o7777 != mode:
        fchmod(fd, mode)


cdef bint is_open_to_group(bytes directory) noexcept:
    """Whether what is made in the directory is for its group to read: both bits, and what is made gets its group."""
    cdef struct_stat status
    return stat(directory, &status) == 0 and status.st_mode & GROUPS_MARK == GROUPS_MARK


def make_directory(str path not None, group=None):
    """Make a directory, and those above it that are missing, for this user alone, whatever the umask.

    group: the name or number of a group that may enter and read it, and the files that are made in it; None: the one
    that the directory above is open to, if it is. What exists is left as it is. Raises UsageError for a group that does
    not exist, StorageError.
    """
    cdef int number = -1 if group is None else group_number(group)
    try:
        _make_directory(os.path.abspath(path), number)
    except OSError as error:
        raise error_of("cannot make", path, error) from error


def _make_directory(str path, int group):
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        _make_directory(parent, group)
    try:
        os.mkdir(path, OWNERS_DIRECTORY)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    if group >= 0:
        try:
            os.chown(path, -1, group)
        except PermissionError:
            os.rmdir(path)
            raise StorageError(f"cannot give {path} to group {group}: this user is not in it", path=path) from None
    os.chmod(path, GROUPS_DIRECTORY if group >= 0 or is_open_to_group(os.fsencode(parent)) else OWNERS_DIRECTORY)


def group_number(str group not None):
    """The number of a group by its name or number. Raises UsageError."""
    if group.isascii() and group.isdigit() and len(group) < 10:
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise UsageError(f"there is no group {group!r}: name one of this system's, or give its number") from None


cdef int sync_directory(str path) except -1:
    """Make the names in a directory durable. Raises StorageError, and FileNotFoundError where it was moved or
    deleted."""
    cdef FileHandle directory = open_file(path, O_RDONLY)
    return directory.sync()


def sync_file_system(str path not None):
    """Make all that was written to the file system of `path` durable: of many files, cheaper than an fsync of each.

    Raises StorageError."""
    cdef FileHandle file = open_file(path, O_RDONLY)
    cdef int number = 0
    with nogil:
        if kreplog_sync_file_system(file.fd) != 0:
            number = errno
    if number:
        raise storage_error("cannot sync the file system of", path, number)


def file_system_type(str path not None):
    """The type of the file system of `path`, a number of statfs(2); 0 where there is no such. Raises StorageError."""
    cdef bytes name = os.fsencode(path)
    cdef const char* given = name
    cdef uint32_t found = 0
    cdef int number = 0
    with nogil:
        if kreplog_file_system(given, &found) != 0:
            number = errno
    if number:
        raise storage_error("cannot find the file system of", path, number)
    return found


@cython.final
cdef class Mapping:
    """A file's bytes, read-only; unmapped when the last view is gone, whatever became of the file's name."""

    def __cinit__(self):
        self.data = NULL
        self.visited = NULL

    def __dealloc__(self):
        free(self.visited)
        if self.data != NULL:
            munmap(<void*> self.data, self.size)

    cdef void populate(self, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
        """Fault the pages of [start, stop) in at once, unless they were before."""
        if self.populated_from <= start <= self.populated_to:
            if stop <= self.populated_to:
                return
            kreplog_populate(self.data, self.populated_to, stop)
        else:
            kreplog_populate(self.data, start, stop)
            self.populated_from = start
        self.populated_to = stop

    cdef void leave(self, const uint8_t* data, Py_ssize_t length) noexcept nogil:
        """Return the pages of bytes that are no longer read to the kernel: they count as this process's memory."""
        kreplog_leave(data, data + length, self.data, self.data + self.size)
        self.populated_from = self.populated_to = 0

    cdef int visit(self, Py_ssize_t position, Py_ssize_t end) except -1:
        """A seek has come to `position`, in bytes that reach to `end`: the second to the same piece faults it all in.

        One visit does not pay for a piece's page faults; whoever comes twice is likely to come again.
        """
        cdef Py_ssize_t piece = position // VISITED_PIECE
        cdef Py_ssize_t start = piece * VISITED_PIECE
        if self.visited == NULL:
            self.visited = <uint8_t*> calloc(self.size // VISITED_PIECE + 1, 1)
            if self.visited == NULL:
                raise MemoryError()
        if self.visited[piece] == 0:
            self.visited[piece] = 1
        elif self.visited[piece] == 1:
            with nogil:
                self.populate(start, min(start + VISITED_PIECE, end))
            if start + VISITED_PIECE <= end:
                self.visited[piece] = 2
        return 0


cdef Mapping map_file(FileHandle file, Py_ssize_t size):
    """Map the first `size` bytes, of which some may not be there yet: touch only what is. Raises StorageError."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef void* data = mmap(NULL, size, PROT_READ, MAP_SHARED, file.fd, 0)
    if data == MAP_FAILED:
        raise storage_error(f"cannot map {size} bytes of", file.path, errno)
    mapping.data = <const uint8_t*> data
    mapping.size = size
    return mapping


@cython.final
cdef class Tail:
    """A file mapped for writing; touch only bytes whose blocks are allocated."""

    def __dealloc__(self):
        if self.data != NULL:
            with nogil:  # tens of milliseconds for a GiB that was written page by page
                munmap(self.data, self.size)

    cdef void note_sync(self, int64_t end) noexcept:
        """All up to `end` is synced. No pages are made for the next 1 MiB: a sync would write their zeros, too."""
        self.pages_end = max(self.pages_end, end + UNSYNCED)

    cdef void make_pages(self, FileHandle file, int64_t end, int64_t allocated) noexcept:
        """Write zeros behind `end`, the end of what was appended, where there are only zeros: the kernel makes a page
        for a copy into the mapping in the time of ten appends, and for a write in a quarter of that.

        Where the write fails, a copy has the page made. Keeps the GIL: the 10 us that it takes are less than to have
        that again."""
        cdef int64_t start = max(self.pages_end, (end + PAGE - 1) & ~<int64_t> (PAGE - 1))
        cdef int64_t stop = min((start + ZEROS) & ~<int64_t> (ZEROS - 1), allocated)
        cdef ssize_t _written
        if start < stop:
            _written = pwrite(file.fd, _zeros, stop - start, start)
        self.pages_end = max(start, stop)


cdef Tail map_tail(FileHandle file, Py_ssize_t size, int64_t end):
    """end: of what was appended. Raises StorageError."""
    cdef Tail tail = Tail.__new__(Tail)
    cdef void* data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0)
    if data == MAP_FAILED:
        raise storage_error(f"cannot map {size} bytes of", file.path, errno)
    tail.data = <uint8_t*> data
    tail.size = size
    tail.note_sync(end)
    return tail


@cython.final
cdef class HeapBuffer:
    """Bytes of our own."""

    def __dealloc__(self):
        free(self.data)


cdef HeapBuffer allocate(Py_ssize_t size):
    cdef HeapBuffer buffer = HeapBuffer.__new__(HeapBuffer)
    buffer.data = <uint8_t*> malloc(size if size > 0 else 1)
    if buffer.data == NULL:
        raise MemoryError()
    buffer.size = size
    return buffer


@cython.final
cdef class View:
    """A read-only buffer over bytes that `owner` keeps alive. A mapping's pages are left when it goes."""

    def __dealloc__(self):
        if isinstance(self.owner, Mapping):
            (<Mapping> self.owner).leave(self.data, self.shape[0])

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("log bytes are read-only")
        PyBuffer_FillInfo(buffer, self, <void*> self.data, self.shape[0], 1, flags)


cdef View view_of(object owner, const uint8_t* data, Py_ssize_t length):
    cdef View view = View.__new__(View)
    view.data = data
    view.shape[0] = length
    view.owner = owner
    return view
