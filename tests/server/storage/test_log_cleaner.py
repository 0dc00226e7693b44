"""LogCleaner: which of a broker's logs it compacts, and what ends or stops it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log
from kreplog._native.batch import build
from kreplog._native.key_map import KeyMap
from kreplog.config import TopicConfig
from kreplog.core import effects, events
from kreplog.errors import DiskFullError, LogFailedError, ResourceExhaustedError, StorageError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.log_cleaner import KEY_BYTES, CleanerSettings
from kreplog.server.storage.log_manager import LogManager
from kreplog.types import TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import ID, OTHER_ID, TP, Life

QUICK = CleanerSettings(backoff_ms=1)
STOPPED = CleanerSettings(backoff_ms=1, max_bytes_per_second=1)
"""It reads a piece of a log, and waits for hours."""

COMPACTED = TopicConfig(cleanup_policy="compact", segment_bytes=1000, min_cleanable_dirty_ratio=0.01)


def fill(logs: LogManager, partition: TopicPartition = TP, topic_id: str = ID, config: TopicConfig = COMPACTED) -> None:
    """100 records of 10 keys in many segments, all committed."""
    logs.execute(effects.OpenLog(partition, topic_id, config))
    for number in range(100):
        logs.execute(effects.AppendAsLeader(partition, build([b"%d" % number * 9], keys=[b"%d" % (number % 10)]), 0))
    logs.execute(effects.AdvanceHighWatermark(partition, 100))


@asynccontextmanager
async def cleaning(logs: LogManager) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(logs.cleaner.run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])  # else it may begin with a log while they are being closed


def count(logs: LogManager, partition: TopicPartition = TP) -> int:
    return len(list(logs.hosted.of(partition).log.read()))


def test_other_settings_end_a_pause_and_change_the_number_of_threads(life: Life) -> None:
    other = TopicPartition("other", 0)

    async def work() -> None:
        logs = life.open(cleaning=CleanerSettings(backoff_ms=3_600_000, max_bytes_per_second=1))
        async with cleaning(logs):
            await asyncio.sleep(0)  # so that the cleaner's task has begun
            await until(lambda: not logs.cleaner._choosing.locked())
            fill(logs)
            fill(logs, other, "other-id")
            logs.cleaner.configure(STOPPED)
            await until(lambda: len(logs.cleaner.queue.in_progress) == 1)
            logs.cleaner.configure(STOPPED._replace(threads=2))
            await until(lambda: len(logs.cleaner.queue.in_progress) == 2)
        await asyncio.get_running_loop().run_in_executor(None, logs.close)

    run(work)


def test_logs_are_compacted_whose_policy_says_so(life: Life) -> None:
    retained = TopicPartition("retained", 0)

    async def work() -> None:
        logs = life.open(cleaning=QUICK)
        fill(logs)
        fill(logs, retained, config=TopicConfig(segment_bytes=1000))
        async with cleaning(logs):
            await until(lambda: count(logs) < 30 and not logs.cleaner.queue.in_progress)
            assert 0 < logs.cleaner.statistics.recopy_percent < 50
            buffer_size = logs.hosted.of(TP).log.config.dedupe_buffer_size
            assert KeyMap(buffer_size, 10**9).limit == pytest.approx(0.9 * buffer_size / KEY_BYTES, abs=1)
        assert count(logs, retained) == 100
        logs.execute(effects.ConfigureLog(retained, COMPACTED))
        async with cleaning(logs):
            await until(lambda: count(logs, retained) < 30 and not logs.cleaner.queue.in_progress)
        await asyncio.get_running_loop().run_in_executor(None, logs.close)

    run(work)
    lines = (life.root / "data" / "cleaner-offset-checkpoint").read_text().splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["retained", "0"], ["topic", "0"]]


def test_records_without_a_key_from_before_the_policy_go(life: Life) -> None:
    """As with Kafka's cleaner."""

    async def work() -> None:
        logs = life.open(cleaning=QUICK)
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=1000)))
        for number in range(100):
            logs.execute(effects.AppendAsLeader(TP, build([b"%d" % number * 9], keys=[None]), 0))
        logs.execute(effects.AdvanceHighWatermark(TP, 100))
        logs.execute(effects.ConfigureLog(TP, COMPACTED))
        async with cleaning(logs):
            await until(lambda: count(logs) < 30 or bool(logs.cleaner.queue.uncleanable))
            assert not logs.cleaner.queue.uncleanable
            await until(lambda: not logs.cleaner.queue.in_progress)
        life.crash()

    run(work)


def test_what_is_not_committed_is_not_compacted(life: Life) -> None:
    async def work() -> None:
        logs = life.open(cleaning=QUICK)
        fill(logs)
        for number in range(50):
            logs.execute(effects.AppendAsLeader(TP, build([b"late %d" % number], keys=[b"0"]), 0))
        async with cleaning(logs):
            await until(lambda: count(logs) < 30)
            await until(lambda: not logs.cleaner.queue.in_progress)
        logs.execute(effects.AdvanceHighWatermark(TP, 150))
        assert sum(record.offset >= 100 for record in logs.hosted.of(TP).log.read()) == 50
        life.crash()

    run(work)


def test_a_damaged_log_is_set_aside_and_the_others_are_compacted(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    other = TopicPartition("other", 0)

    async def work() -> None:
        logs = life.open(cleaning=QUICK)
        fill(logs)
        fill(logs, other)
        path = Path(logs.hosted.of(TP).log.segments[1].path)
        with path.open("r+b") as file:
            file.seek(70)
            file.write(b"damage")
        async with cleaning(logs):
            await until(lambda: count(logs, other) < 30 and bool(logs.cleaner.queue.uncleanable))
            await asyncio.sleep(0.02)  # several times the backoff, in which it is not tried again
        (error,) = logs.cleaner.queue.uncleanable.values()
        assert str(path) in error and logs.cleaner.uncleanable_bytes() > 0
        life.crash()

    run(work)
    assert len([record for record in caplog.records if "set aside from compaction" in record.message]) == 1
    assert life.events == [], "the directory has not failed"


@pytest.mark.parametrize("error, failed", [(DiskFullError, 0), (ResourceExhaustedError, 0), (LogFailedError, 1)])
def test_a_full_disk_is_met_again_and_a_failed_log_takes_its_directory_offline(
    life: Life, monkeypatch: pytest.MonkeyPatch, error: type[StorageError], failed: int
) -> None:
    attempts: list[ManagedLog] = []

    def compact(log: ManagedLog, **_: Any) -> None:
        attempts.append(log)
        raise error("cannot write")

    async def work() -> None:
        logs = life.open(cleaning=QUICK)
        fill(logs)
        monkeypatch.setattr(ManagedLog, "compact", compact)
        async with cleaning(logs):
            await until(lambda: len(attempts) > 2 if not failed else bool(life.events))
        assert not logs.cleaner.queue.uncleanable
        assert life.events == [events.LogFailed(TP)] * failed
        await asyncio.get_running_loop().run_in_executor(None, logs.close)

    run(work)


def test_a_deleted_log_ends_its_compaction(life: Life) -> None:
    """And the next partition of its name is left alone."""

    async def work() -> None:
        logs = life.open(cleaning=STOPPED)
        fill(logs)
        async with cleaning(logs):
            await until(lambda: bool(logs.cleaner.queue.in_progress))
            logs.execute(effects.DeleteLog(TP))
            fill(logs, topic_id=OTHER_ID, config=TopicConfig())
            await until(lambda: not list((life.root / "data").glob("*-delete")))
            await until(lambda: not logs.cleaner.queue.in_progress and logs.hosted.background.idle)
        assert count(logs) == 100
        await asyncio.get_running_loop().run_in_executor(None, logs.close)

    run(work)
    with Log.open(life.root / "data" / "topic-0", read_only=True) as log:
        assert len(list(log.read())) == 100 and not log.verify().damages


def test_the_end_of_the_broker_ends_a_compaction(life: Life) -> None:
    async def work() -> None:
        logs = life.open(cleaning=STOPPED)
        fill(logs)
        async with cleaning(logs):
            await until(lambda: bool(logs.cleaner.queue.in_progress))
        assert await asyncio.get_running_loop().run_in_executor(None, logs.close)

    run(work)


def test_a_truncated_log_is_compacted_again(life: Life) -> None:
    """Kafka's maybeTruncateCheckpoint: what follows the cut was never compacted."""

    async def work() -> None:
        logs = life.open(cleaning=QUICK)
        fill(logs)
        async with cleaning(logs):
            await until(lambda: count(logs) < 30)
            logs.execute(effects.TruncateTo(TP, 40))
            end = logs.hosted.of(TP).log.log_end_offset
            for number in range(60):
                logs.execute(effects.AppendAsLeader(TP, build([b"again %d" % number], keys=[b"%d" % (number % 10)]), 0))
            logs.execute(effects.AdvanceHighWatermark(TP, end + 60))
            await until(lambda: count(logs) < 30)
        assert {record.key: record.value for record in logs.hosted.of(TP).log.read()} == {
            b"%d" % key: b"again %d" % (50 + key) for key in range(10)
        }
        life.crash()

    run(work)
