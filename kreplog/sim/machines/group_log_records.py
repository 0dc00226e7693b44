"""Records of coordinators as values of the simulator's logs, which have no keys: Kafka's key and value in one.

int32 length of the key, key, 1 and the value, or 0 for a tombstone
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kreplog.core.group_messages import LogRecord, MarkerRecord, OffsetRecord, PendingOffsetRecord
from kreplog.core.transaction_messages import TransactionRecord
from kreplog.errors import check
from kreplog.sim.machines.records import RecordCodec, StoredRecord
from kreplog.wire.group_records import decode_record, encode_record
from kreplog.wire.transaction_records import decode_record as decode_transaction
from kreplog.wire.transaction_records import encode_record as encode_transaction


def encode_group_record(record: LogRecord) -> bytes:
    return _encoded(*encode_record(record))


def encode_transaction_record(record: TransactionRecord) -> bytes:
    return _encoded(*encode_transaction(record))


def _encoded(key: bytes, value: bytes | None) -> bytes:
    return len(key).to_bytes(4, "big") + key + (b"\0" if value is None else b"\1" + value)


def decode_group_record(stored: bytes) -> LogRecord:
    record = decode_record(*_decoded(stored))
    check(record is not None, "a coordinator has written a record that it cannot read")
    assert record is not None
    return record


def decode_transaction_record(stored: bytes) -> TransactionRecord:
    record = decode_transaction(*_decoded(stored))
    check(record is not None, "a coordinator has written a record that it cannot read")
    assert record is not None
    return record


def _decoded(stored: bytes) -> tuple[bytes, bytes | None]:
    end = 4 + int.from_bytes(stored[:4], "big")
    return stored[4:end], stored[end + 1 :] if stored[end] else None


def coordinator_records(
    codec: RecordCodec, batches: Any, found: Sequence[StoredRecord], of_transactions: bool
) -> Iterator[tuple[int, Any]]:
    """(offset, record) of what a coordinator has read. batches: that `found` is from. of_transactions: its coordinator
    is that of transactions, not of groups."""
    markers = {marker.offset: marker for marker in codec.markers(batches)}
    pending = codec.transactional(batches)
    for record in found:
        marker = markers.get(record.offset)
        if marker is not None:
            yield record.offset, MarkerRecord(marker.producer_id, marker.committed)
        elif of_transactions:
            yield record.offset, decode_transaction_record(record.value)
        else:
            decoded = decode_group_record(record.value)
            batch = next((each for each in pending if each.base_offset <= record.offset < each.next_offset), None)
            if batch is not None and isinstance(decoded, OffsetRecord) and decoded.value is not None:
                producer = batch.producer_id, batch.producer_epoch
                decoded = PendingOffsetRecord(decoded.group_id, decoded.partition, decoded.value, *producer)
            yield record.offset, decoded
