"""LogManager: every effect of the replication core on a log."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kreplog._native.batch import build
from kreplog.config import LogConfig, TopicConfig
from kreplog.core import effects, events
from kreplog.core import messages as m
from kreplog.errors import (
    ErrorCode,
    LogFailedError,
    OffsetOutOfRangeError,
    RecordBatchTooLargeError,
    StorageError,
)
from kreplog.managed_log import CheckedBatches, InspectedBatches, ManagedLog
from kreplog.server.runtime.runners import InThread
from kreplog.server.storage.log_manager import LogManager
from kreplog.types import AppendInfo, TopicPartition
from tests.reference import sent
from tests.server.loop import run, until
from tests.server.storage.life import ID, TP, Life, appended, opened

LONG = [bytes(1000) for _ in range(600)]


def answer_of(effect: InThread) -> Any:
    wait([effect.future], 20)
    return effect.finish()


def test_checked_batches_are_appended_by_a_thread(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    append, threads = ManagedLog.append_as_follower, []

    def noted(log: ManagedLog, records: Any) -> AppendInfo:
        threads.append(threading.current_thread().name)
        return append(log, records)

    monkeypatch.setattr(ManagedLog, "append_as_follower", noted)
    logs = life.open()
    opened(logs)

    async def work() -> None:
        effect = logs.execute(effects.AppendAsFollower(TP, CheckedBatches(build(LONG))))
        assert isinstance(effect, InThread)
        assert logs.hosted.of(TP).in_use, "until the answer no other thread may take the log away"
        assert answer_of(effect).leo == 600
        assert not logs.hosted.of(TP).in_use
        assert logs.execute(effects.AppendAsFollower(TP, build([b"short"], base_offset=600))).leo == 601
        few = CheckedBatches(build(LONG[:500], base_offset=601))
        assert logs.execute(effects.AppendAsFollower(TP, few)).leo == 1101
        assert threads == ["kreplog-appends_0", "MainThread", "MainThread"]
        assert logs.close()
        assert not any(thread.name.startswith("kreplog-appends") for thread in threading.enumerate())

    run(work)


def test_a_failed_append_in_a_thread_is_as_one_on_the_event_loop(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = life.open()
    opened(logs)

    async def work() -> None:
        gap = effects.AppendAsFollower(TP, CheckedBatches(build(LONG, base_offset=7)))
        with pytest.raises(OffsetOutOfRangeError, match=r"topic-0: the leader's batch begins at offset 7"):
            answer_of(logs.execute(gap))
        assert not logs.hosted.of(TP).in_use

        def fail(*_: Any) -> None:
            raise LogFailedError("the disk is full")

        monkeypatch.setattr(ManagedLog, "append_as_follower", fail)
        with pytest.raises(LogFailedError):
            answer_of(logs.execute(effects.AppendAsFollower(TP, CheckedBatches(build(LONG)))))
        await until(lambda: life.events == [events.LogFailed(TP)])
        assert logs.hosted.directories[0].failed

        def gone(*_: Any) -> None:
            raise OSError(errno.EIO, "no such disk")

        monkeypatch.setattr(ManagedLog, "append_as_follower", gone)
        with pytest.raises(StorageError, match=r"topic-0: .*errno 5"):
            answer_of(logs.execute(effects.AppendAsFollower(TP, CheckedBatches(build(LONG)))))

    run(work)


def test_the_end_waits_for_an_append_in_a_thread(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    append, first, go_on = ManagedLog.append_as_follower, threading.Event(), threading.Event()

    def slow(log: ManagedLog, records: Any) -> AppendInfo:
        first.set()
        assert go_on.wait(20)
        return append(log, records)

    monkeypatch.setattr(ManagedLog, "append_as_follower", slow)
    logs = life.open()
    opened(logs)

    async def work() -> None:
        effect = logs.execute(effects.AppendAsFollower(TP, CheckedBatches(build(LONG))))
        await until(first.is_set)
        closing = asyncio.get_running_loop().run_in_executor(None, logs.close)
        await asyncio.sleep(0.05)  # nothing ends meanwhile
        assert not closing.done()
        go_on.set()
        assert await closing
        assert effect.future.result().last_offset == 599

    run(work)


def found_offsets(life: Life, logs: LogManager, *timestamps: int) -> list[tuple[int, int]]:
    """What OffsetFound events say of these."""

    async def work() -> None:
        for index, timestamp in enumerate(timestamps):
            logs.execute(effects.OffsetForTimestamp((0, index), TP, timestamp))
        await until(lambda: len(found()) == len(timestamps))

    def found() -> dict[int, tuple[int, int]]:
        return {
            event.tag[1]: (event.offset, event.timestamp)
            for event in life.events
            if isinstance(event, events.OffsetFound)
        }

    run(work)
    return [found()[index] for index in range(len(timestamps))]


def test_a_read_of_committed_transactions_ends_at_the_last_stable_offset(life: Life) -> None:
    logs = life.open()
    opened(logs)

    async def work() -> None:
        logs.execute(effects.AssignLeaderEpoch(TP, 0))
        append = effects.AppendAsLeader(TP, sent(8, 0, b"first"), 0, transactional=True, verified_by=0)
        assert logs.execute(append)[1].first_unstable == 0
        logs.hosted.of(TP).log.append_transaction_marker(8, 0, committed=False, coordinator_epoch=0)
        info, state = logs.execute(effects.AppendAsLeader(TP, sent(7, 0, b"a"), 0, transactional=True, verified_by=0))
        assert (info.first_offset, state.first_unstable) == (2, 0)
        assert logs.execute(effects.AdvanceHighWatermark(TP, 3)) == 2
        records, aborted = logs.execute(effects.ReadStable(TP, 0, 2, 1 << 20))
        assert (len(records) > 0, aborted) == (True, ((8, 0),))
        assert len(logs.execute(effects.ReadStable(TP, 2, 2, 1 << 20))[0]) == 0

    run(work)


def test_every_effect_is_answered(life: Life, batch: bytes) -> None:
    logs = life.open()
    assert opened(logs) == effects.OpenedLog(effects.LogState(0, 0, ()), 0)
    assert logs.execute(effects.AssignLeaderEpoch(TP, 5)) == effects.LogState(0, 0, ((5, 0),))
    info, state = appended(logs, batch, 5)
    assert (info.first_offset, info.last_offset, state) == (0, 2, effects.LogState(3, 0, ((5, 0),)))
    assert len(logs.execute(effects.ReadLog(TP, 0, 0, 100))) == 0
    assert len(logs.execute(effects.ReadLog(TP, 0, 3, 1))) == len(batch)
    assert [logs.execute(effects.SizeFrom(TP, offset)) for offset in (0, 2, 3)] == [len(batch), len(batch), 0]
    logs.execute(effects.AdvanceHighWatermark(TP, 3))
    assert len(logs.execute(effects.ReadLog(TP, 0, 3, 1 << 20))) == len(batch)
    (first, latest, none, beyond) = found_offsets(life, logs, 0, m.MAX_TIMESTAMP, -9, 2**62)
    assert first[0] == 0 and first[1] > 0
    assert latest == first
    assert none == beyond == (-1, -1)
    assert logs.execute(effects.DeleteRecordsBefore(TP, 2)).log_start == 2
    assert logs.execute(effects.TruncateTo(TP, 2)).leo <= 2
    assert logs.execute(effects.TruncateFullyAndStartAt(TP, 9)) == effects.LogState(9, 9, ())
    with pytest.raises(StorageError, match="topic-0: offset 3 is gone"):
        logs.execute(effects.SizeFrom(TP, 3))
    life.crash()


def test_fsyncs_are_shared(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        for _ in range(5):
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
            logs.execute(effects.Flush(TP))
        await until(lambda: events.Flushed(TP, 15) in life.events)

    run(work)
    assert len(life.events) <= 2
    life.crash()


def test_a_high_watermark_advances_whatever_becomes_of_the_log(life: Life, batch: bytes) -> None:
    """An fsync in another thread has failed, and the core hears of it after this step."""
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.execute(effects.AppendAsLeader(TP, batch, 0))
        ((_, replica),) = logs.hosted.in_directory(logs.hosted.directories[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(replica), "advance_high_watermark", _refuse, raising=False)
            logs.execute(effects.AdvanceHighWatermark(TP, 1))
        await asyncio.sleep(0)
        assert life.events == [events.LogFailed(TP)]

    run(work)
    logs.close()


def _refuse(*_: Any) -> None:
    raise LogFailedError("the disk is gone")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="elsewhere it is not known what is open")
def test_idle_replicas_have_no_file_open(life: Life, batch: bytes, tmp_path: Path) -> None:
    """There may be more of them than a process may open files for; one that is written to has its segment."""
    logs = life.open()

    def added() -> set[str]:
        paths = set()
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the one that lists them
                paths.add(os.readlink(f"/proc/self/fd/{fd}"))
        return {Path(path).name for path in paths if path.startswith(str(tmp_path / "data" / "topic"))}

    for number in range(5):
        opened(logs, partition=TopicPartition("topic", number))
    logs.execute(effects.AssignLeaderEpoch(TP, 1))
    assert added() == set()
    appended(logs, batch, 1)
    assert added() == {f"{0:020}.log"}
    logs.close()
    logs = life.open()
    assert opened(logs).state.leo == 3
    assert added() == set()
    life.crash()


def test_a_log_goes_by_its_topics_settings_from_its_opening_on_and_when_they_change(life: Life, batch: bytes) -> None:
    logs = life.open()
    logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
    ((_, log),) = logs.hosted.in_directory(logs.hosted.directories[0])
    assert log.config == LogConfig(replicated=True, segment_bytes=300)
    assert logs.partitions_with_retention() == []

    async def fill() -> None:
        for _ in range(9):
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
        await until(lambda: logs.hosted.background.idle)

    run(fill)
    logs.execute(effects.AdvanceHighWatermark(TP, 27))
    before = len(log.segments)
    assert logs.execute(effects.EnforceRetention(TP)).log_start == 0
    logs.execute(effects.ConfigureLog(TP, TopicConfig(retention_bytes=0, max_message_bytes=128)))
    assert logs.partitions_with_retention() == [TP]
    state = logs.execute(effects.EnforceRetention(TP))
    after = len(log.segments)
    assert (before, after) == (3, 1)
    assert state == effects.LogState(27, log.segments[0].base_offset, ((0, state.log_start),))
    logs.execute(effects.ConfigureLog(TP, TopicConfig()))
    assert log.config == LogConfig(replicated=True) and logs.partitions_with_retention() == []
    life.crash()
    reopened = life.open()
    reopened.execute(effects.OpenLog(TP, ID, TopicConfig(retention_ms=5)))
    assert reopened.partitions_with_retention() == [TP]
    reopened.execute(effects.ConfigureLog(TP, TopicConfig(retention_ms=5, cleanup_policy="compact")))
    assert reopened.partitions_with_retention() == [TP], "it deletes segments below the log start"
    life.crash()


def test_a_producers_batch_fits_in_a_segment_a_leaders_and_a_coordinators_need_not(life: Life) -> None:
    """RECORD_LIST_TOO_LARGE, as in Kafka; what its leader has accepted a follower cannot refuse."""
    logs = life.open()
    logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
    large, small = build([bytes(300)]), build([bytes(100)])

    async def work() -> None:
        for records in (large, small + large, InspectedBatches(large)):
            with pytest.raises(RecordBatchTooLargeError, match=f"{TP}: .* segment of 300.*segment.bytes") as refused:
                logs.execute(effects.AppendAsLeader(TP, records, 0))
            assert refused.value.kafka_code is ErrorCode.RECORD_LIST_TOO_LARGE
        logs.execute(effects.AppendAsLeader(TP, small, 0))
        logs.execute(effects.AppendAsLeader(TP, large, 0, sequenced=False))
        assert logs.execute(effects.AppendAsFollower(TP, build([bytes(300)], base_offset=2))).leo == 3

    run(work)
    life.crash()


def test_logs_of_equal_topic_settings_share_theirs_until_those_of_the_broker_change(life: Life) -> None:
    logs, other = life.open(), TopicPartition("other", 0)
    for partition in (TP, other):
        logs.execute(effects.OpenLog(partition, ID, TopicConfig(retention_ms=5)))
    first, second = (logs.hosted.of(partition).log for partition in (TP, other))
    assert first.config is second.config
    logs.hosted.config = LogConfig(replicated=True, segment_ms=9)
    logs.execute(effects.ConfigureLog(TP, TopicConfig(retention_ms=5)))
    assert (first.config.segment_ms, first.config.retention_ms) == (9, 5)
    life.crash()


def test_a_failed_log_keeps_its_settings(life: Life) -> None:
    logs = life.open()
    opened(logs)
    ((_, log),) = logs.hosted.in_directory(logs.hosted.directories[0])
    log.abandon()
    logs.execute(effects.ConfigureLog(TP, TopicConfig(retention_ms=5)))
    assert log.config.retention_ms == -1
    life.crash()


def test_a_segment_sealed_by_retention_is_released(life: Life) -> None:
    """Its mapping would keep the deleted file's room."""
    logs = life.open()

    async def work() -> None:
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(retention_ms=1)))
        ((_, log),) = logs.hosted.in_directory(logs.hosted.directories[0])
        logs.execute(effects.AppendAsLeader(TP, build([b"old"], timestamps_ms=[1]), 0))
        logs.execute(effects.AdvanceHighWatermark(TP, 1))
        log.flush()
        assert logs.execute(effects.EnforceRetention(TP)).log_start == 1
        await until(lambda: not log.has_unflushed_segments)

    run(work)
    life.crash()
