"""LogDirectoryState: a failed write or fsync takes the log directory offline, with every replica in it.

A failed fsync is final: the kernel may have dropped the dirty pages, and a retry would succeed without them (F37). So
nothing in the directory is written, opened, renamed or deleted again before the broker restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from kreplog.core.events import LogFailed
from kreplog.errors import (
    KreplogError,
    LogFailedError,
    ReplicaRefusedError,
    StorageError,
    is_disk_full,
    is_exhaustion,
    is_shortage,
)
from kreplog.types import TopicPartition

MIN_FREE_SHARE = 0.05
"""Share of a full disk that has to be free before it is used again; MAX_REQUIRED_BYTES where that is less."""

MAX_REQUIRED_BYTES = 1 << 30

_Directory = TypeVar("_Directory", bound="LogDirectoryState")


class DirectoryStart(NamedTuple):
    """The end of the last use of a log directory. was_clean: the last shutdown was clean, or there was none. is_new: it
    has no mark of an earlier start, so its data may be lost with a disk. unclean: it was not shut down cleanly, and the
    host has booted since, so that unsynced data may be lost."""

    was_clean: bool
    is_new: bool
    unclean: bool

    @property
    def may_have_lost(self) -> bool:
        """Whether a controller has to know of this start before the boot mark is written: data may be lost."""
        return self.is_new or self.unclean

    def handled(self) -> DirectoryStart:
        """The same after a controller has handled what may be lost."""
        return self._replace(is_new=False, unclean=False)


def directory_start(clean_mark: bool, boot_mark: str | None, boot: str) -> DirectoryStart:
    """The end of the last use of a log directory, by its marks.

    clean_mark: whether the directory has the mark of a clean shutdown. boot_mark: the host's boot id in it, None if
    it has none. boot: the host's boot id now.

    A crash of the process alone loses nothing: the host keeps what it wrote. The simulator does not run this rule: a
    power failure sets the unclean mark of its disks, whether the broker had shut down or not.
    """
    is_new = boot_mark is None
    was_clean = clean_mark or is_new
    return DirectoryStart(was_clean, is_new, not was_clean and boot_mark != boot)


class LogDirectoryState:
    """A log directory of one broker process. failed: nothing in it is changed or opened any more. is_full: something in
    it has failed for want of disk space, so that the broker restarts once all such directories have room (`has_room`).
    """

    def __init__(self) -> None:
        self.failed = False
        self.is_full = False

    def fail(self, error: KreplogError, replicas: Iterable[TopicPartition]) -> list[LogFailed] | None:
        """A write or fsync in this directory has failed. replicas: those open in it; walked at its first failure alone.

        Returns the events that take them offline. None if there is nothing to do: it has failed before, or `error` is
        a lack of file descriptors or memory, which harms no disk and one log at most: that one is reopened.
        """
        if self.failed or is_exhaustion(error):
            return None
        self.failed = True
        self.note_if_disk_full(error)
        return [LogFailed(partition) for partition in replicas]

    def note_if_disk_full(self, error: BaseException) -> None:
        """Set `is_full` if an operation in this directory has failed for want of disk space or quota; the directory
        stays online."""
        self.is_full = self.is_full or is_disk_full(error)

    def check_online(self, partition: TopicPartition, path: object) -> None:
        """To be called before a replica or a stray in this directory is opened, restored, set aside or deleted. path:
        of the directory, for the error.

        Raises LogFailedError once it has failed. Source: in Kafka too, a StopReplica that deletes a replica in an
        offline log directory gets KAFKA_STORAGE_ERROR.
        """
        if self.failed:
            raise LogFailedError(
                f"{partition}: the log directory {path} has failed; its replicas stay offline until a restart",
                partition=str(partition),
            )

    def may_clear_unclean(self) -> bool:
        """Whether the unclean mark may be cleared here, now that a controller has handled what was lost.

        Not once it has failed: replicas created in it since may not be durable, so the next start registers as unclean
        again, and a controller does not rely on them.
        """
        return not self.failed

    def may_mark_clean(self, *, complete: bool, all_closed: bool) -> bool:
        """Whether this directory gets the mark of a clean shutdown, whatever happened in others. complete: all of the
        broker's directories could be opened. all_closed: every log in it was closed, and its checkpoints written.

        The simulator does not run this rule: its disks have no such mark.
        """
        return complete and all_closed and not self.failed


def checkpoint_fails_directory(error: KreplogError) -> bool:
    """Whether a checkpoint file that cannot be written takes its log directory offline. Want of space, descriptors or
    memory does not: the next checkpoint may succeed. The simulator does not run this rule: its disks do not refuse
    checkpoints."""
    return not is_shortage(error)


def opens_again(error: BaseException | None) -> bool:
    """Whether a replica is opened again when it is next needed. error: with which it could not be opened, or its log
    has refused writes since. Want of descriptors or memory may have passed; any other error is final until a restart.
    The simulator does not run this rule: its disks are a model of what can be opened."""
    return isinstance(error, ReplicaRefusedError) or is_exhaustion(error)


def has_room(free_bytes: int, total_bytes: int) -> bool:
    """Whether a disk that was full has enough free for its logs to be opened again. free_bytes: for the broker's user;
    total_bytes: of the file system. The simulator does not run this rule: its disks do not fill."""
    return free_bytes >= min(MAX_REQUIRED_BYTES, MIN_FREE_SHARE * total_bytes)


def directory_for_new_replica(
    partition: TopicPartition,
    directories: Iterable[_Directory],
    replicas_in: Callable[[_Directory], int],
    preferred: _Directory | None = None,
    complete: bool = True,
) -> _Directory:
    """The preferred directory if it is online, else the online one with the fewest replicas, the first of several.
    replicas_in: the number in a directory. complete: all of the broker's directories are among them.

    Raises StorageError if none is online, or if one is missing: the replica may be in that one, and must not be created
    empty elsewhere.
    """
    if not complete:
        raise StorageError(
            f"{partition} is in none of the log directories that could be opened; it may be in one that could not"
        )
    online = [directory for directory in directories if not directory.failed]
    if not online:
        raise StorageError(f"{partition}: every log directory has failed")
    if preferred is not None and not preferred.failed:
        return preferred
    return min(online, key=replicas_in)
