"""Follow: an iterator over the records of a log that waits for more; and the waits of asyncio.

A thread sleeps in native code until the writer wakes it. All tasks that wait for a log share one thread, which is
started for the first of them and ends a second after the last.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from kreplog._native.following import END, FollowIterator
from kreplog._native.log import SegmentedLog
from kreplog._native.reader import ArrowPieces, Records
from kreplog._native.waiting import Outcome, checked_offset, checked_timeout, new_wait

__all__ = ["Follow", "wait_async"]

T = TypeVar("T")

_IDLE_S = 1.0
_TURN = 256  # items that a task takes before others have their turn


class Follow(FollowIterator, Generic[T]):
    """Iterator over committed records that waits for more, for `for` and for `async for`; made by `Log.follow`,
    `follow_batches` and `follow_arrow`.

    Ends when the writer has closed the log, this process closes its own, or `timeout` passes without a record.
    Raises LogTruncatedError, WriterDiedError, PartitionDeletedError, OffsetOutOfRangeError, CorruptBatchError.
    """

    def __init__(
        self,
        log: SegmentedLog,
        items: Records | ArrowPieces,
        timeout: float | None,
        across_writers: bool,
        at_once: int = 0,
        convert: Callable[[Any], T] | None = None,
    ) -> None:
        super().__init__(log, items, timeout, across_writers, at_once, convert)
        self._taken = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._taken += 1
        if self._taken % _TURN == 0:
            await asyncio.sleep(0)
        deadline: float | None = None
        while True:
            try:
                item = self.take()
            except StopIteration:
                raise StopAsyncIteration from None
            if item is not END:
                return cast(T, item)
            if deadline is None:
                deadline = _deadline_of(self.timeout)
            if not self.go_on(await _outcome(self.log, self, deadline)):
                raise StopAsyncIteration


async def wait_async(log: SegmentedLog, offset: int, timeout: float | None, across_writers: bool) -> bool:
    """See Log.wait_async."""
    checked_timeout(timeout)
    wanted = checked_offset(log, offset)
    wait = new_wait(log, across_writers)
    outcome = await _outcome(log, _OffsetWait(lambda: wait.poll(wanted, -1)), _deadline_of(timeout))
    if outcome not in (Outcome.REACHED, Outcome.TIMED_OUT):
        wait.raise_outcome(outcome, wanted)
    return outcome == Outcome.REACHED


class _Pollable(Protocol):
    def poll(self) -> int: ...


class _OffsetWait:
    def __init__(self, poll: Callable[[], int]) -> None:
        self.poll = poll


def _deadline_of(timeout: float | None) -> float | None:
    """The time of the running loop, `timeout` seconds from now."""
    return None if timeout is None else asyncio.get_running_loop().time() + timeout


async def _outcome(log: SegmentedLog, waiting: _Pollable, deadline: float | None) -> int:
    """The outcome of the wait, awaited, TIMED_OUT at the loop's time `deadline`. Raises what `poll` raises."""
    waits = _waits_of(log)
    future = waits.add(waiting)
    try:
        async with asyncio.timeout_at(deadline):
            return await future
    except TimeoutError:
        return Outcome.TIMED_OUT
    finally:
        waits.remove(future)


class _LogWaits:
    """The waits of all tasks for one log, and the thread that sleeps for them."""

    def __init__(self, log: SegmentedLog) -> None:
        self.pid = os.getpid()
        self._wait = new_wait(log, True)
        self._lock = threading.Lock()
        self._added = threading.Event()
        self._pending: dict[asyncio.Future[int], _Pollable] = {}
        self._thread: threading.Thread | None = None

    def add(self, waiting: _Pollable) -> asyncio.Future[int]:
        """A future of its outcome. Raises what `poll` raises."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            self._pending[future] = waiting  # before the look: else the wake-up for it could go unseen
        try:
            outcome = waiting.poll()
        except BaseException:
            self.remove(future)
            raise
        if outcome != Outcome.WAITING:
            self.remove(future)
            future.set_result(outcome)
            return future
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kreplog-wait", daemon=True)
                self._thread.start()
        self._added.set()
        return future

    def remove(self, future: asyncio.Future[int]) -> None:
        with self._lock:
            self._pending.pop(future, None)

    def _run(self) -> None:
        while True:
            self._wait.begin()
            with self._lock:
                pending = list(self._pending.items())
                self._added.clear()
            for future, waiting in pending:
                self._poll(future, waiting)
            del pending
            if self._pending:
                self._wait.pause()
            elif not self._added.wait(_IDLE_S):
                with self._lock:
                    if not self._pending:
                        self._thread = None
                        return

    def _poll(self, future: asyncio.Future[int], waiting: _Pollable) -> None:
        result: int | Exception
        try:
            result = waiting.poll()
        except Exception as error:  # the task raises it
            result = error
        if result != Outcome.WAITING:
            self.remove(future)
            with suppress(RuntimeError):  # its loop was closed
                future.get_loop().call_soon_threadsafe(_resolve, future, result)


def _resolve(future: asyncio.Future[int], result: int | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _waits_of(log: SegmentedLog) -> _LogWaits:
    """Kept with the log. A forked child has the object and not its thread."""
    waits: _LogWaits | None = getattr(log, "_async_waits", None)
    if waits is None or waits.pid != os.getpid():
        waits = _LogWaits(log)
        log._async_waits = waits  # type: ignore[attr-defined]
    return waits
