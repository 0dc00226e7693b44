"""CursorMember: a member of a cursor group, which owns its share of the partitions and follows them.

Nobody coordinates: each member sees by the kernel's locks which others live (group_locks), works out its share
(core/cursor_groups), takes what is free, and gives up what is above. It commits a partition while it has its lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kreplog._native import reader
from kreplog._native.following import FollowIterator
from kreplog.core.cursor_groups import balance
from kreplog.errors import LogTruncatedError
from kreplog.topic.cursor_lock import LockedCursor
from kreplog.topic.cursor_log import CursorLog, CursorOffset
from kreplog.topic.decoding import Decoding
from kreplog.topic.group_locks import GroupLocks
from kreplog.topic.partition_follows import PartitionFollows
from kreplog.topic.topic_follow import POLL_INTERVAL_S, check_isolation
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from kreplog.topic import Topic


class CursorMember(LockedCursor, ABC):
    """The base of GroupCursor and WorkQueue, for one thread at a time.

    Raises as LockedCursor does, and UsageError (a system without locks of open files)."""

    def __init__(self, topic: Topic, name: str, log: CursorLog, start: str, decoding: Decoding, isolation: str) -> None:
        check_isolation(isolation)
        super().__init__(topic, name, log, start, shared=True)
        self._decoding = decoding
        self._isolation = isolation
        self._positions: dict[int, int] = {}  # of the partitions that it owns, the longest owned first
        self._surplus: frozenset[int] = frozenset()
        self._follows = PartitionFollows()
        self._balanced_s = -POLL_INTERVAL_S
        assert self._lock is not None
        try:
            self._locks = GroupLocks(self._lock, f"{topic.path}@{name}.lock")
        except BaseException:
            super().close()
            raise

    # What a member keeps of a partition

    @abstractmethod
    def _own(self, number: int, offsets: range, committed: CursorOffset | None) -> int:
        """A partition is this member's, with these offsets in its log; returns the offset from which on it reads."""

    @abstractmethod
    def _disown(self, number: int) -> None:
        """The partition is no longer this member's: drop what is kept of it."""

    @abstractmethod
    def _may_release(self, number: int) -> bool:
        """Whether all that was returned of a partition is committed."""

    def _may_read(self, number: int) -> bool:
        """Whether more of an owned partition may be read now."""
        return number not in self._surplus

    def _before_read(self, number: int) -> None:
        """Whatever comes before an owned partition is read from its position on. Raises LogTruncatedError."""

    # Whose partitions

    def _balance_if_due(self, now_s: float) -> None:
        """Take what is free of this member's share, and give up what is above it. Raises CursorFencedError,
        LogLockedError, StorageError."""
        if now_s - self._balanced_s < POLL_INTERVAL_S:
            return
        self._balanced_s = now_s
        self._locks.check()
        partitions = self._topic.partitions
        plan = balance(self._locks.member, self._locks.members(), tuple(self._positions), partitions)
        self._surplus = frozenset(plan.surplus)
        for number in plan.surplus:
            self._follows.drop(number)
        self._release_surplus()
        if plan.wanted:
            acquired: list[int] = []
            for number in self._locks.free(partitions):
                if len(acquired) == plan.wanted:
                    break
                if number not in self._positions and self._locks.acquire(number):
                    acquired.append(number)
            if acquired:
                self._begin(acquired)

    def _begin(self, acquired: list[int]) -> None:
        """Go on at the committed offsets, which are read while the partitions are locked."""
        owned: dict[int, int] = {}
        try:
            committed = self._log.read(self._name, self._topic.name)
            offsets = self._topic.offsets()
            if self._start == "latest" and not committed:
                # At once, and of all partitions: whoever comes later begins where the group has begun.
                latest = {number: self._latest(number, found) for number, found in offsets.items()}
                committed = self._log.begin(
                    self._name,
                    self._topic.name,
                    {number: self._with_leader_epoch(number, offset) for number, offset in latest.items()},
                )
            for number in acquired:
                owned[number] = self._own(number, offsets[number], committed.get(number))
        except BaseException:
            for number in acquired:
                if number in owned:
                    self._disown(number)
                self._locks.release(number)
            raise
        self._positions |= owned

    def _latest(self, number: int, offsets: range) -> int:
        """Where reading of the latest records begins, as by Kafka's ListOffsets of that isolation level."""
        if self._isolation == "read_committed":
            return min(offsets.stop, self._topic._folder.log(number).last_stable_offset)
        return offsets.stop

    def _release_surplus(self) -> None:
        """Give up those of which all that was returned is committed."""
        for number in self._surplus:
            if number in self._positions and self._may_release(number):
                del self._positions[number]
                self._disown(number)
                self._locks.release(number)

    def _commit_offsets(self, offsets: Mapping[int, CursorOffset], durable: bool) -> None:
        if offsets:
            self._log.commit(self._name, self._topic.name, offsets, durable)

    # Reading

    def _follow_owned(self, at_once: int) -> None:
        for number in self._positions:
            if number not in self._follows.follows and self._may_read(number):
                self._before_read(number)
                log = self._topic._folder.log(number)
                records = reader.Records(log, self._positions[number], None, False, self._isolation)
                self._follows.add(number, FollowIterator(log, records, None, True, at_once))

    def _polled(self) -> list[Any] | None:
        """The waits of its partitions, None where there is more by now. Raises LogTruncatedError: the position is then
        the end of the log."""
        try:
            return self._follows.poll()
        except LogTruncatedError as error:
            if error.partition is not None and error.offset is not None:
                number = TopicPartition.parse(error.partition).partition
                self._follows.drop(number)
                self._positions[number] = min(self._positions[number], error.offset)
                self._truncated.add(number)
            raise
        finally:
            for number, follow in self._follows.follows.items():  # past what is no record: gaps, markers
                self._positions[number] = max(self._positions[number], follow.place())

    def close(self) -> None:
        """Leave the group, without a commit. Closing twice does nothing."""
        super().close()
        self._positions, self._follows = {}, PartitionFollows()
