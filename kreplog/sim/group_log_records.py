"""Records of groups as values of the simulator's logs, which have no keys: Kafka's key and value in one.

int32 length of the key, key, 1 and the value, or 0 for a tombstone
"""

from __future__ import annotations

from kreplog.core.group_messages import LogRecord
from kreplog.errors import check
from kreplog.wire.group_records import decode_record, encode_record


def encode_group_record(record: LogRecord) -> bytes:
    key, value = encode_record(record)
    return len(key).to_bytes(4, "big") + key + (b"\0" if value is None else b"\1" + value)


def decode_group_record(stored: bytes) -> LogRecord:
    end = 4 + int.from_bytes(stored[:4], "big")
    record = decode_record(stored[4:end], stored[end + 1 :] if stored[end] else None)
    check(record is not None, "a coordinator has written a record that it cannot read")
    assert record is not None
    return record
