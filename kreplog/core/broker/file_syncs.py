"""FileSyncs: the fsyncs of the files of newly opened replicas, reported in the order in which they were requested.

An fsync covers the logs that were opened since the last one was requested. What waits for it, the response to a
LeaderAndIsr, may also count on logs that an earlier fsync covers: a LeaderAndIsr that is resent opens none. So it
counts as done once the earlier ones are done as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Log = TypeVar("Log")
"""An open log for the shell; hashable. A log that is reopened is another one."""


@dataclass(eq=False, slots=True)
class FileSync(Generic[Log]):
    """One fsync. logs: what it covers. then: what waits for it. finished: its own logs are done."""

    logs: tuple[Log, ...]
    then: Callable[[], None]
    finished: bool = False


class FileSyncs(Generic[Log]):
    """The fsyncs that are requested and not done. The shell retries or gives up what fails, and reports an fsync as
    finished in either case."""

    def __init__(self) -> None:
        self._opened: dict[Log, None] = {}
        self._in_flight: deque[FileSync[Log]] = deque()

    def opened(self, log: Log) -> None:
        """A log was created, or opened by this process for the first time: one that was killed may not have made its
        files durable. The next fsync covers it."""
        self._opened[log] = None

    def begin(self, then: Callable[[], None]) -> FileSync[Log]:
        """Begin an fsync; `finished` returns it once `then` is to be called. One without logs is to be reported as
        finished at once."""
        sync = FileSync(tuple(self._opened), then)
        self._opened.clear()
        self._in_flight.append(sync)
        return sync

    def finished(self, sync: FileSync[Log]) -> list[FileSync[Log]]:
        """The logs of an fsync are durable, or given up. Returns the fsyncs that count as done now, in order: those
        before which no other is in flight."""
        sync.finished = True
        done = []
        while self._in_flight and self._in_flight[0].finished:
            done.append(self._in_flight.popleft())
        return done
