"""Records of coordinators as values of the simulator's logs, which have no keys: Kafka's key and value in one.

int32 length of the key, key, 1 and the value, or 0 for a tombstone
"""

from __future__ import annotations

from kreplog.core.group_messages import LogRecord
from kreplog.core.transaction_messages import TransactionRecord
from kreplog.errors import check
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
