"""A log that is compacted refuses records without a key, which compaction would drop; nothing is written then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kreplog import Log, LogConfig
from kreplog._native.batch import build
from kreplog._native.encoded import InspectedBatches
from kreplog.errors import CorruptBatchError, ErrorCode, InvalidRecordError
from tests.reference import Batch, Rec, encode

COMPACTED = LogConfig(cleanup_policy="compact,delete")
DELETE_HORIZON = 64
KEYED, KEYLESS = build([b"a", b"b"], keys=[b"k", b""]), build([b"a", b"b"], keys=[b"k", None])


def buffered(log: Log, value: bytes, key: bytes | None) -> None:
    with log.appender() as appender:
        appender.append(value, key)


WAYS: dict[str, Callable[[Log, bool], Any]] = {
    "append": lambda log, keyed: log.append(b"a", b"" if keyed else None),
    "append_many": lambda log, keyed: log.append_many([b"a", b"b"], [b"k", b"" if keyed else None]),
    "append_many without keys": lambda log, keyed: log.append_many([b"a"], [b"k"] if keyed else None),
    "append_many of Arrow": lambda log, keyed: log.append_many(
        pa.array([b"a", b"b"]), pa.array([b"k", b"" if keyed else None])
    ),
    "appender": lambda log, keyed: buffered(log, b"a", b"" if keyed else None),
    "append_batches": lambda log, keyed: log.append_batches(KEYED if keyed else KEYLESS),
    "append_batches, inspected": lambda log, keyed: log.append_batches(InspectedBatches(KEYED if keyed else KEYLESS)),
    "append_once": lambda log, keyed: log.append_once(
        [KEYED, KEYED if keyed else KEYLESS], writer="w", sequence=log.log_end_offset
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_records_without_a_key_are_refused(folder: Path, way: str) -> None:
    with Log.open(folder / "topic-0", COMPACTED) as log:
        WAYS[way](log, True)
        end = log.log_end_offset
        assert end > 0
        with pytest.raises(InvalidRecordError, match="topic-0: a record without a key") as refused:
            WAYS[way](log, False)
        assert refused.value.kafka_code is ErrorCode.INVALID_RECORD
        assert log.log_end_offset == end
        log.configure(replace(COMPACTED, cleanup_policy="delete", offset_gaps=True))
        WAYS[way](log, False)


def test_a_producer_does_not_set_the_delete_horizon(folder: Path) -> None:
    """Else its tombstones could go before any reader has seen them; Kafka takes such a batch."""
    batch = encode(Batch((Rec(0, 5, b"k", None),), 0, 0, DELETE_HORIZON, 5, 5))
    with Log.open(folder / "topic-0", COMPACTED) as log:
        ways: tuple[Callable[[], Any], ...] = (
            lambda: log.append_batches(batch),
            lambda: log.append_once([batch], writer="w", sequence=1),
        )
        for append in ways:
            with pytest.raises(CorruptBatchError, match="attributes") as refused:
                append()
            assert refused.value.kafka_code is ErrorCode.CORRUPT_MESSAGE
            assert log.log_end_offset == 0
        log.append_as_follower(batch)  # a leader has compacted it
