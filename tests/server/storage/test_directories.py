"""DataDirectory: its lock, and the marks of clean and unclean shutdowns."""

from __future__ import annotations

from pathlib import Path

import pytest

import kreplog
from kreplog.errors import LogLockedError, StorageError, UsageError
from kreplog.server.storage.directories import DataDirectory
from kreplog.types import TopicPartition
from tests.server.storage.life import TP, Life, opened


def test_a_crash_while_loading_does_not_look_clean(life: Life) -> None:
    """F35: the mark is gone before anything is loaded."""
    life.open()
    life.logs.close()
    assert (life.root / "data" / ".kafka_cleanshutdown").exists()
    first = DataDirectory(str(life.root / "data"), 1, "boot")
    assert first.start.was_clean
    first.close(clean=False)
    second = DataDirectory(str(life.root / "data"), 1, "boot")
    assert not second.start.was_clean
    second.close(clean=False)


def test_only_another_boot_makes_a_crash_unclean(life: Life) -> None:
    logs = life.open(boot="first")
    assert logs.hosted.directories[0].start.is_new and not logs.hosted.directories[0].start.unclean
    life.crash()
    logs = life.open(boot="first")
    assert logs.hosted.directories[0].start.is_new, "no controller has taken that in yet"
    logs.hosted.directories[0].clear_unclean()
    life.crash()
    logs = life.open(boot="first")
    assert not logs.hosted.directories[0].start.unclean and not logs.hosted.directories[0].start.is_new
    life.crash()
    assert life.open(boot="second").hosted.directories[0].start.unclean
    life.crash()
    logs = life.open(boot="second")
    assert logs.hosted.directories[0].start.unclean, "no controller has handled it yet"
    logs.hosted.directories[0].clear_unclean()
    life.crash()
    assert not life.open(boot="second").hosted.directories[0].start.unclean
    life.logs.close()
    assert not life.open(boot="third").hosted.directories[0].start.unclean
    life.crash()


def test_directories_have_one_owner(life: Life, tmp_path: Path) -> None:
    life.open()
    with pytest.raises(UsageError, match="in use by another broker process"):
        DataDirectory(str(tmp_path / "data"), 1, "boot")
    life.crash()
    with pytest.raises(UsageError, match="belongs to broker 1, not to 2"):
        DataDirectory(str(tmp_path / "data"), 2, "boot")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        DataDirectory(str(tmp_path / "file"), 1, "boot")


def test_logs_in_a_brokers_directory_are_locked(life: Life, tmp_path: Path) -> None:
    """Its lock is that of all its logs, whether they are open or not; and it opens none that another writes."""
    outside = TopicPartition("topic", 1)
    logs = life.open()
    opened(logs)
    for partition in (TP, outside):
        with pytest.raises(LogLockedError, match="read_only"):
            kreplog.Log.open(tmp_path / "data" / str(partition))
    life.crash()
    with kreplog.Log.open(tmp_path / "data" / str(outside)):
        with pytest.raises(LogLockedError):
            opened(life.open(), partition=outside)
        life.crash()
