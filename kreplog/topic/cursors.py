"""Cursor: the named, durable position of a reader in a topic.

Committed positions are offsets of a consumer group in `__consumer_offsets` beside the data, so that a broker which
takes the folder over shows them as such; or rows of the database to which the reader writes its results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from kreplog.errors import UsageError
from kreplog.topic.cursor_database import StoredCursor, database_of
from kreplog.topic.cursor_lock import LockedCursor
from kreplog.topic.cursor_log import CursorLog, CursorOffset
from kreplog.topic.decoding import OnError
from kreplog.topic.merge import TopicRecord

if TYPE_CHECKING:
    from kreplog.topic import Topic


class Cursor(LockedCursor):
    """The position of a reader in a topic, made by `Topic.cursor`; a context manager. For one thread at a time.

    Iterating returns the records from its position to the high watermarks at that moment. The position advances with
    each record that is returned, and `commit` makes it durable: after a crash the records since the latest commit are
    returned again.
    """

    def __init__(self, topic: Topic, name: str, log: CursorLog, start: str) -> None:
        super().__init__(topic, name, log, start, shared=False)
        try:
            committed = log.read(name, topic.name)
            self._committed = {number: found.offset for number, found in committed.items()}
            self._stored = dict(committed)  # of the partitions that were not sought since
            self._unverified = set(committed)
            self._positions = dict(self._committed)
            self._defaults()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._positions}"
        return f"<kreplog.Cursor {self._name} of {self._topic.path} {state}>"

    @property
    def positions(self) -> dict[int, int]:
        """The offset of the next record of each partition."""
        self._check_open()
        self._defaults()
        return dict(self._positions)

    @property
    def committed(self) -> dict[int, int]:
        """The committed offset of each partition that has one: that of the next record to be read."""
        return dict(self._committed)

    def lag(self) -> dict[int, int]:
        """The number of offsets by which each partition's high watermark is past the committed offset, or the start
        without one."""
        self._check_open()
        return {
            number: max(0, offsets.stop - self._committed.get(number, offsets.start))
            for number, offsets in self._topic.offsets().items()
        }

    # Reading

    def __iter__(self) -> Iterator[TopicRecord]:
        return self.read()

    def read(
        self, *, order: str = "partition", isolation: str = "read_uncommitted", on_error: OnError = "raise"
    ) -> Iterator[TopicRecord]:
        """Iterate over the records from the position to the high watermarks now; arguments as of `Topic.read`. With the
        isolation "read_committed" the position stays before the first record of an open transaction.

        Raises as that; OffsetOutOfRangeError where retention has deleted the records at the position: `seek` first;
        LogTruncatedError where records that were read are not in the log, once for a partition: the position is then
        where they end. Where that is not known (its offset is None): `seek` first."""
        starts = self.positions
        stops = {number: offsets.stop for number, offsets in self._topic.offsets().items() if number in starts}
        for number, stop in stops.items():
            if number in self._unverified or starts[number] > stop:
                self._check_position(self._positions, number, self._stored.get(number))
                stops[number] = max(stop, starts[number])  # the log has them, and they are not committed in it yet
        if isolation == "read_committed":
            for number, stop in stops.items():
                stable = self._topic._folder.log(number).last_stable_offset
                stops[number] = max(min(stop, stable), starts[number])
        records = self._topic.read(start=starts, stop=stops, order=order, isolation=isolation, on_error=on_error)
        return self._moving(records, stops)

    def _moving(self, records: Iterator[TopicRecord], stops: dict[int, int]) -> Iterator[TopicRecord]:
        for record in records:
            self._check_open()
            self._positions[record.partition] = record.offset + 1
            yield record
        for number, stop in stops.items():  # past what is no record: gaps, and markers of transactions
            self._positions[number] = max(self._positions[number], stop)

    def seek(self, partition: int, offset: int) -> None:
        """Set the position in a partition; an iteration under way is not affected. Raises UsageError."""
        self._check_open()
        if partition not in range(self._topic.partitions):
            raise UsageError(f"{self._topic.path} has no partition {partition}", path=self._topic.path)
        self._check_offset(partition, offset)
        self._positions[partition] = offset
        self._stored.pop(partition, None)

    def seek_to_beginning(self) -> None:
        """Move to the log start of every partition."""
        self._check_open()
        self._stored.clear()
        self._positions = {number: offsets.start for number, offsets in self._topic.offsets().items()}

    def seek_to_end(self) -> None:
        """Move to the high watermark of every partition."""
        self._check_open()
        self._stored.clear()
        self._positions = {number: offsets.stop for number, offsets in self._topic.offsets().items()}

    # Committing

    def commit(self, *, durable: bool = False) -> None:
        """Commit the position: of all records that were returned. It survives this process; with `durable`, a loss
        of power too, for which a topic that is open for writing is flushed first.

        All partitions together; the metadata of one that has not moved stays, such as a work queue's. Raises
        LogLockedError (a broker runs on the folder), LogFailedError, StorageError: then the commit before counts, or
        this one.
        """
        self._check_open()
        changed = {
            number: offset
            for number, offset in self._positions.items()
            if self._committed.get(number) != offset or number in self._truncated
        }
        if durable and not self._topic.read_only:
            self._topic.flush()
        if changed or durable:
            offsets = {number: self._offset(number, offset) for number, offset in self._positions.items()}
            self._log.commit(self._name, self._topic.name, offsets, durable)
            self._committed.update(changed)
            self._stored = offsets
            self._truncated.clear()

    def _offset(self, number: int, position: int) -> CursorOffset:
        """The offset to commit for a partition; one that has not moved keeps its metadata."""
        stored = self._stored.get(number)
        if stored is not None and stored.offset == position and number not in self._truncated:
            return stored
        return self._with_leader_epoch(number, position)

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[Self]:
        """Keep the position in the caller's database, in one transaction with what the caller writes there: exactly
        once.

        connection: of sqlite3, or of another driver as PEP 249 has it, such as psycopg or DuckDB. The position is read
        from the table kreplog_cursors of the database; the first time, it is that of the cursor. At the end of the
        `with` statement it is written and all is committed; an error rolls all back, the position too. Positions in
        the database and those of `commit` are independent: use one of them for a cursor. Where transactions begin by
        themselves (`autocommit` is False), what was written before the `with` statement is part of it.
        Raises UsageError (a transaction is open on the connection, or, of sqlite3, was ended inside of the `with`
        statement; each statement is committed by itself), CursorFencedError (another has written the position),
        ArgumentTypeError, and what the driver raises.
        """
        self._check_open()
        stored_as = StoredCursor(str(self._topic.topic_id or ""), self._topic.name, self._name)
        database = database_of(connection, stored_as)
        before = self.positions, set(self._unverified), set(self._truncated)
        try:
            with database.transaction() as stored:
                self._positions.update(stored)
                yield self
                self._check_open()
                database.write(stored, self._positions)
        except BaseException:
            self._positions, self._unverified, self._truncated = before
            raise
        self._committed = dict(self._positions)

    def _defaults(self) -> None:
        """Set the position in each partition that is new."""
        for number, offsets in self._topic.offsets().items():
            if number not in self._positions:
                from_start = self._start == "earliest" or bool(self._committed)
                self._positions[number] = offsets.start if from_start else offsets.stop
