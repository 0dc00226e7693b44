"""WorkQueue: the records of a topic as work that threads and processes share, each acknowledged by itself.

A process owns partitions as a member of a cursor group does (cursor_member, queue_member), and its threads share them.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kreplog._native.any_wait import sleep_any
from kreplog._native.waiting import checked_timeout
from kreplog.core.work_queues import Delivery, QueuePartition, check_int
from kreplog.errors import ArgumentTypeError, DeliveryExpiredError, LogClosedError, RecordDecodeError, UsageError
from kreplog.topic.cursor_log import LOCK_TIMEOUT_S
from kreplog.topic.queue_member import RETRY_MS, DeliveredRecord, QueueMember, now_ms
from kreplog.topic.topic_follow import POLL_INTERVAL_S, check_max_records
from kreplog.types import TopicPartition

T = TypeVar("T")

LET_IN_S = 0.001
"""A lock that is released and acquired again at once goes to nobody else."""

MAX_DELAY_MS = 1 << 40
MAX_ERROR = 1000
"""Characters of an error that are kept; it may have been made from a record of any size."""


@dataclass(slots=True)
class _Turn:
    """The order of the tasks of an event loop that take: first come, first served. tasks: their number."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: int = 0


@dataclass(slots=True)
class _Ack:
    """An `ack_async`, whose task waits until it has ended. error: what is raised because of its own records."""

    records: tuple[DeliveredRecord, ...]
    durable: bool
    ended: Future[None] = field(default_factory=Future)
    error: Exception | None = None


class WorkQueue(QueueMember):
    """A work queue on a topic, made by `Topic.work_queue`; a context manager. Safe to use from several threads.

    A record that is taken is locked for `record_lock_duration_ms`. `ack` makes it done; after `nack`, or where its lock
    ends before an `ack`, it is delivered again, to any thread of this process. What is not done when the process ends,
    killed or not, the next owner of its partitions delivers at once. So each record is delivered at least once, and not
    again after its `ack` has returned.
    """

    _changed: threading.Condition
    _sleeping: bool
    _turns: dict[asyncio.AbstractEventLoop, _Turn]
    _acks: dict[asyncio.AbstractEventLoop, list[_Ack]]
    _acks_mutex: threading.Lock

    def _prepare(self) -> None:
        self._turns = {}
        self._acks = {}  # those for which tasks wait, until the commit that they share begins
        self._acks_mutex = threading.Lock()
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

    async def __aiter__(self) -> AsyncIterator[DeliveredRecord]:
        while not self.closed and not self._topic.closed:
            try:
                taken = await self.take_async()
            except LogClosedError:
                return
            for record in taken:
                yield record

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
        deadline_s = _deadline(timeout)
        while (taken := self._take_or_wait(max_records, deadline_s, math.inf)) is None:
            pass
        return taken

    async def take_async(self, max_records: int = 1, timeout: float | None = None) -> list[DeliveredRecord]:
        """`take` for asyncio. Of the tasks that wait in an event loop, one has a thread of its executor. Cancelled, it
        has taken nothing: what it was to return is delivered to another, and that delivery does not count."""
        check_max_records(max_records)
        deadline_s = _deadline(timeout)
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(loop, _Turn())
        turn.tasks += 1
        try:
            try:
                async with asyncio.timeout(timeout):
                    await turn.lock.acquire()
            except TimeoutError:
                return await self._taken_async(max_records, deadline_s) or []
            try:
                while (taken := await self._taken_async(max_records, deadline_s)) is None:
                    pass
                return taken
            finally:
                turn.lock.release()
        finally:
            turn.tasks -= 1
            if not turn.tasks:  # it would keep an event loop that has been closed
                self._turns.pop(loop, None)

    async def _taken_async(self, max_records: int, deadline_s: float) -> list[DeliveredRecord] | None:
        taking: Future[list[DeliveredRecord] | None] = Future()
        ended = _in_thread(_settle, taking, partial(self._take_or_wait, max_records, deadline_s, POLL_INTERVAL_S))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            # In the thread that takes, or in another where that has ended: not in the event loop, since a commit of
            # another thread can have the lock.
            _in_thread(taking.add_done_callback, self._give_back)
            raise
        return taking.result()

    def _give_back(self, taking: Future[list[DeliveredRecord] | None]) -> None:
        """Undo the deliveries to a task that was cancelled before it got them."""
        error = taking.exception()
        records = [error.record] if isinstance(error, RecordDecodeError) else [] if error else taking.result() or []
        with self._changed:
            for record in records:
                if isinstance(record, DeliveredRecord) and (partition := self._current(record)) is not None:
                    partition.undo(record.offset)
            self._release_surplus()
            self._changed.notify()

    def _take_or_wait(self, max_records: int, deadline_s: float, most_s: float) -> list[DeliveredRecord] | None:
        """The records that can be taken now; None after a wait of `most_s` at most without any, [] from the deadline
        on."""
        with self._changed:
            has_waited = False
            try:
                while True:
                    self._check_open()
                    now_s = time.monotonic()
                    self._balance_if_due(now_s)
                    if taken := self._deliver(max_records):
                        return taken
                    if self._deliveries:  # all of them were dead letters, and have made room for others
                        if now_s >= deadline_s:
                            return []
                        self._changed.wait(LET_IN_S)
                        return None
                    waits = self._polled()
                    if waits is None:
                        continue  # records have come meanwhile
                    if now_s >= deadline_s:
                        return []
                    self._wait(waits, min(deadline_s - now_s, most_s))
                    has_waited = True
                    return None
            finally:
                if not has_waited:
                    self._changed.notify()  # there may be more for another, which sleeps on the logs otherwise

    def _wait(self, waits: list[Any], timeout: float) -> None:
        if self._sleeping:
            self._changed.wait(None if timeout == math.inf else timeout)
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
            numbers, expired = self._complete(records)
            self._commit_done(numbers, durable)
        if expired is not None:
            raise expired

    async def ack_async(self, *records: DeliveredRecord, durable: bool = False) -> None:
        """`ack` for asyncio, in a thread of the event loop's executor; raises what `ack` does. The acks for which tasks
        wait at the same time are one commit, durable if one of them is to be; its error is raised in each. Cancelled,
        the records are done or not."""
        loop = asyncio.get_running_loop()
        ack = _Ack(records, durable)
        with self._acks_mutex:
            if loop not in self._acks:
                _in_thread(self._ack_together, loop).add_done_callback(partial(self._cancel_acks, loop))
                self._acks[loop] = []
            self._acks[loop].append(ack)
        await asyncio.wrap_future(ack.ended)

    def _cancel_acks(self, loop: asyncio.AbstractEventLoop, commit: asyncio.Future[None]) -> None:
        """Where the executor was shut down before the commit began: no thread will end these acks."""
        if commit.cancelled():
            with self._acks_mutex:
                for ack in self._acks.pop(loop, ()):
                    ack.ended.cancel()

    def _ack_together(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit the acks of an event loop for which tasks wait by now."""
        with self._changed:
            with self._acks_mutex:  # others wait for the next commit from here on
                acks = [ack for ack in self._acks.pop(loop) if ack.ended.set_running_or_notify_cancel()]
            error: BaseException | None = None
            try:
                self._check_open()
                numbers: set[int] = set()
                for ack in acks:
                    numbers |= self._complete_of(ack)
                self._commit_done(numbers, any(ack.durable for ack in acks))
            except BaseException as failure:  # raised again in each task
                error = failure
        for ack in acks:
            _end(ack, error or ack.error)

    def _complete_of(self, ack: _Ack) -> set[int]:
        try:
            numbers, ack.error = self._complete(ack.records)
        except Exception as error:  # such as of a record whose fields were changed; others' acks go on
            ack.error = error
            return set()
        return numbers

    def _complete(self, records: Iterable[DeliveredRecord]) -> tuple[set[int], DeliveryExpiredError | None]:
        """Records whose deliveries are under way are done once their partitions, which it returns, are committed; the
        error is of the first of the others. Raises ArgumentTypeError: none of them is."""
        done: list[DeliveredRecord] = []
        expired: list[DeliveredRecord] = []
        for record in records:
            (expired if self._current(record) is None else done).append(record)
        for record in done:
            self._partitions[record.partition].complete(record.offset)
        return {record.partition for record in done}, self._expired(expired[0]) if expired else None

    def _commit_done(self, numbers: Collection[int], durable: bool) -> None:
        if numbers:
            self._commit(numbers, durable)
            self._release_surplus()

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
        checked_timeout(timeout)
        if not self._release(record, delay_ms, _text(error)):
            self._reject(record, _text(error), timeout)

    async def nack_async(
        self,
        record: DeliveredRecord,
        delay_ms: int = 0,
        error: BaseException | str | None = None,
        *,
        timeout: float | None = LOCK_TIMEOUT_S,
    ) -> None:
        """`nack` for asyncio; it has no thread while it waits for a dead-letter topic. Cancelled, the record is
        released, a dead letter, or taken still."""
        checked_timeout(timeout)
        if not await _in_thread(self._release, record, delay_ms, _text(error)):
            await self._reject_async(record, _text(error), timeout)

    def _release(self, record: DeliveredRecord, delay_ms: int, error: str) -> bool:
        """False where the deliveries of the record are used up."""
        check_int("delay_ms", delay_ms, 0, MAX_DELAY_MS)
        with self._changed:
            partition = self._checked(record)
            if partition.is_exhausted(record.offset):
                return False
            partition.release(record.offset, now_ms() + delay_ms, error)
            self._release_surplus()
            self._changed.notify()
            return True

    def reject(
        self,
        record: DeliveredRecord,
        error: BaseException | str | None = None,
        *,
        timeout: float | None = LOCK_TIMEOUT_S,
    ) -> None:
        """Make a record a dead letter now; arguments and errors as of `nack`. Raises UsageError without a dead-letter
        topic."""
        self._check_has_dead_letters()
        self._reject(record, _text(error), timeout)

    async def reject_async(
        self,
        record: DeliveredRecord,
        error: BaseException | str | None = None,
        *,
        timeout: float | None = LOCK_TIMEOUT_S,
    ) -> None:
        """`reject` for asyncio, as `nack_async`."""
        self._check_has_dead_letters()
        await self._reject_async(record, _text(error), timeout)

    def _check_has_dead_letters(self) -> None:
        if self._dead_letters is None:
            raise UsageError(f"{self!r} has no dead-letter topic: open it with one, or `ack` the record to drop it")

    def _reject(self, record: DeliveredRecord, error: str, timeout: float | None) -> None:
        deadline_s = _deadline(timeout)
        while not self._try_to_reject(record, error, deadline_s):
            time.sleep(RETRY_MS / 1000)  # no kernel event says that another process has closed the topic

    async def _reject_async(self, record: DeliveredRecord, error: str, timeout: float | None) -> None:
        deadline_s = _deadline(timeout)
        while not await _in_thread(self._try_to_reject, record, error, deadline_s):
            await asyncio.sleep(RETRY_MS / 1000)  # as in _reject

    def _try_to_reject(self, record: DeliveredRecord, error: str, deadline_s: float) -> bool:
        """False where the dead-letter topic is locked and the call is made again."""
        with self._changed:
            return self._rejected(record, error, again=time.monotonic() < deadline_s)

    def _rejected(self, record: DeliveredRecord, error: str, again: bool) -> bool:
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

    def _after_fork_in_child(self) -> None:
        self._prepare()  # another thread of the parent may hold the condition
        super()._after_fork_in_child()


def _deadline(timeout: float | None) -> float:
    """By the monotonic clock. Raises UsageError, ArgumentTypeError."""
    checked_timeout(timeout)
    return math.inf if timeout is None else time.monotonic() + timeout


def _in_thread(call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(None, call, *arguments)


def _settle(outcome: Future[T], call: Callable[[], T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # raised again by `result`
        outcome.set_exception(error)


def _end(ack: _Ack, error: BaseException | None) -> None:
    if error is None:
        ack.ended.set_result(None)
    else:
        ack.ended.set_exception(error)


def _delivery(record: DeliveredRecord) -> Delivery:
    return Delivery(record.offset, record.delivery_count, record.generation)


def _text(error: BaseException | str | None) -> str:
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    return (error or "released without an error")[:MAX_ERROR]
