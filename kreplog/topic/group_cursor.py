"""GroupCursor: a cursor whose partitions are split among its members, in threads and processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kreplog._native.any_wait import sleep_any
from kreplog._native.waiting import checked_timeout
from kreplog.errors import LogClosedError, UsageError
from kreplog.topic.cursor_log import CursorLog, CursorOffset
from kreplog.topic.cursor_member import CursorMember
from kreplog.topic.decoding import Decoding, OnError, check_on_error
from kreplog.topic.merge import TopicRecord
from kreplog.topic.partition_follows import PartitionFollows
from kreplog.topic.topic_follow import check_max_records

if TYPE_CHECKING:
    from kreplog.topic import Topic


class GroupCursor(CursorMember):
    """A member of a cursor group, made by `Topic.group_cursor`; a context manager. For one thread at a time: each opens
    its own.

    While it is iterated, it takes the partitions that are its share, and finds the death of other members within
    20 ms. A partition above its share is read no more, and passes on with the next commit, so that its successor goes
    on where this one has committed. Records that a member has not committed are returned again to another: at least
    once.
    """

    def __init__(self, topic: Topic, name: str, log: CursorLog, start: str, decoding: Decoding, isolation: str) -> None:
        self._committed: dict[int, CursorOffset] = {}
        self._uncommitted: set[int] = set()  # those of which records were returned since
        super().__init__(topic, name, log, start, decoding, isolation)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"member {self._locks.member} at {self._positions}"
        return f"<kreplog.GroupCursor {self._name} of {self._topic.path} {state}>"

    @property
    def positions(self) -> dict[int, int]:
        """The partitions that this member owns, and the offset of the next record of each."""
        return dict(sorted(self._positions.items()))

    @property
    def committed(self) -> dict[int, int]:
        """The committed offset of each of its partitions that has one."""
        return {
            number: self._committed[number].offset for number in sorted(self._positions) if number in self._committed
        }

    # Reading

    def __iter__(self) -> Iterator[TopicRecord]:
        return self.follow()

    def follow(self, timeout: float | None = None, *, on_error: OnError = "raise") -> Iterator[TopicRecord]:
        """Iterate over the records of this member's partitions as they come, and wait for more.

        Ends after `timeout` seconds without a record, and when the cursor or the topic is closed; writers may close and
        die meanwhile. on_error: as of `Topic.read`; a record that raises is returned again. One iteration at a time:
        another begins at the positions. Raises LogLockedError (a broker runs on the folder), CursorFencedError (the
        lock file was deleted), OffsetOutOfRangeError (retention has deleted the records at the position: `seek`
        first), LogTruncatedError (records that were read or committed are not in the log: the position is then where
        they end; `seek` first where that is not known and its offset None), PartitionDeletedError, CorruptBatchError,
        StorageError.
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
            self._balance_if_due(now_s)
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
        self._positions[number] = items[-1].offset + 1
        self._uncommitted.add(number)
        return records

    def seek(self, partition: int, offset: int) -> None:
        """Set the position in a partition that this member owns. Raises UsageError."""
        self._check_open()
        if partition not in self._positions:
            raise UsageError(f"{self!r} does not own partition {partition}", path=self._topic.path)
        self._check_offset(partition, offset)
        self._follows.drop(partition)
        self._positions[partition] = offset
        self._unverified.discard(partition)
        self._uncommitted.add(partition)

    # Its partitions

    def _own(self, number: int, offsets: range, committed: CursorOffset | None) -> int:
        if committed is None:
            return offsets.start
        self._committed[number] = committed
        self._unverified.add(number)
        return committed.offset

    def _disown(self, number: int) -> None:
        self._committed.pop(number, None)
        self._unverified.discard(number)
        self._truncated.discard(number)

    def _before_read(self, number: int) -> None:
        self._check_position(self._positions, number, self._committed.get(number))

    def _may_release(self, number: int) -> bool:
        return number not in self._uncommitted

    # Committing

    def commit(self, *, durable: bool = False) -> None:
        """Commit the positions in this member's partitions: of all records that were returned; as `Cursor.commit`.

        Partitions above its share pass on. Raises CursorFencedError (the lock file was deleted: nothing is committed),
        LogLockedError (a broker runs on the folder), LogFailedError, StorageError.
        """
        self._check_open()
        self._locks.check()
        offsets = {number: self._offset(number, position) for number, position in self._positions.items()}
        changed = {number: offset for number, offset in offsets.items() if self._committed.get(number) != offset}
        if durable and not self._topic.read_only:
            self._topic.flush()
        if changed or durable:
            self._commit_offsets(changed or offsets, durable)
            self._committed |= changed
        self._uncommitted.clear()
        self._truncated.clear()
        self._release_surplus()

    def _offset(self, number: int, position: int) -> CursorOffset:
        """The offset to commit for a partition; one that has not moved keeps its metadata."""
        committed = self._committed.get(number)
        if committed is not None and committed.offset == position and number not in self._truncated:
            return committed
        return self._with_leader_epoch(number, position)

    def close(self) -> None:
        super().close()
        self._committed = {}
