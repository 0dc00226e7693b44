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
from kreplog.errors import KreplogError
from kreplog.log import Log

SYNCED_TOGETHER = 64
"""From so many on, one sync of the file system takes less time than theirs."""


class AppendedLogs:
    """The logs by partition, the longest listed first; at most `most`. Thread-safe.

    A log that is not listed can be appended to all the same, and is then to be listed again."""

    def __init__(self, folder: str, most: int) -> None:
        self.logs: dict[int, Log] = {}
        self._folder = folder
        self._most = most
        self._mutex = threading.Lock()

    def add(self, number: int, log: Log) -> None:
        """List a log that is about to be appended to; where there is no room, half of the others are flushed and their
        files closed."""
        with self._mutex:
            if number not in self.logs and len(self.logs) >= self._most:
                self._close_half()
            self.logs[number] = log

    def make_room(self) -> bool:
        """For a process that may open no more files: close half of those here; False where there are none."""
        with self._mutex:
            return self._close_half() > 0

    def _close_half(self) -> int:
        chosen = dict(islice(self.logs.items(), (len(self.logs) + 1) // 2))
        if len(chosen) >= SYNCED_TOGETHER:
            with suppress(KreplogError):
                sync_file_system(self._folder)
        for number, log in chosen.items():
            with suppress(KreplogError):  # a log that fails refuses its next append, and says why
                log.flush()
            del self.logs[number]
        close_idle_files()
        return len(chosen)
