"""Memory for received bytes: allocated without being zeroed, and kept by the process after use."""

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
    """An uninitialized bytearray, for callers that overwrite all of it before they share it."""
    return PyByteArray_FromStringAndSize(NULL, size)


def keep_freed(int size):
    """Let this process keep up to `size` freed bytes, if its allocator has a setting for it.

    glibc returns every large block to the kernel at once, and page faults then dominate the cost of a frame of 1 MiB.
    """
    kreplog_keep_freed(size)
