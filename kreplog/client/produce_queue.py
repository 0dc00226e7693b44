"""PartitionQueue: the batches of one partition on their way, in the order of their sequences. No I/O, no clock.

    waiting    rows that are no batch yet
    unacked    batches with a sequence, oldest first: in flight, or to be sent (again)

At most MAX_IN_FLIGHT batches are unacked, so that a broker, which remembers the last five of a producer, knows each
one that is sent again (KIP-98, KAFKA-5494). When a batch fails for a reason that passes, nothing more is sent until the
responses of all that is in flight have come or been lost; then all that is unacked is sent again in order, with the
sequences it had. So no batch is written twice or out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kreplog._native.arrow_records import BatchEncoder, RowSelection
from kreplog.client.bulk_errors import ProduceError
from kreplog.errors import ErrorCode, RecordTooLargeError
from kreplog.types import TopicPartition

MAX_IN_FLIGHT = 5

RETRIABLE = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
"""Errors after which the same batch may be written by a later request."""


class QueuedBatch:
    """An encoded batch of a partition, until it is acknowledged. base_offset: -1 until it is acknowledged, and where
    only its sequence is known to have been written."""

    __slots__ = ("base_offset", "base_sequence", "data", "encoded_at", "in_flight", "log_append_time_ms", "records")

    def __init__(self, data: bytes, records: int, base_sequence: int, now: float) -> None:
        self.data = data
        self.records = records
        self.base_sequence = base_sequence
        self.encoded_at = now
        self.in_flight = False
        self.base_offset = -1
        self.log_append_time_ms = -1


class PartitionQueue:
    """The batches of one partition that wait or are in flight. All are of one producer id and epoch, which changes only
    while none is unacknowledged."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.retry_at = 0.0
        self.last_error = ErrorCode.NONE
        self._next_sequence = 0
        self._waiting: deque[RowSelection] = deque()
        self._unacked: deque[QueuedBatch] = deque()
        self._in_flight = 0
        self._draining = False  # a batch failed: nothing is sent while others are in flight
        self.acked: list[QueuedBatch] = []

    def add(self, rows: RowSelection) -> None:
        self._waiting.append(rows)

    @property
    def idle(self) -> bool:
        """Whether all that was added has been acknowledged."""
        return not self._waiting and not self._unacked

    @property
    def waiting(self) -> int:
        """Selections with rows that are no batch yet."""
        return len(self._waiting)

    def extend(self, pause_s: float) -> None:
        """Leave a pause in which nothing was received out of the ages of the batches."""
        for batch in self._unacked:
            batch.encoded_at += pause_s

    def oldest(self) -> float | None:
        """When the oldest unacknowledged batch was made."""
        return self._unacked[0].encoded_at if self._unacked else None

    def next_batch(
        self, encoder: BatchEncoder, producer_id: int, producer_epoch: int, now: float
    ) -> QueuedBatch | None:
        """The batch to send now, in flight from here on; None while there is none. Raises UsageError."""
        if self._draining:
            if self._in_flight or now < self.retry_at:
                return None
            self._draining = False
        batch = next((batch for batch in self._unacked if not batch.in_flight), None)
        if batch is None:
            if not self._waiting or len(self._unacked) >= MAX_IN_FLIGHT:
                return None
            rows = self._waiting[0]
            try:
                data, records = rows.next_batch(encoder, producer_id, producer_epoch, self._next_sequence)
            except RecordTooLargeError as error:
                raise RecordTooLargeError(f"{self.partition}: {error}", partition=str(self.partition)) from None
            if rows.position == rows.length:
                self._waiting.popleft()
            batch = QueuedBatch(data, records, self._next_sequence, now)
            self._next_sequence = (self._next_sequence + records) & 0x7FFFFFFF
            self._unacked.append(batch)
        batch.in_flight = True
        self._in_flight += 1
        return batch

    def on_response(
        self, batch: QueuedBatch, error: ErrorCode, base_offset: int, log_append_time_ms: int, message: str
    ) -> bool:
        """Whether the batch is acknowledged; if not, it is sent again. Raises ProduceError for what never succeeds."""
        self._landed(batch)
        if error is ErrorCode.NONE or error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            batch.base_offset = base_offset if error is ErrorCode.NONE else -1
            batch.log_append_time_ms = log_append_time_ms
            batch.data = b""  # a call may be of more rows than there is memory for
            self._unacked.remove(batch)
            self.acked.append(batch)
            return True
        follows_a_failure = self._draining or self._unacked[0] is not batch
        if error in RETRIABLE or (error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and follows_a_failure):
            self._draining = True
            self.last_error = error
            return False
        raise ProduceError(
            f"{self.partition}: the leader refuses a batch of {batch.records} records with {error.name}"
            + (f" ({message})" if message else ""),
            partition=str(self.partition),
            code=error,
        )

    def on_lost(self, batches: Iterable[QueuedBatch]) -> None:
        """No response will come: they may have been written or not, and are sent again."""
        for batch in batches:
            self._landed(batch)
            self._draining = True
            self.last_error = ErrorCode.BROKER_NOT_AVAILABLE

    def _landed(self, batch: QueuedBatch) -> None:
        batch.in_flight = False
        self._in_flight -= 1
