"""The locks by which writers show readers, in other processes too, that they live: those end with the process.

Of one log the lock is on its directory, of a broker's logs on OWNER_LOCK in the data directory, of a topic's that is
open as a whole on `<topic>.lock`. A reader sees them without taking one (F_OFD_GETLK); where the system has no such
call, a writer counts as alive.
"""

from libc.stdint cimport uint32_t
from posix.fcntl cimport O_RDONLY

from kreplog._native.files cimport FileHandle, open_file
from kreplog._native.state cimport LOCKED_BY_OWNER, LOCKED_BY_TOPIC, LOCKED_DIRECTORY

import os

from kreplog.errors import StorageError

OWNER_LOCK = ".kreplog.lock"

TOPIC_LOCK = ".lock"  # after the topic's name


cdef bint is_writer_alive(str path, uint32_t flags) except -1:
    """Whether the writer of the session with these flags still has its lock; True where that cannot be known."""
    if flags & LOCKED_DIRECTORY:
        return sees_lock(path) != 0
    if flags & LOCKED_BY_OWNER:
        return sees_lock(owner_lock_path(path)) != 0
    if flags & LOCKED_BY_TOPIC:
        folder, name = os.path.split(path)
        return sees_lock(topic_lock_path(folder, name.rpartition("-")[0])) != 0
    return True


cdef str owner_lock_path(str path):
    return os.path.join(os.path.dirname(path), OWNER_LOCK)


cdef int sees_lock(str path) except -2:
    """1 if some process shows a lock on the file, 0 if none does, -1 where it cannot be opened."""
    cdef FileHandle file
    try:
        file = open_file(path, O_RDONLY)
    except (FileNotFoundError, StorageError):
        return -1
    return kreplog_sees_lock(file.fd)


def show_lock(int fd):
    """Let readers see by a lock on this file, an owner's, that its process lives."""
    kreplog_show_lock(fd)


def topic_lock_path(str folder not None, str topic not None):
    """The file whose lock the writer of a whole topic holds."""
    return os.path.join(folder, topic + TOPIC_LOCK)


def is_topic_locked(str folder not None, str topic not None):
    """Whether a process holds the TopicLock. False where that cannot be known."""
    return sees_lock(topic_lock_path(folder, topic)) == 1
