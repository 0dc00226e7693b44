"""GroupCursor: a cursor whose partitions are split among its members, in threads and processes.

Nobody coordinates: each member sees by the kernel's locks which others live (group_locks), works out its share
(core/cursor_groups), takes what is free, and gives up what is above. It commits a partition while it has its lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kreplog._native import reader
from kreplog._native.any_wait import sleep_any
from kreplog._native.following import FollowIterator
from kreplog._native.waiting import checked_timeout
from kreplog.core.cursor_groups import balance
from kreplog.errors import KreplogError, LogClosedError, LogTruncatedError, UsageError
from kreplog.topic.cursor_lock import LockedCursor
from kreplog.topic.cursor_log import CursorLog
from kreplog.topic.decoding import Decoding, OnError, check_on_error
from kreplog.topic.group_locks import GroupLocks
from kreplog.topic.merge import TopicRecord
from kreplog.topic.partition_follows import PartitionFollows
from kreplog.topic.topic_follow import LOOK_S, check_max_records
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from kreplog.topic import Topic


class GroupCursor(LockedCursor):
    """A member of a cursor group, made by `Topic.group_cursor`; a context manager. For one thread at a time: each opens
    its own.

    While it is iterated, it takes the partitions that are its share, and finds the death of other members within
    20 ms. A partition above its share is read no more, and passes on with the next commit, so that its successor goes
    on where this one has committed. Records that a member has not committed are returned again to another: at least
    once.
    """

    def __init__(self, topic: Topic, name: str, log: CursorLog, start: str, decoding: Decoding) -> None:
        super().__init__(topic, name, log, start, shared=True)
        self._decoding = decoding
        self._places: dict[int, int] = {}  # of the partitions that it owns, the longest owned first
        self._committed: dict[int, int] = {}
        self._uncommitted: set[int] = set()  # those of which records were returned since
        self._surplus: frozenset[int] = frozenset()
        self._follows = PartitionFollows()
        self._balanced_s = -LOOK_S
        assert self._lock is not None
        try:
            self._locks = GroupLocks(self._lock, f"{topic.path}@{name}.lock")
        except BaseException:
            super().close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"member {self._locks.member} at {self._places}"
        return f"<kreplog.GroupCursor {self._name} of {self._topic.path} {state}>"

    @property
    def places(self) -> dict[int, int]:
        """The partitions that this member owns, and the offset of the next record of each."""
        return dict(sorted(self._places.items()))

    @property
    def committed(self) -> dict[int, int]:
        """The committed offset of each of its partitions that has one."""
        return {number: self._committed[number] for number in sorted(self._places) if number in self._committed}

    # Reading

    def __iter__(self) -> Iterator[TopicRecord]:
        return self.follow()

    def follow(self, timeout: float | None = None, *, on_error: OnError = "raise") -> Iterator[TopicRecord]:
        """Iterate over the records of this member's partitions as they come, and wait for more.

        Ends after `timeout` seconds without a record, and when the cursor or the topic is closed; writers may close and
        die meanwhile. on_error: as of `Topic.read`; a record that raises is returned again. One iteration at a time:
        another begins at the places. Raises LogLockedError (a broker runs on the folder), CursorFencedError (the lock
        file was deleted), OffsetOutOfRangeError (retention has deleted records at the place: `seek` to go on),
        LogTruncatedError, PartitionDeletedError, CorruptBatchError, StorageError.
        """
        return (record for records in self._lists(0, timeout, on_error) for record in records)

    def follow_batches(
        self, timeout: float | None = None, *, max_records: int = 1000, on_error: OnError = "raise"
    ) -> Iterator[list[TopicRecord]]:
        """`follow` in lists of 1 to `max_records` records of a partition: those that are committed."""
        check_max_records(max_records)
        return self._lists(max_records, timeout, on_error)

    def _lists(self, at_once: int, timeout: float | None, on_error: OnError) -> Iterator[list[TopicRecord]]:
        self._check_open()
        check_on_error(on_error)
        checked_timeout(timeout)
        return self._following(at_once, timeout, on_error)

    def _following(self, at_once: int, timeout: float | None, on_error: OnError) -> Iterator[list[TopicRecord]]:
        follows = self._follows = PartitionFollows()
        deadline_s: float | None = None
        while not self.closed and not self._topic.closed:
            if self._follows is not follows:
                raise UsageError(f"{self!r}: another iteration has begun; a cursor has one at a time")
            now_s = time.monotonic()
            if now_s - self._balanced_s >= LOOK_S:
                self._balanced_s = now_s
                self._balance()
            self._follow_owned(at_once)
            found = self._next(on_error)
            if found is not None:
                deadline_s = None
                if found:
                    yield found
                continue
            if timeout is not None:
                deadline_s = now_s + timeout if deadline_s is None else deadline_s
            waits = self._polled()
            if waits is not None:
                if deadline_s is not None and now_s >= deadline_s:
                    return
                sleep_any(waits)

    def _next(self, on_error: OnError) -> list[TopicRecord] | None:
        """The next records of a partition, [] where none of them is returned; None where there are none yet."""
        try:
            found = self._follows.take()
        except LogClosedError:
            return None  # the loop sees that the topic is closed
        if found is None:
            return None
        number, item = found
        items: list[Any] = item if isinstance(item, list) else [item]
        records = list(self._decoding.decoded((TopicRecord(number, *taken) for taken in items), on_error))
        self._places[number] = items[-1].offset + 1
        self._uncommitted.add(number)
        return records

    def _polled(self) -> list[Any] | None:
        try:
            return self._follows.poll()
        except LogTruncatedError as error:
            if error.partition is not None and error.offset is not None:
                number = TopicPartition.parse(error.partition).partition
                self._follows.drop(number)
                self._places[number] = min(self._places[number], error.offset)
            raise
        finally:
            for number, follow in self._follows.follows.items():  # past what is no record: gaps, markers
                self._places[number] = max(self._places[number], follow.place())

    def _follow_owned(self, at_once: int) -> None:
        for number, place in self._places.items():
            if number not in self._follows.follows and number not in self._surplus:
                log = self._topic._folder.log(number)
                records = reader.Records(log, place, None, False)
                self._follows.add(number, FollowIterator(log, records, None, True, at_once))

    def seek(self, partition: int, offset: int) -> None:
        """Move the place of a partition that this member owns. Raises UsageError."""
        self._check_open()
        if partition not in self._places:
            raise UsageError(f"{self!r} does not own partition {partition}", path=self._topic.path)
        self._check_offset(partition, offset)
        self._follows.drop(partition)
        self._places[partition] = offset
        self._uncommitted.add(partition)

    # Whose partitions

    def _balance(self) -> None:
        """Take what is free of this member's share, and give up what is above it. Raises CursorFencedError,
        LogLockedError, StorageError."""
        self._locks.check()
        partitions = self._topic.partitions
        plan = balance(self._locks.member, self._locks.members(), tuple(self._places), partitions)
        self._surplus = frozenset(plan.surplus)
        for number in plan.surplus:
            self._follows.drop(number)
        self._release_surplus()
        if plan.wanted:
            acquired: list[int] = []
            for number in self._locks.free(partitions):
                if len(acquired) == plan.wanted:
                    break
                if number not in self._places and self._locks.acquire(number):
                    acquired.append(number)
            if acquired:
                self._begin(acquired)

    def _begin(self, acquired: list[int]) -> None:
        """Go on at the committed offsets, which are read while the partitions are locked."""
        try:
            committed = self._log.read(self._name, self._topic.name)
            offsets = self._topic.offsets()
            places = {number: committed.get(number, offsets[number].start) for number in acquired}
            if self._start == "latest" and not committed:
                places = {number: offsets[number].stop for number in acquired}
                self._commit(places, durable=False)  # else a successor would begin later than this one
                committed = places
        except BaseException:
            for number in acquired:
                self._locks.release(number)
            raise
        self._places |= places
        self._committed |= {number: committed[number] for number in acquired if number in committed}

    def _release_surplus(self) -> None:
        """Give up those of which all that was returned is committed."""
        for number in self._surplus:
            if number in self._places and number not in self._uncommitted:
                del self._places[number]
                self._committed.pop(number, None)
                self._locks.release(number)

    # Committing

    def commit(self, *, durable: bool = False) -> None:
        """Commit the places of this member's partitions: of all records that were returned; as `Cursor.commit`.

        Partitions above its share pass on. Raises CursorFencedError (the lock file was deleted: nothing is committed),
        LogLockedError (a broker runs on the folder), LogFailedError, StorageError.
        """
        self._check_open()
        self._locks.check()
        changed = {number: place for number, place in self._places.items() if self._committed.get(number) != place}
        if durable and not self._topic.read_only:
            self._topic.flush()
        if changed or durable:
            self._commit(changed or dict(self._places), durable)
            self._committed |= changed
        self._uncommitted.clear()
        self._release_surplus()

    def _commit(self, places: dict[int, int], durable: bool) -> None:
        if places:
            offsets = {TopicPartition(self._topic.name, number): place for number, place in places.items()}
            self._log.commit(self._name, offsets, durable)

    # The end

    def close(self) -> None:
        """Leave the group, without a commit. Closing twice does nothing."""
        if not self.closed:
            with suppress(KreplogError, OSError):  # closing releases them, too
                self._locks.unlock()
        super().close()
        self._places, self._committed, self._follows = {}, {}, PartitionFollows()
