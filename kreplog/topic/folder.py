"""TopicFolder: the partitions of one topic in a folder, as a Kafka broker lays them out, and their logs.

    data/orders.topic    how many partitions there are, see topic_file
    data/orders.lock     held by the writer, see TopicLock
    data/orders-0 ...    a partition each, as `Log` has it
    data/*-checkpoint    Kafka's checkpoint files, of all topics of the folder

A log is opened when it is first needed. The logs leave the lock and the checkpoints to this, so that thousands of them
cost one of each.
"""

from __future__ import annotations

import logging
import os
import resource
import stat
import threading
import uuid
import weakref
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping

from kreplog._native import log as segmented_log
from kreplog._native import writable
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog._native.directory import TopicLock, was_topic_released
from kreplog._native.files import error_of, make_directory, sync_file_system
from kreplog._native.partition_metadata import read_topic_id, write_topic_id
from kreplog._native.shown_lock import topic_lock_path
from kreplog.config import LogConfig
from kreplog.errors import (
    ArgumentTypeError,
    CorruptCheckpointError,
    InvalidPartitionsError,
    InvalidTopicError,
    KreplogError,
    LogClosedError,
    StorageError,
    UsageError,
)
from kreplog.file_systems import needs_host_lock
from kreplog.log import Log
from kreplog.topic.appended import AppendedLogs
from kreplog.topic.topic_file import TopicFile, read_topic_file, share, topic_file_path, write_topic_file
from kreplog.topic.topic_waits import TopicWaits
from kreplog.types import TopicPartition, check_partition_number, check_topic

CHECKPOINTS = ("recovery-point", "replication", "log-start")
ID_CHARACTERS = 22
GROUPS_MARK = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
"""Of a directory that a group may read, as LogConfig.directory_group makes it."""
CREATED_TOGETHER = 1000
"""Partitions between two syncs of the file system while they are created; each has a page mapped meanwhile."""

_logger = logging.getLogger("kreplog")
_folders: weakref.WeakSet[TopicFolder] = weakref.WeakSet()


class PartitionLog(Log):
    """The log of a partition whose topic is open as a whole: the topic has its lock, and writes its checkpoints."""

    _in_topic = True


class TopicFolder:
    """The partitions of a topic, open for writing or for reading, and their logs. Thread-safe.

    path: `<folder>/<topic>`. partitions: of a topic that does not exist yet; one that does has so many.
    Raises InvalidTopicError, UsageError (a missing topic without a number), InvalidPartitionsError, LogLockedError,
    CorruptCheckpointError (the topic file), UnsupportedFileSystemError (to be written, on a network file system without
    locks), StorageError (a partition's directory is missing).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        partitions: int | None,
        config: LogConfig,
        read_only: bool,
        max_open_partitions: int,
    ) -> None:
        self.folder, self.topic = split_path(path)
        self.config = config
        self.read_only = read_only
        self.closed = False
        self.logs: dict[int, PartitionLog] = {}
        self.waits: TopicWaits | None = None  # of the tasks that follow the topic
        self.appended = AppendedLogs(self.folder, _checked_limit(max_open_partitions))
        self._mutex = threading.Lock()
        self._file_path = topic_file_path(self.folder, self.topic)
        self._lock_path = topic_lock_path(self.folder, self.topic)
        self._lock: TopicLock | None = None
        self._numbers: frozenset[int] = frozenset()
        self._seen: tuple[int, int] | None = None
        self.partitions = 0
        self.topic_id: str | None = None
        self._left_unflushed: set[int] = set()  # partitions that a killed writer may not have flushed
        if partitions is not None:
            check_count(partitions)
        if read_only:
            self._reload()
            self._check_count(partitions, self.partitions)
            return
        needs_host_lock(self.folder)  # the TopicLock is one
        make_directory(self.folder, config.directory_group)
        self._lock = TopicLock(self.folder, self.topic)
        was_released = was_topic_released(self.folder, self.topic)
        self._lock.acquire()
        try:
            left = set() if was_released else self._listed()
            self._create_or_complete(partitions)
            if (group := self._readers_group()) is not None:
                share(self._lock_path, group)  # by which readers see that this lives
            self._left_unflushed = left & set(range(self.partitions))
        except BaseException:
            self._lock.close()
            raise
        _folders.add(self)

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.topic)

    # What there is

    def _listed(self) -> set[int]:
        """The numbers of the partition directories."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise error_of("cannot list", self.folder, error) from error
        prefix = self.topic + "-"
        found = (_partition_of(name) for name in names if name.startswith(prefix))
        return {partition.partition for partition in found if partition is not None and partition.topic == self.topic}

    def _create_or_complete(self, partitions: int | None) -> None:
        """Create the topic if it does not exist, or complete a creation or add_partitions that was interrupted."""
        content = read_topic_file(self._file_path)
        found = self._listed()
        settled = self._adopted(found) if content is None else self._compared(content, found)
        if settled is None:
            if partitions is None:
                raise UsageError(f"{self.path}: there is no such topic; give `partitions` to create it", path=self.path)
            settled = TopicFile(_new_id(), partitions, 0)
        self._check_count(partitions, settled.partitions)
        if settled != content:
            write_topic_file(self._file_path, settled, self._readers_group())
        self._complete(settled)

    def _check_count(self, wanted: int | None, existing: int) -> None:
        if wanted is not None and wanted != existing:
            more = f", and call add_partitions({wanted})" if wanted > existing and not self.read_only else ""
            raise InvalidPartitionsError(
                f"{self.path} has {existing} partitions, not {wanted}: open it without `partitions`{more}",
                existing=existing,
                path=self.path,
            )

    def _adopted(self, found: set[int]) -> TopicFile | None:
        """The topic file for partitions that brokers or single logs have made without one; None without partitions."""
        if not found:
            return None
        self._require(found, max(found) + 1)
        return TopicFile(self._stored_id(found) or _new_id(), len(found), len(found))

    def _compared(self, content: TopicFile, found: set[int]) -> TopicFile:
        """The topic file, brought up to date: a broker may have added partitions, or deleted and created the topic."""
        self._require(found, content.created)
        if found and max(found) >= content.partitions:
            self._require(found, max(found) + 1)
            content = TopicFile(content.topic_id, len(found), len(found))
        stored = self._stored_id(found) if content.created else None
        if stored is not None and stored != content.topic_id:
            _logger.warning("%s: its partitions have another topic id than its topic file; taking theirs", self.path)
            content = TopicFile(stored, content.partitions, content.created)
        return content

    def _require(self, found: set[int], count: int) -> None:
        missing = sorted(set(range(count)) - found)
        if missing:
            names = ", ".join(f"{self.topic}-{number}" for number in missing[:10])
            raise StorageError(
                f"{self.path}: of its {count} partitions {len(missing)} have no directory ({names}): put them back, or "
                f"open those that there are with kreplog.Log; without any, delete {self._file_path} to create the "
                "topic again",
                path=self.path,
            )

    def _stored_id(self, found: Iterable[int]) -> str | None:
        """The topic id in the first partition's partition.metadata; None where there is none to be read."""
        first = min(found, default=None)
        try:
            stored = None if first is None else read_topic_id(self._partition_path(first))
        except CorruptCheckpointError as error:
            _logger.warning("%s", error)
            return None
        return stored if stored is not None and len(stored) == ID_CHARACTERS else None

    def _partition_path(self, number: int) -> str:
        return os.path.join(self.folder, f"{self.topic}-{number}")

    def _readers_group(self) -> int | None:
        """The group that may read the partitions, by the directory of the first, and the topic's files with them."""
        try:
            status = os.stat(self._partition_path(0))
        except OSError:
            return None
        return status.st_gid if status.st_mode & GROUPS_MARK == GROUPS_MARK else None

    # Making partitions

    def _complete(self, content: TopicFile) -> None:
        """Make the directories that are missing, in steps that an interruption leaves complete."""
        while content.created < content.partitions:
            stop = min(content.created + CREATED_TOGETHER, content.partitions)
            self._create(range(content.created, stop), content.topic_id)
            content = TopicFile(content.topic_id, content.partitions, stop)
            write_topic_file(self._file_path, content, self._readers_group())
        self.topic_id, self.partitions = content.topic_id, content.partitions

    def _create(self, numbers: range, topic_id: str) -> None:
        made: list[PartitionLog] = []
        group = self.config.directory_group
        if group is None and (readers := self._readers_group()) is not None:
            group = str(readers)  # as the partitions before
        try:
            for number in numbers:
                path = self._partition_path(number)
                make_directory(path, group)
                write_topic_id(path, topic_id, durable=False)
                made.append(PartitionLog.open(path, self.config))
            sync_file_system(self.folder)
            for log in made:
                segmented_log.mark_created(log)
        finally:
            for log in made:
                writable.abandon(log)

    def add_partitions(self, total: int) -> None:
        check_count(total)
        with self._mutex:
            self.check_writable()
            if total < self.partitions:
                raise InvalidPartitionsError(
                    f"{self.path} has {self.partitions} partitions, which cannot become {total}: partitions are only "
                    "added",
                    existing=self.partitions,
                    path=self.path,
                )
            if total > self.partitions:
                assert self.topic_id is not None
                content = TopicFile(self.topic_id, total, self.partitions)
                write_topic_file(self._file_path, content, self._readers_group())
                self._complete(content)

    # Reading a topic that another process writes

    def refresh(self) -> None:
        """In a reader: find partitions that were added."""
        if self.read_only and (self._seen is None or self._seen != self._identity()):
            with self._mutex:
                self._reload()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._file_path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _reload(self) -> None:
        seen = self._identity()
        try:
            content = read_topic_file(self._file_path)
        except CorruptCheckpointError as error:
            _logger.warning("%s; going by the directories", error)
            content = None
        found = self._listed()
        if content is not None:  # those that are just being made are left out
            found -= set(range(content.created, content.partitions))
        if not found and (content is None or not content.created):
            raise StorageError(f"{self.path}: there is no such topic", path=self.path)
        self._numbers, self._seen = frozenset(found), seen
        self.partitions = max(found, default=-1) + 1
        self.topic_id = self._stored_id(found)

    @property
    def numbers(self) -> Iterable[int]:
        """The partitions that are here, in order; a broker's folder may hold some of a topic's only."""
        self.refresh()
        return sorted(self._numbers) if self.read_only else range(self.partitions)

    # Logs

    def log(self, number: int) -> PartitionLog:
        """The log of a partition, opened if it was not. Raises UsageError (no such partition), and as Log.open does."""
        log = self.logs.get(number)
        if log is not None:
            return log
        with self._mutex:
            self._check_open()
            log = self.logs.get(number)
            if log is None:
                self._check_number(number)
                log = self.logs[number] = PartitionLog.open(self._partition_path(number), self.config, self.read_only)
            return log

    def log_to_append(self, number: int) -> PartitionLog:
        """As `log`, for the next append. Raises LogClosedError, too."""
        log = self.log(number)
        self._check_open()
        self.appended.add(number, log)
        return log

    def _check_number(self, number: int) -> None:
        if not isinstance(number, int):
            raise ArgumentTypeError(f"partition is an int, not {type(number).__name__}")
        if number in self._numbers if self.read_only else 0 <= number < self.partitions:
            return
        raise UsageError(f"{self.path} has no partition {number}; it has {self.partitions}", path=self.path)

    def _check_open(self) -> None:
        if self.closed:
            raise LogClosedError(f"{self.path}: the topic is closed", path=self.path)

    def check_writable(self) -> None:
        """Raises LogClosedError, UsageError."""
        self._check_open()
        if self.read_only:
            raise UsageError(
                f"{self.path}: this topic was opened read-only; open it with read_only=False to change it",
                path=self.path,
            )

    def flush(self) -> None:
        """Make all appended records durable, those of a killed writer too. Raises LogFailedError, StorageError."""
        self._open_left()
        for log in list(self.logs.values()):
            log.flush()

    def _open_left(self) -> None:
        """Recover the partitions whose records a killed writer may not have flushed: a flush has them from then on."""
        for number in sorted(self._left_unflushed):
            self.log(number)
        self._left_unflushed = set()

    def close(self) -> None:
        """Close the logs, write the checkpoints, release the lock. Closing twice does nothing.

        Raises LogFailedError of the first partition that could not be made durable; all are closed nevertheless."""
        errors: list[KreplogError] = []
        if not self.closed:
            try:
                self._open_left()
            except KreplogError as error:
                errors.append(error)
        with self._mutex:
            if self.closed:
                return
            self.closed = True
        for log in self.logs.values():
            try:
                log.close()
            except KreplogError as error:
                errors.append(error)
        if self._lock is not None:
            try:
                self._write_checkpoints(segmented_log.closed_with)
            except KreplogError as error:
                errors.append(error)
            finally:
                self._lock.close()
        if errors:
            for other in errors[1:10]:
                errors[0].add_note(str(other))
            raise errors[0]

    def write_checkpoints(self) -> None:
        """Bring Kafka's checkpoint files up to date, of logs that are open. Raises StorageError."""
        self._write_checkpoints(segmented_log.checkpoint_offsets)

    def _write_checkpoints(self, offsets_of: Callable[[PartitionLog], tuple[int, int, int | None] | None]) -> None:
        found = {
            TopicPartition(self.topic, number): offsets
            for number, log in list(self.logs.items())
            if (offsets := offsets_of(log)) is not None
        }
        update_checkpoints(self.folder, found)

    def after_fork_in_child(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self._mutex = threading.Lock()
        self.closed = True
        if self._lock is not None:
            self._lock.abandon()


def update_checkpoints(folder: str, offsets: Mapping[TopicPartition, tuple[int, int, int | None]]) -> None:
    """Update Kafka's checkpoint files by recovery point, high watermark and log start offset. Raises StorageError."""
    for place, name in enumerate(CHECKPOINTS):
        checkpoint = OffsetCheckpoint(os.path.join(folder, name + "-offset-checkpoint"))
        checkpoint.update_all({partition: found[place] for partition, found in offsets.items()})


def _new_id() -> str:
    """A topic id as Kafka writes it: 16 random bytes in base64url without padding."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def check_count(partitions: int) -> None:
    """Raise UsageError if a topic cannot have so many partitions."""
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        raise ArgumentTypeError(f"partitions is an int, not {type(partitions).__name__}")
    if partitions < 1:
        raise UsageError(f"a topic has 1 partition or more, not {partitions}")
    check_partition_number(partitions - 1)


def _checked_limit(max_open_partitions: int) -> int:
    """Raises UsageError for a limit that is none."""
    if isinstance(max_open_partitions, bool) or not isinstance(max_open_partitions, int):
        raise ArgumentTypeError(f"max_open_partitions is an int, not {type(max_open_partitions).__name__}")
    if max_open_partitions < 1:
        raise UsageError(f"max_open_partitions = {max_open_partitions} must be at least 1")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max_open_partitions if files == resource.RLIM_INFINITY else max(1, min(max_open_partitions, files // 4))


def topics_in(folder: str | os.PathLike[str]) -> list[str]:
    """The names of the topics whose partitions are in the folder, in order. Raises StorageError."""
    try:
        with os.scandir(folder) as entries:
            found = [_partition_of(entry.name) for entry in entries if entry.is_dir()]
    except OSError as error:
        raise error_of("cannot list", os.fspath(folder), error) from error
    return sorted({partition.topic for partition in found if partition is not None})


def _partition_of(name: str) -> TopicPartition | None:
    """The partition of a directory name; None for other names."""
    try:
        return TopicPartition.parse(name)
    except InvalidTopicError:
        return None


def split_path(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The folder, absolute, and the name of the topic. Raises ArgumentTypeError, UsageError, InvalidTopicError."""
    try:
        folder, topic = os.path.split(os.path.abspath(os.fsdecode(path)))
    except TypeError:
        raise ArgumentTypeError(f"path is a str or os.PathLike, not {type(path).__name__}") from None
    except ValueError as error:
        raise UsageError(f"path {path!r} cannot be used: {error}") from None
    return folder, check_topic(topic)


def _after_fork_in_child() -> None:
    for folder in list(_folders):
        folder.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
