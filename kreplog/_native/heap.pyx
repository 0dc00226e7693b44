"""Memory for what is received: taken without being filled, and kept by the process when it is done with."""

from cpython.bytearray cimport PyByteArray_FromStringAndSize

cdef extern from *:
    """
    #include <stdlib.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    #endif
    static void kreplog_keep_freed(int size) {
    #if defined(__GLIBC__)
        mallopt(M_MMAP_THRESHOLD, size);
        mallopt(M_TRIM_THRESHOLD, size);
    #else
        (void) size;
    #endif
    }
    """
    void kreplog_keep_freed(int size) noexcept nogil


def unfilled(Py_ssize_t size):
    """A bytearray that holds anything: for who writes all of it before he shows it to anybody."""
    return PyByteArray_FromStringAndSize(NULL, size)


def keep_freed(int size):
    """Have this process keep up to `size` freed bytes, where its allocator has a setting for it.

    glibc's hands every large block back at once, and a frame of 1 MiB then costs more for new pages than for all else.
    """
    kreplog_keep_freed(size)
