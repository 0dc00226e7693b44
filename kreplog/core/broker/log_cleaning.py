"""CleanerQueue: which of a broker's logs is compacted next, and which are set aside.

The dirtiest log that is due comes first. An uncleanable log is set aside until the broker restarts or its replica is
created again.
Source: Kafka's LogCleanerManager.grabFilthiestCompactedLog, uncleanable partitions (KIP-346).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from kreplog.errors import is_shortage
from kreplog.types import CompactionBacklog

Log = TypeVar("Log", bound=Hashable)


class CleanerQueue(Generic[Log]):
    """The order in which a broker's logs are compacted. in_progress: logs being compacted. uncleanable: logs that are
    set aside, each with the error."""

    def __init__(self) -> None:
        self.in_progress: set[Log] = set()
        self.uncleanable: dict[Log, str] = {}

    def candidates(self, logs: Iterable[Log]) -> list[Log]:
        """The logs whose backlog is to be measured. logs: all that have a compacting policy now; others are
        forgotten."""
        present = dict.fromkeys(logs)
        self.uncleanable = {log: error for log, error in self.uncleanable.items() if log in present}
        return [log for log in present if log not in self.in_progress and log not in self.uncleanable]

    def begin(self, backlogs: Mapping[Log, CompactionBacklog]) -> Log | None:
        """The log to compact now; None if none is due."""
        due = [log for log, backlog in backlogs.items() if backlog.is_due and log not in self.in_progress]
        if not due:
            return None
        log = max(due, key=lambda log: backlogs[log].dirty_ratio)
        self.in_progress.add(log)
        return log

    def finish(self, log: Log, uncleanable: str | None = None) -> None:
        """The compaction of a log has ended; with an error, the log is set aside."""
        self.in_progress.discard(log)
        if uncleanable is not None:
            self.uncleanable[log] = uncleanable


def is_uncleanable(error: BaseException) -> bool:
    """Whether a log whose compaction failed with `error` is set aside: each attempt would meet the same damage, but a
    full disk, or a lack of descriptors or memory, may pass. The simulator compacts no logs."""
    return not is_shortage(error)
