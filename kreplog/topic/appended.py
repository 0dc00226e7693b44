"""AppendedLogs: the partitions of a topic that have been appended to lately, so many of which have files open.

A log that was appended to keeps its file open until it is flushed: else the disk could fail to write its records, and
nobody would notice. A topic may have more partitions than a process may have files.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import islice

from kreplog._native.files import sync_file_system
from kreplog._native.segment import close_idle_files
from kreplog.errors import KreplogError, LogClosedError
from kreplog.log import Log

SYNCED_TOGETHER = 64
"""From so many on, one sync of the file system takes less time than theirs."""


class AppendedLogs:
    """The logs by partition, the longest listed first; at most `most`. Thread-safe.

    A log that is not listed can be appended to all the same, and is then to be listed again. A log that was lent to the
    user, who may append to it at any time, counts while it has records that are not durable."""

    def __init__(self, folder: str, most: int) -> None:
        self.logs: dict[int, Log] = {}
        self._lent: dict[int, Log] = {}
        self._folder = folder
        self._most = most
        self._mutex = threading.Lock()

    def add(self, number: int, log: Log) -> None:
        """List a log that is about to be appended to; where there is no room, half of the others are flushed and their
        files closed."""
        with self._mutex:
            if number not in self.logs and len(self.logs.keys() | self._unflushed_lent().keys()) >= self._most:
                self._close_half()
            self.logs[number] = log

    def lend(self, number: int, log: Log) -> None:
        """Note that the user is given a log."""
        with self._mutex:
            self._lent[number] = log

    def _unflushed_lent(self) -> dict[int, Log]:
        return {number: log for number, log in self._lent.items() if _is_unflushed(log)}

    def unflushed(self) -> dict[int, Log]:
        """The logs with records that are not durable yet; none that refuses writes."""
        with self._mutex:
            logs = self.logs | self._lent
        return {number: log for number, log in logs.items() if _is_unflushed(log)}

    def make_room(self) -> bool:
        """For a process that may open no more files: close half of those here; False where there are none."""
        with self._mutex:
            return self._close_half() > 0

    def _close_half(self) -> int:
        chosen = dict(islice(self.logs.items(), (len(self.logs) + 1) // 2)) | self._unflushed_lent()
        if len(chosen) >= SYNCED_TOGETHER:
            with suppress(KreplogError):
                sync_file_system(self._folder)
        for number, log in chosen.items():
            with suppress(KreplogError):  # a log that fails refuses its next append, and says why
                log.flush()
            self.logs.pop(number, None)
        close_idle_files()
        return len(chosen)


def _is_unflushed(log: Log) -> bool:
    try:
        return log.failed is None and log.log_end_offset > log.recovery_point
    except LogClosedError:
        return False
