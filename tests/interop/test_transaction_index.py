"""Kafka's dump-log tool reads the markers of transactions, and the index of aborted ones, as kreplog writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kreplog import Log
from tests.interop.jvm import Kafka
from tests.reference import sent

pytestmark = pytest.mark.interop


def test_markers_and_the_index_are_dumped(kafka: Kafka, tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        for producer in (1, 2, 3):
            log.append_batches(sent(producer, 0, b"value"), transactional=True)
        log.append_transaction_marker(2, 0, committed=False, coordinator_epoch=5)
        log.append_transaction_marker(1, 0, committed=True, coordinator_epoch=5)
        log.append_transaction_marker(3, 0, committed=False, coordinator_epoch=6)
    (index,), (segment,) = (sorted((tmp_path / "t-0").glob(f"*.{suffix}")) for suffix in ("txnindex", "log"))
    printed = kafka.dump("--files", str(index))
    assert re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", printed) == [
        ("2", "1", "3", "0"),
        ("3", "2", "5", "6"),
    ]
    printed = kafka.dump("--deep-iteration", "--files", str(segment))
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", printed) == [
        ("ABORT", "5"),
        ("COMMIT", "5"),
        ("ABORT", "6"),
    ]
