"""Strays on disk: renamed, found again by the next life, taken back, and removed after their time."""

from __future__ import annotations

import os
import time

import pytest

from kreplog.core import effects
from kreplog.errors import LogFailedError, StorageError
from kreplog.server.storage.log_manager import LogManager
from kreplog.types import TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import ID, OTHER_ID, TP, Life, appended, opened

HOUR_MS = 3_600_000


def restore(logs: LogManager, topic_id: str = ID) -> bool:
    restored: bool = logs.execute(effects.RestoreStray(TP, topic_id))
    return restored


def test_a_stray_is_found_by_the_next_life_and_taken_back_with_its_records(life: Life, batch: bytes) -> None:
    logs = life.open()
    opened(logs)
    appended(logs, batch)
    logs.execute(effects.AdvanceHighWatermark(TP, 3))
    logs.execute(effects.SetAsideStray(TP))
    assert logs.hosted.topic_ids() == {}
    assert logs.hosted.strays.keys() == [(ID, 0)]
    life.crash()
    cleaner_checkpoint = life.root / "data" / "cleaner-offset-checkpoint"
    cleaner_checkpoint.write_text("0\n1\ntopic 0 2\n")  # of another topic that had the name meanwhile
    logs = life.open()
    assert (logs.hosted.topic_ids(), logs.hosted.strays.keys()) == ({}, [(ID, 0)])
    assert not restore(logs, OTHER_ID)
    assert restore(logs)
    assert (logs.hosted.topic_ids(), logs.hosted.strays.keys()) == ({TP: ID}, [])
    assert opened(logs) == effects.OpenedLog(effects.LogState(3, 0, ((0, 0),)), 3)
    assert not restore(logs)
    assert cleaner_checkpoint.read_text() == "0\n0\n"
    life.crash()


def test_the_newest_stray_of_a_topic_id_is_taken_back(life: Life, batch: bytes) -> None:
    logs = life.open()
    for rounds in (1, 2):
        opened(logs)
        for _ in range(rounds):
            appended(logs, batch)
        logs.execute(effects.SetAsideStray(TP))
        older = next((life.root / "data").glob("*-stray"))
        if rounds == 1:
            os.utime(older, (1, 1))
    life.crash()
    logs = life.open()
    assert restore(logs)
    assert opened(logs).state.leo == 6
    life.crash()


def test_no_stray_is_taken_back_in_a_failed_directory(life: Life) -> None:
    logs = life.open()
    opened(logs)
    logs.execute(effects.SetAsideStray(TP))
    (directory,) = logs.hosted.directories
    directory.fail(LogFailedError("topic-1: fsync failed"), [])
    with pytest.raises(LogFailedError, match="data has failed"):
        restore(logs)
    assert logs.hosted.strays.keys() == [(ID, 0)]
    life.crash()


def test_nothing_is_set_aside_or_deleted_in_a_failed_directory(life: Life) -> None:
    """Neither an open replica, nor one that failed to open, nor a stray."""
    stray, unopened = TopicPartition("stray", 0), TopicPartition("unopened", 0)
    logs = life.open()
    for partition in (TP, stray, unopened):
        opened(logs, partition=partition)
    logs.execute(effects.SetAsideStray(stray))
    life.crash()
    (life.root / "data" / "unopened-0" / "kreplog.state").unlink()
    (life.root / "data" / "unopened-0" / "kreplog.state").mkdir()
    logs = life.open()
    (directory,) = logs.hosted.directories
    directory.fail(LogFailedError("topic-1: fsync failed"), [])
    before = sorted(path.name for path in (life.root / "data").iterdir())
    kinds = effects.SetAsideStray, effects.DeleteLog
    changes = [kind(partition) for kind in kinds for partition in (TP, unopened)]

    async def work() -> None:
        for change in (*changes, effects.DeleteStrays(stray, ID)):
            with pytest.raises(LogFailedError, match="data has failed"):
                logs.execute(change)

    run(work)
    assert sorted(path.name for path in (life.root / "data").iterdir()) == before
    assert (logs.hosted.topic_ids(), logs.hosted.strays.keys()) == ({TP: ID, unopened: ID}, [(ID, 0)])
    life.crash()


def test_strays_that_a_controller_deletes_are_deleted(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        for topic_id in (ID, OTHER_ID):
            opened(logs, topic_id)
            logs.execute(effects.SetAsideStray(TP))
        logs.execute(effects.DeleteStrays(TP, ID))
        assert logs.hosted.strays.keys() == [(OTHER_ID, 0)]
        await until(lambda: not list((life.root / "data").glob("*-delete")))

    run(work)
    assert len(list((life.root / "data").glob("*-stray"))) == 1
    life.crash()


def test_a_stray_is_removed_after_its_time_and_not_before(life: Life) -> None:
    """Its time is that of its directory, so it goes on over restarts."""
    logs = life.open(stray_retention_ms=HOUR_MS)
    opened(logs)
    logs.execute(effects.SetAsideStray(TP))
    logs.hosted.strays.remove_expired()
    (stray,) = (life.root / "data").glob("topic-0.*-stray")
    life.crash()
    an_hour_ago = time.time() - HOUR_MS / 1000
    os.utime(stray, (an_hour_ago, an_hour_ago))
    logs = life.open()
    logs.hosted.strays.remove_expired()
    assert stray.exists(), "-1: for ever"
    life.crash()
    logs = life.open(stray_retention_ms=HOUR_MS)

    async def work() -> None:
        logs.hosted.strays.remove_expired()
        await until(lambda: not list((life.root / "data").glob("topic-0*")))

    run(work)
    assert logs.hosted.strays.keys() == []
    assert not restore(logs)
    life.crash()


def test_a_replica_that_cannot_be_opened_becomes_a_stray_too(life: Life, batch: bytes) -> None:
    logs = life.open()
    opened(logs)
    appended(logs, batch)
    life.crash()
    (life.root / "data" / "topic-0" / "kreplog.state").unlink()
    (life.root / "data" / "topic-0" / "kreplog.state").mkdir()
    logs = life.open()
    with pytest.raises(StorageError):
        opened(logs)
    logs.execute(effects.SetAsideStray(TP))
    assert opened(logs, OTHER_ID).state.leo == 0
    logs.execute(effects.SetAsideStray(TP))
    with pytest.raises(StorageError):
        restore(logs)
    assert logs.hosted.topic_ids() == {TP: ID}, "it is a replica again, and one that cannot be opened"
    life.crash()


def test_a_stray_is_not_restored_over_an_existing_directory(life: Life, batch: bytes) -> None:
    logs = life.open()
    opened(logs)
    logs.execute(effects.SetAsideStray(TP))
    (life.root / "data" / "topic-0").mkdir()
    with pytest.raises(StorageError, match="it exists"):
        restore(logs)
    assert logs.hosted.strays.keys() == [(ID, 0)]
    life.crash()
