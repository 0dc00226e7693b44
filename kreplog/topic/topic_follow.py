"""TopicFollow: an iterator over the records of all partitions of a topic that waits for more.

It sleeps on the wake words of all partitions at once, and looks every 20 ms whether partitions were added and whether
the topic still has a writer, since neither wakes anybody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Self, TypeVar

from kreplog._native import reader
from kreplog._native.any_wait import sleep_any
from kreplog._native.directory import was_topic_released
from kreplog._native.following import FollowIterator
from kreplog._native.shown_lock import is_topic_locked
from kreplog._native.waiting import HighWatermarkWait, Outcome, checked_timeout, writer_outcome
from kreplog.errors import ArgumentTypeError, LogClosedError, RecordDecodeError, UsageError
from kreplog.topic.folder import TopicFolder
from kreplog.topic.partition_follows import TURN, PartitionFollows
from kreplog.topic.topic_waits import waits_of

T = TypeVar("T")

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")

POLL_INTERVAL_S = 0.02
"""Seconds between two polls for what wakes nobody: partitions and members that come and go, the end of a writer."""


class TopicFollow(Generic[T]):
    """Iterator over the committed records of a topic that waits for more, for `for` and for `async for`; made by
    `Topic.follow` and `follow_batches`. For one thread at a time.

    Ends when the writer has closed the topic, this process closes its own, or `timeout` passes without a record.
    Raises LogTruncatedError, WriterDiedError, PartitionDeletedError, OffsetOutOfRangeError, CorruptBatchError,
    RecordDecodeError.
    """

    def __init__(
        self,
        folder: TopicFolder,
        starts: Mapping[int, int],
        timeout: float | None,
        across_writers: bool,
        at_once: int,
        convert: Callable[[int, Any], T | None],
        isolation: str,
    ) -> None:
        """A reader of all partitions.

        starts: the first offset by partition, the log start of those that are left out. convert: what an item of a
        partition is returned as; None leaves it out."""
        checked_timeout(timeout)
        self._folder = folder
        self._starts = starts
        self._timeout = timeout
        self._across_writers = across_writers
        self._at_once = at_once
        self._convert = convert
        self._isolation = isolation
        self._partitions = PartitionFollows()
        self._known: set[int] = set()
        self._dead: list[int] = []
        self._topic_polled_s = -POLL_INTERVAL_S
        self._taken = 0
        self._busy = False
        self._unconverted: tuple[int, Any] | None = None  # what was taken, while its conversion has not succeeded
        self._add_new()
        unknown = sorted(set(starts) - self._known)
        if unknown:
            raise UsageError(f"{folder.path} has no partition {unknown[0]}", path=folder.path)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._busy:
            raise UsageError("this iterator is in use in another thread; make one for each")
        self._busy = True
        try:
            deadline_s: float | None = None
            while True:
                item = self._take()
                if item is not None:
                    return item
                deadline_s = self._deadline(deadline_s)
                waits = self._waits(deadline_s)
                if waits is not None:
                    sleep_any(waits)
        finally:
            self._busy = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        self._taken += 1
        if self._taken % TURN == 0:
            await asyncio.sleep(0)  # the event loop serves others
        deadline_s: float | None = None
        while True:
            try:
                item = self._take()
            except StopIteration:
                raise StopAsyncIteration from None
            if item is not None:
                return item
            deadline_s = self._deadline(deadline_s)
            if not await waits_of(self._folder).wait(partial(self._waits, deadline_s)):
                raise StopAsyncIteration

    def _take(self) -> T | None:
        while True:
            if self._unconverted is None:
                self._unconverted = self._partitions.take()
            if self._unconverted is None:
                return None
            try:
                item = self._convert(*self._unconverted)
            except RecordDecodeError:
                self._unconverted = None  # the next call goes on behind it
                raise
            self._unconverted = None
            if item is not None:
                return item

    def _deadline(self, deadline_s: float | None) -> float | None:
        """When to end: `timeout` after the first time that nothing was left to read; None without a timeout."""
        if deadline_s is None and self._timeout is not None:
            return time.monotonic() + self._timeout
        return deadline_s

    def _waits(self, deadline_s: float | None) -> list[HighWatermarkWait] | None:
        """The waits to sleep on; None where there is more to be read by now. Raises StopIteration at the end."""
        now_s = time.monotonic()
        is_due = now_s - self._topic_polled_s >= POLL_INTERVAL_S
        writer = self._poll_topic(now_s) if is_due else Outcome.WAITING
        waits = self._partitions.poll()  # after the look at the writer: it may have published its last in between
        if waits is None:
            if not self._partitions.follows:
                raise StopIteration
            return None
        if self._folder.closed or writer == Outcome.WRITER_CLOSED:
            raise StopIteration
        if writer == Outcome.WRITER_DIED:
            follow = self._partitions.follows[self._dead[0]]
            follow.wait.raise_outcome(Outcome.WRITER_DIED, follow.place())
        if deadline_s is not None and now_s >= deadline_s:
            raise StopIteration
        return waits

    def _poll_topic(self, now_s: float) -> int:
        """Follow partitions that were added; the outcome of the topic's writer, WAITING where there is one."""
        self._topic_polled_s = now_s
        self._add_new()
        if self._across_writers or not self._folder.read_only:
            return Outcome.WAITING
        if is_topic_locked(self._folder.folder, self._folder.topic):
            return Outcome.WAITING
        released = was_topic_released(self._folder.folder, self._folder.topic)
        outcomes = {
            number: writer_outcome(follow.log, released)
            for number, follow in self._partitions.follows.items()
            if not follow.log.closed
        }
        if Outcome.WAITING in outcomes.values():  # a partition has a writer by itself, or a broker has it
            return Outcome.WAITING
        self._dead = [number for number, outcome in outcomes.items() if outcome == Outcome.WRITER_DIED]
        return Outcome.WRITER_DIED if self._dead else Outcome.WRITER_CLOSED

    def _add_new(self) -> None:
        try:
            for number in self._folder.numbers:
                if number not in self._known:
                    log = self._folder.log(number)
                    records = reader.Records(log, self._starts.get(number), None, False, self._isolation)
                    self._partitions.add(number, FollowIterator(log, records, None, True, self._at_once))
                    self._known.add(number)
        except LogClosedError:
            if not self._known:
                raise


def check_isolation(isolation: str) -> None:
    """Raise UsageError for an isolation level that `Log.read` does not have."""
    if isolation not in ISOLATION_LEVELS:
        raise UsageError(f"isolation = {isolation!r} is not known: choose {' or '.join(map(repr, ISOLATION_LEVELS))}")


def check_max_records(max_records: int) -> None:
    """Raises ArgumentTypeError, UsageError unless max_records is an int of at least 1."""
    if isinstance(max_records, bool) or not isinstance(max_records, int):
        raise ArgumentTypeError(f"max_records is an int, not {type(max_records).__name__}")
    if max_records < 1:
        raise UsageError(f"max_records = {max_records} must be at least 1")
