# Open files and read-only mappings, freed when the last user lets go.

from libc.stdint cimport int64_t, uint8_t

cdef class FileHandle:
    cdef readonly int fd
    cdef readonly str path

    cdef int write_at(self, const uint8_t* data, Py_ssize_t length, int64_t position) except -1
    cdef Py_ssize_t read_at(self, uint8_t* out, Py_ssize_t length, int64_t position) except -1
    cdef int64_t size(self) except -1
    cdef int sync(self) except -1
    cdef int truncate(self, int64_t size) except -1
    cdef void unlock(self) noexcept
    cdef bint allocate(self, int64_t start, int64_t length) except -1


cdef class Mapping:
    cdef const uint8_t* data
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t populated_from  # pages known to be mapped
    cdef Py_ssize_t populated_to
    cdef uint8_t* visited  # a byte for each VISITED_PIECE; NULL until one is visited

    cdef void populate(self, Py_ssize_t start, Py_ssize_t stop) noexcept nogil
    cdef void leave(self, const uint8_t* data, Py_ssize_t length) noexcept nogil
    cdef int visit(self, Py_ssize_t position, Py_ssize_t end) except -1


cdef class Tail:
    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef int64_t pages_end  # up to here pages are made already, or are not to be

    cdef void note_sync(self, int64_t end) noexcept
    cdef void make_pages(self, FileHandle file, int64_t end, int64_t allocated) noexcept


cdef class View:
    cdef const uint8_t* data
    cdef Py_ssize_t shape[1]
    cdef object owner


cdef class HeapBuffer:
    cdef uint8_t* data
    cdef Py_ssize_t size


cdef FileHandle open_file(str path, int flags)
cdef Tail map_tail(FileHandle file, Py_ssize_t size, int64_t end)
cdef Mapping map_file(FileHandle file, Py_ssize_t size)
cdef View view_of(object owner, const uint8_t* data, Py_ssize_t length)
cdef HeapBuffer allocate(Py_ssize_t size)
cdef object storage_error(str action, str path, int number)
cdef int sync_directory(str path) except -1
