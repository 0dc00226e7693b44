"""VirtualFlusher: the fsyncs of core.broker.flush_queue, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from kreplog.core.broker.flush_queue import EXHAUSTED_RETRY_MS, FlushQueue
from kreplog.core.events import Event
from kreplog.errors import StorageError
from kreplog.sim.machines.disk import Disk, DiskLog
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.types import TopicPartition


class VirtualFlusher:
    """The fsyncs of one process. put: takes the Flushed events. fail: called with the error of one that failed.
    retries: called with the error of one that is to be tried again."""

    def __init__(
        self,
        scheduler: Scheduler,
        disk: Disk,
        is_alive: Callable[[], bool],
        put: Callable[[Event], None],
        fail: Callable[[StorageError], None],
        retries: Callable[[StorageError], None],
    ) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self._is_alive = is_alive
        self._put = put
        self._fail = fail
        self._retries = retries
        self._flushes = FlushQueue()

    def flush(self, partition: TopicPartition) -> None:
        log = self._disk.log(partition)
        if log is not None and self._flushes.request(log):
            self._begin(log)

    def _begin(self, log: DiskLog) -> None:
        """An fsync covers the records at its start, and takes time."""
        outcome: int | StorageError
        try:
            outcome = log.flush()
        except StorageError as error:
            outcome = error
        delay_us = int((500 + 4000 * self._scheduler.random.random()) + 2 * self._disk.slow_ms * MS)
        self._scheduler.after(delay_us, self._end, log, outcome)

    def _end(self, log: DiskLog, outcome: int | StorageError) -> None:
        if not self._is_alive():
            return
        if self._disk.log(log.partition) is not log:  # the replica was stopped, deleted or opened again
            self._flushes.forget(log)
        elif isinstance(outcome, int):
            event, again = self._flushes.finished(log, log.partition, outcome)
            self._put(event)
            if again:
                self._begin_again(log)
        elif self._flushes.failed(log, outcome):
            self._retries(outcome)
            self._scheduler.after(EXHAUSTED_RETRY_MS * MS, self._begin_again, log)
        else:
            self._fail(outcome)

    def _begin_again(self, log: DiskLog) -> None:
        if self._is_alive() and self._disk.log(log.partition) is log:
            self._begin(log)
        else:
            self._flushes.forget(log)
