"""LockedCursor: a cursor by its lock file, held alone by a cursor of one process, shared by the members of a group.

data/orders@billing.lock   of the cursor "billing" of the topic "orders"; holds the process id of its latest owner
"""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from kreplog._native.files import error_of
from kreplog.closing import Closing
from kreplog.core.replication.epochs import Epochs, divergence_from, epoch_at
from kreplog.errors import ArgumentTypeError, CursorLockedError, LogClosedError, LogTruncatedError, UsageError
from kreplog.topic.cursor_log import CursorLog, CursorOffset
from kreplog.topic.group_locks import unlock_all
from kreplog.types import NO_EPOCH, TopicPartition, check_topic

if TYPE_CHECKING:
    from kreplog.topic import Topic

GROUP = b"a group\n"

_cursors: weakref.WeakSet[LockedCursor] = weakref.WeakSet()


class LockedCursor(Closing):
    """The base of Cursor and GroupCursor: their name and their end. shared: by the members of a group.

    Raises InvalidTopicError (the name), UsageError (start), CursorLockedError, StorageError."""

    def __init__(self, topic: Topic, name: str, log: CursorLog, start: str, *, shared: bool) -> None:
        check_topic(name)
        if start not in ("earliest", "latest"):
            raise UsageError(f"start is 'earliest' or 'latest', not {start!r}")
        self._topic = topic
        self._name = name
        self._log = log
        self._start = start
        self._unverified: set[int] = set()  # partitions whose committed offset was not yet compared with their log
        self._truncated: set[int] = set()  # those whose committed offset is of records that are not in the log
        self._lock: int | None = _locked(topic, name, shared)
        self._finalizer = weakref.finalize(self, _unlock, self._lock)  # of a cursor that is dropped, too
        self._finalizer.atexit = False
        _cursors.add(self)

    @property
    def name(self) -> str:
        """As a broker has the name of a consumer group."""
        return self._name

    @property
    def closed(self) -> bool:
        return self._lock is None

    def close(self) -> None:
        """Release the cursor, without a commit. Closing twice does nothing."""
        self._lock = None
        self._finalizer()

    def _after_fork_in_child(self) -> None:
        """In a forked child: the cursor is the parent's."""
        lock, self._lock = self._lock, None
        self._finalizer.detach()
        if lock is not None:
            os.close(lock)

    def _check_open(self) -> None:
        if self._lock is None or self._topic.closed:
            raise LogClosedError(f"cursor {self._name} of {self._topic.path} is closed", path=self._topic.path)

    def _check_offset(self, partition: int, offset: int) -> None:
        """Raises UsageError where the log of the partition, which exists, has no such offset; ArgumentTypeError."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise ArgumentTypeError(f"offset is an int, not {type(offset).__name__}")
        offsets = self._topic.offsets()[partition]
        if not offsets.start <= offset <= offsets.stop:
            raise UsageError(
                f"cursor {self._name}: {self._topic.name}-{partition} has the offsets {offsets.start} to "
                f"{offsets.stop}, not {offset}",
                path=self._topic.path,
            )

    # The log that was read, and the one that is there

    def _with_leader_epoch(self, number: int, offset: int) -> CursorOffset:
        """An offset to commit, with the leader epoch of the record before it."""
        epochs = tuple(self._topic._folder.log(number).leader_epochs)
        return CursorOffset(offset, "", epoch_at(epochs, offset - 1))

    def _check_position(self, positions: dict[int, int], number: int, committed: CursorOffset | None) -> None:
        """Compare a position with the log, before it is read on from there. Raises LogTruncatedError: the position is
        then where the records that were read end in the log, or is to be sought where that is not known."""
        position, log = positions[number], self._topic._folder.log(number)
        leader_epoch = NO_EPOCH
        epochs: Epochs = ()
        if committed is not None and committed.offset == position and number in self._unverified:
            leader_epoch, epochs = committed.leader_epoch, tuple(log.leader_epochs)
        end = divergence_from(epochs, log.log_end_offset, position, leader_epoch)
        if end is None:
            self._unverified.discard(number)
            return
        at = TopicPartition(self._topic.name, number)
        self._truncated.add(number)
        if end < 0:
            raise LogTruncatedError(
                f"{at}: cursor {self._name} has read up to offset {position} in leader epoch {leader_epoch}, and the "
                f"log has no record of that epoch: it was truncated, or is another copy; `seek` to the offset from "
                "which on to read",
                partition=str(at),
                path=log.path,
            )
        self._unverified.discard(number)
        positions[number] = max(end, log.log_start_offset)
        raise LogTruncatedError(
            f"{at}: cursor {self._name} has read up to offset {position}, and in the log the records that it has read "
            f"end at {end}: it was truncated, or lost its end with power; drop what was read from {end} on, and read "
            f"on: the position is {positions[number]} now, `seek` moves it",
            partition=str(at),
            offset=end,
            path=log.path,
        )


def _locked(topic: Topic, name: str, shared: bool) -> int:
    """The descriptor of the cursor's lock file, locked."""
    path = f"{topic.path}@{name}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise error_of("cannot open", path, error) from error
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(file, 32, 0)
        os.close(file)
        if holder == GROUP and not shared:
            in_use = "by members of a group, which share it: end them, or open it with Topic.group_cursor"
        else:
            process = holder.decode("ascii", "replace").strip() or "unknown"
            in_use = f"in process {process}, by which {path} is locked: close it there"
        raise CursorLockedError(f"cursor {name} is open {in_use}; or choose another name", path=path) from error
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, GROUP if shared else b"%d\n" % os.getpid(), 0)
    except OSError as error:
        os.close(file)
        raise error_of("cannot write", path, error) from error
    return file


def _unlock(lock: int) -> None:
    """Release the lock, and those of a member, and close the file; not left to closing: a child may have the
    descriptor."""
    with suppress(OSError):  # closing releases them, too
        unlock_all(lock)
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _after_fork_in_child() -> None:
    for cursor in list(_cursors):
        cursor._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
