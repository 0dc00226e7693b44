"""Which log is compacted next: Kafka's LogCleanerManager, KIP-354."""

from __future__ import annotations

import errno

from kreplog.core.broker.log_cleaning import CleanerQueue, is_uncleanable
from kreplog.errors import CorruptBatchError, DiskFullError, LogFailedError, ResourceExhaustedError, StorageError
from kreplog.types import CompactionBacklog


def backlog(clean: int, dirty: int, overdue_ms: int = 0) -> CompactionBacklog:
    return CompactionBacklog(clean, dirty, overdue_ms, 0.5)


def test_the_dirtiest_log_that_is_due_comes_first() -> None:
    queue: CleanerQueue[str] = CleanerQueue()
    backlogs = {"a": backlog(50, 51), "b": backlog(10, 50), "c": backlog(50, 50), "d": backlog(90, 10)}
    assert [queue.begin(backlogs) for _ in range(3)] == ["b", "a", None]
    assert queue.candidates(backlogs) == ["c", "d"]
    queue.finish("b")
    assert queue.begin(backlogs) == "b"


def test_a_log_with_records_past_the_maximum_lag_is_due_whatever_its_ratio() -> None:
    queue: CleanerQueue[str] = CleanerQueue()
    assert queue.begin({"a": backlog(99, 0, 1), "b": backlog(99, 1, 1)}) == "b"


def test_an_uncleanable_log_is_set_aside_until_it_is_another() -> None:
    queue: CleanerQueue[str] = CleanerQueue()
    assert queue.begin({"a": backlog(0, 1)}) == "a"
    queue.finish("a", "damaged")
    assert queue.candidates(["a", "b"]) == ["b"] and queue.uncleanable == {"a": "damaged"}
    assert queue.candidates(["b"]) == ["b"] and not queue.uncleanable
    assert queue.candidates(["a", "b"]) == ["a", "b"]


def test_damage_makes_a_log_uncleanable_and_a_shortage_does_not() -> None:
    failed = LogFailedError("a write failed")
    failed.__cause__ = OSError(errno.ENOSPC, "no space")
    assert not any(map(is_uncleanable, (DiskFullError("full"), ResourceExhaustedError("no descriptor"), failed)))
    assert all(map(is_uncleanable, (CorruptBatchError("its CRC differs"), StorageError("cannot read"), ValueError())))
