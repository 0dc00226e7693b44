"""FlushQueue: which logs are fsynced now, and which again afterwards.

An fsync covers what was appended before it began and nothing after. So at most one of a log is under way, and all
requests that come meanwhile share the next one.
"""

from __future__ import annotations

from collections.abc import Hashable

from kreplog.core.events import Flushed
from kreplog.errors import KreplogError, is_exhaustion
from kreplog.types import TopicPartition

EXHAUSTED_RETRY_MS = 500
"""Until an fsync is tried again for which the process had no descriptors or memory."""


class FlushQueue:
    """Keys: whatever the shell knows an open log by; a log that is opened again has another key."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, bool] = {}  # by log: whether another fsync was requested meanwhile

    def __contains__(self, log: Hashable) -> bool:
        """Whether an fsync of that log is under way, or to be tried again."""
        return log in self._under_way

    def request(self, log: Hashable) -> bool:
        """An fsync is wanted. Returns whether to start one now."""
        if log in self._under_way:
            self._under_way[log] = True
            return False
        self._under_way[log] = False
        return True

    def finished(self, log: Hashable, partition: TopicPartition, recovery_point: int) -> tuple[Flushed, bool]:
        """The fsync under way has made all below `recovery_point` durable, which was the log end when it began.

        Returns the event for the replicas, and whether to start another one now.
        """
        requested = self._under_way.pop(log)
        return Flushed(partition, recovery_point), requested and self.request(log)

    def failed(self, log: Hashable, error: KreplogError) -> bool:
        """The fsync under way failed. Returns whether to start it again after EXHAUSTED_RETRY_MS: where it failed for
        want of descriptors or memory, the log is as good as before. Else there is none under way any more."""
        if is_exhaustion(error):
            self._under_way[log] = False
            return True
        self.forget(log)
        return False

    def forget(self, log: Hashable) -> None:
        """The log is closed."""
        self._under_way.pop(log, None)
