"""ListOffsets: what a log is searched for by timestamp, which special timestamps a version has, and leader epochs."""

from __future__ import annotations

import pytest

from kreplog.core.messages import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from kreplog.core.replication.listings import timestamp_to_find
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH
from tests.core.replication.test_following import Brokers
from tests.core.shell import TP


def unused() -> int:
    raise AssertionError("the log's largest timestamp is not needed")


@pytest.mark.parametrize("timestamp", [0, 1, 2**62])
def test_a_time_is_searched_for_as_it_is(timestamp: int) -> None:
    assert timestamp_to_find(timestamp, unused) == timestamp


def test_the_largest_timestamp_is_that_of_the_log() -> None:
    assert timestamp_to_find(MAX_TIMESTAMP, lambda: 7) == 7
    assert timestamp_to_find(MAX_TIMESTAMP, lambda: -1) is None, "the log has no records"


def listed(brokers: Brokers, timestamp: int, version: int = 11) -> ListedOffset:
    request = ListOffsetsRequest((ListOffsetsPartition(TP, -1, timestamp),), version=version)
    (found,) = brokers[1].response_to(request).partitions
    assert isinstance(found, ListedOffset)
    return found


@pytest.mark.parametrize(
    ("timestamp", "first"),
    [
        (LATEST, 1),
        (EARLIEST, 1),
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (EARLIEST_PENDING_UPLOAD, 11),
        (-7, 12),
        (-(2**63), 12),
    ],
)
def test_each_special_timestamp_has_its_first_version(timestamp: int, first: int) -> None:
    brokers = Brokers(1)
    brokers.leader_and_isr(1, 1, (1,))
    errors = [listed(brokers, timestamp, version).error for version in range(1, 12)]
    assert errors == [ErrorCode.UNSUPPORTED_VERSION] * (first - 1) + [ErrorCode.NONE] * (12 - first)


def test_an_offset_has_the_leader_epoch_of_its_record() -> None:
    brokers = Brokers(1)
    for epoch, value in ((1, "a"), (4, "b"), (6, "")):
        brokers.leader_and_isr(1, epoch, (1,))
        if value:
            brokers.write(1, value)
    brokers.catch_up(rounds=1)
    found = [listed(brokers, timestamp) for timestamp in (EARLIEST, 0, LATEST)]
    assert [(each.offset, each.leader_epoch) for each in found] == [(0, 1), (0, 1), (2, 6)]
    unknown = listed(brokers, 10**15)
    assert (unknown.error, unknown.offset, unknown.leader_epoch) == (ErrorCode.NONE, -1, NO_EPOCH)
