"""Kafka's small text files: offsets of partitions, and the leader epochs of one partition; replaced whole, atomically.

    replication-offset-checkpoint and its like        leader-epoch-checkpoint
    0                     version                     0           version
    2                     number of lines             2           number of lines
    flights 0 1200        topic partition offset      0 0         epoch, its first offset
    flights 1 900                                     3 1200

They have no checksum, so a file is accepted only if it is exactly as Kafka would write it: single spaces, no leading
zeros, the right count, the last line terminated. So every truncated file is detected, except an empty one: Kafka
creates its files empty. An empty file counts as missing.
"""

from posix.fcntl cimport O_CREAT, O_RDONLY, O_TRUNC, O_WRONLY

from kreplog._native.files cimport FileHandle, open_file, sync_directory

import fcntl
import logging
import os
import re
import time
from bisect import bisect_right

from kreplog._native.files import error_of
from kreplog.errors import CorruptCheckpointError, KreplogError, StorageError, UsageError
from kreplog.types import EpochEndOffset, TopicPartition, check_topic

_logger = logging.getLogger("kreplog")

cdef long long _NO_END = 2**63 - 1
cdef long long _MAX_OFFSET = 2**63 - 1
cdef long long _MAX_INT32 = 2**31 - 1

cdef enum:
    SETTLED_NS = 50_000_000
    KEPT_CHECKPOINTS = 32

cdef dict _read_before = {}  # path of a checkpoint file: (what its stat said, what was in it)

cdef object _number = re.compile("0|[1-9][0-9]{0,18}")


cpdef object atomic_write(str path, bytes data, bint durable=True):
    """Replace the content of the file at `path` by `data`, atomically; durable on return.

    Not durable: still atomic if the process is killed, but a crash of the host may leave the old content, or none,
    until the caller has synced the file and its directory.
    One writer at a time: the temporary file beside it has a fixed name, so one left by a crash is reused. Raises
    StorageError, with the old content still in place unless the directory was moved or could not be synced.
    """
    cdef str temporary = path + ".tmp"
    cdef FileHandle file
    cdef const unsigned char[::1] view = data
    file = _open(temporary, O_WRONLY | O_CREAT | O_TRUNC)
    try:
        if data:
            file.write_at(&view[0], len(data), 0)
        if durable:
            file.sync()
        os.replace(temporary, path)
    except BaseException as error:
        _unlink(temporary)
        if isinstance(error, OSError):
            raise error_of("cannot replace", path, error) from error
        raise
    if durable:
        try:
            sync_directory(os.path.dirname(path) or ".")
        except FileNotFoundError as error:  # its directory was moved or deleted since the file was replaced
            raise error_of("cannot replace", path, error) from error


cdef class OffsetCheckpoint:
    """One offset for each partition of a data directory, in one file that several processes share.

    Changes are made under an flock on the directory, so that none is lost, and are durable on return.
    """

    cdef readonly str path
    cdef object _identity
    cdef dict _known

    def __init__(self, str path not None):
        self.path = path
        self._identity = None
        self._known = {}

    def read(self):
        """Partition to offset; empty where there is no file. Raises CorruptCheckpointError, StorageError."""
        cdef dict offsets = {}
        lines = _read_lines(self.path, "topic partition offset")
        for number, fields in enumerate(lines or (), 3):
            try:
                topic, partition, offset = fields
                key = TopicPartition(check_topic(topic), _parse(partition, _MAX_INT32))
                value = _parse(offset, _MAX_OFFSET)
            except (ValueError, KreplogError) as error:
                raise _corrupt(self.path, f"line {number}: {error}") from None
            if key in offsets:
                raise _corrupt(self.path, f"line {number}: {key} stands there twice")
            offsets[key] = value
        return offsets

    def latest(self):
        """As `read`, but with only a stat if the file is unchanged since it was written here. Not to be changed."""
        if self._identity is not None and self._identity == self._stat():
            return self._known
        return self.read()

    def write(self, offsets):
        """Replace all offsets in the file. Raises UsageError for an offset below 0, StorageError."""
        offsets = dict(offsets)
        with _DirectoryLock(self.path):
            self._write(offsets)

    def update(self, topic_partition, offset):
        """Set one partition's offset, or remove it with None; all others keep theirs.

        A file that cannot be parsed is replaced: the other partitions have to recover their offsets. Costs one stat if
        the file already has this offset. Raises as `write` does.
        """
        self.update_all({topic_partition: offset})

    def update_all(self, changes):
        """As `update`, of several partitions in one write. changes: partition to offset, or to None."""
        cdef dict offsets
        if self._identity is not None and self._identity == self._stat() and _agree(self._known, changes):
            return
        with _DirectoryLock(self.path):
            try:
                offsets = self.read()
            except CorruptCheckpointError as error:
                _logger.warning("%s; starting it again with %s alone", error, ", ".join(map(str, list(changes)[:10])))
                offsets = {}
            else:
                if _agree(offsets, changes):
                    self._known, self._identity = offsets, self._stat()
                    return
            offsets.update(changes)
            self._write({key: offset for key, offset in offsets.items() if offset is not None})

    cdef object _write(self, dict offsets):
        cdef list lines = []
        for key, offset in sorted(offsets.items()):
            if not 0 <= offset <= _MAX_OFFSET:
                raise UsageError(f"offset {offset} of {key} cannot be checkpointed", partition=str(key), path=self.path)
            lines.append(f"{key.topic} {key.partition} {offset}")
        _write_lines(self.path, lines)
        self._known, self._identity = offsets, self._stat()

    cdef object _stat(self):
        """What changes whenever the file is replaced; None where there is none."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def offsets_by_partition(str path not None, str partition not None, bint read_only):
    """The offsets of all partitions in the checkpoint file `path`, not to be changed; {} for a damaged one, of which
    the log `partition` warns, and, read-only, for one that this user may not read. Raises StorageError.

    The logs of a data directory are opened one after the other, each for one line of it: it is read once if unchanged.
    """
    try:
        status = os.stat(path)
        identity = status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
    except OSError:
        identity = None
    before = _read_before.get(path)
    if before is not None and before[0] == identity:
        return before[1]
    try:
        offsets = OffsetCheckpoint(path).read()
    except CorruptCheckpointError as error:
        _logger.warning("%s: %s; going by the log instead", partition, error)
        return {}
    except StorageError:
        if read_only and not os.access(path, os.R_OK):  # the partition's directory alone is open to this reader
            return {}
        raise
    # One written just now may be written again without its stat showing it: clocks of file systems tick slowly.
    if identity is not None and identity[1] < time.time_ns() - SETTLED_NS:
        if len(_read_before) >= KEPT_CHECKPOINTS:
            _read_before.clear()
        _read_before[path] = identity, offsets
    return offsets


cdef bint _agree(dict offsets, changes):
    return all(offsets.get(key) == offset for key, offset in changes.items())


cdef class EpochCache:
    """The leader epochs of one partition, each with the first offset written in it; both rise from entry to entry.

    `path` is the leader-epoch-checkpoint file, or None to keep nothing. With `entries` the cache starts from those and
    the file is not read. Nothing is written before `flush`. The owner of the partition calls it under its lock. Raises
    CorruptCheckpointError if the file is invalid: rebuild it from the batches, with `entries=()`.
    Source: KIP-101, KIP-279.
    """

    def __init__(self, path, entries=None):
        self.path = path
        self._epochs = []
        self._starts = []
        self._in_file = self._same = 0 if entries is None else -1
        if entries is not None:
            for epoch, start in entries:
                self.assign(epoch, start)
        elif path is not None:
            self._load()

    @property
    def entries(self):
        """(epoch, start offset) pairs, oldest first; a copy."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def dirty(self):
        """Whether the entries differ from the file."""
        return not self._same == self._in_file == len(self._epochs)

    @property
    def latest_epoch(self):
        """The newest epoch, -1 when there is none."""
        return self._epochs[len(self._epochs) - 1] if self._epochs else -1

    cpdef bint assign(self, int epoch, long long start_offset) except -1:
        """Add the entry that `epoch` begins at `start_offset`; return whether the entries have changed.

        The latest epoch keeps its start offset if a later one is given. Otherwise entries that contradict the new one,
        with an equal or higher epoch or start offset, are removed: they have no records in the log any more.
        """
        cdef Py_ssize_t last = len(self._epochs) - 1
        if epoch < 0 or start_offset < 0:
            raise UsageError(f"leader epoch {epoch} cannot begin at offset {start_offset}", offset=start_offset)
        if last >= 0 and self._epochs[last] == epoch and self._starts[last] <= start_offset:
            return False
        while last >= 0 and (self._epochs[last] >= epoch or self._starts[last] >= start_offset):
            last -= 1
        self._keep(last + 1)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        return True

    cpdef tuple epoch_for_offset(self, long long offset):
        """(the epoch `offset` was or would be written in, the offset where the next one begins).

        -1 for an offset before the first epoch; 2**63 - 1 where no other epoch follows.
        """
        cdef Py_ssize_t i = bisect_right(self._starts, offset)
        return self._epochs[i - 1] if i else -1, self._starts[i] if i < len(self._starts) else _NO_END

    cpdef object end_offset_for(self, int epoch, long long leo):
        """The largest known epoch at or below `epoch`, and its end offset: the leader's OffsetForLeaderEpoch (KIP-279).

        The latest epoch ends at `leo`, the log end offset. For an epoch older than all known ones, the result is that
        epoch, ending where the first known one begins. (-1, -1) for one newer than all, or below 0.
        """
        cdef Py_ssize_t i = bisect_right(self._epochs, epoch)
        if epoch < 0 or i == len(self._epochs):
            if i and self._epochs[i - 1] == epoch:
                return EpochEndOffset(epoch, leo)
            return EpochEndOffset(-1, -1)
        return EpochEndOffset(self._epochs[i - 1] if i else epoch, self._starts[i])

    cpdef bint truncate_from_end(self, long long offset) except -1:
        """Remove the epochs that begin at or after `offset`, the new log end; return whether there were any."""
        cdef Py_ssize_t keep = len(self._starts)
        while keep and self._starts[keep - 1] >= offset:
            keep -= 1
        if keep == len(self._starts):
            return False
        self._keep(keep)
        return True

    cpdef bint truncate_from_start(self, long long offset) except -1:
        """Let the entries begin at `offset`, the new log start, without older epochs; return whether any changed."""
        cdef Py_ssize_t gone = bisect_right(self._starts, offset) - 1
        if gone < 0 or self._starts[gone] == offset and gone == 0:
            return False
        del self._epochs[:gone]
        del self._starts[:gone]
        self._starts[0] = offset
        self._same = -1
        return True

    cpdef object clear(self):
        """Forget every epoch."""
        self._keep(0)

    cdef object _keep(self, Py_ssize_t count):
        del self._epochs[count:]
        del self._starts[count:]
        self._same = min(self._same, count)

    cpdef bint flush(self, bint durable=True) except -1:
        """Write the file if anything changed since it was read or written, and say whether; durable as of atomic_write.
        Raises StorageError."""
        if self.path is None or not self.dirty:
            return False
        _write_lines(self.path, [f"{epoch} {start}" for epoch, start in self.entries], durable)
        self._in_file = self._same = len(self._epochs)
        return True

    cdef object _load(self):
        cdef long long last_epoch = -1, last_start = -1, epoch, start
        lines = _read_lines(self.path, "epoch and start offset")
        for number, fields in enumerate(lines or (), 3):
            try:
                first, second = fields
                epoch, start = _parse(first, _MAX_INT32), _parse(second, _MAX_OFFSET)
            except ValueError as error:
                raise _corrupt(self.path, f"line {number}: {error}") from None
            if epoch <= last_epoch or start <= last_start:
                raise _corrupt(self.path, f"line {number}: epoch {epoch} at {start} does not follow the line before it")
            self._epochs.append(epoch)
            self._starts.append(start)
            last_epoch, last_start = epoch, start
        self._in_file = self._same = len(self._epochs)


class _DirectoryLock:
    """Holds an exclusive flock on the directory of `path`, among threads as well as processes."""

    def __init__(self, path):
        self._directory = os.path.dirname(path) or "."

    def __enter__(self):
        self._file = _open(self._directory, O_RDONLY)
        try:
            fcntl.flock((<FileHandle> self._file).fd, fcntl.LOCK_EX)
        except OSError as error:
            raise StorageError(f"cannot lock {self._directory}: {error}", path=self._directory) from error

    def __exit__(self, *exc_info):
        # Not left to closing: a forked child may share the descriptor, and the lock with it.
        fcntl.flock((<FileHandle> self._file).fd, fcntl.LOCK_UN)
        del self._file


cdef list _read_lines(str path, str form):
    """The fields of each line after version and count, or None where there is no file, or an empty one."""
    cdef bytes data
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise error_of("cannot read", path, error) from error
    if not data:
        return None
    try:
        version, count, *lines, rest = data.decode("ascii").split("\n")
        if rest:
            raise ValueError("the last line is not ended")
        if version != "0":
            raise ValueError(f"version {version!r} is not known")
        if _parse(count, _MAX_OFFSET) != len(lines):
            raise ValueError(f"{len(lines)} lines of {form} where {count} were announced")
    except ValueError as error:
        raise _corrupt(path, str(error)) from None
    return [line.split(" ") for line in lines]


cdef object _write_lines(str path, list lines, bint durable=True):
    atomic_write(path, "\n".join(["0", str(len(lines)), *lines, ""]).encode("ascii"), durable)


cdef object _parse(str text, long long limit):
    if not _number.fullmatch(text) or int(text) > limit:
        raise ValueError(f"{text!r} is no number from 0 to {limit}")
    return int(text)


cdef object _corrupt(str path, str reason):
    return CorruptCheckpointError(
        f"{path} is damaged: {reason}. What it held is found again by a scan of the log", path=path
    )


cdef FileHandle _open(str path, int flags):
    try:
        return open_file(path, flags)
    except FileNotFoundError as error:
        raise StorageError(f"cannot open {path}: its directory does not exist", path=path) from error


cdef object _unlink(str path):
    try:
        os.unlink(path)
    except OSError:
        pass
