"""LogDirectoryState: a failed write or fsync takes the log directory offline, with every replica in it.

A failed fsync is final: the kernel may have dropped the dirty pages, and a retry would succeed without them (F37). So
nothing in the directory is written or opened again before the broker restarts.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core.events import LogFailed
from kreplog.errors import KreplogError, is_exhaustion
from kreplog.types import TopicPartition


class LogDirectoryState:
    """A log directory of one broker process. failed: nothing in it is written or opened any more."""

    def __init__(self) -> None:
        self.failed = False

    def fail(self, error: KreplogError, replicas: Iterable[TopicPartition]) -> list[LogFailed] | None:
        """A write or fsync in this directory has failed. replicas: those open in it; walked at its first failure alone.

        Returns the events that take them offline. None if there is nothing to do: it has failed before, or `error` is
        a lack of file descriptors or memory, which harms no disk and one log at most: that one is reopened.
        """
        if self.failed or is_exhaustion(error):
            return None
        self.failed = True
        return [LogFailed(partition) for partition in replicas]
