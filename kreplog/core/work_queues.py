"""The rules of a work queue for one partition: which records are delivered now, and what of it is committed.

As Kafka's SharePartition (KIP-932): a delivery locks a record for a time and raises its delivery count; it is done when
that delivery is acknowledged, and delivered again when it is released or its lock expires. A record whose deliveries
are used up goes to the dead-letter topic. The committed offset is the lowest that is not done. Beside it, in the
metadata of the committed offset, stands the state of the offsets above, in runs of equal ones:

    kreplog-queue/1:b3.10c     3 records delivered once (b), 10 offsets done (.), a record delivered twice (c)

a is a record that was not delivered, o one that was 14 times or more. No clock here: now_ms is monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from kreplog.errors import ArgumentTypeError, UsageError

PREFIX = "kreplog-queue/"
HEAD = PREFIX + "1:"
MAX_METADATA = 4096
"""Characters: Kafka's offset.metadata.max.bytes."""

_DONE = "."
_COUNTS = "abcdefghijklmno"
_MOST_COUNTED = len(_COUNTS) - 1
_BYTES_LEFT = MAX_METADATA - len(HEAD)
_LARGEST_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class WorkQueueConfig:
    """Named as Kafka's settings of share groups (KIP-932). record_lock_duration_ms: how long a delivery may take.
    delivery_count_limit: None for no limit. partition_max_record_locks: records of a partition that are not done while
    others after them are delivered. Raises UsageError, ArgumentTypeError."""

    record_lock_duration_ms: int
    delivery_count_limit: int | None
    partition_max_record_locks: int

    def __post_init__(self) -> None:
        check_int("record_lock_duration_ms", self.record_lock_duration_ms, 1, 1 << 40)
        check_int("partition_max_record_locks", self.partition_max_record_locks, 1, 4000)
        if self.delivery_count_limit is not None:
            check_int("delivery_count_limit", self.delivery_count_limit, 1, 10)


def check_int(name: str, value: int, least: int, most: int) -> None:
    """Raises UsageError, ArgumentTypeError unless value is an int of [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(f"{name} is an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise UsageError(f"{name} = {value} must be {least} to {most}")


class Delivery(NamedTuple):
    """The delivery of a record that is under way. delivery_count: 1 for the first. generation: that of the partition at
    the first, so that no other record that the log has had at the offset is taken for this one."""

    offset: int
    delivery_count: int
    generation: int = 0


@dataclass(slots=True)
class _InFlight:
    """A record that is not done. due_ms: when its lock or its delay ends. locked: a delivery is under way."""

    delivery_count: int
    generation: int
    due_ms: int = 0
    locked: bool = False
    done: bool = False
    error: str = ""


class QueuePartition:
    """The records in flight of a partition that this process owns.

    A record that is done stays until its commit ends: `committed` removes it, `commit_failed` makes it due again.
    generation: it is raised by each truncation."""

    def __init__(self, start: int, metadata: str, config: WorkQueueConfig, generation: int = 0) -> None:
        """The deliveries of a partition as they were committed.

        start, metadata: as committed; metadata that no work queue wrote is ignored. generation: above those that
        this process has had of the partition. Raises ValueError for a work queue's metadata that is damaged or of
        another version."""
        self.end_offset = start
        self.generation = generation
        self._config = config
        self._records: dict[int, _InFlight] = {}  # by offset, in their order
        self._completed: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._bound: int  # of the characters of the metadata
        if metadata.startswith(PREFIX):
            self._read(metadata)
        self.metadata()

    # What is committed

    @property
    def start_offset(self) -> int:
        """The committed offset: the lowest that is not done."""
        return next((offset for offset, record in self._records.items() if not record.done), self.end_offset)

    def metadata(self) -> str:
        """The state of the offsets from start_offset to end_offset."""
        runs: list[str] = []
        state, first = "", self.start_offset  # of the present run
        bound, at = 0, first
        for offset, record in self._records.items():
            if record.done:
                continue
            count = record.delivery_count
            found = _COUNTS[count] if count < _MOST_COUNTED else _COUNTS[-1]
            if offset > at or found != state:
                if at > first:
                    runs.append(_run(state, at - first))
                if offset > at:
                    runs.append(_run(_DONE, offset - at))
                    bound += _cost(offset - at)
                state, first = found, offset
            bound, at = bound + 1, offset + 1
        if at > first:
            runs.append(_run(state, at - first))
        if at < self.end_offset:
            runs.append(_run(_DONE, self.end_offset - at))
            bound += _cost(self.end_offset - at)
        self._bound = bound
        return HEAD + "".join(runs) if runs else ""

    def _read(self, metadata: str) -> None:
        if not metadata.startswith(HEAD) or len(metadata) > MAX_METADATA:
            raise ValueError(f"{metadata[:60]!r} is of another version, or too long")
        at = len(HEAD)
        while at < len(metadata):
            state, at = metadata[at], at + 1
            digits = at
            while at < len(metadata) and metadata[at] in "0123456789":
                at += 1
            length = int(metadata[digits:at] or 1)
            count = _COUNTS.find(state)
            open_records = 0 if state == _DONE else length
            if (
                (count < 0 and state != _DONE)
                or length < 1
                or len(self._records) + open_records > _BYTES_LEFT
                or self.end_offset + length > _LARGEST_OFFSET
            ):
                raise ValueError(f"{metadata[:60]!r}: {state!r} at {digits - 1} is no run of {length} offsets")
            for offset in range(self.end_offset, self.end_offset + open_records):
                self._records[offset] = _InFlight(count, self.generation)
                self._due.append((0, offset))
            self.end_offset += length

    def committed(self) -> None:
        """The commit has succeeded: remove the records that are done."""
        for offset in self._completed:
            self._records.pop(offset, None)
        self._completed.clear()

    def commit_failed(self) -> None:
        """The commit has failed: records that were done are not, and are delivered again."""
        for offset in self._completed:
            if (record := self._records.get(offset)) is not None:
                record.done = False
                heappush(self._due, (record.due_ms, offset))
        self._completed.clear()

    def lag(self, stop: int) -> int:
        """The number of offsets in [start_offset, stop) that are not done."""
        return sum(not record.done for record in self._records.values()) + max(0, stop - self.end_offset)

    # Delivering

    @property
    def has_room(self) -> bool:
        """Whether one more record may be delivered for the first time: its state fits beside the others'."""
        limit = self._config.partition_max_record_locks
        return len(self._records) < limit and self._bound + 1 + 2 * _cost(_LARGEST_OFFSET) <= _BYTES_LEFT

    def deliver_next(self, offset: int, now_ms: int) -> Delivery:
        """Deliver a record for the first time: the next at or past end_offset."""
        self._bound += 1 + _cost(offset - self.end_offset)
        self.advance_to(offset + 1)
        self._records[offset] = _InFlight(0, self.generation)
        return self._deliver(offset, now_ms)

    def redeliver(self, now_ms: int, most: int) -> tuple[list[Delivery], list[Delivery]]:
        """Deliver again up to `most` of those that were released, or whose lock has expired, the earliest first; and
        those whose deliveries are used up, with their latest, which come again a lock's duration later unless done."""
        delivered: list[Delivery] = []
        exhausted: list[Delivery] = []
        while self._due and self._due[0][0] <= now_ms and len(delivered) < most:
            due_ms, offset = heappop(self._due)
            record = self._records.get(offset)
            if record is None or record.done or record.due_ms != due_ms:
                continue  # it was put off since
            record.locked = False
            if self.is_exhausted(offset):
                self._put_off(offset, now_ms + self._config.record_lock_duration_ms)
                exhausted.append(Delivery(offset, record.delivery_count, record.generation))
            else:
                delivered.append(self._deliver(offset, now_ms))
        return delivered, exhausted

    def _deliver(self, offset: int, now_ms: int) -> Delivery:
        record = self._records[offset]
        record.delivery_count += 1
        record.locked = True
        self._put_off(offset, now_ms + self._config.record_lock_duration_ms)
        return Delivery(offset, record.delivery_count, record.generation)

    def undo(self, offset: int, due_ms: int = 0) -> None:
        """A delivery that could not be made does not count. due_ms: from when on the record is delivered instead."""
        record = self._records[offset]
        record.delivery_count -= 1
        record.locked = False
        self._put_off(offset, due_ms)

    # What becomes of a delivery

    def is_current(self, delivery: Delivery) -> bool:
        """Whether the delivery is under way: the latest of its record, which was neither released nor completed. It
        stays so when its lock has ended, until the record is delivered again."""
        record = self._records.get(delivery.offset)
        if record is None or record.done or not record.locked:
            return False
        return (record.delivery_count, record.generation) == (delivery.delivery_count, delivery.generation)

    def is_exhausted(self, offset: int) -> bool:
        """Whether a record's deliveries are used up."""
        limit = self._config.delivery_count_limit
        return limit is not None and self._records[offset].delivery_count >= limit

    def complete(self, offset: int) -> None:
        """The record is done, once that is committed."""
        self._records[offset].done = True
        self._completed.append(offset)

    def release(self, offset: int, due_ms: int, error: str) -> None:
        """Deliver the record again, from due_ms on. error: why, for the dead-letter topic."""
        record = self._records[offset]
        record.locked, record.error = False, error
        self._put_off(offset, due_ms)

    def renew(self, offset: int, now_ms: int) -> None:
        """The lock lasts its duration from now on (KIP-1222)."""
        self._put_off(offset, now_ms + self._config.record_lock_duration_ms)

    def error_of(self, offset: int) -> str:
        """Why the record was released last; "" where its lock has expired, or an earlier owner had it."""
        return self._records[offset].error

    def _put_off(self, offset: int, due_ms: int) -> None:
        self._records[offset].due_ms = due_ms
        heappush(self._due, (due_ms, offset))
        if len(self._due) > 2 * len(self._records) + 64:
            self._due = [(record.due_ms, each) for each, record in self._records.items()]
            heapify(self._due)

    def locked(self, now_ms: int) -> int:
        """The number of deliveries under way."""
        return sum(record.locked and record.due_ms > now_ms and not record.done for record in self._records.values())

    # What the log does meanwhile

    def advance_to(self, offset: int) -> None:
        """There is no record in [end_offset, offset)."""
        self.end_offset = max(self.end_offset, offset)

    def delete_before(self, offset: int) -> int:
        """Retention has deleted the records below `offset`: they are done. Returns how many in flight there were."""
        deleted = [each for each in self._records if each < offset]
        for each in deleted:
            del self._records[each]
        self.advance_to(offset)
        return len(deleted)

    def truncate_to(self, offset: int) -> None:
        """The log ends at `offset` now, and goes on with other records."""
        for each in [each for each in self._records if each >= offset]:
            del self._records[each]
        self._completed = [each for each in self._completed if each < offset]
        self.end_offset = min(self.end_offset, offset)
        self.generation += 1


def _run(state: str, length: int) -> str:
    return state if length == 1 else f"{state}{length}"


def _cost(length: int) -> int:
    """Characters of a run. Of adjacent runs together never less than of the one that they become: so the metadata of
    what is in flight only grows by deliveries of new records."""
    return 0 if length == 0 else 1 if length == 1 else 1 + len(str(length))


def lag_of(start: int, metadata: str, stop: int) -> int:
    """The number of offsets up to `stop` that are not done: of a work queue without those done beyond its committed
    offset."""
    try:
        return QueuePartition(start, metadata, WorkQueueConfig(1, None, 1)).lag(stop)
    except ValueError:
        return max(0, stop - start)
