"""A coordinator's log: the produce of an append, what a read takes, and the outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core.broker import coordinator_log
from kreplog.core.effects import AppendGroupRecords, ReadGroupRecords, SendMarkers
from kreplog.core.events import GroupRecordsAppended, GroupRecordsRead, MarkersReplied
from kreplog.core.messages import (
    CoordinatorProduce,
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    WriteMarkersRequest,
)
from kreplog.errors import ErrorCode, InvariantError, KreplogError
from kreplog.types import TopicPartition

OFFSETS = TopicPartition("__consumer_offsets", 3)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
APPEND = AppendGroupRecords(9, OFFSETS, 5, ("record",), 700)
EPOCH = 4


class Log:
    """Records at each offset of [start, end), in batches of `size`; `damaged` is what a fetch raises."""

    def __init__(self, start: int, watermark: int, end: int, size: int = 2, damaged: KreplogError | None = None):
        self.log_start_offset = start
        self.high_watermark = watermark
        self._end = end
        self._size = size
        self._damaged = damaged

    def fetch(self, offset: int) -> tuple[coordinator_log.Records, int]:
        if self._damaged is not None:
            raise self._damaged
        next_offset = min(offset - offset % self._size + self._size, self._end)
        return tuple((at, f"record {at}") for at in range(offset, next_offset)), next_offset


class Unreadable(Log):
    """Batches of four offsets, without a record that is known."""

    def fetch(self, offset: int) -> tuple[coordinator_log.Records, int]:
        return (), offset + 4


def records(start: int, end: int) -> tuple[tuple[int, Any], ...]:
    return tuple((at, f"record {at}") for at in range(start, end))


@pytest.mark.parametrize("transaction", [("", False), ("id", False), ("id", True)])
def test_an_append_is_a_produce_with_acks_all_in_the_epoch_of_the_coordinator(transaction: tuple[str, bool]) -> None:
    effect = AppendGroupRecords(9, OFFSETS, 5, ("record",), 700, *transaction)
    partitions = (ProducePartition(OFFSETS, b"batch"),)
    assert coordinator_log.produce(effect, b"batch") == CoordinatorProduce(-1, 700, partitions, 5, *transaction)


@pytest.mark.parametrize(
    ("error", "base_offset"),
    [(ErrorCode.NONE, 8), (ErrorCode.REQUEST_TIMED_OUT, 8), (ErrorCode.NOT_ENOUGH_REPLICAS, -1)],
)
def test_the_outcome_of_an_append_is_that_of_its_partition(error: ErrorCode, base_offset: int) -> None:
    response = ProduceResponse((ProducedPartition(OFFSETS, error, base_offset),))
    assert coordinator_log.appended(APPEND, response) == GroupRecordsAppended(9, error, base_offset)


@pytest.mark.parametrize(
    ("offset", "log", "found", "next_offset"),
    [
        (-1, Log(0, 6, 6), records(0, 2), 2),
        (3, Log(0, 6, 6), records(3, 4), 4),
        (1, Log(4, 6, 6), records(4, 6), 6),
        (2, Log(0, 3, 6), records(2, 3), 3),
        (0, Log(0, 6, 9, size=9), records(0, 6), 6),
        (4, Log(0, 4, 6), (), 4),
        (-1, Log(5, 5, 6), (), 5),
        (5, Log(0, 4, 6), (), 5),
    ],
    ids=[
        *("first slice", "within a batch", "below the log start", "up to the high watermark"),
        *("a slice across it", "nothing committed", "an empty log", "above the high watermark"),
    ],
)
def test_a_read_takes_what_is_committed_from_the_log_start_on(
    offset: int, log: Log, found: coordinator_log.Records, next_offset: int
) -> None:
    read = coordinator_log.read(ReadGroupRecords(OFFSETS, EPOCH, offset), log)
    assert read == GroupRecordsRead(OFFSETS, EPOCH, offset, found, next_offset)


def test_a_slice_without_records_is_passed_over() -> None:
    """Its batches are compacted away, or of formats that nobody reads."""
    assert coordinator_log.read(ReadGroupRecords(OFFSETS, EPOCH, 0), Unreadable(0, 8, 8)).next_offset == 4


@pytest.mark.parametrize(
    ("log", "failure"),
    [(None, "its replica is not open"), (Log(0, 6, 6, damaged=KreplogError("a damaged batch")), "a damaged batch")],
)
def test_a_read_that_fails_says_why_and_has_no_records(log: Log | None, failure: str) -> None:
    read = coordinator_log.read(ReadGroupRecords(OFFSETS, EPOCH, 3), log)
    assert read == GroupRecordsRead(OFFSETS, EPOCH, 3, failure=failure)


def test_markers_have_the_error_of_each_partition_and_none_if_the_response_is_lost() -> None:
    effect = SendMarkers(7, 1, WriteMarkersRequest(-1, 500, ()))
    errors = (A, ErrorCode.NONE), (B, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    partitions = [ProducedPartition(*error) for error in errors]
    assert coordinator_log.markers_replied(effect, partitions) == MarkersReplied(7, errors)
    assert coordinator_log.markers_replied(effect, ()) == MarkersReplied(7)


def test_a_fault_of_the_program_is_no_failed_read() -> None:
    with pytest.raises(InvariantError):
        coordinator_log.read(ReadGroupRecords(OFFSETS, EPOCH, 0), Log(0, 6, 6, damaged=InvariantError("a fault")))
