"""FlushQueue: group commit: at most one fsync of a log in flight, and one more for all requests made meanwhile.

An fsync covers what was appended before it began and nothing after, so later requests need, and share, the next one.
"""

from __future__ import annotations

from collections.abc import Hashable

from kreplog.core.events import Flushed
from kreplog.errors import KreplogError, is_exhaustion
from kreplog.types import TopicPartition

EXHAUSTED_RETRY_MS = 500
"""Delay before an fsync is retried that failed for want of descriptors or memory."""


def is_retried(error: KreplogError) -> bool:
    """Whether an fsync that failed is tried again after EXHAUSTED_RETRY_MS: one that found no descriptor or memory has
    not harmed the log. After any other failure its log directory is offline: what the kernel has dropped, another fsync
    would count as durable (F37)."""
    return is_exhaustion(error)


class FlushQueue:
    """Keys identify an open log for the shell; a log that is reopened has another key."""

    def __init__(self) -> None:
        self._in_flight: dict[Hashable, bool] = {}  # by log: whether another fsync was requested meanwhile

    def __contains__(self, log: Hashable) -> bool:
        """Whether an fsync of that log is in flight, or to be retried."""
        return log in self._in_flight

    def request(self, log: Hashable) -> bool:
        """Request an fsync. Returns whether to start one now."""
        if log in self._in_flight:
            self._in_flight[log] = True
            return False
        self._in_flight[log] = False
        return True

    def finished(self, log: Hashable, partition: TopicPartition, recovery_point: int) -> tuple[Flushed, bool]:
        """The fsync in flight has made all below `recovery_point` durable, which was the log end when it began.

        Returns the event for the replicas, and whether to start another one now.
        """
        requested = self._in_flight.pop(log)
        return Flushed(partition, recovery_point), requested and self.request(log)

    def failed(self, log: Hashable, error: KreplogError) -> bool:
        """The fsync in flight failed. Returns whether it `is_retried`; else none is in flight any more."""
        if is_retried(error):
            self._in_flight[log] = False
            return True
        self.forget(log)
        return False

    def forget(self, log: Hashable) -> None:
        """The log is closed."""
        self._in_flight.pop(log, None)
