"""DataDirectory: one log directory of a broker, apart from the logs in it: lock, marks of earlier lives, checkpoints.

meta.properties                     whose it is: broker.id and directory.id, as in Kafka (KIP-858)
.kafka_cleanshutdown                the last life ended cleanly; read and deleted before anything is loaded (F35)
kreplog.boot                        the boot of the host in which all that may be lost by a crash was known to be safe
*-offset-checkpoint                 of every replica on disk, open or not (F31)
<topic>-<partition>/                a replica
<topic>-<partition>.<hex>-delete    one that is being deleted; removed at the next start at the latest
<topic>-<partition>.<hex>-stray     one that a controller did not name any more; kept for log.stray.retention.ms
<topic>-<partition>.<hex>-aside     one without a topic id where a replica is to be; kept for its owner to look at
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kreplog.coord.database import sync_names_above
from kreplog.errors import (
    CorruptCheckpointError,
    InvalidTopicError,
    ResourceExhaustedError,
    StorageError,
    UsageError,
    is_exhaustion,
)
from kreplog.managed_log import OWNER_LOCK, OffsetCheckpoint, atomic_write, group_number, make_directory
from kreplog.types import TopicPartition, check_partition, check_topic_id

_log = logging.getLogger("kreplog.server")

CLEAN_MARK = ".kafka_cleanshutdown"
BOOT_MARK = "kreplog.boot"
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")
_DELETED, _STRAY, _ASIDE = "-delete", "-stray", "-aside"
_DELETABLE = re.compile(rf".+\.[0-9a-f]+{_DELETED}")
_STRAYED = re.compile(rf".+-([0-9]+)\.[0-9a-f]+{_STRAY}")

NAME_MAX = 255
"""Bytes of a file's name, at the most; a topic's name has 249, all of them ASCII."""

Offsets = tuple[int, int, int]
"""Recovery point, high watermark, log start offset: one for each of CHECKPOINTS."""


class Stray(NamedTuple):
    """A replica that was set aside. partition: its number. since_ms: wall clock."""

    path: Path
    topic_id: str
    partition: int
    since_ms: int


class DataDirectory:
    """`path`, locked for this process, with all logs in it that it owns, from `__init__` to `close`.

    id: of the directory, never another's. was_clean: the last life ended cleanly, or there was none. unclean: it did
    not, and the host has been booted since, so what was not fsynced may be lost. is_new: nobody knows of a former life,
    so what was here may be lost with a disk. failed: set by the owner, who then asks for no more. is_full: set by the
    owner where something failed for want of room. Thread-safe.
    Raises UsageError (in use, or another broker's) and StorageError.
    """

    def __init__(self, path: str, broker_id: int, boot: str, group: str | None = None) -> None:
        self.path = Path(path).absolute()
        self.failed = False
        self.is_full = False
        self._boot = boot
        self._lock = threading.Lock()
        try:
            make_directory(str(self.path), group)
            self._check_mode(group)
            self._file = os.open(self.path / OWNER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(self._file, 0o600)
                self._take(broker_id)
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
        former = self._read(BOOT_MARK)
        self.was_clean = clean.exists() or former is None
        self.is_new = former is None
        self.unclean = not self.was_clean and former != self._boot
        if self.is_new:
            sync_names_above(self.path)
        if clean.exists():
            clean.unlink()
            _sync(self.path)
        if not self.unclean and not self.is_new:
            self.clear_unclean()
        self._checkpoints = [OffsetCheckpoint(str(self.path / name)) for name in CHECKPOINTS]

    def _check_mode(self, group: str | None) -> None:
        """Warn where others than the owner, and the group that is to read, may enter: what exists is left as it is."""
        status, path = self.path.stat(), self.path
        mode = stat.S_IMODE(status.st_mode)
        if group is None and mode & 0o077:
            _log.warning("the log directory %s has mode %04o: chmod 700 closes it to other users", path, mode)
        elif group is not None and (status.st_gid != group_number(group) or mode != 0o2750):
            _log.warning(
                "the log directory %s has mode %04o, and was made before log.dir.group = %s: chgrp -R, and chmod 2750 "
                "for directories and 640 for files, open it to the group",
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
                f"the log directory {self.path} is that of broker {owner or '(unknown)'}, not of {broker_id}: "
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
            _log.warning("%s; it is written anew", error)
            return {}

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return None

    def clear_unclean(self) -> None:
        """What a crash of the host may have taken is dealt with: from now on only another boot makes this unclean."""
        atomic_write(str(self.path / BOOT_MARK), f"{self._boot}\n".encode())

    # Replicas

    def replicas(self) -> dict[TopicPartition, str | None]:
        """Topic id of every replica here, None for one whose making was interrupted before it got one."""
        found: dict[TopicPartition, str | None] = {}
        for name in os.listdir(self.path):
            try:
                partition = TopicPartition.parse(name)
            except InvalidTopicError:
                continue
            if (self.path / name).is_symlink():
                _log.error("%s is a symbolic link, so no replica: move the directory itself here", self.path / name)
                continue
            if not (self.path / name).is_dir():
                continue
            found[partition] = read_topic_id(self.path / name)
        return found

    def folder(self, partition: TopicPartition) -> Path:
        """Where that replica is, or would be: in this directory and nowhere else. Raises InvalidTopicError."""
        return self.path / str(check_partition(partition))

    def make(self, partition: TopicPartition, topic_id: str) -> Path:
        """A folder for a new replica, which the checkpoints do not know; durable once its log's files are synced.

        Raises InvalidTopicError, StorageError.
        """
        folder = self._own_folder(partition)
        check_topic_id(topic_id)
        self.forget(partition)
        make_directory(str(folder))
        atomic_write(str(folder / "partition.metadata"), f"version: 0\ntopic_id: {topic_id}\n".encode(), False)
        return folder

    def set_aside(self, partition: TopicPartition) -> Path:
        """Move what is no replica, for want of a topic id, out of the way of one. Raises StorageError."""
        return self._move(partition, _ASIDE)

    def set_stray(self, partition: TopicPartition) -> Path:
        """Move a replica out of the way, for `restore` or, after a while, `remove`. Raises StorageError."""
        moved = self._move(partition, _STRAY)
        with suppress(OSError):  # then its time runs from when it last got a file
            os.utime(moved)
        return moved

    def strays(self) -> list[Stray]:
        """Those that can be taken back, oldest first."""
        found = []
        for name in os.listdir(self.path):
            strayed, path = _STRAYED.fullmatch(name), self.path / name
            if strayed is None or path.is_symlink() or (topic_id := read_topic_id(path)) is None:
                continue
            found.append(Stray(path, topic_id, int(strayed[1]), path.stat().st_mtime_ns // 1_000_000))
        return sorted(found, key=lambda stray: stray.since_ms)

    def restore(self, stray: Stray, partition: TopicPartition) -> Path:
        """Move a stray back to where its replica was; the checkpoints do not know it. Raises StorageError."""
        self.forget(partition)
        folder = self._own_folder(partition)
        if os.path.lexists(folder):
            raise StorageError(f"cannot move {stray.path} back to {folder}: it exists", path=str(folder))
        _rename(stray.path, folder)
        return folder

    def mark_deleted(self, partition: TopicPartition) -> Path:
        """Move a replica out of the way for `remove`. Raises StorageError."""
        return self._move(partition, _DELETED)

    def mark_stray_deleted(self, stray: Stray) -> Path:
        """Rename a stray for `remove`: half deleted it must not be taken back. Raises StorageError."""
        target = stray.path.with_name(stray.path.name.removesuffix(_STRAY) + _DELETED)
        _rename(stray.path, target)
        return target

    def _own_folder(self, partition: TopicPartition) -> Path:
        folder = self.folder(partition)
        if folder.is_symlink():
            raise StorageError(
                f"{folder} is a symbolic link, and what it leads to may be anybody's: move the directory itself here",
                partition=str(partition),
                path=str(folder),
            )
        return folder

    def _move(self, partition: TopicPartition, suffix: str) -> Path:
        folder = self._own_folder(partition)
        target = self.path / _suffixed(partition, suffix)
        _rename(folder, target)
        return target

    def remove(self, moved: Path) -> None:
        """Delete what was marked for it, and nothing else; the next start tries again what cannot be deleted now."""
        if moved.parent == self.path and _DELETABLE.fullmatch(moved.name) and not moved.is_symlink():
            shutil.rmtree(moved, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Deletions that an earlier life did not finish."""
        for name in os.listdir(self.path):
            if name.endswith(_DELETED):
                self.remove(self.path / name)

    # Checkpoints

    def forget(self, partition: TopicPartition) -> None:
        """No checkpoint speaks of it any more, on disk: a log made anew in its place would believe it."""
        with self._lock:
            for checkpoint in self._checkpoints:
                checkpoint.update(partition, None)

    def write_checkpoints(self, offsets: Callable[[], Mapping[TopicPartition, Offsets]]) -> None:
        """`offsets()` of the open replicas; of others that have a folder what was there before (F31).

        offsets: called with the lock held, so that no replica that is forgotten meanwhile comes back. Raises
        StorageError.
        """
        with self._lock:
            now = offsets()
            for index, checkpoint in enumerate(self._checkpoints):
                before = self._load(checkpoint)
                others = {one: at for one, at in before.items() if one not in now and self.folder(one).is_dir()}
                after = others | {one: three[index] for one, three in now.items()}
                if after != before:
                    checkpoint.write(after)

    # End

    def close(self, clean: bool) -> None:
        """Let go of it. clean: every log in it was closed and nothing is lost."""
        if clean and not self.failed:
            try:
                self.clear_unclean()
                atomic_write(str(self.path / CLEAN_MARK), b'{"version":0}')
            except (OSError, StorageError) as error:
                _log.error("the log directory %s is not marked as closed cleanly: %s", self.path, error)
        fcntl.flock(self._file, fcntl.LOCK_UN)  # which closing is not, while a child between fork and exec has it too
        os.close(self._file)


def read_topic_id(folder: Path) -> str | None:
    """The topic id in a partition directory, None where there is none that can be read. Raises StorageError where the
    process has no descriptors, which says nothing about it."""
    try:
        lines = (folder / "partition.metadata").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        if is_exhaustion(error):
            raise ResourceExhaustedError(f"cannot read partition.metadata in {folder}: {error}") from error
        return None
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    return fields.get("topic_id", "").strip() or None


def _suffixed(partition: TopicPartition, suffix: str) -> str:
    """A new directory name for a replica that is moved out of the way. The topic's name is shortened where a file
    system has no room for all of it, with the longest suffix too, as a stray gets that when it is deleted. Source:
    Kafka, UnifiedLog.logDirNameWithSuffixCappedLength."""
    ending = f"-{partition.partition}.{secrets.token_hex(16)}"
    return partition.topic[: NAME_MAX - len(ending) - len(_DELETED)] + ending + suffix


def _rename(folder: Path, target: Path) -> None:
    try:
        folder.rename(target)
    except OSError as error:
        raise StorageError(f"cannot move {folder} to {target}: {error}", path=str(folder)) from error


def _sync(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
