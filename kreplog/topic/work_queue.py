"""WorkQueue: the records of a topic as work that threads and processes share, each acknowledged by itself.

A process owns partitions as a member of a cursor group does (cursor_member, queue_member), and its threads share them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

from kreplog._native.any_wait import sleep_any
from kreplog._native.waiting import checked_timeout
from kreplog.core.work_queues import Delivery, QueuePartition, check_int
from kreplog.errors import ArgumentTypeError, DeliveryExpiredError, LogClosedError, UsageError
from kreplog.topic.cursor_log import LOCK_TIMEOUT_S
from kreplog.topic.queue_member import RETRY_MS, DeliveredRecord, QueueMember, now_ms
from kreplog.topic.topic_follow import check_max_records
from kreplog.types import TopicPartition

MAX_DELAY_MS = 1 << 40
MAX_ERROR = 1000
"""Characters of an error that are kept; it may have been made from a record of any size."""


class WorkQueue(QueueMember):
    """A work queue on a topic, made by `Topic.work_queue`; a context manager. Safe to use from several threads.

    A record that is taken is locked for `record_lock_duration_ms`. `ack` makes it done; after `nack`, or where its lock
    ends before an `ack`, it is delivered again, to any thread of this process. What is not done when the process ends,
    killed or not, the next owner of its partitions delivers at once. So each record is delivered at least once, and not
    again after its `ack` has returned.
    """

    _changed: threading.Condition
    _sleeping: bool

    def _prepare(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._sleeping = False  # of the threads that wait, one sleeps on the logs, the others on the condition

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"member {self._locks.member} of {sorted(self._partitions)}"
        return f"<kreplog.WorkQueue {self._name} of {self._topic.path} {state}>"

    @property
    def committed(self) -> dict[int, int]:
        """The partitions that this process owns, and the committed offset of each: of the first record that is not
        done."""
        with self._changed:
            return {number: self._partitions[number].start_offset for number in sorted(self._partitions)}

    # Taking

    def __iter__(self) -> Iterator[DeliveredRecord]:
        """Take record by record, until the queue or the topic is closed."""
        while not self.closed and not self._topic.closed:
            try:
                taken = self.take()
            except LogClosedError:
                return
            yield from taken

    def take(self, max_records: int = 1, timeout: float | None = None) -> list[DeliveredRecord]:
        """Take 1 to `max_records` records, and wait for the first; [] after `timeout` seconds without any.

        Raises LogClosedError, CursorFencedError (the lock file was deleted), LogLockedError (a broker runs on the
        folder), RecordDecodeError (without a dead-letter topic; its `record` counts as taken), LogTruncatedError,
        CorruptBatchError, CorruptWorkQueueError, StorageError: no record was taken. A dead letter that cannot be
        appended raises so, too, and is tried again after record_lock_duration_ms; other records can be taken meanwhile.
        It raises LogLockedError where another process has had the dead-letter topic open for 5 s; until then each call
        tries it and returns what else there is.
        """
        check_max_records(max_records)
        checked_timeout(timeout)
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            try:
                while True:
                    self._check_open()
                    now_s = time.monotonic()
                    self._balance_if_due(now_s)
                    if taken := self._deliver(max_records):
                        return taken
                    if self._deliveries:
                        continue  # all of them were dead letters
                    waits = self._polled()
                    if waits is None:
                        continue  # records have come meanwhile
                    if deadline_s is not None and now_s >= deadline_s:
                        return []
                    self._wait(waits, None if deadline_s is None else deadline_s - now_s)
            finally:
                self._changed.notify()  # there may be more for another, which sleeps on the logs otherwise

    def _wait(self, waits: list[Any], timeout: float | None) -> None:
        if self._sleeping:
            self._changed.wait(timeout)
            return
        self._sleeping = True
        self._changed.release()
        try:
            sleep_any(waits)  # 20 ms at most
        finally:
            self._changed.acquire()
            self._sleeping = False

    # Acknowledging

    def ack(self, *records: DeliveredRecord, durable: bool = False) -> None:
        """Acknowledge records: they are done, which survives this process; with `durable`, a loss of power too, for
        which a topic that is open for writing is flushed first.

        Raises DeliveryExpiredError (a record was delivered again, is done, or its partition has passed on; the others
        are done), CursorFencedError, LogLockedError (a broker runs on the folder), LogFailedError, StorageError: none
        of them is done, and they can be acknowledged again.
        """
        with self._changed:
            self._check_open()
            done: list[DeliveredRecord] = []
            expired: list[DeliveredRecord] = []
            for record in records:
                (expired if self._current(record) is None else done).append(record)
            for record in done:
                self._partitions[record.partition].complete(record.offset)
            if done:
                self._commit({record.partition for record in done}, durable)
                self._release_surplus()
        if expired:
            raise self._expired(expired[0])

    def nack(
        self,
        record: DeliveredRecord,
        delay_ms: int = 0,
        error: BaseException | str | None = None,
        *,
        timeout: float | None = LOCK_TIMEOUT_S,
    ) -> None:
        """Release a record: it is delivered again, after `delay_ms` at the earliest; or becomes a dead letter where its
        deliveries are used up. A new owner of the partition does not wait for the end of the delay.

        error: why, for the dead letter. timeout: seconds to wait for a dead-letter topic that another process has open
        for writing, None for ever; other threads use the queue meanwhile. Raises UsageError, ArgumentTypeError,
        DeliveryExpiredError; and as `ack` does, and what `take` raises for a dead letter that cannot be appended: it is
        tried again.
        """
        check_int("delay_ms", delay_ms, 0, MAX_DELAY_MS)
        checked_timeout(timeout)
        with self._changed:
            partition = self._checked(record)
            exhausted = partition.is_exhausted(record.offset)
            if not exhausted:
                partition.release(record.offset, now_ms() + delay_ms, _text(error))
                self._release_surplus()
                self._changed.notify()
        if exhausted:
            self._reject(record, _text(error), timeout)

    def reject(
        self,
        record: DeliveredRecord,
        error: BaseException | str | None = None,
        *,
        timeout: float | None = LOCK_TIMEOUT_S,
    ) -> None:
        """Make a record a dead letter now; arguments and errors as of `nack`. Raises UsageError without a dead-letter
        topic."""
        if self._dead_letters is None:
            raise UsageError(f"{self!r} has no dead-letter topic: open it with one, or `ack` the record to drop it")
        checked_timeout(timeout)
        self._reject(record, _text(error), timeout)

    def _reject(self, record: DeliveredRecord, error: str, timeout: float | None) -> None:
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if self._try_to_reject(record, error, again=time.monotonic() < deadline_s):
                    return
            time.sleep(RETRY_MS / 1000)  # without the lock

    def _try_to_reject(self, record: DeliveredRecord, error: str, again: bool) -> bool:
        """False where the dead-letter topic is locked and the call is made again."""
        partition = self._checked(record)
        stored = self._read(record.partition, record.offset)
        if stored is None:
            partition.complete(record.offset)
        elif not self._dead_letter(stored, _delivery(record), error, again=again):
            return False
        self._commit((record.partition,))
        self._release_surplus()
        self._changed.notify()
        return True

    def renew(self, record: DeliveredRecord) -> None:
        """Lock a record for record_lock_duration_ms from now on. Raises DeliveryExpiredError, LogClosedError."""
        with self._changed:
            self._checked(record).renew(record.offset, now_ms())

    def _current(self, record: DeliveredRecord) -> QueuePartition | None:
        """The partition of a record whose delivery is under way; None if that is not. Raises ArgumentTypeError."""
        if not isinstance(record, DeliveredRecord):
            raise ArgumentTypeError(f"a record that `take` has returned is needed, not {type(record).__name__}")
        partition = self._partitions.get(record.partition)
        return partition if partition is not None and partition.is_current(_delivery(record)) else None

    def _checked(self, record: DeliveredRecord) -> QueuePartition:
        self._check_open()
        partition = self._current(record)
        if partition is None:
            raise self._expired(record)
        return partition

    def _expired(self, record: DeliveredRecord) -> DeliveryExpiredError:
        at = TopicPartition(self._topic.name, record.partition)
        return DeliveryExpiredError(
            f"{at}: delivery {record.delivery_count} of the record at offset {record.offset} from work queue "
            f"{self._name} is over: it was acknowledged or released, was delivered again after its lock of "
            f"{self._config.record_lock_duration_ms} ms, or another process has the partition; `renew` a record whose "
            "work takes longer",
            partition=str(at),
            offset=record.offset,
        )

    # The end

    def close(self) -> None:
        """Release the partitions: what was taken and is not done is delivered by their next owners. Closing twice does
        nothing."""
        with self._changed:
            super().close()
            self._changed.notify_all()

    def abandon(self) -> None:
        self._prepare()  # another thread of the parent may hold the condition
        super().abandon()


def _delivery(record: DeliveredRecord) -> Delivery:
    return Delivery(record.offset, record.delivery_count)


def _text(error: BaseException | str | None) -> str:
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    return (error or "released without an error")[:MAX_ERROR]
