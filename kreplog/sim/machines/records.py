"""Records on the simulator's disks: real encoded batches, or small objects with the same fields.

The cores never decode records; clients and checkers do, by a `RecordCodec`, so that they are independent of the kind of
log. A batch has one producer, unique values ("producer:sequence"), and no keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol

from kreplog.core.messages import TransactionMarker
from kreplog.errors import CorruptBatchError
from kreplog.managed_log import build, committed_of, decode_values, end_of
from kreplog.types import EpochEndOffset

HEADER = Struct(">qiibIhiqqqhii")
"""Header of a record batch, magic 2: base offset, length of what follows it, leader epoch, magic, CRC, attributes, last
offset delta, first and largest timestamp, producer id, producer epoch, base sequence, number of records."""

_LENGTH_FROM = 12
_TRANSACTIONAL = 16
_CONTROL = 32


class StoredRecord(NamedTuple):
    """A record with the fields of its batch. sequence: of this record; -1, as the producer id, for none, and in
    transactions, where sequences begin again in every epoch of the producer. A marker is a record too."""

    offset: int
    leader_epoch: int
    producer_id: int
    sequence: int
    value: bytes


class MarkerAt(NamedTuple):
    """A transaction marker as a reader finds it."""

    offset: int
    producer_id: int
    committed: bool


class TransactionalBatch(NamedTuple):
    """A batch of a transaction: offsets [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    producer_id: int
    producer_epoch: int


def marker_value(producer_id: int, committed: bool) -> bytes:
    """The value of the record that stands for a marker."""
    return b"\xff%s of producer %d" % (b"commit" if committed else b"abort", producer_id)


class RecordCodec(Protocol):
    """Encodes and decodes the records of one kind of log."""

    def encode(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        values: Sequence[bytes],
        timestamp_ms: int = 0,
        *,
        base_offset: int = 0,
        leader_epoch: int = 0,
        transactional: bool = False,
    ) -> Any:
        """One batch of at least one record. A leader sets offset and epoch, a follower keeps them."""

    def decode(self, records: Any) -> list[StoredRecord]:
        """All records of whole batches. Raises CorruptBatchError."""

    def markers(self, records: Any) -> list[MarkerAt]:
        """The transaction markers of whole batches."""

    def transactional(self, records: Any) -> list[TransactionalBatch]:
        """The batches that are of transactions and no markers."""

    def end_of(self, records: Any) -> EpochEndOffset | None:
        """The leader epoch and next_offset of the last of whole batches."""

    def size(self, records: Any) -> int:
        """Bytes, as they would be in a file."""


class ModelBatch(NamedTuple):
    """A batch of the model log: offsets [base_offset, next_offset); size in bytes, as Kafka would encode it. marker:
    of a control batch, which has no values."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp_ms: int
    size: int
    values: tuple[bytes, ...]
    transactional: bool = False
    marker: TransactionMarker | None = None


class ModelRecords:
    """Consecutive whole batches, immutable; with the length and truth value of their encoded bytes."""

    __slots__ = ("_size", "batches")

    def __init__(self, batches: tuple[ModelBatch, ...] = ()) -> None:
        self.batches = batches
        self._size = sum(batch.size for batch in batches)

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelRecords) and self.batches == other.batches

    def __hash__(self) -> int:
        return hash(self.batches)

    def __repr__(self) -> str:
        if not self.batches:
            return "ModelRecords()"
        return f"ModelRecords([{self.batches[0].base_offset}, {self.batches[-1].next_offset}), {self._size} bytes)"


class ModelCodec:
    """The codec of ModelLog."""

    def encode(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        values: Sequence[bytes],
        timestamp_ms: int = 0,
        *,
        base_offset: int = 0,
        leader_epoch: int = 0,
        transactional: bool = False,
    ) -> ModelRecords:
        batch = ModelBatch(
            base_offset,
            base_offset + len(values),
            leader_epoch,
            producer_id,
            producer_epoch,
            base_sequence,
            timestamp_ms,
            HEADER.size + sum(_record_size(index, len(value)) for index, value in enumerate(values)),
            tuple(values),
            transactional,
        )
        return ModelRecords((batch,))

    def decode(self, records: Any) -> list[StoredRecord]:
        if not records:
            return []
        return [
            StoredRecord(offset, epoch, producer, first + offset - base, value)
            if first >= 0 and not transactional
            else StoredRecord(offset, epoch, -1 if transactional else producer, -1, value)
            for base, _, epoch, producer, _, first, _, _, values, transactional, _ in records.batches
            for offset, value in enumerate(values, base)
        ]

    def markers(self, records: Any) -> list[MarkerAt]:
        return [
            MarkerAt(each.base_offset, each.producer_id, each.marker.committed)
            for each in (records.batches if records else ())
            if each.marker is not None
        ]

    def transactional(self, records: Any) -> list[TransactionalBatch]:
        return [
            TransactionalBatch(each.base_offset, each.next_offset, each.producer_id, each.producer_epoch)
            for each in (records.batches if records else ())
            if each.transactional and each.marker is None
        ]

    def end_of(self, records: Any) -> EpochEndOffset | None:
        last = records.batches[-1]
        return EpochEndOffset(last.leader_epoch, last.next_offset)

    def size(self, records: Any) -> int:
        return len(records)


class NativeCodec:
    """The codec of the real log: Kafka's encoding."""

    def encode(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        values: Sequence[bytes],
        timestamp_ms: int = 0,
        *,
        base_offset: int = 0,
        leader_epoch: int = 0,
        transactional: bool = False,
    ) -> bytes:
        return build(
            list(values),
            timestamps_ms=[timestamp_ms] * len(values),
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )

    def decode(self, records: Any) -> list[StoredRecord]:
        found = []
        for start, stop, header in batches(records):
            base, _, epoch, _, _, attributes, _, _, _, producer, _, first, _ = header
            piece = records[start:stop]
            if attributes & _CONTROL:
                found.append(StoredRecord(base, epoch, -1, -1, marker_value(producer, bool(committed_of(piece)))))
                continue
            for index, value in enumerate(decode_values(piece)):
                sequence = first + index if first >= 0 else -1
                if attributes & _TRANSACTIONAL:
                    producer = sequence = -1
                found.append(StoredRecord(base + index, epoch, producer, sequence, value or b""))
        return found

    def markers(self, records: Any) -> list[MarkerAt]:
        found = []
        for start, stop, header in batches(records):
            committed = committed_of(records[start:stop]) if header[5] & _CONTROL else None
            if committed is not None:
                found.append(MarkerAt(header[0], header[9], committed))
        return found

    def transactional(self, records: Any) -> list[TransactionalBatch]:
        wanted = _TRANSACTIONAL | _CONTROL
        return [
            TransactionalBatch(header[0], next_offset(header), header[9], header[10])
            for _, _, header in batches(records)
            if header[5] & wanted == _TRANSACTIONAL
        ]

    def end_of(self, records: Any) -> EpochEndOffset | None:
        return end_of(records)

    def size(self, records: Any) -> int:
        return len(records)


def batches(data: bytes) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(start, stop, header) of each whole batch in `data`. Raises CorruptBatchError where one does not fit in."""
    at = 0
    while at < len(data):
        stop = len(data) + 1
        if len(data) - at >= HEADER.size:
            header = HEADER.unpack_from(data, at)
            stop = at + _LENGTH_FROM + header[1]
        if not at + HEADER.size <= stop <= len(data):
            raise CorruptBatchError(f"no whole batch at byte {at} of {len(data)}", position=at)
        yield at, stop, header
        at = stop


def next_offset(header: tuple[int, ...]) -> int:
    """The offset that follows the batch with this header."""
    return header[0] + header[6] + 1


def _record_size(index: int, length: int) -> int:
    """Bytes of a record without key or headers whose timestamp is its batch's: varints are zigzag, so one bit less."""
    body = 1 + 1 + _varint(index) + 1 + _varint(length) + length + 1
    return _varint(body) + body


def _varint(value: int) -> int:
    return max((value.bit_length() + 7) // 7, 1)
