"""Timestamps of records, from the batches that they are in."""

from __future__ import annotations

import pytest

from kreplog.batches import build
from kreplog.client.record_times import _timestamp


@pytest.mark.parametrize(("offset", "expected"), [(3, 50), (5, 50), (6, 20), (7, 90)])
def test_the_record_at_an_offset(offset: int, expected: int) -> None:
    batch = build([b"a", b"b", b"c"], timestamps_ms=[50, 20, 90], base_offset=5, compression="gzip")
    assert _timestamp(batch + b"the beginning of another", offset) == expected


def test_a_batch_whose_last_record_was_compacted_away() -> None:
    assert _timestamp(build([b"a"], timestamps_ms=[50], base_offset=5), 6) == 50


@pytest.mark.parametrize("size", [0, 20, 60])
def test_a_damaged_batch_has_no_time(size: int) -> None:
    assert _timestamp(build([b"a"], timestamps_ms=[50])[:size], 0) == -1
