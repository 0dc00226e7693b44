"""ListOffsets by timestamp: what a log is searched for."""

from __future__ import annotations

import pytest

from kreplog.core.messages import MAX_TIMESTAMP
from kreplog.core.replication.listings import timestamp_to_find


def unused() -> int:
    raise AssertionError("the log's largest timestamp is not needed")


@pytest.mark.parametrize("timestamp", [0, 1, 2**62])
def test_a_time_is_searched_for_as_it_is(timestamp: int) -> None:
    assert timestamp_to_find(timestamp, unused) == timestamp


def test_the_largest_timestamp_is_that_of_the_log() -> None:
    assert timestamp_to_find(MAX_TIMESTAMP, lambda: 7) == 7
    assert timestamp_to_find(MAX_TIMESTAMP, lambda: -1) is None, "the log has no records"


@pytest.mark.parametrize("timestamp", [-4, -6, -(2**62)])
def test_other_negative_timestamps_match_no_record(timestamp: int) -> None:
    assert timestamp_to_find(timestamp, unused) is None
