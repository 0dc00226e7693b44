"""The partition directory before its content is looked at: its name, the settings for it, and its one writer's lock.

Nothing is made before the path and the settings are known to be usable. The lock is flock on the directory itself, so
that it leaves no file behind and goes with its process; where a Kafka broker holds its own lock beside it, it wins.
"""

from posix.fcntl cimport O_RDONLY

from kreplog._native.batch cimport codec_id
from kreplog._native.files cimport FileHandle, open_file
from kreplog._native.log cimport SegmentedLog
from kreplog._native.state cimport StateFile, open_state

import fcntl
import os

from kreplog._native.batch import MAX_DECOMPRESSED_BYTES
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog._native.compression import compress
from kreplog._native.state import STATE_NAME
from kreplog.errors import ArgumentTypeError, LogLockedError, StorageError, UsageError
from kreplog.types import TopicPartition


def prepare(SegmentedLog log, path, object config, bint read_only):
    """Check the path, read the settings, and for a writer lock the directory.

    Raises InvalidTopicError, UsageError, StorageError, LogLockedError.
    """
    try:
        log.path = os.path.abspath(os.fsdecode(path))
    except TypeError:
        raise ArgumentTypeError(f"path is a str or os.PathLike, not {type(path).__name__}") from None
    except ValueError as error:
        raise UsageError(f"path {path!r} cannot be used: {error}") from None
    log.topic_partition = TopicPartition.parse(os.path.basename(log.path))
    log.name = str(log.topic_partition)
    log.config = config
    log.read_only = read_only
    log.replicated = config.replicated
    log.log_append_time = config.message_timestamp_type == "LogAppendTime"
    log.codec = codec_id(config.compression_type)
    log.segment_bytes = config.segment_bytes
    log.segment_ms = config.segment_ms
    log.flush_messages = config.flush_messages
    log.max_index_entries = config.segment_index_bytes // 12
    log.max_message_bytes = config.max_message_bytes
    log.batch_bytes = min(config.batch_bytes, config.max_message_bytes, config.segment_bytes)
    log.record_limit = config.max_message_bytes
    if log.codec:
        compress(log.codec, b"")  # its package is there
        log.record_limit = min(log.record_limit, MAX_DECOMPRESSED_BYTES // 2)
        log.batch_bytes = min(log.batch_bytes, log.record_limit)
    if not os.path.isdir(log.path):
        if os.path.lexists(log.path):
            raise UsageError(f"{log.path} is no directory, so no partition", path=log.path)
        if read_only:
            raise StorageError(f"{log.path} does not exist", partition=log.name, path=log.path)
        try:
            os.makedirs(log.path, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {log.path}: {error.strerror}", path=log.path) from error
    log.checkpoints = tuple([
        OffsetCheckpoint(os.path.join(os.path.dirname(log.path), name + "-offset-checkpoint"))
        for name in ("recovery-point", "replication", "log-start")
    ])
    if not read_only:
        _lock(log)


def _lock(SegmentedLog log):
    cdef FileHandle directory = open_file(log.path, O_RDONLY)
    kafka_lock = os.path.join(os.path.dirname(log.path), ".lock")
    try:
        fcntl.flock(directory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise LogLockedError(
            f"{log.name}: {log.path} is open for writing in {_holder(log.path)}; close it there, or open it here "
            "with read_only=True", partition=log.name, path=log.path,
        ) from None
    if os.path.exists(kafka_lock):
        with open(kafka_lock, "r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LogLockedError(
                    f"{log.name}: a Kafka broker holds {kafka_lock}; stop it, or open the log with "
                    "read_only=True", partition=log.name, path=log.path,
                ) from None
    log.directory = directory


cdef str _holder(str path):
    """Who has the directory open for writing, in words: the last writer that signed the state file."""
    cdef StateFile state = open_state(os.path.join(path, STATE_NAME), False)
    cdef int pid = 0 if state is None else state.writer_pid()
    if pid == os.getpid():
        return f"this process (pid {pid})"
    return f"process {pid}" if pid else "another process"
