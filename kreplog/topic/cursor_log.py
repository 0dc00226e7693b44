"""CursorLog: the committed offsets of cursors in a folder, stored as a Kafka broker stores those of consumer groups.

    data/__consumer_offsets-<n>   a compacted partition; that of a cursor is chosen by its name, as of a group in Kafka
    data/__consumer_offsets.lock  held for the time of one commit

Several processes commit in turn. The log and the lock file stay open between two commits of a process. The number of
the writer session in the log's state file says whether another has written meanwhile, and it is opened again only then,
or where that file was deleted or replaced.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from kreplog._native import log as segmented_log
from kreplog._native import writable
from kreplog._native.directory import TopicLock
from kreplog._native.files import error_of, names_in
from kreplog._native.state import STATE_NAME
from kreplog.config import LogConfig
from kreplog.core.group_messages import OFFSETS_TOPIC, OffsetAndMetadata, OffsetRecord, partition_of_group
from kreplog.errors import LogLockedError, StorageError, UsageError
from kreplog.topic.folder import PartitionLog, TopicFolder, update_checkpoints
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire import group_records

PARTITIONS = 50
"""Kafka's offsets.topic.num.partitions, of a folder that has no such topic yet."""

CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=1 << 20, max_message_bytes=64 << 20)
"""A commit of 10,000 partitions, in one batch, takes up to 6 MB."""

LOCK_TIMEOUT_S = 5.0

T = TypeVar("T")


class CursorOffset(NamedTuple):
    """A committed offset. metadata: what a work queue has beside it, or any client's text. leader_epoch: of the record
    before it (KIP-320)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


Committed = dict[int, CursorOffset]
"""By partition."""

_cursor_logs: weakref.WeakSet[CursorLog] = weakref.WeakSet()


class _Opened:
    """A log with the number of its writer session, and the path of its state file."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._session = segmented_log.session_number(log)
        self._path = os.path.join(log.path, STATE_NAME)
        self._file = self._file_at_path()

    def _file_at_path(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise error_of("cannot look at", self._path, error) from error
        return status.st_dev, status.st_ino

    def is_at_path(self) -> bool:
        """Whether the partition was neither deleted nor replaced: no other file has the inode while this one is open.
        Raises StorageError."""
        return self._file is not None and self._file_at_path() == self._file

    def is_up_to_date(self) -> bool:
        """Whether none but this has written."""
        return segmented_log.session_number(self.log) == self._session and self.log.failed is None


class CursorLog:
    """The committed offsets of all cursors of a folder. Thread-safe, and for several processes at once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, OFFSETS_TOPIC)
        self._mutex = threading.Lock()
        self._partitions = PARTITIONS  # until it is settled, before a log is opened
        self._logs: dict[int, _Opened] = {}
        self._lock = TopicLock(folder, OFFSETS_TOPIC)
        _cursor_logs.add(self)

    def read(self, name: str, topic: str) -> Committed:
        """The committed offset of each partition of `topic` that has one. Raises LogLockedError, StorageError."""
        with self._locked(name) as log:
            return _committed_in(log, topic).get(name, {})

    def read_all(self, topic: str) -> dict[str, Committed]:
        """The same of all cursors by name, and of a broker's consumer groups; takes no lock. A partition without a
        segment, which a loss of power may leave of a new one, has no committed offsets. Raises StorageError."""
        found: dict[str, Committed] = {}
        for name in sorted(names_in(self._folder)):
            if name.startswith(OFFSETS_TOPIC + "-") and name[len(OFFSETS_TOPIC) + 1 :].isdigit():
                path = os.path.join(self._folder, name)
                if not any(file.endswith(".log") for file in names_in(path)):
                    continue
                with PartitionLog.open(path, read_only=True) as log:
                    found |= _committed_in(log, topic)
        return dict(sorted(found.items()))

    def commit(self, name: str, topic: str, offsets: Mapping[int, CursorOffset], durable: bool) -> None:
        """Commit the offsets of partitions of `topic`, all or none. Raises LogLockedError, LogFailedError,
        StorageError."""
        with self._locked(name) as log:
            self._append(log, name, topic, offsets, durable)

    def begin(self, name: str, topic: str, offsets: Mapping[int, CursorOffset]) -> Committed:
        """Commit the offsets if the cursor has none in `topic` yet; returns those that it has then. Raises as `commit`
        does."""
        with self._locked(name) as log:
            found = _committed_in(log, topic).get(name)
            if found is not None:
                return found
            self._append(log, name, topic, offsets, durable=False)
            return dict(offsets)

    def _append(
        self, log: PartitionLog, name: str, topic: str, offsets: Mapping[int, CursorOffset], durable: bool
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        records = [
            OffsetRecord(name, TopicPartition(topic, number), OffsetAndMetadata(offset, epoch, metadata, now_ms, -1))
            for number, (offset, metadata, epoch) in offsets.items()
        ]
        segments = len(log.segments)
        log.append_batches(group_records.encode_batch(records))
        if durable:
            log.flush()
        if len(log.segments) > segments:
            log.compact()

    def close(self) -> None:
        """Close what is open. Raises LogFailedError, StorageError."""
        failures: list[StorageError] = []
        with self._mutex:
            while self._logs:
                number, opened = self._logs.popitem()
                try:
                    with self._turn():
                        self._close_log(number, opened)
                except StorageError as error:
                    writable.abandon(opened.log)
                    if not isinstance(error, LogLockedError):  # a broker has the folder, and all that was committed
                        failures.append(error)
            self._lock.close()
        if failures:
            raise failures[0]

    def _close_log(self, number: int, opened: _Opened) -> None:
        if not (opened.is_at_path() and opened.is_up_to_date()):
            writable.abandon(opened.log)
            return
        opened.log.close()
        offsets = segmented_log.closed_with(opened.log)
        if offsets is not None:
            update_checkpoints(self._folder, {TopicPartition(OFFSETS_TOPIC, number): offsets})

    @contextmanager
    def _locked(self, name: str) -> Iterator[PartitionLog]:
        """The log of a cursor, for this process alone."""
        with self._mutex:
            while True:
                number = partition_of_group(name, self._partitions)
                if number not in self._logs:
                    self._partitions = self._settled()
                    number = partition_of_group(name, self._partitions)
                with self._turn():
                    if (log := self._log(number)) is not None:
                        yield log
                        return

    def _log(self, number: int) -> PartitionLog | None:
        """None where the one that was open was deleted: of the topic that there is now it may be another's."""
        if number in self._logs:
            opened = self._logs[number]
            is_at_path = opened.is_at_path()
            if is_at_path and opened.is_up_to_date():
                return opened.log
            del self._logs[number]
            writable.abandon(opened.log)
            if not is_at_path:
                return None
        log = PartitionLog.open(f"{self._path}-{number}", CONFIG)
        self._logs[number] = _Opened(log)
        return log

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            in_turn(self._lock.acquire)
            yield
        finally:
            self._lock.release()

    def _settled(self) -> int:
        """The number of partitions; they are created where there are none."""

        def opened() -> TopicFolder:
            try:
                return TopicFolder(self._path, None, CONFIG, False, 1)
            except UsageError:  # there is no such topic
                return TopicFolder(self._path, PARTITIONS, CONFIG, False, 1)

        folder = in_turn(opened)
        try:
            return folder.partitions
        finally:
            folder.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: forget what is the parent's."""
        self._mutex = threading.Lock()
        self._lock.abandon()
        self._logs.clear()


def _committed_in(log: PartitionLog, topic: str) -> dict[str, Committed]:
    found: dict[str, Committed] = {}
    records = ((record.offset, record.key, record.value) for record in log.read())
    for _, record in group_records.decode_records(records):
        if isinstance(record, OffsetRecord) and record.partition.topic == topic:
            offsets = found.setdefault(record.group_id, {})
            offsets.pop(record.partition.partition, None)
            if record.value is not None:
                value = record.value
                offsets[record.partition.partition] = CursorOffset(value.offset, value.metadata, value.leader_epoch)
    return {name: dict(sorted(offsets.items())) for name, offsets in found.items() if offsets}


def in_turn(lock: Callable[[], T]) -> T:
    """The result of `lock`, when no other process is committing. Raises LogLockedError, such as where a broker runs,
    after LOCK_TIMEOUT_S."""
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return lock()
        except LogLockedError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(0.0005)  # for the commit of another process, whose end the kernel's lock does not announce


def _after_fork_in_child() -> None:
    for log in list(_cursor_logs):
        log.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
