"""QueueMember: what a process has of a work queue: its partitions, the deliveries that are under way, the commits.

The rules are in core/work_queues; here are the logs and the clock. A delivery is committed before its record is
returned, so that it counts where its worker dies.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kreplog.core.work_queues import PREFIX, Delivery, QueuePartition, WorkQueueConfig
from kreplog.errors import (
    CorruptWorkQueueError,
    LogClosedError,
    LogLockedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    RecordDecodeError,
)
from kreplog.topic.cursor_log import LOCK_TIMEOUT_S, CursorLog, CursorOffset
from kreplog.topic.cursor_member import CursorMember
from kreplog.topic.dead_letters import DeadLetterTopic
from kreplog.topic.decoding import Decoding
from kreplog.topic.merge import TopicRecord
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from kreplog.topic import Topic

COMMITTED_TOGETHER = 100
"""Partitions of a commit: with metadata of 4 KiB each it is well within a segment."""

RETRY_MS = 20
"""Between two tries of a dead letter whose topic is locked: each opens the topic, and the kernel does not announce that
it is closed elsewhere."""

DEAD_LETTERS_MS = 100
"""How long a call appends dead letters before it leaves the others to the next: each opens the topic, and flushes."""

LOCK_ENDED = "the lock of its last delivery ended, or its worker did"

_logger = logging.getLogger("kreplog")


class DeliveredRecord(NamedTuple):
    """A record of a work queue: the fields of TopicRecord; delivery_count: 1 for its first delivery; generation: sets
    it apart from others that the partition has had at its offset, before the log was truncated."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int
    generation: int = 0


class QueueMember(CursorMember):
    """The base of WorkQueue, for one thread at a time."""

    def __init__(
        self,
        topic: Topic,
        name: str,
        log: CursorLog,
        start: str,
        decoding: Decoding,
        isolation: str,
        config: WorkQueueConfig,
        dead_letters: DeadLetterTopic | None,
    ) -> None:
        self._config = config
        self._dead_letters = dead_letters
        self._partitions: dict[int, QueuePartition] = {}
        self._generation = 0  # above those of the partitions that it no longer owns
        self._deliveries: list[tuple[int, Delivery]] = []  # of the call under way, by partition
        self._locked_ms: int | None = None  # when the dead-letter topic was found locked, and not free since
        self._tried_ms = 0  # when it was found locked last
        self._appending_ms: int | None = None  # when the call under way appended its first dead letter
        self._prepare()
        super().__init__(topic, name, log, start, decoding, isolation)

    @abstractmethod
    def _prepare(self) -> None:
        """Make what `close` needs, which is called where the rest of the constructor fails."""

    # Its partitions

    def _own(self, number: int, offsets: range, committed: CursorOffset | None) -> int:
        start, metadata = (offsets.start, "") if committed is None else (committed.offset, committed.metadata)
        at = TopicPartition(self._topic.name, number)
        if metadata and not metadata.startswith(PREFIX):
            _logger.warning("%s: work queue %s replaces the metadata %.60r of its offset", at, self._name, metadata)
        try:
            self._partitions[number] = QueuePartition(start, metadata, self._config, self._generation)
        except ValueError as error:
            raise CorruptWorkQueueError(
                f"{at}: what work queue {self._name} has done beyond its committed offset {start} cannot be read "
                f"({error}): use the version of kreplog that wrote it; or deliver all from there on again, after "
                f"`kreplog cursor reset {self._topic.path} {self._name} --to-offset {start} --partition {number}`",
                partition=str(at),
                offset=start,
            ) from error
        self._delete_before(number, offsets.start)
        end = self._partitions[number].end_offset
        if end > offsets.stop:
            _logger.warning(
                "%s: the log ends at offset %d, and work queue %s had come to %d: records were truncated, or lost with "
                "power; what is appended from %d on is delivered",
                at, offsets.stop, self._name, end, offsets.stop,
            )  # fmt: skip
            self._partitions[number].truncate_to(offsets.stop)
        return self._partitions[number].end_offset

    def _disown(self, number: int) -> None:
        if (partition := self._partitions.pop(number, None)) is not None:
            self._generation = max(self._generation, partition.generation + 1)

    def _may_release(self, number: int) -> bool:
        return not self._partitions[number].locked(now_ms())

    def _may_read(self, number: int) -> bool:
        return super()._may_read(number) and self._partitions[number].has_room

    def _delete_before(self, number: int, start: int) -> None:
        """Records below the log start, which retention has deleted, count as done."""
        partition = self._partitions[number]
        if partition.start_offset < start:
            _logger.warning(
                "%s: retention has deleted offsets from %d on that work queue %s had not done; it goes on at %d",
                TopicPartition(self._topic.name, number), partition.start_offset, self._name, start,
            )  # fmt: skip
            partition.delete_before(start)

    def _skip_deleted(self) -> bool:
        """Go on at the log start where retention has deleted the next record; whether it has anywhere."""
        found = False
        for number, offsets in self._topic.offsets().items():
            if number in self._positions and self._positions[number] < offsets.start:
                self._delete_before(number, offsets.start)
                self._follows.drop(number)
                self._positions[number] = offsets.start
                found = True
        return found

    # Delivering

    def _deliver(self, most: int) -> list[DeliveredRecord]:
        """Up to `most` records, whose deliveries are committed; [] where there is none now, or where all that there
        were are dead letters: in _deliveries are those that were appended."""
        self._deliveries.clear()
        self._appending_ms = None
        delivered: list[DeliveredRecord] = []
        try:
            for records in self._to_decode(most, delivered):
                if not self._decode(records, delivered):
                    break
            self._commit({number for number, _ in self._deliveries})
        except BaseException:
            self._undo()
            raise
        return delivered

    def _to_decode(self, most: int, delivered: list[DeliveredRecord]) -> Iterator[list[tuple[TopicRecord, Delivery]]]:
        """Records until `most` are delivered: those to be delivered again, each once at most, then new ones."""
        began_ms = now_ms()  # what is put off meanwhile is not due by then, however long this takes
        for number, partition in self._partitions.items():
            if number not in self._surplus:
                while len(delivered) < most and (
                    records := self._redeliver(number, partition, most - len(delivered), began_ms)
                ):
                    yield records
        while len(delivered) < most and (records := self._new(most - len(delivered))):
            yield records

    def _new(self, most: int) -> list[tuple[TopicRecord, Delivery]]:
        """Records that are delivered for the first time."""
        records: list[tuple[TopicRecord, Delivery]] = []
        while len(records) < most and (found := self._next()) is not None:
            number, record = found
            partition = self._partitions[number]
            delivery = partition.deliver_next(record.offset, now_ms())
            self._deliveries.append((number, delivery))
            self._positions[number] = partition.end_offset
            if not partition.has_room:
                self._follows.drop(number)
            records.append((TopicRecord(number, *record), delivery))
        return records

    def _undo(self) -> None:
        """Undo the deliveries whose records were not returned."""
        for number, delivery in self._deliveries:
            if number in self._partitions and self._partitions[number].is_current(delivery):
                self._partitions[number].undo(delivery.offset)

    def _redeliver(
        self, number: int, partition: QueuePartition, most: int, at_ms: int
    ) -> list[tuple[TopicRecord, Delivery]]:
        """Records that are delivered again. Those whose deliveries are used up become dead letters."""
        delivered, exhausted = partition.redeliver(at_ms, most)
        self._deliveries += [(number, delivery) for delivery in delivered]
        is_changed = False
        for delivery in exhausted:
            record = self._read(number, delivery.offset)
            error = partition.error_of(delivery.offset) or LOCK_ENDED
            if record is None:
                partition.complete(delivery.offset)
            elif not self._dead_letter_in_turn(record, delivery, error):
                partition.release(delivery.offset, now_ms() + RETRY_MS, error)
                continue
            is_changed = True
        found = [(self._read(number, delivery.offset), delivery) for delivery in delivered]
        for record, delivery in found:
            if record is None:
                partition.complete(delivery.offset)
                is_changed = True
        if is_changed:
            self._commit((number,))
        return [(record, delivery) for record, delivery in found if record is not None]

    def _read(self, number: int, offset: int) -> TopicRecord | None:
        """A record by its offset, as it is stored; None where retention or compaction has deleted it."""
        log = self._topic._folder.log(number)
        if offset >= log.high_watermark:
            at = TopicPartition(self._topic.name, number)
            self._truncate(number, log.high_watermark)
            raise LogTruncatedError(
                f"{at}: the records from offset {log.high_watermark} on, of which work queue {self._name} had some in "
                "flight, are no longer in the log; take on, and it delivers what follows",
                partition=str(at),
                offset=log.high_watermark,
            )
        try:
            return next((TopicRecord(number, *record) for record in log.read(offset, offset + 1)), None)
        except OffsetOutOfRangeError:
            return None

    def _next(self) -> tuple[int, Any] | None:
        """A partition and its next record; None where there is none yet."""
        while True:
            try:
                self._follow_owned(0)
                return self._follows.take()
            except LogClosedError:
                return None
            except OffsetOutOfRangeError:
                if not self._skip_deleted():
                    raise

    def _polled(self) -> list[Any] | None:
        try:
            return super()._polled()
        except LogTruncatedError as error:
            if error.partition is not None and error.offset is not None:
                self._truncate(TopicPartition.parse(error.partition).partition, error.offset)
            raise
        finally:
            for number, position in self._positions.items():
                self._partitions[number].advance_to(position)

    def _truncate(self, number: int, offset: int) -> None:
        self._partitions[number].truncate_to(offset)
        self._follows.drop(number)
        self._positions[number] = self._partitions[number].end_offset

    def _decode(self, records: list[tuple[TopicRecord, Delivery]], delivered: list[DeliveredRecord]) -> bool:
        """Decode keys and values, and add the records to those that are delivered. A record that does not decode
        becomes a dead letter; without these it raises as the only record that was taken, or, where it is not the first,
        is left to the next call with all after it: False."""
        for index, (stored, delivery) in enumerate(records):
            try:
                (record,) = self._decoding.decoded(iter((stored,)), "raise")
            except RecordDecodeError as error:
                if self._dead_letters is not None:
                    if not self._dead_letter_in_turn(stored, delivery, str(error)):
                        self._partitions[stored.partition].undo(delivery.offset, now_ms() + RETRY_MS)
                        self._deliveries.remove((stored.partition, delivery))
                    continue
                is_first = not delivered
                for other, later in records[index + is_first :]:
                    self._partitions[other.partition].undo(later.offset)
                if is_first:
                    self._commit({number for number, _ in self._deliveries})
                    self._deliveries.clear()
                    error.record = DeliveredRecord(*stored, *delivery[1:])
                    raise
                return False
            delivered.append(DeliveredRecord(*record, *delivery[1:]))
        return True

    def _dead_letter_in_turn(self, record: TopicRecord, delivery: Delivery, error: str) -> bool:
        """_dead_letter, which waits for nobody, since others have work to take; False where it is to be tried again
        after RETRY_MS, as are all while the topic was found locked less than that ago, and those that are left to the
        next call. Raises LogLockedError where the topic is locked since LOCK_TIMEOUT_S."""
        now = now_ms()
        since_ms = now if self._locked_ms is None else self._locked_ms
        if self._locked_ms is not None and now - self._tried_ms < RETRY_MS:
            return False
        if self._appending_ms is None:
            self._appending_ms = now
        elif now - self._appending_ms >= DEAD_LETTERS_MS:
            return False
        self._locked_ms = None
        if self._dead_letter(record, delivery, error, again=now - since_ms < LOCK_TIMEOUT_S * 1000):
            return True
        self._locked_ms, self._tried_ms = since_ms, now_ms()
        return False

    def _dead_letter(self, record: TopicRecord, delivery: Delivery, error: str, *, again: bool) -> bool:
        """Append a record as it is stored to the dead-letter topic; it is done, or delivered again after a lock's
        duration where that raises. again: return False instead where the topic is locked; the caller tries again."""
        assert self._dead_letters is not None
        partition = self._partitions[record.partition]
        try:
            self._dead_letters.append(record, delivery.delivery_count, error)
        except BaseException as failure:
            if again and isinstance(failure, LogLockedError):
                return False
            partition.release(delivery.offset, now_ms() + self._config.record_lock_duration_ms, error)
            failure.add_note(
                f"The record at offset {delivery.offset} of {TopicPartition(self._topic.name, record.partition)} stays "
                f"in work queue {self._name}; its dead letter is tried again after record_lock_duration_ms."
            )
            raise
        partition.complete(delivery.offset)
        return True

    # Committing

    def _commit(self, numbers: Collection[int], durable: bool = False) -> None:
        """Commit what is done and delivered of these partitions, or, where that fails, take back what is done. Raises
        CursorFencedError, LogLockedError, LogFailedError, StorageError."""
        ordered = sorted(numbers)
        try:
            self._locks.check()
            if durable and not self._topic.read_only:
                self._topic.flush()
            while ordered:
                together = [(number, self._partitions[number]) for number in ordered[:COMMITTED_TOGETHER]]
                offsets = {
                    number: CursorOffset(partition.start_offset, partition.metadata()) for number, partition in together
                }
                self._commit_offsets(offsets, durable)
                for _, partition in together:
                    partition.committed()
                del ordered[:COMMITTED_TOGETHER]
        except BaseException:
            for number in ordered:
                self._partitions[number].commit_failed()
            raise

    def close(self) -> None:
        super().close()
        self._partitions = {}


def now_ms() -> int:
    """Milliseconds of a monotonic clock: no change of the date ends a lock, or makes one longer."""
    return time.monotonic_ns() // 1_000_000
