"""The partition directory before its content is read: its name, its settings, and the lock of its writer.

Nothing is created before the path and the settings are validated. The lock is an flock on the directory itself, so
that it leaves no file and ends with the process. A managed log takes it and releases it again: its broker holds
OWNER_LOCK in the data directory for thousands of logs, and any other writer checks that lock after it has taken its
own, so that one of the two always detects the other. A topic that is open as a whole holds `<topic>.lock` in the same
way for all of its partitions. In a Kafka broker's log directory the writers also share the broker's own lock, so that
they and the broker exclude each other.
"""

from libc.errno cimport EACCES, EAGAIN, ENOENT, errno
from libc.stdint cimport uint8_t, uint32_t
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR

from kreplog._native.batch cimport codec_id
from kreplog._native.checkpoint cimport EpochCache
from kreplog._native.files cimport FileHandle, open_file, storage_error
from kreplog._native.log cimport SegmentedLog
from kreplog._native.segment cimport Segment
from kreplog._native.shown_lock cimport kreplog_share_lock, kreplog_show_lock, owner_lock_path, sees_lock
from kreplog._native.state cimport LOCKED_BY_OWNER, LOCKED_BY_TOPIC, LOCKED_DIRECTORY, StateFile, open_state

import fcntl
import os

from kreplog._native.batch import MAX_DECOMPRESSED_BYTES
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog._native.compression import compress
from kreplog._native.files import error_of, make_directory
from kreplog._native.shown_lock import OWNER_LOCK, topic_lock_path
from kreplog._native.state import STATE_NAME
from kreplog.errors import ArgumentTypeError, LogLockedError, StorageError, UsageError
from kreplog.types import TopicPartition

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/stat.h>
    #include <unistd.h>
    /* Whether the path leads to the open file; a negative errno where that cannot be known. */
    static int kreplog_leads_to(const char* path, int fd) {
        struct stat there, here;
        if (fstat(fd, &here) != 0)
            return -errno;
        if (stat(path, &there) != 0)
            return errno == ENOENT ? 0 : -errno;
        return there.st_dev == here.st_dev && there.st_ino == here.st_ino;
    }
    static int kreplog_is_missing(const char* path) {
        return access(path, F_OK) != 0 && errno == ENOENT;
    }
    """
    int kreplog_leads_to(const char* path, int fd) noexcept nogil
    bint kreplog_is_missing(const char* path) noexcept nogil


cdef enum:
    ATTEMPTS = 1000  # to lock the file that is at a path, which another may delete as often


cdef int adopt(SegmentedLog log, object config) except -1:
    """Apply these settings. Raises UnsupportedCompressionError, with nothing changed."""
    cdef int codec = codec_id(config.compression_type)
    if codec:
        compress(codec, b"")  # its package is there
    log.config = config
    log.log_append_time = config.message_timestamp_type == "LogAppendTime"
    log.compacts = config.compacts or config.offset_gaps
    log.oldest_ms = config.message_timestamp_before_max_ms
    log.newest_ms = config.message_timestamp_after_max_ms
    log.needs_keys = config.compacts
    log.codec = codec
    log.segment_bytes = config.segment_bytes
    log.segment_ms = config.segment_ms
    log.flush_messages = config.flush_messages
    log.max_index_entries = config.segment_index_bytes // 12
    log.max_message_bytes = config.max_message_bytes
    log.batch_bytes = min(config.batch_bytes, config.max_message_bytes, config.segment_bytes)
    log.record_limit = config.max_message_bytes
    if codec:
        log.record_limit = min(log.record_limit, MAX_DECOMPRESSED_BYTES // 2)
        log.batch_bytes = min(log.batch_bytes, log.record_limit)
    return 0


def configure(SegmentedLog log, object config):
    """See Log.configure."""
    if config.replicated != bool(log.replicated):
        raise UsageError(f"{log.name}: whether a log is replicated is settled when it is opened", partition=log.name)
    log.begin_write()
    try:
        adopt(log, config)
    finally:
        log.unlock()


def prepare(SegmentedLog log, path, object config, bint read_only, bint managed, bint in_topic, object partition=None):
    """Check the path, read the settings, and for a writer lock the directory; a reader's is looked at by `attach`.

    in_topic: the caller holds the TopicLock. partition: of a directory that has another name; None for the one that it
    is named after. Raises InvalidTopicError, UsageError, StorageError, LogLockedError.
    """
    try:
        log.path = os.path.abspath(os.fsdecode(path))
    except TypeError:
        raise ArgumentTypeError(f"path is a str or os.PathLike, not {type(path).__name__}") from None
    except ValueError as error:
        raise UsageError(f"path {path!r} cannot be used: {error}") from None
    log.topic_partition = TopicPartition.parse(os.path.basename(log.path)) if partition is None else partition
    log.name = str(log.topic_partition)
    log.read_only = read_only
    log.managed = managed
    log.in_topic = in_topic
    log.replicated = config.replicated
    adopt(log, config)
    if not read_only:
        if not _is_directory(log):
            make_directory(log.path, config.directory_group)
        parent = os.path.dirname(log.path)
        log.checkpoints = tuple([
            OffsetCheckpoint(os.path.join(parent, name + "-offset-checkpoint"))
            for name in ("recovery-point", "replication", "log-start")
        ])
        log.cleaner_checkpoint = OffsetCheckpoint(os.path.join(parent, "cleaner-offset-checkpoint"))
        _lock(log)


def follow_rename(SegmentedLog log, str path):
    """The directory of a writer has got another name in its data directory, `path`: its files are there from now on. No
    other thread uses the log meanwhile."""
    cdef Segment segment
    log.lock()
    log.path = path
    for segment in log._segments:
        segment.follow_rename(path)
    (<EpochCache> log.epochs).path = f"{path}/leader-epoch-checkpoint"
    log.state.path = f"{path}/{STATE_NAME}"
    if log.unsynced_snapshot is not None:
        log.unsynced_snapshot = f"{path}/{os.path.basename(log.unsynced_snapshot)}"
    log.unlock()


cdef bint _is_directory(SegmentedLog log) except -1:
    """False where nothing is there. Raises UsageError."""
    if os.path.isdir(log.path):
        return True
    if os.path.lexists(log.path):
        raise UsageError(f"{log.path} is no directory, so no partition", path=log.path)
    return False


def require_directory(SegmentedLog log):
    """For a reader that finds no state file. Raises UsageError, StorageError."""
    if not _is_directory(log):
        raise StorageError(f"{log.path} does not exist", partition=log.name, path=log.path)


def _lock(SegmentedLog log):
    # An owner has its logs in its own data directory; where a link leads is not.
    cdef FileHandle directory = open_file(log.path, O_RDONLY | (os.O_NOFOLLOW if log.managed else 0))
    parent = os.path.dirname(log.path)
    if not _try_lock(log.path, directory, fcntl.LOCK_EX):
        _refuse(log, _holder(log.path))
    if log.in_topic:
        directory.unlock()  # whoever takes it from now on meets the topic's lock
        log.session_lock = LOCKED_BY_TOPIC
        return
    lock_path = topic_lock_path(parent, log.topic_partition.topic)
    if not _is_free(lock_path):
        _refuse(log, _topic_holder(lock_path))
    if not log.managed and not _is_free(os.path.join(parent, OWNER_LOCK)):
        _refuse(log, _holder(log.path))
    log.broker_lock = _share_broker_lock(parent, log.name, log.name)
    log.writer_lock = None if log.managed else directory
    log.session_lock = _shown_lock(log, directory)


cdef uint32_t _shown_lock(SegmentedLog log, FileHandle directory) except? 1:
    """Show readers that this writer lives, which ends with the process; the flag of the lock that does, 0 for none."""
    if not log.managed:
        return LOCKED_DIRECTORY if kreplog_show_lock(directory.fd) == 0 else 0
    return LOCKED_BY_OWNER if sees_lock(owner_lock_path(log.path)) == 1 else 0


cdef int _refuse(SegmentedLog log, str holder) except -1:
    raise LogLockedError(
        f"{log.name}: {log.path} is open for writing in {holder}; close it there, or open it here with read_only=True",
        partition=log.name, path=log.path,
    )


cdef bint _is_free(str path) except -1:
    """Whether no process holds the lock file alone, as a kreplog broker does its data directory's."""
    cdef FileHandle file
    if _is_missing(path):
        return True
    try:
        file = open_file(path, O_RDONLY)
    except FileNotFoundError:
        return True
    return _try_lock(path, file, fcntl.LOCK_SH)


cdef bint _try_lock(str path, FileHandle file, int operation) except -1:
    """Lock the file; False where another has it locked. Raises StorageError, as on a file system without locks."""
    try:
        fcntl.flock(file.fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise error_of("cannot lock", path, error) from error
    return True


cdef bint _is_missing(str path) except -1:
    """Whether nothing is at the path: what a commit looks at each time, without an error for it."""
    return kreplog_is_missing(os.fsencode(path))


cpdef bint leads_to(str path, int fd) except -1:
    """Whether the path leads to the open file, which was neither deleted nor replaced. Raises StorageError."""
    cdef int found = kreplog_leads_to(os.fsencode(path), fd)
    if found < 0:
        raise storage_error("cannot look at", path, -found)
    return found == 1


def was_topic_released(str folder not None, str topic not None):
    """Whether the latest holder of the TopicLock has released it, and has not died with it."""
    return _pid_in(topic_lock_path(folder, topic)) == 0


cdef class TopicLock:
    """The right to write all partitions of a topic in a folder, from each `acquire` to the next `release`.

    Excludes another TopicLock, each partition's own writer, and the brokers of the folder. The file stays open until
    `close`, and is opened again where it was deleted or replaced meanwhile. Its first line is the process id of the
    holder, 0 once that has released it. For one thread at a time.
    """

    cdef str folder
    cdef str topic
    cdef str path
    cdef FileHandle file
    cdef FileHandle broker_lock
    cdef bint held

    def __init__(self, str folder not None, str topic not None):
        self.folder, self.topic = folder, topic
        self.path = topic_lock_path(folder, topic)

    def acquire(self):
        """Raises LogLockedError, StorageError."""
        if not self._lock():
            self._refuse(_topic_holder(self.path))
        self.held = True
        try:
            if not _is_free(os.path.join(self.folder, OWNER_LOCK)):
                self._refuse("a kreplog broker")
            kreplog_show_lock(self.file.fd)
            self.broker_lock = _share_broker_lock(self.folder, self.topic)
            self._sign(os.getpid())
        except BaseException:
            self._unlock()
            raise

    cdef bint _lock(self) except -1:
        """Lock the file that is at the path now; False where another has it locked."""
        cdef bint locked
        cdef int _attempt
        for _attempt in range(ATTEMPTS):
            if self.file is None:
                try:
                    self.file = open_file(self.path, O_RDWR | O_CREAT)
                except FileNotFoundError:
                    raise storage_error("cannot open", self.path, ENOENT) from None
            locked = _try_lock(self.path, self.file, fcntl.LOCK_EX)
            try:
                if leads_to(self.path, self.file.fd):
                    return locked
            except BaseException:
                self._unlock()
                raise
            self._unlock()
            self.file = None
        raise_elusive(self.path)

    cdef int _refuse(self, str holder) except -1:
        raise LogLockedError(
            f"topic {self.topic} in {self.folder} is open for writing in {holder}; close it there, or open it here "
            "with read_only=True", path=self.path,
        )

    cdef int _sign(self, long pid) except -1:
        # Written over what is there, not truncated: that takes as long as all else that a commit does.
        cdef bytes line = b"%d\n" % pid
        self.file.write_at(<const uint8_t*> <char*> line, len(line), 0)
        return 0

    def release(self):
        """The file stays open. Does nothing where the lock is not held."""
        if not self.held:
            return
        try:
            self._sign(0)
        except StorageError:
            pass  # it looks like a death then, after which a reader says so and the next writer recovers the logs
        self._unlock()

    cdef int _unlock(self) except -1:
        self.held = False
        self.file.unlock()
        if self.broker_lock is not None:
            self.broker_lock.unlock()
            self.broker_lock = None
        return 0

    def close(self):
        """Release it and close the file, which the next `acquire` opens again."""
        self.release()
        self.file = None

    def abandon(self):
        """In a forked child: let go of the parent's lock without releasing it."""
        self.held = False
        self.file = self.broker_lock = None


cdef str _topic_holder(str path):
    """Who holds a topic's lock, in words, from the process id in its file."""
    cdef long pid = _pid_in(path)
    if pid <= 0:
        return "another process"
    return f"this process (pid {pid})" if pid == os.getpid() else f"process {pid}"


cdef long _pid_in(str path):
    """The process that holds or held a topic's lock, 0 where it has released it, -1 where that cannot be known."""
    try:
        with open(path, "rb") as file:
            return int(file.readline(32) or 0)
    except (OSError, ValueError, OverflowError):
        return -1


cdef FileHandle _share_broker_lock(str parent, str name, str partition=None):
    """Our share of the lock that a Kafka broker needs alone; None in a directory that is no broker's. name: of what is
    opened, for the error."""
    cdef FileHandle file
    cdef int _attempt
    path = os.path.join(parent, ".lock")
    for _attempt in range(ATTEMPTS):
        flags = O_RDONLY | O_CREAT if is_brokers_directory(parent) else O_RDONLY
        if flags == O_RDONLY and _is_missing(path):
            return None
        try:
            file = open_file(path, flags)
        except FileNotFoundError:
            return None
        if kreplog_share_lock(file.fd) != 0:
            if errno not in (EACCES, EAGAIN):
                raise storage_error("cannot lock", path, errno)
            raise LogLockedError(
                f"{name}: a Kafka broker holds {path}; stop it, or open this with read_only=True",
                partition=partition, path=path,
            )
        if leads_to(path, file.fd):  # a broker deletes it when it stops
            return file
    raise_elusive(path)


cdef int raise_elusive(str path) except -1:
    raise StorageError(
        f"cannot lock {path}: each time it is another file when it has been opened; end what replaces it, or, where "
        "its file system does not say which file is which, move the folder to a local one", path=path,
    )


def is_brokers_directory(str directory):
    """Whether a Kafka broker has formatted this log directory."""
    path = os.path.join(directory, "meta.properties")
    if _is_missing(path):
        return False
    try:
        with open(path, "rb") as file:
            return b"cluster.id=" in file.read()
    except OSError:
        return False


cdef str _holder(str path):
    """Who has the directory open for writing, in words: the last writer that signed the state file."""
    cdef StateFile state = open_state(os.path.join(path, STATE_NAME), False)
    cdef int pid = 0 if state is None else state.writer_pid()
    if pid == os.getpid():
        return f"this process (pid {pid})"
    return f"process {pid}" if pid else "another process"
