"""Background fsyncs: created and truncated logs, and sealed segments."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from kreplog._native.batch import build
from kreplog.config import TopicConfig
from kreplog.core import effects, events
from kreplog.errors import LogFailedError
from kreplog.managed_log import ManagedLog
from kreplog.types import TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import ID, TP, Life, opened


def test_created_replicas_are_durable_before_the_response(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody waits for an epoch that was dropped; a log that cannot be synced fails with its directory."""
    logs = life.open()
    reported: list[str] = []
    sync_files = ManagedLog.sync_files

    def noted(log: ManagedLog) -> None:
        sync_files(log)
        reported.append(str(log.topic_partition))

    def fail(log: ManagedLog) -> None:
        raise LogFailedError("the disk is gone")

    monkeypatch.setattr(ManagedLog, "sync_files", noted)

    async def answered() -> None:
        answer = asyncio.Event()

        def then() -> None:
            reported.append("answer")
            answer.set()

        logs.sync_files(then)
        await answer.wait()

    async def work() -> None:
        for number in range(3):
            opened(logs, partition=TopicPartition("topic", number))
        await answered()
        assert sorted(reported[:3]) == ["topic-0", "topic-1", "topic-2"] and reported[3:] == ["answer"]
        reported.clear()
        logs.execute(effects.TruncateTo(TP, 0))
        await answered()
        assert reported[0] == "answer", "it is synced later"
        await until(lambda: reported == ["answer", "topic-0"])
        monkeypatch.setattr(ManagedLog, "sync_files", fail)
        logs.execute(effects.TruncateTo(TP, 0))
        await answered()
        await until(lambda: events.LogFailed(TP) in life.events)

    run(work)
    life.crash()


def test_a_resent_request_waits_for_the_sync_of_the_first(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """It creates nothing, and its response counts on what the first one has created (F17)."""
    logs = life.open()
    begun, go_on = threading.Event(), threading.Event()
    reported: list[str] = []

    def slow(log: ManagedLog) -> None:
        begun.set()
        assert go_on.wait(10)
        reported.append("durable")

    monkeypatch.setattr(ManagedLog, "sync_files", slow)

    async def work() -> None:
        opened(logs)
        logs.sync_files(lambda: reported.append("first"))
        await until(begun.is_set)
        logs.sync_files(lambda: reported.append("resent"))
        assert reported == []
        go_on.set()
        await until(lambda: len(reported) == 3)
        assert reported == ["durable", "first", "resent"]
        logs.sync_files(lambda: reported.append("nothing left"))
        assert reported[3:] == ["nothing left"]

    run(work)
    life.crash()


def test_the_files_of_a_process_that_was_killed_are_synced_too(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have made durable what it created; the next process answers for it."""
    opened(life.open())
    life.crash()
    logs = life.open()
    synced: list[str] = []
    monkeypatch.setattr(ManagedLog, "sync_files", lambda log: synced.append(str(log.topic_partition)))

    async def work() -> None:
        opened(logs)
        logs.sync_files(lambda: synced.append("answer"))
        await until(lambda: len(synced) == 2)

    run(work)
    assert synced == ["topic-0", "answer"]
    life.crash()


def test_a_replica_that_is_deleted_while_its_files_are_synced_is_let_go_after(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = life.open()
    begun, go_on = threading.Event(), threading.Event()

    def slow(log: ManagedLog) -> None:
        begun.set()
        assert go_on.wait(10) and not log.closed, "dropped under the thread that syncs it"

    monkeypatch.setattr(ManagedLog, "sync_files", slow)

    async def work() -> None:
        opened(logs)
        answer = asyncio.Event()
        logs.sync_files(answer.set)
        await until(begun.is_set)
        logs.execute(effects.DeleteLog(TP))
        go_on.set()
        await answer.wait()
        await until(lambda: not list((life.root / "data").glob("topic-*")))

    run(work)
    assert life.events == []
    life.crash()


@pytest.mark.parametrize("follower", [False, True])
def test_sealed_segments_are_made_durable_beside_the_appends(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch, follower: bool
) -> None:
    """In one thread for each log, however often it seals one meanwhile."""
    logs = life.open()
    flush_sealed = ManagedLog.flush_sealed
    begun: list[int] = []
    go_on = threading.Event()

    def slow(log: ManagedLog) -> None:
        begun.append(log.log_end_offset)
        assert go_on.wait(10)
        flush_sealed(log)

    monkeypatch.setattr(ManagedLog, "flush_sealed", slow)

    async def work() -> None:
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log),) = logs.hosted.in_directory(logs.hosted.directories[0])

        def append() -> None:
            if follower:
                at = log.log_end_offset.to_bytes(8, "big")
                logs.execute(effects.AppendAsFollower(TP, at + batch[8:]))
            else:
                logs.execute(effects.AppendAsLeader(TP, batch, 0))

        while len(log.segments) < 4:
            append()
        await until(lambda: bool(begun))
        while len(log.segments) < 9:
            append()
            await asyncio.sleep(0)  # a second flush would begin in this turn of the loop
        assert (log.recovery_point, len(begun)) == (0, 1)
        go_on.set()
        newest_sealed = log.segments[-2].base_offset
        await until(lambda: log.recovery_point >= newest_sealed and len(begun) > 1)
        assert (log.recovery_point, len(begun)) == (newest_sealed, 2)

    run(work)
    assert life.events == []
    life.crash()


def test_a_failed_sync_of_a_deleted_replica_is_not_reported(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = life.open()
    begun, go_on = threading.Event(), threading.Event()
    flush = ManagedLog.flush_sealed

    def late(log: ManagedLog) -> None:
        begun.set()
        assert go_on.wait(10)
        with pytest.raises(LogFailedError, match="No such file"):
            flush(log)

    monkeypatch.setattr(ManagedLog, "flush_sealed", late)

    async def work() -> None:
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log),) = logs.hosted.in_directory(logs.hosted.directories[0])
        while len(log.segments) < 3:
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
        await until(begun.is_set)
        logs.execute(effects.DeleteLog(TP))
        go_on.set()
        await until(lambda: not list((life.root / "data").glob("topic-*")))

    run(work)
    assert life.events == [] and not logs.hosted.directories[0].failed
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    life.crash()


@pytest.mark.parametrize("follower", [False, True])
def test_records_are_durable_when_flush_ms_is_over(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch, follower: bool
) -> None:
    """One fsync for all that came meanwhile; without flush.ms none. A shorter one counts for what is there already."""
    logs = life.open()
    flushed: list[int] = []
    flush = ManagedLog.flush

    def noted(log: ManagedLog) -> None:
        flush(log)
        flushed.append(log.recovery_point)

    monkeypatch.setattr(ManagedLog, "flush", noted)

    def waits() -> bool:
        return logs.hosted.of(TP).flush_timer is not None

    def append(base_offset: int) -> None:
        if follower:
            logs.execute(effects.AppendAsFollower(TP, build([b"x"], base_offset=base_offset)))
        else:
            logs.execute(effects.AppendAsLeader(TP, build([b"x"]), 0))

    async def work() -> None:
        logs.execute(effects.OpenLog(TP, ID, TopicConfig()))
        append(0)
        assert not waits()
        logs.execute(effects.ConfigureLog(TP, TopicConfig(flush_ms=2**62)))
        assert waits(), "for the record that was there"
        logs.execute(effects.ConfigureLog(TP, TopicConfig(flush_ms=1)))
        for offset in range(1, 4):
            append(offset)
        await until(lambda: flushed == [4])
        append(4)
        await until(lambda: flushed == [4, 5])
        append(5)
        logs.execute(effects.ConfigureLog(TP, TopicConfig()))
        assert not waits()
        append(6)
        await until(lambda: logs.hosted.background.idle)
        logs.execute(effects.ConfigureLog(TP, TopicConfig(flush_ms=1)))
        logs.execute(effects.DeleteLog(TP))
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(flush_ms=0)))
        append(0)
        await until(lambda: flushed[2:] == [1])

    run(work)
    assert life.events == []
    life.crash()


def test_a_log_that_cannot_be_synced_when_flush_ms_is_over_fails(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = life.open()

    def fail(log: ManagedLog) -> None:
        raise LogFailedError("the disk is gone")

    monkeypatch.setattr(ManagedLog, "flush", fail)

    async def work() -> None:
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(flush_ms=1)))
        logs.execute(effects.AppendAsLeader(TP, build([b"x"]), 0))
        await until(lambda: events.LogFailed(TP) in life.events)

    run(work)
    life.crash()
