"""ModelLog: a model of one replica's log in memory, with the same results as the real log.

It models the files of a partition directory and the process that has them open; `crash`, `lose` and `open` act on both.
Modelled are the observable parts of the files: segments (a producer snapshot is written at each roll, and only whole
segments are deleted), the epoch checkpoint (always fsynced), the state page (mapped, so it survives a process; a power
failure leaves the version of the last `write_back`) and batches (whole, never split).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Any, NamedTuple

from kreplog.core.messages import TransactionMarker
from kreplog.errors import (
    CoordinatorFencedError,
    DuplicateSequenceError,
    FencedLeaderEpochError,
    InvalidTransactionStateError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    UnverifiedTransactionError,
    UsageError,
)
from kreplog.sim.machines.records import ModelBatch, ModelRecords, marker_value
from kreplog.types import AppendInfo

MARKER_BYTES = 78
"""Size of a marker's batch in Kafka's encoding."""

_REMEMBERED = 5
_SEQUENCES = 1 << 31
_LONGEST_RUN = 1 << 30


class _Producer(NamedTuple):
    """The state of a producer id: its last batches in `epoch`, oldest first, each (first sequence, last sequence, first
    offset, last offset), and the number of records up to the last that were in sequence. transaction: where its open
    one begins, -1 for none. coordinator_epoch: of its last marker."""

    epoch: int
    batches: tuple[tuple[int, int, int, int], ...]
    run: int
    transaction: int = -1
    coordinator_epoch: int = -1

    @property
    def expected(self) -> int:
        return (self.batches[-1][1] + 1) % _SEQUENCES if self.batches else 0


class _EndedTransaction(NamedTuple):
    """One that has ended. marker: its offset."""

    producer_id: int
    first: int
    marker: int
    committed: bool


class _Page(NamedTuple):
    """The state page as it is on the disk after a power failure."""

    high_watermark: int
    recovery_point: int
    leader_epoch: int
    epochs: tuple[tuple[int, int], ...]
    noted_at: int | None  # log end, where an epoch is assigned that has no record


class ModelLog:
    """The model of one log: the methods of `replica_log.ReplicaLog`, and below them those of its files."""

    def __init__(self, name: str, segment_bytes: int) -> None:
        self.name = name
        self.leo = 0
        self.log_start = 0
        self.high_watermark = 0
        self.recovery_point = 0
        self._segment_bytes = segment_bytes
        self._leader_epoch = 0
        self._epochs: tuple[tuple[int, int], ...] = ()
        self._epochs_file: tuple[tuple[int, int], ...] = ()  # an assigned epoch is there from its first record on
        self._batches: list[ModelBatch] = []
        self._ends: list[int] = []
        self._segments = [0]
        self._active_bytes = 0
        self._producers: dict[int, _Producer] = {}
        self._snapshots: dict[int, dict[int, _Producer]] = {}
        self._ended: list[_EndedTransaction] = []
        self._page = _Page(0, 0, 0, (), None)
        self._power_lost = False

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        return self._epochs

    @property
    def first_unstable(self) -> int | None:
        """Where the oldest transaction begins that is open, or whose marker is not committed."""
        first = [each.first for each in self._ended if each.marker >= self.high_watermark]
        first += [known.transaction for known in self._producers.values() if known.transaction >= 0]
        return min(first, default=None)

    # The open log

    def append_marker(self, marker: TransactionMarker, leader_epoch: int) -> AppendInfo:
        if leader_epoch < self._leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.name}: leader epoch {leader_epoch} is older than the log's {self._leader_epoch}",
                partition=self.name,
            )
        known = self._producers.get(marker.producer_id)
        if known is not None and marker.producer_epoch < known.epoch:
            raise ProducerFencedError(f"{self.name}: a marker of epoch {marker.producer_epoch}, not {known.epoch}")
        if known is not None and marker.coordinator_epoch < known.coordinator_epoch:
            raise CoordinatorFencedError(f"{self.name}: a marker of coordinator epoch {marker.coordinator_epoch}")
        if leader_epoch != self._last_epoch:
            self._assign(leader_epoch)
        at = self.leo
        value = marker_value(marker.producer_id, marker.committed)
        fields = at, at + 1, leader_epoch, marker.producer_id, marker.producer_epoch, -1, 0, MARKER_BYTES, (value,)
        self._write([ModelBatch(*fields, True, marker)], MARKER_BYTES)
        return AppendInfo(at, at, 1, MARKER_BYTES, 0, -1, False)

    def append_as_leader(
        self,
        records: Any,
        leader_epoch: int,
        strict: bool = False,
        transactional: bool = False,
        sequenced: bool = True,
        verified_by: int = -1,
    ) -> AppendInfo:
        batches: tuple[ModelBatch, ...] = records.batches
        if leader_epoch < self._leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.name}: leader epoch {leader_epoch} is older than the log's {self._leader_epoch}",
                partition=self.name,
            )
        if not batches:
            raise UsageError(f"{self.name}: there is no batch in an empty buffer")
        if sequenced and (largest := max(batch.size for batch in batches)) > self._segment_bytes:
            raise RecordBatchTooLargeError(
                f"{self.name}: a batch of {largest} bytes does not fit in a segment of {self._segment_bytes}",
                partition=self.name,
            )
        first, count = batches[0], 0
        if len(batches) > 1 and any(batch.producer_id >= 0 for batch in batches):
            raise UsageError(f"{self.name}: an idempotent producer's batch must stand alone in its append")
        placed = []
        at = self.leo
        for batch in batches:
            end = at + batch.next_offset - batch.base_offset
            placed.append(batch._replace(base_offset=at, next_offset=end, leader_epoch=leader_epoch))
            count += end - at
            at = end
        newest = max(batch.timestamp_ms for batch in batches)
        if first.producer_id >= 0:
            if not transactional and first.transactional:
                raise UsageError(f"{self.name}: a batch of a transaction from a producer without one")
            known = self._check(first, count, strict) if sequenced else None
            if not sequenced:
                self._check_epoch(first)
            if known is not None:
                return AppendInfo(known[0], known[1], count, 0, newest, -1, True)
            state = self._producers.get(first.producer_id)
            if state is not None and state.transaction >= 0 and not first.transactional:
                raise InvalidTransactionStateError(f"{self.name}: a batch outside of an open transaction")
            if first.transactional:
                self._check_verified(first, verified_by)
        if leader_epoch != self._last_epoch:
            self._assign(leader_epoch)
        base = self.leo
        self._write(placed, len(records))
        return AppendInfo(base, at - 1, count, len(records), newest, -1, False)

    def append_as_follower(self, records: Any) -> None:
        batches: tuple[ModelBatch, ...] = records.batches
        if not batches:
            raise UsageError(f"{self.name}: there is no batch in an empty buffer")
        at, epoch = self.leo, self._last_epoch
        begun = []
        for batch in batches:
            if batch.base_offset != at:
                raise OffsetOutOfRangeError(
                    f"{self.name}: the leader's batch begins at offset {batch.base_offset}, the log ends at {at}",
                    partition=self.name,
                    offset=batch.base_offset,
                )
            if batch.leader_epoch < epoch:
                raise FencedLeaderEpochError(
                    f"{self.name}: the batch at offset {at} has leader epoch {batch.leader_epoch}, the log has {epoch}",
                    partition=self.name,
                    offset=at,
                )
            if batch.leader_epoch > epoch:
                epoch = batch.leader_epoch
                begun.append((epoch, at))
            at = batch.next_offset
        for epoch, start in begun:
            self._epochs = _assigned(self._epochs, epoch, start)
            self._leader_epoch = max(self._leader_epoch, epoch)
        self._write(list(batches), len(records))

    def assign_leader_epoch(self, epoch: int) -> None:
        if epoch < self._leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.name}: leader epoch {epoch} is older than the log's {self._leader_epoch}", partition=self.name
            )
        self._assign(epoch)

    def truncate_to(self, offset: int) -> None:
        self._check_range(offset)
        if offset == self.leo:  # an epoch without records must not prevent an older one
            self._epochs = self._epochs_file = _before(self._epochs, offset)
            return
        index = bisect_right(self._ends, offset)
        end = self._batches[index].base_offset
        if end < self.log_start:  # what was deleted does not come back
            self.truncate_fully_and_start_at(self.log_start)
            return
        del self._segments[bisect_right(self._segments, offset) :]
        self._keep_first(index)
        self.leo = end
        self.high_watermark = min(self.high_watermark, end)
        self.recovery_point = min(self.recovery_point, end)
        self._epochs = self._epochs_file = _before(self._epochs, end)
        self._load_producers()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.leo = self.log_start = self.high_watermark = self.recovery_point = offset
        self._segments = [offset]
        self._keep_first(0)
        self._epochs = self._epochs_file = ()
        self._snapshots.clear()
        self._producers = {}
        self._ended = []

    def delete_records_before(self, offset: int) -> None:
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.name}: records are deleted up to the high watermark {self.high_watermark} at most, not up to "
                f"{offset}",
                partition=self.name,
                offset=offset,
            )
        if offset <= self.log_start:
            return
        self.log_start = offset
        self._drop_segments(bisect_right(self._segments, offset) - 1)

    def enforce_retention(self, keep_bytes: int) -> None:
        """Whole segments below the high watermark go, oldest first, while the rest is no less than `keep_bytes`."""
        total, gone = sum(batch.size for batch in self._batches), 0
        for base, end in pairwise(self._segments):
            size = sum(batch.size for batch in self._batches if base <= batch.base_offset < end)
            if end > self.high_watermark or not (end <= self.log_start or total - size >= keep_bytes):
                break
            total -= size
            gone += 1
        self._drop_segments(gone)

    def _drop_segments(self, count: int) -> None:
        if not count:
            return
        first = self._segments[count]
        del self._segments[:count]
        self.log_start = max(self.log_start, first)
        index = bisect_right(self._ends, first)
        del self._batches[:index], self._ends[:index]
        self._snapshots = {at: known for at, known in self._snapshots.items() if at >= first}
        self._epochs = self._epochs_file = _from(self._epochs, self.log_start)

    def read(self, offset: int, limit: int, max_bytes: int) -> ModelRecords:
        self._check_range(offset)
        first = last = bisect_right(self._ends, offset)
        size = 0
        for batch in self._batches[first:]:
            size += batch.size
            if batch.next_offset > limit or (size > max_bytes and last > first):
                break
            last += 1
        return ModelRecords(tuple(self._batches[first:last]))

    def read_stable(self, offset: int, limit: int, max_bytes: int) -> tuple[ModelRecords, tuple[tuple[int, int], ...]]:
        records = self.read(offset, limit, max_bytes)
        end = records.batches[-1].next_offset if records.batches else offset
        aborted = [each for each in self._ended if not each.committed and each.marker >= offset and each.first < end]
        return records, tuple((each.producer_id, each.first) for each in aborted)

    def size_from(self, offset: int) -> int:
        self._check_range(offset)
        return sum(batch.size for batch in self._batches[bisect_right(self._ends, offset) :])

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int]:
        for batch in self._batches:
            if batch.timestamp_ms >= timestamp_ms and batch.next_offset > self.log_start:
                offset = max(batch.base_offset, self.log_start)
                return (offset, batch.timestamp_ms) if offset < self.high_watermark else (-1, -1)
        return -1, -1

    def advance_high_watermark(self, offset: int) -> None:
        if offset > self.leo:
            raise OffsetOutOfRangeError(
                f"{self.name}: the high watermark cannot move to {offset}, past the log end offset {self.leo}",
                partition=self.name,
                offset=offset,
            )
        self.high_watermark = max(self.high_watermark, offset)

    def flush(self) -> int:
        self.recovery_point = self.leo
        return self.leo

    # Its files

    def open(self) -> None:
        """Recover after `close` or `crash`."""
        if self._power_lost:
            self._power_lost = False
            lowered = self.log_start > self.leo
            self._recover()
            if lowered:  # else an older page would hide the next records
                self.write_back()
        self._load_producers()

    def close(self) -> None:
        self.recovery_point = self.leo
        self._snapshots[self.leo] = dict(self._producers)

    def crash(self) -> None:
        """The process has ended; the page cache remains."""

    def write_back(self) -> None:
        """The kernel writes the state page to the disk."""
        noted_at = None if self._epochs == self._epochs_file else self.leo
        self._page = _Page(self.high_watermark, self.recovery_point, self._leader_epoch, self._epochs_file, noted_at)

    def cuts(self, start: int, end: int) -> list[int]:
        """Possible log ends after a power failure: the batch boundaries in [start, end], lowest first."""
        lowest = max(start, self._segments[0])
        return [lowest, *(at for at in self._ends if lowest < at <= end)]

    def lose(self, offset: int, tear: int) -> None:
        """After `crash`: a power failure leaves a log that ends at `offset`, a batch boundary. tear: see NativeLog;
        recovery
        truncates such remains."""
        del self._segments[max(bisect_right(self._segments, offset - 1), 1) :]
        self._keep_first(bisect_right(self._ends, offset))
        self.leo = offset
        self._power_lost = True

    def discard(self) -> None:
        """It is moved out of the way."""

    def restore(self) -> None:
        """It is moved back."""

    # Private

    def _recover(self) -> None:
        """The state page is an older version; epochs that do not agree with it are rebuilt from the log."""
        page, latest = self._page, self._epochs_file[-1][0] if self._epochs_file else -1
        self.log_start = min(self.log_start, self.leo)
        self.high_watermark = max(min(page.high_watermark, self.leo), self.log_start)
        self.recovery_point = min(page.recovery_point, self.leo)
        trusted = page.epochs == self._epochs_file
        self._epochs = _before(self._epochs_file, self.leo + 1)
        if not trusted:
            self._epochs = ()
            for batch in self._batches:
                if batch.leader_epoch > self._last_epoch:
                    start = max(batch.base_offset, self.log_start)
                    self._epochs = _assigned(self._epochs, batch.leader_epoch, start)
        self._epochs_file = self._epochs
        self._leader_epoch = max(0, latest, self._last_epoch, page.leader_epoch)
        if page.noted_at == self.leo and page.leader_epoch == self._leader_epoch > self._last_epoch:
            self._epochs = _assigned(self._epochs, self._leader_epoch, self.leo)

    @property
    def _last_epoch(self) -> int:
        return self._epochs[-1][0] if self._epochs else -1

    def _assign(self, epoch: int) -> None:
        self._epochs = _assigned(self._epochs, epoch, self.leo)
        self._leader_epoch = epoch

    def _check_range(self, offset: int) -> None:
        if not self.log_start <= offset <= self.leo:
            raise OffsetOutOfRangeError(
                f"{self.name}: offset {offset} is outside the log, which holds {self.log_start} to {self.leo}",
                partition=self.name,
                offset=offset,
            )

    def _keep_first(self, count: int) -> None:
        """Drop all batches after the first `count`; the last segment of the list is the active one."""
        del self._batches[count:], self._ends[count:]
        base = self._segments[-1]
        self._active_bytes = sum(batch.size for batch in self._batches if batch.base_offset >= base)

    def _write(self, batches: list[ModelBatch], size: int) -> None:
        self._epochs_file = self._epochs
        rolled = False
        pieces = [(batches, size)] if size <= self._segment_bytes else [([batch], batch.size) for batch in batches]
        for piece, length in pieces:
            if self._active_bytes and self._active_bytes + length > self._segment_bytes:
                self._snapshots[self.leo] = dict(self._producers)
                self._segments.append(self.leo)
                self._active_bytes = 0
                rolled = True
            self._batches += piece
            self._ends += [batch.next_offset for batch in piece]
            self._active_bytes += length
            self.leo = piece[-1].next_offset
            for batch in piece:
                self._note(batch)
        if rolled:  # what was sealed before the newest sealed segment is fsynced now
            self.recovery_point = max(self.recovery_point, self._segments[-2])

    # Producers

    def _check(self, batch: ModelBatch, count: int, strict: bool) -> tuple[int, int] | None:
        """(first, last) offset of a duplicate batch; None for the next batch in sequence."""
        producer, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if epoch < 0 or sequence < 0:
            raise UsageError(f"{self.name}: epoch {epoch} and sequence {sequence} must not be negative")
        known = self._producers.get(producer)
        if known is None:
            if strict and sequence > 0:
                raise OutOfOrderSequenceError(f"{self.name}: producer {producer} begins at sequence {sequence}")
            return None
        if epoch < known.epoch:
            raise ProducerFencedError(f"{self.name}: producer {producer} writes in epoch {epoch}, not {known.epoch}")
        expected = known.expected if epoch == known.epoch else 0
        if sequence == expected:
            return None
        if epoch == known.epoch:
            last = (sequence + count - 1) % _SEQUENCES
            for first_sequence, last_sequence, first_offset, last_offset in known.batches:
                if (first_sequence, last_sequence) == (sequence, last):
                    return first_offset, last_offset
            if known.batches:
                behind = (expected - sequence) % _SEQUENCES
                window = (expected - known.batches[0][0]) % _SEQUENCES
                if behind <= known.run and behind - count >= window:
                    raise DuplicateSequenceError(f"{self.name}: producer {producer} sent sequence {sequence} again")
        raise OutOfOrderSequenceError(
            f"{self.name}: producer {producer} sent sequence {sequence} in epoch {epoch} where {expected} comes next"
        )

    def _check_epoch(self, batch: ModelBatch) -> None:
        known = self._producers.get(batch.producer_id)
        if known is not None and batch.producer_epoch < known.epoch:
            raise ProducerFencedError(f"{self.name}: a batch of epoch {batch.producer_epoch}, not {known.epoch}")

    def _check_verified(self, batch: ModelBatch, verified_by: int) -> None:
        known = self._producers.get(batch.producer_id)
        if known is not None and known.transaction >= 0 and known.epoch == batch.producer_epoch:
            return
        if verified_by < 0 or (known is not None and verified_by < known.coordinator_epoch):
            raise UnverifiedTransactionError(
                f"{self.name}: no open transaction of producer {batch.producer_id} has been confirmed",
                batch.producer_id,
                batch.producer_epoch,
            )

    def _note(self, batch: ModelBatch) -> None:
        if batch.marker is not None:
            self._note_marker(batch, batch.marker)
        elif batch.producer_id >= 0 and batch.base_sequence >= 0:
            self._producers[batch.producer_id] = _remembered(
                self._producers.get(batch.producer_id),
                batch.producer_epoch,
                batch.base_sequence,
                batch.base_offset,
                batch.next_offset - 1,
            )
            known = self._producers[batch.producer_id]
            if batch.transactional and known.transaction < 0:
                self._producers[batch.producer_id] = known._replace(transaction=batch.base_offset)

    def _note_marker(self, batch: ModelBatch, marker: TransactionMarker) -> None:
        known = self._producers.get(marker.producer_id)
        first = -1 if known is None else known.transaction
        if known is None or known.epoch != marker.producer_epoch:
            known = _Producer(marker.producer_epoch, (), 0)
        known = known._replace(transaction=-1, coordinator_epoch=marker.coordinator_epoch)
        self._producers[marker.producer_id] = known
        if first >= 0:
            self._ended.append(_EndedTransaction(marker.producer_id, first, batch.base_offset, marker.committed))

    def _load_producers(self) -> None:
        """Load the newest snapshot within the log, then the batches after it."""
        self._snapshots = {at: known for at, known in self._snapshots.items() if at <= self.leo}
        start = max(self._snapshots, default=-1)
        self._producers = {}
        for producer, known in self._snapshots.get(start, {}).items():
            loaded: _Producer | None = None
            for first_sequence, _, first_offset, last_offset in known.batches:
                loaded = _remembered(loaded, known.epoch, first_sequence, first_offset, last_offset)
            loaded = (
                known
                if loaded is None
                else loaded._replace(transaction=known.transaction, coordinator_epoch=known.coordinator_epoch)
            )
            self._producers[producer] = loaded
        self._ended = [each for each in self._ended if each.marker < min(start, self.leo)]
        for batch in self._batches:
            if batch.base_offset >= start:
                self._note(batch)


def _remembered(
    known: _Producer | None, epoch: int, base_sequence: int, first_offset: int, last_offset: int
) -> _Producer:
    if known is None or known.epoch != epoch:
        before = known or _Producer(epoch, (), 0)
        known = _Producer(epoch, (), 0, before.transaction, before.coordinator_epoch)
    count = last_offset - first_offset + 1
    run = count
    if known.batches and base_sequence == known.expected:
        run = min(known.run + count, _LONGEST_RUN)
    batch = (base_sequence, (base_sequence + count - 1) % _SEQUENCES, first_offset, last_offset)
    return known._replace(batches=(*known.batches[-_REMEMBERED + 1 :], batch), run=run)


def _assigned(epochs: tuple[tuple[int, int], ...], epoch: int, start: int) -> tuple[tuple[int, int], ...]:
    """The epochs with `epoch` added at `start`, without entries that contradict it."""
    if epochs and epochs[-1][0] == epoch and epochs[-1][1] <= start:
        return epochs
    count = len(epochs)
    while count and (epochs[count - 1][0] >= epoch or epochs[count - 1][1] >= start):
        count -= 1
    return (*epochs[:count], (epoch, start))


def _before(epochs: tuple[tuple[int, int], ...], offset: int) -> tuple[tuple[int, int], ...]:
    """The epochs that begin before `offset`."""
    return tuple(entry for entry in epochs if entry[1] < offset)


def _from(epochs: tuple[tuple[int, int], ...], offset: int) -> tuple[tuple[int, int], ...]:
    """The epochs after the log start moved to `offset`: its epoch starts there, and older ones are dropped."""
    first = sum(start <= offset for _, start in epochs) - 1
    if first < 0:
        return epochs
    return ((epochs[first][0], offset), *epochs[first + 1 :])
