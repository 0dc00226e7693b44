# The locks by which writers show readers that they live: the calls of the system, and who looks at them.

from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #include <fcntl.h>
    #include <unistd.h>
    /* A lock of the open file, where the system has those: one of the process would go with the first log closed. */
    static inline int kreplog_share_lock(int fd) {
        struct flock lock = {0};
        lock.l_type = F_RDLCK;
        lock.l_whence = SEEK_SET;
    #if defined(F_OFD_SETLK)
        return fcntl(fd, F_OFD_SETLK, &lock);
    #else
        return fcntl(fd, F_SETLK, &lock);
    #endif
    }
    /* A lock of the open file that others see without taking one; shared, since a directory takes no other. */
    static inline int kreplog_show_lock(int fd) {
    #if defined(F_OFD_SETLK)
        return kreplog_share_lock(fd);
    #else
        (void) fd;
        return -1;
    #endif
    }
    /* Whether another open file has such a lock; yes where that cannot be known. */
    static inline int kreplog_sees_lock(int fd) {
    #if defined(F_OFD_GETLK)
        struct flock lock = {0};
        lock.l_type = F_WRLCK;
        lock.l_whence = SEEK_SET;
        return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    #else
        (void) fd;
        return 1;
    #endif
    }
    """
    int kreplog_share_lock(int fd) noexcept nogil
    int kreplog_show_lock(int fd) noexcept nogil
    bint kreplog_sees_lock(int fd) noexcept nogil


cdef str owner_lock_path(str path)
cdef int sees_lock(str path) except -2
cdef bint is_writer_alive(str path, uint32_t flags) except -1
