"""TopicMaintenance: flushing by time, retention, compaction and checkpoints of a topic, in one background thread.

There is a thread only where MaintenanceConfig or the log's settings give it work. It goes through the partitions in
turn; one that fails does not keep it from the others. Flushes and checkpoints that become due during a compaction are
done between two pieces of it. The thread holds no reference to the topic while it waits, so that a topic which is
dropped without being closed ends it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

from kreplog._native import compaction
from kreplog._native.files import sync_file_system
from kreplog.core.broker.log_cleaning import CleanerQueue, is_uncleanable
from kreplog.errors import (
    ArgumentTypeError,
    KreplogError,
    LogClosedError,
    UsageError,
)
from kreplog.topic.appended import SYNCED_TOGETHER
from kreplog.topic.folder import TopicFolder

FLUSH, RETENTION, COMPACTION, CHECKPOINT = "flush", "retention", "compaction", "checkpoint"
_LONGEST_MS = 1 << 31

_logger = logging.getLogger("kreplog")


class MaintenanceError(NamedTuple):
    """A failure of a topic's background thread. task: "flush", "retention", "compaction" or "checkpoint". partition:
    None for the checkpoints, which are of all. timestamp_ms: wall clock of the latest attempt."""

    task: str
    partition: int | None
    error: Exception
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class MaintenanceConfig:
    """When a topic's background thread does what.

    flush_ms: a record is durable at the latest so long after its append, plus the time that the fsyncs take. None: by
        flush_messages, `flush` and `close` alone.
    retention_check_interval_ms: between two looks for segments that retention_ms or retention_bytes exclude; the first
        is at the opening.
    cleaner_backoff_ms: between two looks for partitions to compact, under a cleanup_policy with "compact".
    cleaner_io_max_bytes_per_second: limit of a compaction's reading; None for no limit.
    high_watermark_checkpoint_interval_ms: between two updates of Kafka's checkpoint files, which a Kafka broker that
        takes the folder over from a killed process goes by. None: when the topic is closed alone.
    on_error: called in the thread with each MaintenanceError that is new. It may not close the topic.
    """

    flush_ms: int | None = None
    retention_check_interval_ms: int = 300_000
    cleaner_backoff_ms: int = 15_000
    cleaner_io_max_bytes_per_second: int | None = None
    high_watermark_checkpoint_interval_ms: int | None = None
    on_error: Callable[[MaintenanceError], object] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "on_error":
                if value is not None and not callable(value):
                    raise ArgumentTypeError(f"on_error is a function or None, not {value!r}")
            elif value is None and field.default is None:
                continue
            elif isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentTypeError(f"{field.name} is an int, not {type(value).__name__} {value!r}")
            elif not 1 <= value <= _LONGEST_MS and field.name.endswith("_ms"):
                raise UsageError(f"{field.name} = {value} is out of range: allowed are 1 to {_LONGEST_MS}")
            elif value < 1:
                raise UsageError(f"{field.name} = {value} must be at least 1")


class TopicMaintenance:
    """The background thread of a topic that is open for writing; none where there is nothing to do."""

    def __init__(self, folder: TopicFolder, config: MaintenanceConfig) -> None:
        self._folder = folder
        self._config = config
        self._errors: dict[tuple[str, int | None], MaintenanceError] = {}
        self._cleaner: CleanerQueue[int] = CleanerQueue()
        self._stopping = False
        self._wake = threading.Event()
        self._pid = os.getpid()
        self._periods_s = {task: ms / 1000 for task, ms in _periods_ms(folder, config).items()}
        now = time.monotonic()
        first = {FLUSH: now + self._periods_s.get(FLUSH, 0), CHECKPOINT: now + self._periods_s.get(CHECKPOINT, 0)}
        self._due_s = {task: first.get(task, now) for task in self._periods_s}
        self._thread: threading.Thread | None = None
        if self._periods_s:
            self._thread = threading.Thread(
                target=_run,
                args=(weakref.ref(self, partial(_end, self._wake)), self._wake),
                name=f"kreplog-topic-{folder.topic}",
                daemon=True,
            )
            self._thread.start()

    @property
    def errors(self) -> tuple[MaintenanceError, ...]:
        """The failure of each task and partition whose latest attempt failed."""
        return tuple(self._errors.values())

    def stop(self) -> None:
        """End the thread; waits for the file call that is under way, and for a piece of a compaction. Raises UsageError
        in the thread itself."""
        if self._thread is None or self._pid != os.getpid():  # a forked child has no such thread
            return
        if threading.current_thread() is self._thread:
            raise UsageError(f"{self._folder.path}: on_error may not close the topic; have another thread do it")
        self._stopping = True
        self._wake.set()
        self._thread.join()

    # In the thread

    def run_due(self) -> float | None:
        """Do what is due; the seconds until something is again, None at the end."""
        for task in list(self._due_s):
            if time.monotonic() >= self._due_s[task]:
                self._run_task(task)
            if self._stopping:
                return None
        return max(0.0, min(self._due_s.values()) - time.monotonic())

    def _run_task(self, task: str) -> None:
        self._due_s[task] = float("inf")  # not begun again by _between while it runs
        calls = {
            FLUSH: self._flush,
            RETENTION: self._enforce_retention,
            COMPACTION: self._compact,
            CHECKPOINT: self._folder.write_checkpoints,
        }
        self._attempt(task, None, calls[task])
        self._due_s[task] = time.monotonic() + self._periods_s[task]

    def _between(self) -> None:
        """Between two pieces of a compaction. Raises LogClosedError to end it."""
        if self._stopping:
            raise LogClosedError(f"{self._folder.path}: the topic is being closed", path=self._folder.path)
        for task in (FLUSH, CHECKPOINT):
            if time.monotonic() >= self._due_s.get(task, float("inf")):
                self._run_task(task)

    def _flush(self) -> None:
        unflushed = self._folder.appended.unflushed()
        if len(unflushed) >= SYNCED_TOGETHER:
            with suppress(KreplogError):  # the flush of each log says so, too
                sync_file_system(self._folder.folder)
        for number, log in unflushed.items():
            if self._stopping:
                return
            self._attempt(FLUSH, number, log.flush)

    def _enforce_retention(self) -> None:
        for number in range(self._folder.partitions):
            if self._stopping:
                return
            self._attempt(RETENTION, number, partial(self._delete_expired, number))

    def _delete_expired(self, number: int) -> None:
        log = self._folder.log(number)
        if log.enforce_retention():
            self._folder.appended.add(number, log)  # its new active segment is open until it is flushed

    def _compact(self) -> None:
        """The dirtiest first, each once."""
        backlogs = {}
        now_ms = _wall_clock_ms()
        for number in self._cleaner.candidates(range(self._folder.partitions)):
            if self._stopping:
                return
            try:
                backlogs[number] = compaction.backlog(self._folder.log(number), now_ms)
            except Exception as error:  # kept for the user; the other partitions go on
                self._set_aside(number, error)
        while not self._stopping and (dirtiest := self._cleaner.begin(backlogs)) is not None:
            del backlogs[dirtiest]
            try:
                self._compact_log(dirtiest)
            except Exception as error:  # kept for the user; the other partitions go on
                self._cleaner.finish(dirtiest)
                self._set_aside(dirtiest, error)
            else:
                self._cleaner.finish(dirtiest)
                self._errors.pop((COMPACTION, dirtiest), None)

    def _compact_log(self, number: int) -> None:
        log = self._folder.log(number)
        self._folder.appended.add(number, log)
        rate = self._config.cleaner_io_max_bytes_per_second
        compaction.compact(log, None, False, rate, False, self._between)

    def _set_aside(self, number: int, error: Exception) -> None:
        if not self._note(COMPACTION, number, error):
            return
        if is_uncleanable(error):
            self._cleaner.finish(number, str(error))

    # Errors

    def _attempt(self, task: str, partition: int | None, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # kept for the user; the other partitions go on
            self._note(task, partition, error)
        else:
            self._errors.pop((task, partition), None)

    def _note(self, task: str, partition: int | None, error: Exception) -> bool:
        """Keep the error, and log it if it is new; False for the end of a topic that is being closed."""
        if isinstance(error, LogClosedError) and (self._stopping or self._folder.closed):
            return False
        before = self._errors.get((task, partition))
        noted = self._errors[task, partition] = MaintenanceError(task, partition, error, _wall_clock_ms())
        if before is not None and str(before.error) == str(error):
            return True
        _logger.error("%s: %s failed: %s", self._folder.path, task, error)
        if self._config.on_error is not None:
            try:
                self._config.on_error(noted)
            except Exception:  # the caller's function; the thread goes on
                _logger.exception("%s: on_error failed", self._folder.path)
        return True


def _periods_ms(folder: TopicFolder, config: MaintenanceConfig) -> dict[str, int]:
    """The period of each task that there is."""
    log_config = folder.config
    periods = {
        FLUSH: config.flush_ms,
        RETENTION: config.retention_check_interval_ms if log_config.has_retention_limit else None,
        COMPACTION: config.cleaner_backoff_ms if log_config.compacts else None,
        CHECKPOINT: config.high_watermark_checkpoint_interval_ms,
    }
    return {task: ms for task, ms in periods.items() if ms is not None and not folder.read_only}


def _run(reference: weakref.ref[TopicMaintenance], wake: threading.Event) -> None:
    while True:
        maintenance = reference()
        pause_s = None if maintenance is None else maintenance.run_due()
        if pause_s is None:
            return
        del maintenance
        wake.wait(pause_s)


def _end(wake: threading.Event, _reference: weakref.ref[TopicMaintenance]) -> None:
    wake.set()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
