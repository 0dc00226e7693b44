"""DataDirectory: a log directory of a broker: its lock, its shutdown marks, its checkpoints, and the names in it.

meta.properties                     owner: broker.id and directory.id, as in Kafka (KIP-858)
.kafka_cleanshutdown                mark of a clean shutdown; read and deleted before logs are loaded (F35)
kreplog.boot                        boot id of the host; if another boot follows a crash, unsynced data may be lost
*-offset-checkpoint                 offsets of every replica on disk, open or not (F31)
<topic>-<partition>/                a replica
<topic>-<partition>.<hex>-delete    a deleted replica; its files are deleted by the next start at the latest
<topic>-<partition>.<hex>-stray     a replica that is not assigned any more; deleted after log.stray.retention.ms
<topic>-<partition>.<id>-future     a copy of a replica that moves here: see kreplog.core.broker.future_replicas
<topic>-<partition>.<hex>-aside     a directory without topic id that had the name of a replica; never deleted
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kreplog.core.broker.log_directory_state import LogDirectoryState, directory_start
from kreplog.errors import (
    CorruptCheckpointError,
    InvalidTopicError,
    ResourceExhaustedError,
    StorageError,
    UsageError,
)
from kreplog.managed_log import (
    OWNER_LOCK,
    OffsetCheckpoint,
    atomic_write,
    group_number,
    make_directory,
    read_topic_id,
    show_lock,
    write_topic_id,
)
from kreplog.syncing import sync_directory, sync_parents
from kreplog.types import TopicPartition, check_partition, check_topic_id

_log = logging.getLogger("kreplog.server")

CLEAN_MARK = ".kafka_cleanshutdown"
BOOT_MARK = "kreplog.boot"
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
_DELETED, _STRAY, _ASIDE, _FUTURE = "-delete", "-stray", "-aside", "-future"
_DELETABLE = re.compile(rf".+\.[0-9a-f]+{_DELETED}")
_STRAYED = re.compile(rf".+-([0-9]+)\.[0-9a-f]+{_STRAY}")
_COPIED = re.compile(rf"(.+-[0-9]+)\.([0-9a-f]{{32}}){_FUTURE}")

NAME_MAX = 255
"""Maximum bytes of a file name; a topic name has up to 249, all ASCII."""

Offsets = tuple[int, int, int]
"""Recovery point, high watermark and log start offset, in the order of CHECKPOINTS."""


class Stray(NamedTuple):
    """A stray replica. partition: its number. since_ms: when it was renamed, wall clock."""

    path: Path
    topic_id: str
    partition: int
    since_ms: int


class FutureReplica(NamedTuple):
    """The directory of a copy of a replica. id: in its name, and in that of the replica that it has replaced."""

    path: Path
    partition: TopicPartition
    id: str


class DataDirectory(LogDirectoryState):
    """A log directory, locked for this process with all logs in it, from `__init__` to `close`. Thread-safe but
    for `fail`, which is for the event loop.

    id: unique id of the directory. start: how its last use ended, `handled` once a controller has. failed: the caller
    makes no other call but `close` then.
    Raises UsageError (in use, or another broker's) and StorageError.
    """

    def __init__(self, path: str, broker_id: int, boot: str, group: str | None = None) -> None:
        super().__init__()
        self.path = Path(path).absolute()
        self._boot = boot
        self._lock = threading.Lock()
        try:
            make_directory(str(self.path), group)
            self._check_mode(group)
            self._file = os.open(self.path / OWNER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(self._file, 0o600)
                self._take(broker_id)
                show_lock(self._file)
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            raise StorageError(f"the log directory {self.path} cannot be used: {error}", path=str(self.path)) from error

    def _take(self, broker_id: int) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the log directory {self.path} is in use by another broker process", path=str(self.path)
            ) from None
        self._check_owner(broker_id)
        clean = self.path / CLEAN_MARK
        self.start = directory_start(clean.exists(), self._read(BOOT_MARK), self._boot)
        if self.start.is_new:
            sync_parents(self.path)
        if clean.exists():
            clean.unlink()
            sync_directory(self.path)
        if not self.start.may_have_lost:
            self.clear_unclean()
        self._checkpoints = [OffsetCheckpoint(str(self.path / name)) for name in CHECKPOINTS]
        self._cleaner_checkpoint = OffsetCheckpoint(str(self.path / CLEANER_CHECKPOINT))

    def _check_mode(self, group: str | None) -> None:
        """Warn if other users than the owner, and the group of log.dir.group, have access; modes are not changed."""
        status, path = self.path.stat(), self.path
        mode = stat.S_IMODE(status.st_mode)
        if group is None and mode & 0o077:
            _log.warning("the log directory %s has mode %04o: `chmod 700` closes it to other users", path, mode)
        elif group is not None and (status.st_gid != group_number(group) or mode != 0o2750):
            _log.warning(
                "the log directory %s has mode %04o, and was created before log.dir.group = %s: `chgrp -R` "
                "and `chmod` (2750 for directories, 640 for files) open it to the group",
                path,
                mode,
                group,
            )

    def _check_owner(self, broker_id: int) -> None:
        text = self._read("meta.properties")
        lines = (line.partition("=") for line in (text or "").splitlines() if not line.startswith("#"))
        found = {key.strip(): value.strip() for key, _, value in lines}
        owner = found.get("broker.id", "") if text is not None else str(broker_id)
        if owner != str(broker_id):
            raise UsageError(
                f"the log directory {self.path} belongs to broker {owner or '(unknown)'}, not to {broker_id}: "
                "give each broker directories of its own",
                path=str(self.path),
            )
        self.id = found.get("directory.id", "")
        if not self.id:
            self.id = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
            written = {"version": "0", **found, "broker.id": owner, "directory.id": self.id}
            content = "".join(f"{key}={value}\n" for key, value in written.items())
            atomic_write(str(self.path / "meta.properties"), content.encode())

    def _load(self, checkpoint: OffsetCheckpoint) -> Mapping[TopicPartition, int]:
        try:
            return checkpoint.latest()
        except CorruptCheckpointError as error:
            _log.warning("%s; it is rewritten", error)
            return {}

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None

    def clear_unclean(self) -> None:
        """Write the boot mark: any loss of data is handled, and only a crash of the host makes it unclean again."""
        atomic_write(str(self.path / BOOT_MARK), f"{self._boot}\n".encode())
        self.start = self.start.handled()

    # Replicas

    def replicas(self) -> dict[TopicPartition, str | None]:
        """Topic id of every replica here, None for one whose creation was interrupted before it got one."""
        found: dict[TopicPartition, str | None] = {}
        for name in os.listdir(self.path):
            try:
                partition = TopicPartition.parse(name)
            except InvalidTopicError:
                continue
            if (self.path / name).is_symlink():
                _log.error("%s is a symbolic link, and ignored: move the directory itself here", self.path / name)
                continue
            if not (self.path / name).is_dir():
                continue
            found[partition] = known_topic_id(self.path / name)
        return found

    def folder(self, partition: TopicPartition) -> Path:
        """The directory of a replica, whether it exists or not. Raises InvalidTopicError."""
        return self.path / str(check_partition(partition))

    def make(self, partition: TopicPartition, topic_id: str) -> Path:
        """Create the directory of a new replica, without checkpoints; durable once its log's files are synced.

        Raises InvalidTopicError, StorageError.
        """
        folder = self._own_folder(partition)
        check_topic_id(topic_id)
        self.forget(partition)
        make_directory(str(folder))
        write_topic_id(str(folder), topic_id, durable=False)
        return folder

    def set_aside(self, partition: TopicPartition) -> Path:
        """Rename a directory without topic id, whose name a replica needs. Raises StorageError."""
        return self._move(partition, _ASIDE)

    def set_stray(self, partition: TopicPartition, folder: Path | None = None) -> Path:
        """Rename a replica as a stray, for `restore` or `mark_stray_deleted`. folder: its directory, None for the one
        that has its name. Raises StorageError."""
        moved = self._move(partition, _STRAY, folder)
        with suppress(OSError):  # then its age counts from its last change
            os.utime(moved)
        return moved

    def strays(self) -> list[Stray]:
        """Strays that can be restored, oldest first."""
        found = []
        for name in os.listdir(self.path):
            strayed, path = _STRAYED.fullmatch(name), self.path / name
            if strayed is None or path.is_symlink() or (topic_id := known_topic_id(path)) is None:
                continue
            found.append(Stray(path, topic_id, int(strayed[1]), path.stat().st_mtime_ns // 1_000_000))
        return sorted(found, key=lambda stray: stray.since_ms)

    def restore(self, stray: Stray, partition: TopicPartition) -> Path:
        """Rename a stray back to its replica, without checkpoints. Raises StorageError."""
        self.forget(partition)
        folder = self._own_folder(partition)
        if os.path.lexists(folder):
            raise StorageError(f"cannot move {stray.path} back to {folder}: it exists", path=str(folder))
        _rename(stray.path, folder)
        return folder

    def mark_deleted(self, partition: TopicPartition, folder: Path | None = None) -> Path:
        """Rename a replica for `remove`. folder: as for `set_stray`. Raises StorageError."""
        return self._move(partition, _DELETED, folder)

    def mark_stray_deleted(self, stray: Stray) -> Path:
        """Rename a stray for `remove`: a half deleted one must not be restored. Raises StorageError."""
        target = stray.path.with_name(stray.path.name.removesuffix(_STRAY) + _DELETED)
        _rename(stray.path, target)
        return target

    # Copies of replicas that move here, and replicas that have moved away

    def make_future(self, partition: TopicPartition, topic_id: str) -> FutureReplica:
        """Create the directory of a copy. Raises StorageError."""
        folder = self._own_folder(partition)
        if os.path.lexists(folder):
            raise StorageError(f"cannot copy {partition} to {self.path}: {folder} exists", path=str(folder))
        self.forget(partition)
        copy_id = secrets.token_hex(16)
        path = self.path / f"{partition}.{copy_id}{_FUTURE}"
        make_directory(str(path))
        write_topic_id(str(path), topic_id, durable=False)
        return FutureReplica(path, partition, copy_id)

    def futures(self) -> list[FutureReplica]:
        """The copies of replicas here."""
        found = []
        for name in sorted(os.listdir(self.path)):
            copied, path = _COPIED.fullmatch(name), self.path / name
            if copied is not None and path.is_dir() and not path.is_symlink():
                with suppress(InvalidTopicError):
                    found.append(FutureReplica(path, TopicPartition.parse(copied[1]), copied[2]))
        return found

    def replaced(self, future: FutureReplica) -> Path:
        """The directory here of the replica that a copy has replaced, whether it exists or not."""
        return self.path / f"{future.partition}.{future.id}{_DELETED}"

    def mark_replaced(self, future: FutureReplica, folder: Path) -> Path:
        """Rename the directory of a replica that a copy replaces, which commits that once it is durable. Raises
        StorageError."""
        target = self.replaced(future)
        _rename(folder, target)
        return target

    def adopt(self, future: FutureReplica) -> Path:
        """Give a copy the name of its replica. Raises StorageError."""
        folder = self._own_folder(future.partition)
        if os.path.lexists(folder):
            raise StorageError(f"cannot move {future.path} to {folder}: it exists", path=str(folder))
        _rename(future.path, folder)
        return folder

    def mark_future_deleted(self, future: FutureReplica) -> Path:
        """Rename a copy for `remove`. Raises StorageError."""
        target = self.path / _suffixed(future.partition, _DELETED)
        _rename(future.path, target)
        return target

    def _own_folder(self, partition: TopicPartition) -> Path:
        folder = self.folder(partition)
        if folder.is_symlink():
            raise StorageError(
                f"{folder} is a symbolic link, whose target may belong to another user: move the directory itself here",
                partition=str(partition),
                path=str(folder),
            )
        return folder

    def _move(self, partition: TopicPartition, suffix: str, folder: Path | None = None) -> Path:
        target = self.path / _suffixed(partition, suffix)
        if folder is None or folder.name == str(partition):
            folder = self._own_folder(partition)
        _rename(folder, target)
        return target

    def remove(self, moved: Path) -> None:
        """Delete a directory that is marked for deletion, and no other; the next start retries what fails."""
        if moved.parent == self.path and _DELETABLE.fullmatch(moved.name) and not moved.is_symlink():
            shutil.rmtree(moved, ignore_errors=True)

    def leftovers(self) -> list[Path]:
        """The directories that are marked for deletion."""
        return [self.path / name for name in os.listdir(self.path) if name.endswith(_DELETED)]

    def remove_leftovers(self, retained: Collection[Path] = ()) -> None:
        """Finish the deletions that were interrupted by the end of the process, but for those of `retained`."""
        for path in self.leftovers():
            if path not in retained:
                self.remove(path)

    # Checkpoints

    def forget(self, partition: TopicPartition) -> None:
        """Remove a partition from the checkpoint files: a new log in its place must not use them."""
        with self._lock:
            for checkpoint in (*self._checkpoints, self._cleaner_checkpoint):
                checkpoint.update(partition, None)

    def write_checkpoints(self, offsets: Callable[[], Mapping[TopicPartition, Offsets]]) -> None:
        """Write `offsets()` of the open replicas, and keep the entries of others that have a directory (F31). Logs
        write the cleaner checkpoint themselves; entries of replicas that are not here any more are removed.

        offsets: called with the lock held, so that a replica that is forgotten meanwhile does not return. Raises
        StorageError.
        """
        with self._lock:
            current = offsets()
            for index, checkpoint in enumerate(self._checkpoints):
                before = self._load(checkpoint)
                present = {partition: offset for partition, offset in before.items() if self._has(partition, current)}
                after = present | {partition: entry[index] for partition, entry in current.items()}
                if after != before:
                    checkpoint.write(after)
            cleaned = self._load(self._cleaner_checkpoint)
            if gone := [partition for partition in cleaned if not self._has(partition, current)]:
                self._cleaner_checkpoint.update_all(dict.fromkeys(gone))

    def _has(self, partition: TopicPartition, current: Collection[TopicPartition]) -> bool:
        return partition in current or self.folder(partition).is_dir()

    # End

    def close(self, clean: bool) -> None:
        """Unlock the directory. clean: write the clean shutdown mark, see `may_mark_clean`."""
        if clean:
            try:
                self.clear_unclean()
                atomic_write(str(self.path / CLEAN_MARK), b'{"version":0}')
            except (OSError, StorageError) as error:
                _log.error("the log directory %s cannot get its clean shutdown mark: %s", self.path, error)
        fcntl.flock(self._file, fcntl.LOCK_UN)  # closing does not unlock while a forked child has the descriptor
        os.close(self._file)


def known_topic_id(folder: Path) -> str | None:
    """The topic id in a partition directory, None if it cannot be read. Raises ResourceExhaustedError."""
    try:
        return read_topic_id(str(folder))
    except ResourceExhaustedError:
        raise
    except StorageError:
        return None


def fits_future(partition: TopicPartition) -> bool:
    """Whether the name of a copy's directory is not too long."""
    return len(f"{partition}.{'0' * 32}{_FUTURE}") <= NAME_MAX


def _suffixed(partition: TopicPartition, suffix: str) -> str:
    """A new directory name for a replica that is deleted or set aside. A topic name is shortened to the limit of the
    file system, with the longest suffix, which a stray gets when it is deleted. Source: Kafka,
    UnifiedLog.logDirNameWithSuffixCappedLength."""
    ending = f"-{partition.partition}.{secrets.token_hex(16)}"
    return partition.topic[: NAME_MAX - len(ending) - len(_DELETED)] + ending + suffix


def _rename(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError as error:
        raise StorageError(f"cannot move {folder} to {target}: {error}", path=str(folder)) from error
