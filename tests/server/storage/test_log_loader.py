"""Loading the logs of a broker: recovery after a crash, and what a start says about the last stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kreplog
from kreplog.core import effects
from kreplog.errors import StorageError
from kreplog.types import TopicPartition
from tests.server.storage.life import ID, OTHER_ID, TP, Life, appended, opened


def test_a_killed_broker_recovers_its_logs(life: Life, batch: bytes) -> None:
    logs = life.open("a", "b")
    for directory in logs.hosted.directories:
        directory.clear_unclean()
    opened(logs)
    opened(logs, OTHER_ID, TopicPartition("other", 3))
    assert [len(logs.hosted.in_directory(directory)) for directory in logs.hosted.directories] == [1, 1]
    appended(logs, batch)
    logs.execute(effects.AdvanceHighWatermark(TP, 3))
    life.crash()
    logs = life.open("a", "b")
    assert logs.hosted.topic_ids() == {TopicPartition("other", 3): OTHER_ID, TP: ID}
    assert opened(logs) == effects.OpenedLog(effects.LogState(3, 0, ((0, 0),)), 3)
    assert not any(directory.start.was_clean or directory.start.unclean for directory in logs.hosted.directories)
    assert logs.close()
    assert all(directory.start.was_clean for directory in life.open("a", "b").hosted.directories)
    life.crash()


def test_recovery_reports_progress_and_reads_nothing_after_a_clean_shutdown(life: Life, batch: bytes) -> None:
    logs = life.open()
    places = [TopicPartition("topic", number) for number in range(5)]
    for place in places:
        opened(logs, partition=place)
        appended(logs, batch, partition=place)
    life.crash()

    reported: list[tuple[int, int, int]] = []
    logs = life.open(progress=lambda *facts: reported.append(facts))
    assert reported[-1] == (5, 5, 5 * len(batch))
    assert [done for done, _, _ in reported] == sorted(done for done, _, _ in reported)
    assert {done for done, _, _ in reported} >= {1, 2, 3, 4, 5}
    assert logs.close()
    reported.clear()
    life.open(progress=lambda *facts: reported.append(facts))
    assert reported == [(number, 5, 0) for number in range(1, 6)]
    life.crash()


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(life: Life) -> None:
    leftover = life.root / "data" / "topic-0.0123-delete"
    leftover.mkdir(parents=True)
    life.open()
    assert not leftover.exists()
    life.crash()


def test_a_directory_without_topic_id_is_never_deleted(life: Life, batch: bytes) -> None:
    folder = life.root / "data" / "topic-0"
    folder.parent.mkdir()
    with kreplog.Log.open(folder) as log:
        log.append(b"old")
    (folder / "partition.metadata").unlink()
    logs = life.open()
    assert logs.hosted.topic_ids() == {}
    assert opened(logs).state.leo == 0
    assert list((life.root / "data").glob("topic-0.*-aside"))
    life.crash()


def stopped_with_a_replica(life: Life, batch: bytes) -> tuple[Path, Path]:
    """A broker of two log directories has stopped cleanly: the directory of its replica, and its place in the other."""
    logs = life.open("a", "b")
    opened(logs)
    appended(logs, batch)
    logs.execute(effects.AdvanceHighWatermark(TP, 3))
    assert logs.close()
    folder, other = life.root / "a" / str(TP), life.root / "b" / str(TP)
    return (folder, other) if folder.exists() else (other, folder)


def test_a_replica_is_moved_to_another_log_directory_while_the_broker_is_stopped(life: Life, batch: bytes) -> None:
    folder, other = stopped_with_a_replica(life, batch)
    folder.rename(other)
    logs = life.open("a", "b")
    assert opened(logs) == effects.OpenedLog(effects.LogState(3, 0, ((0, 0),)), 3)
    assert [path for path in (folder, other) if path.exists()] == [other]
    assert logs.close()


def test_a_replica_that_is_in_two_log_directories_is_not_opened(life: Life, batch: bytes) -> None:
    """Which of them is the newer nobody knows: a copy that was left behind must not lead."""
    folder, other = stopped_with_a_replica(life, batch)
    shutil.copytree(folder, other)
    logs = life.open("a", "b")
    with pytest.raises(StorageError, match=f"{TP} is in two directories, .* move one away"):
        opened(logs)
    assert folder.exists() and other.exists()
    life.crash()
