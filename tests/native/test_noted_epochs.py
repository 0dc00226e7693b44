"""The leader epoch that a managed log has noted, and holds no record of: it is in the state file alone (KIP-101)."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native import batch
from kreplog._native.writable import abandon
from kreplog.errors import FencedLeaderEpochError
from kreplog.managed_log import ManagedLog
from kreplog.types import EpochEndOffset

NAME = "topic-0"
EPOCHS = "leader-epoch-checkpoint"
REPLICATED = LogConfig(replicated=True)
SLOTS = (128, 256)
SLOT_BYTES = 88


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Three records of epoch 1."""
    (tmp_path / "data").mkdir()
    with ManagedLog.open(tmp_path / "data" / NAME, REPLICATED) as log:
        log.assign_leader_epoch(1)
        log.append_many([b"a", b"b", b"c"])
        yield log


def killed(log: Log, folder: str = "after") -> Path:
    """What its process would leave behind if it were killed now."""
    data = Path(log.path).parents[1] / folder
    shutil.copytree(Path(log.path).parent, data)
    return data / NAME


def epochs_file(path: Path) -> list[str]:
    return (path / EPOCHS).read_text().splitlines()[2:]


def file_of(log: Log) -> tuple[int, int]:
    status = os.stat(Path(log.path) / EPOCHS)
    return status.st_ino, status.st_mtime_ns


def test_is_in_no_file_until_there_is_a_record(log: Log) -> None:
    before = file_of(log)
    log.assign_leader_epoch(2)
    log.assign_leader_epoch(3)
    assert file_of(log) == before
    assert log.leader_epochs == [(1, 0), (3, 3)] and log.leader_epoch == 3
    log.append(b"d")
    assert epochs_file(Path(log.path)) == ["1 0", "3 3"]
    log.assign_leader_epoch(3)
    assert log.leader_epochs == [(1, 0), (3, 3)]


@pytest.mark.parametrize("how", ["append", "append_many", "append_batches", "append_as_follower", "appender"])
def test_is_in_the_file_before_any_record_of_it(log: Log, how: str) -> None:
    log.assign_leader_epoch(2)
    match how:
        case "append":
            log.append(b"d")
        case "append_many":
            log.append_many([b"d"])
        case "append_batches":
            log.append_batches(batch.build([b"d"], timestamps_ms=[0]), 2)
        case "append_as_follower":
            log.append_as_follower(batch.build([b"d"], base_offset=3, leader_epoch=2, timestamps_ms=[0]))
        case "appender":
            with log.appender() as out:
                out.append(b"d")
    assert epochs_file(Path(log.path)) == ["1 0", "2 3"]
    with Log.open(killed(log), REPLICATED) as again:
        assert again.leader_epochs == [(1, 0), (2, 3)] and again.log_end_offset == 4


def test_survives_the_process_any_number_of_times(log: Log) -> None:
    """Or it could lead twice in one epoch."""
    log.assign_leader_epoch(2)
    path = killed(log)
    for _ in range(3):
        with ManagedLog.open(path, REPLICATED) as again:
            assert again.leader_epochs == [(1, 0), (2, 3)] and again.leader_epoch == 2
            assert epochs_file(path) == ["1 0"]
            abandon(again)
    with Log.open(path, REPLICATED) as again:
        again.append(b"d")
    assert epochs_file(path) == ["1 0", "2 3"]


def test_is_kept_when_the_log_is_closed(log: Log) -> None:
    path = Path(log.path)
    log.assign_leader_epoch(2)
    log.close()
    with ManagedLog.open(path, REPLICATED) as again:
        assert again.leader_epochs == [(1, 0), (2, 3)]


def test_takes_the_place_of_one_that_was_as_empty_and_in_the_file(log: Log) -> None:
    path = Path(log.path)
    log.close()
    with Log.open(path, REPLICATED) as other:
        other.assign_leader_epoch(2)
    assert epochs_file(path) == ["1 0", "2 3"]
    with ManagedLog.open(path, REPLICATED) as again:
        again.assign_leader_epoch(4)
        assert again.leader_epochs == [(1, 0), (4, 3)]
        with Log.open(killed(again), REPLICATED) as after:
            assert after.leader_epochs == [(1, 0), (4, 3)]
        again.truncate_to(3)
        assert again.leader_epochs == [(1, 0)]
        with Log.open(killed(again, "cut"), REPLICATED) as after:
            assert after.leader_epochs == [(1, 0)] and after.leader_epoch == 4


def test_is_dropped_without_a_file(log: Log) -> None:
    """By one who follows after it has led and written nothing."""
    before = file_of(log)
    log.assign_leader_epoch(2)
    log.truncate_to(3)
    assert file_of(log) == before and log.leader_epochs == [(1, 0)]
    log.append_as_follower(batch.build([b"d"], base_offset=3, leader_epoch=1, timestamps_ms=[0]))
    with Log.open(killed(log), REPLICATED) as again:
        assert again.leader_epochs == [(1, 0)] and again.leader_epoch == 2 and again.log_end_offset == 4


def test_stands_in_the_way_of_older_records(log: Log) -> None:
    log.assign_leader_epoch(3)
    with pytest.raises(FencedLeaderEpochError, match="already 3; nothing written"):
        log.append_as_follower(batch.build([b"d"], base_offset=3, leader_epoch=2, timestamps_ms=[0]))


def test_is_published_to_readers(log: Log) -> None:
    with Log.open(log.path, read_only=True) as reader:
        log.assign_leader_epoch(2)
        assert reader.leader_epochs == [(1, 0), (2, 3)] and reader.leader_epoch == 2
        assert reader.end_offset_for_epoch(1) == EpochEndOffset(1, 3)
        assert reader.end_offset_for_epoch(2) == EpochEndOffset(2, 3)
        assert not reader.verify().damages
        log.append(b"d")
        assert reader.leader_epochs == [(1, 0), (2, 3)]
        assert reader.end_offset_for_epoch(2) == EpochEndOffset(2, 4)


def test_killed_between_the_file_and_the_state(log: Log) -> None:
    """The file has the epoch, the state file does not know of that yet."""
    log.assign_leader_epoch(2)
    path = killed(log)
    (path / EPOCHS).write_text("0\n2\n1 0\n2 3\n")
    with Log.open(path, REPLICATED) as again:
        assert again.leader_epochs == [(1, 0), (2, 3)] and again.log_end_offset == 3


def test_of_a_torn_slot_is_not_believed(log: Log) -> None:
    log.assign_leader_epoch(2)
    path = killed(log)
    state = bytearray((path / "kreplog.state").read_bytes())
    newest = max(SLOTS, key=lambda at: struct.unpack_from("<Q", state, at))
    state[newest + SLOT_BYTES - 1] ^= 1
    (path / "kreplog.state").write_bytes(state)
    with Log.open(path, REPLICATED) as again:
        assert again.leader_epochs == [(1, 0)] and again.log_end_offset == 3


def test_counts_no_more_where_another_program_went_on(log: Log) -> None:
    """A Kafka, say, in an epoch of its own that may be an older one: none of its records are lost for ours."""
    log.assign_leader_epoch(5)
    path = killed(log)
    segment = next(path.glob("*.log"))
    size = 12 + int.from_bytes(segment.read_bytes()[8:12], "big")  # of the one batch; behind it blocks are allocated
    records = batch.build([b"d", b"e"], base_offset=3, leader_epoch=2, timestamps_ms=[0, 0])
    with open(segment, "r+b") as file:
        file.truncate(size)
        file.seek(size)
        file.write(records)
    (path / EPOCHS).write_text("0\n2\n1 0\n2 3\n")
    with Log.open(path, REPLICATED) as again:
        assert again.log_end_offset == 5 and again.cuts == ()
        assert again.leader_epochs == [(1, 0), (2, 3)] and again.leader_epoch == 5
