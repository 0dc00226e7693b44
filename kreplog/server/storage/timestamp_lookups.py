"""TimestampLookups: ListOffsets by timestamp, which may decompress a batch, in threads of its own.

A pool of its own, so that many lookups never delay an fsync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kreplog.core.events import OffsetFound
from kreplog.core.replication.listings import timestamp_to_find
from kreplog.errors import LogClosedError, OffsetOutOfRangeError, StorageError
from kreplog.managed_log import ManagedLog
from kreplog.server.monitoring.repeated_failures import RepeatedFailures
from kreplog.server.storage.background import BackgroundTasks
from kreplog.server.storage.replica import Replica
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

THREADS = 2

NOT_FOUND = -1, -1
"""No record matches, or the log cannot be read."""


class TimestampLookups:
    """Looks up offsets by timestamp in threads. put: takes an OffsetFound event for each lookup, on the event loop.
    background: stops the broker after an error that no lookup is made for."""

    def __init__(self, put: Callable[[OffsetFound], None], background: BackgroundTasks) -> None:
        self._put = put
        self._background = background
        self._failures = RepeatedFailures("failed lookups of timestamps")
        self._pool = ThreadPoolExecutor(THREADS, "kreplog-lookups")

    def start(self, replica: Replica, partition: TopicPartition, timestamp: int, tag: tuple[int, int]) -> None:
        """Look up the offset of a timestamp, or of MAX_TIMESTAMP, in a thread."""
        replica.threads += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, _find_offset, replica.log, timestamp)
        future.add_done_callback(partial(self._finished, replica, partition, tag))

    def _finished(
        self, replica: Replica, partition: TopicPartition, tag: tuple[int, int], done: asyncio.Future[tuple[int, int]]
    ) -> None:
        replica.threads -= 1
        replica.release()
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._put(OffsetFound(tag, *done.result()))
        elif isinstance(error, (StorageError, OffsetOutOfRangeError)):
            if count := self._failures.count(partition):
                _log.error("%s: lookup of a timestamp failed: %s; such failures: %d", partition, error, count)
            self._put(OffsetFound(tag, *NOT_FOUND))
        else:
            self._background.fail("a lookup of a timestamp", error)

    def close(self) -> None:
        """Cancel the lookups that have not begun, and wait for the others."""
        self._pool.shutdown(cancel_futures=True)


def _find_offset(log: ManagedLog, timestamp: int) -> tuple[int, int]:
    """(offset, timestamp), or NOT_FOUND. Raises StorageError, OffsetOutOfRangeError."""
    try:
        wanted = timestamp_to_find(timestamp, lambda: max(segment.max_timestamp for segment in log.segments))
        found = None if wanted is None else log.record_for_timestamp(wanted)
    except LogClosedError:  # the replica was deleted meanwhile, or the broker has stopped
        return NOT_FOUND
    return found or NOT_FOUND
