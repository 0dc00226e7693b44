"""LogManager and DataDirectory: what is on disk, in this life and the next."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kreplog
from kreplog._native.batch import build
from kreplog.config import LogConfig, TopicConfig
from kreplog.core import effects, events
from kreplog.core import messages as m
from kreplog.core.memory import MemoryAccount
from kreplog.errors import LogFailedError, LogLockedError, StorageError, UsageError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory, read_topic_id
from kreplog.server.storage.log_manager import LogManager, Progress
from kreplog.server.storage.open_files import OpenFiles
from kreplog.types import TopicPartition
from tests.server.loop import run, until

TP = TopicPartition("topic", 0)
ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBA"


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """One record batch of three records."""
    with kreplog.Log.open(tmp_path_factory.mktemp("source") / "source-0") as log:
        log.append_many([b"a", b"b", b"c"])
        return bytes(log.fetch(0).data)


class Life:
    """LogManager over directories in `root`, from open() to stop() or crash()."""

    def __init__(self, root: Path, pool: ThreadPoolExecutor) -> None:
        self.root = root
        self.pool = pool
        self.events: list[events.Event] = []

    def open(
        self,
        *names: str,
        boot: str = "boot",
        complete: bool = True,
        progress: Progress | None = None,
        stray_retention_ms: int = -1,
        files: OpenFiles | None = None,
        memory: MemoryAccount | None = None,
    ) -> LogManager:
        directories = [DataDirectory(str(self.root / name), 1, boot) for name in names or ("data",)]
        self.logs = LogManager(
            directories,
            LogConfig(replicated=True),
            self.events.append,
            self.pool,
            complete=complete,
            stray_retention_ms=stray_retention_ms,
            files=files,
            memory=memory,
        )
        self.logs.load(2, progress)
        return self.logs

    def crash(self) -> None:
        for directory in self.logs.directories:
            for _, log in self.logs.in_directory(directory):
                log._abandon()
            directory.close(clean=False)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with ThreadPoolExecutor(2) as pool:
        yield Life(tmp_path, pool)


def opened(logs: LogManager, topic_id: str = ID, partition: TopicPartition = TP) -> effects.OpenedLog:
    answer: effects.OpenedLog = logs.answer(effects.OpenLog(partition, topic_id, TopicConfig()))
    return answer


def appended(logs: LogManager, batch: bytes, epoch: int = 0, partition: TopicPartition = TP) -> Any:
    """The answer of an append as a leader, on an event loop as a broker's, with what it has left due done."""

    answers = []

    async def work() -> None:
        answers.append(logs.answer(effects.AppendAsLeader(partition, batch, epoch)))
        await until(lambda: not logs._tasks)
        assert not any(
            log.has_unflushed_segments for directory in logs.directories for _, log in logs.in_directory(directory)
        )

    run(work)
    return answers[0]


def found_offsets(life: Life, logs: LogManager, *timestamps: int) -> list[tuple[int, int]]:
    """What OffsetFound events say of these."""

    async def work() -> None:
        for index, timestamp in enumerate(timestamps):
            logs.answer(effects.OffsetForTimestamp((0, index), TP, timestamp))
        await until(lambda: len(found()) == len(timestamps))

    def found() -> dict[int, tuple[int, int]]:
        return {one.tag[1]: (one.offset, one.timestamp) for one in life.events if isinstance(one, events.OffsetFound)}

    run(work)
    return [found()[index] for index in range(len(timestamps))]


def test_every_effect_is_answered(life: Life, batch: bytes) -> None:
    logs = life.open()
    assert opened(logs) == effects.OpenedLog(effects.LogState(0, 0, ()), 0)
    assert logs.answer(effects.AssignLeaderEpoch(TP, 5)) == effects.LogState(0, 0, ((5, 0),))
    info, state = appended(logs, batch, 5)
    assert (info.first_offset, info.last_offset, state) == (0, 2, effects.LogState(3, 0, ((5, 0),)))
    assert len(logs.answer(effects.ReadLog(TP, 0, 0, 100))) == 0
    assert len(logs.answer(effects.ReadLog(TP, 0, 3, 1))) == len(batch)
    assert [logs.answer(effects.SizeFrom(TP, offset)) for offset in (0, 2, 3)] == [len(batch), len(batch), 0]
    logs.answer(effects.AdvanceHighWatermark(TP, 3))
    assert len(logs.answer(effects.ReadLog(TP, 0, 3, 1 << 20))) == len(batch)
    (first, latest, none, beyond) = found_offsets(life, logs, 0, m.MAX_TIMESTAMP, -9, 2**62)
    assert first[0] == 0 and first[1] > 0
    assert latest == first
    assert none == beyond == (-1, -1)
    assert logs.answer(effects.DeleteRecordsBefore(TP, 2)).log_start == 2
    assert logs.answer(effects.TruncateTo(TP, 2)).leo <= 2
    assert logs.answer(effects.TruncateFullyAndStartAt(TP, 9)) == effects.LogState(9, 9, ())
    with pytest.raises(StorageError, match="topic-0: offset 3 is gone"):
        logs.answer(effects.SizeFrom(TP, 3))
    life.crash()


def test_a_killed_broker_finds_what_it_had(life: Life, batch: bytes) -> None:
    logs = life.open("a", "b")
    for directory in logs.directories:
        directory.clear_unclean()
    opened(logs)
    opened(logs, OTHER_ID, TopicPartition("other", 3))
    assert [len(logs.in_directory(directory)) for directory in logs.directories] == [1, 1]
    appended(logs, batch)
    logs.answer(effects.AdvanceHighWatermark(TP, 3))
    life.crash()
    logs = life.open("a", "b")
    assert logs.on_disk() == {TopicPartition("other", 3): OTHER_ID, TP: ID}
    assert opened(logs) == effects.OpenedLog(effects.LogState(3, 0, ((0, 0),)), 3)
    assert not any(directory.was_clean or directory.unclean for directory in logs.directories)
    assert logs.close()
    assert all(directory.was_clean for directory in life.open("a", "b").directories)
    life.crash()


def test_recovery_tells_how_far_it_is_and_reads_nothing_after_a_clean_stop(life: Life, batch: bytes) -> None:
    logs = life.open()
    places = [TopicPartition("topic", number) for number in range(5)]
    for place in places:
        opened(logs, partition=place)
        appended(logs, batch, partition=place)
    life.crash()

    told: list[tuple[int, int, int]] = []
    logs = life.open(progress=lambda *facts: told.append(facts))
    assert told[-1] == (5, 5, 5 * len(batch))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert {done for done, _, _ in told} >= {1, 2, 3, 4, 5}
    assert logs.close()
    told.clear()
    life.open(progress=lambda *facts: told.append(facts))
    assert told == [(number, 5, 0) for number in range(1, 6)]
    life.crash()


def test_a_crash_while_loading_does_not_look_clean(life: Life) -> None:
    """F35: the mark is gone before anything is loaded."""
    life.open()
    life.logs.close()
    assert (life.root / "data" / ".kafka_cleanshutdown").exists()
    first = DataDirectory(str(life.root / "data"), 1, "boot")
    assert first.was_clean
    first.close(clean=False)
    second = DataDirectory(str(life.root / "data"), 1, "boot")
    assert not second.was_clean
    second.close(clean=False)


def test_only_another_boot_makes_a_crash_unclean(life: Life) -> None:
    logs = life.open(boot="first")
    assert logs.directories[0].is_new and not logs.directories[0].unclean
    life.crash()
    logs = life.open(boot="first")
    assert logs.directories[0].is_new, "no controller has taken that in yet"
    logs.directories[0].clear_unclean()
    life.crash()
    logs = life.open(boot="first")
    assert not logs.directories[0].unclean and not logs.directories[0].is_new
    life.crash()
    assert life.open(boot="second").directories[0].unclean
    life.crash()
    logs = life.open(boot="second")
    assert logs.directories[0].unclean, "nobody has been told yet"
    logs.directories[0].clear_unclean()
    life.crash()
    assert not life.open(boot="second").directories[0].unclean
    life.logs.close()
    assert not life.open(boot="third").directories[0].unclean
    life.crash()


def test_a_replica_of_another_topic_is_set_aside_and_its_checkpoints_forgotten(life: Life, batch: bytes) -> None:
    """KIP-516: the new log must not believe what was noted down of the old."""
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.answer(effects.AppendAsLeader(TP, batch, 4))
        logs.answer(effects.AdvanceHighWatermark(TP, 3))
        await logs.write_checkpoints()
        checkpoint = life.root / "data" / "replication-offset-checkpoint"
        assert "topic 0 3" in checkpoint.read_text()
        logs.answer(effects.SetAsideStray(TP))
        assert opened(logs, OTHER_ID) == effects.OpenedLog(effects.LogState(0, 0, ()), 0)
        assert "topic 0" not in checkpoint.read_text()

    run(work)
    (stray,) = (life.root / "data").glob("topic-0.*-stray")
    assert read_topic_id(stray) == ID
    assert logs.strays.keys() == [(ID, 0)]
    assert read_topic_id(life.root / "data" / "topic-0") == OTHER_ID
    life.crash()


def test_a_deleted_replica_is_gone_at_once_and_its_files_soon(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.answer(effects.AppendAsLeader(TP, batch, 0))
        view = logs.answer(effects.ReadLog(TP, 0, 3, 1 << 20))
        logs.answer(effects.Flush(TP))
        logs.answer(effects.DeleteLog(TP))
        assert logs.on_disk() == {}
        assert not (life.root / "data" / "topic-0").exists()
        opened(logs, OTHER_ID)
        await until(lambda: not list((life.root / "data").glob("*-delete")))
        assert len(view) == len(batch), "a response that is being sent keeps its bytes"
        assert bytes(view)[61:] == batch[61:]

    run(work)
    assert life.events == [], "nobody hears of the fsync of a log that is gone"
    life.crash()


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(life: Life) -> None:
    leftover = life.root / "data" / "topic-0.0123-delete"
    leftover.mkdir(parents=True)
    life.open()
    assert not leftover.exists()
    life.crash()


def test_fsyncs_are_shared(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        for _ in range(5):
            logs.answer(effects.AppendAsLeader(TP, batch, 0))
            logs.answer(effects.Flush(TP))
        await until(lambda: events.Flushed(TP, 15) in life.events)

    run(work)
    assert len(life.events) <= 2
    life.crash()


def test_a_checkpoint_never_drops_a_replica_that_is_on_disk(life: Life, batch: bytes) -> None:
    """F31, KAFKA-1647: also one that could not be opened in this life."""
    logs = life.open()

    async def write() -> None:
        await life.logs.write_checkpoints()

    opened(logs)
    appended(logs, batch)
    logs.answer(effects.AdvanceHighWatermark(TP, 3))
    run(write)
    life.crash()
    folder = life.root / "data" / "topic-0"
    held = kreplog.Log.open(folder, LogConfig(replicated=True))  # somebody else has it open: it cannot be opened here
    life.open()
    run(write)
    assert "topic 0 3" in (life.root / "data" / "replication-offset-checkpoint").read_text()
    assert life.logs.on_disk() == {TP: ID}
    with pytest.raises(StorageError):
        opened(life.logs)
    life.crash()
    held._abandon()


def test_a_failed_log_takes_its_directory_with_it_and_no_other(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """F37: the broker lives on with the others."""
    logs = life.open("a", "b")
    neighbour, elsewhere = TopicPartition("neighbour", 0), TopicPartition("elsewhere", 0)

    async def work() -> None:
        opened(logs)
        opened(logs, ID, elsewhere)
        opened(logs, ID, neighbour)
        assert [at for at, _ in logs.in_directory(logs.directories[0])] == [neighbour, TP]

        def fail(*_: Any, **_settings: Any) -> None:
            raise LogFailedError("the disk is gone")

        monkeypatch.setattr(kreplog.Log, "append_batches", fail)
        with pytest.raises(LogFailedError):
            logs.answer(effects.AppendAsLeader(TP, b"", 0))
        await asyncio.sleep(0)
        assert set(life.events) == {events.LogFailed(TP), events.LogFailed(neighbour)}
        with pytest.raises(LogFailedError):
            opened(logs)
        assert opened(logs, ID, elsewhere).state.leo == 0
        assert opened(logs, ID, TopicPartition("new", 0)).state.leo == 0
        assert [at.topic for at, _ in logs.in_directory(logs.directories[1])] == ["elsewhere", "new"]

    run(work)
    logs.close()
    assert not (life.root / "a" / ".kafka_cleanshutdown").exists()


def test_a_high_watermark_advances_whatever_becomes_of_the_log(life: Life, batch: bytes) -> None:
    """An fsync in another thread has failed, and the core hears of it after this step."""
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.answer(effects.AppendAsLeader(TP, batch, 0))
        ((_, replica),) = logs.in_directory(logs.directories[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(replica), "advance_high_watermark", _refuse, raising=False)
            logs.answer(effects.AdvanceHighWatermark(TP, 1))
        await asyncio.sleep(0)
        assert life.events == [events.LogFailed(TP)]

    run(work)
    logs.close()


def _refuse(*_: Any) -> None:
    raise LogFailedError("the disk is gone")


def test_nothing_is_made_anew_that_may_be_on_the_missing_disk(life: Life) -> None:
    logs = life.open(complete=False)
    with pytest.raises(StorageError, match="none of the log directories"):
        opened(logs)
    life.crash()


def test_directories_have_one_owner(life: Life, tmp_path: Path) -> None:
    life.open()
    with pytest.raises(UsageError, match="in use by another broker process"):
        DataDirectory(str(tmp_path / "data"), 1, "boot")
    life.crash()
    with pytest.raises(UsageError, match="is that of broker 1, not of 2"):
        DataDirectory(str(tmp_path / "data"), 2, "boot")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        DataDirectory(str(tmp_path / "file"), 1, "boot")


def test_nobody_else_writes_where_a_broker_is(life: Life, tmp_path: Path) -> None:
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
    logs.answer(effects.AssignLeaderEpoch(TP, 1))
    assert added() == set()
    appended(logs, batch, 1)
    assert added() == {f"{0:020}.log"}
    logs.close()
    logs = life.open()
    assert opened(logs).state.leo == 3
    assert added() == set()
    life.crash()


def test_what_kafka_left_without_an_id_is_never_deleted(life: Life, batch: bytes) -> None:
    folder = life.root / "data" / "topic-0"
    folder.parent.mkdir()
    with kreplog.Log.open(folder) as log:
        log.append(b"old")
    (folder / "partition.metadata").unlink()
    logs = life.open()
    assert logs.on_disk() == {}
    assert opened(logs).state.leo == 0
    assert list((life.root / "data").glob("topic-0.*-aside"))
    life.crash()


def test_a_log_goes_by_its_topics_settings_from_its_opening_on_and_when_they_change(life: Life, batch: bytes) -> None:
    logs = life.open()
    logs.answer(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
    ((_, log),) = logs.in_directory(logs.directories[0])
    assert log.config == LogConfig(replicated=True, segment_bytes=300)
    assert logs.limited() == []

    async def fill() -> None:
        for _ in range(9):
            logs.answer(effects.AppendAsLeader(TP, batch, 0))

    run(fill)
    logs.answer(effects.AdvanceHighWatermark(TP, 27))
    before = len(log.segments)
    assert logs.answer(effects.EnforceRetention(TP)).log_start == 0
    logs.answer(effects.ConfigureLog(TP, TopicConfig(retention_bytes=0, max_message_bytes=128)))
    assert logs.limited() == [TP]
    state = logs.answer(effects.EnforceRetention(TP))
    after = len(log.segments)
    assert (before, after) == (3, 1)
    assert state == effects.LogState(27, log.segments[0].base_offset, ((0, state.log_start),))
    logs.answer(effects.ConfigureLog(TP, TopicConfig()))
    assert log.config == LogConfig(replicated=True) and logs.limited() == []
    life.crash()
    reopened = life.open()
    reopened.answer(effects.OpenLog(TP, ID, TopicConfig(retention_ms=5)))
    assert reopened.limited() == [TP]
    life.crash()


def test_a_failed_log_keeps_its_settings(life: Life) -> None:
    logs = life.open()
    opened(logs)
    ((_, log),) = logs.in_directory(logs.directories[0])
    log._abandon()
    logs.answer(effects.ConfigureLog(TP, TopicConfig(retention_ms=5)))
    assert log.config.retention_ms == -1
    life.crash()


def test_the_end_writes_the_checkpoints_of_a_directory_once(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each log took minutes for thousands of them."""
    logs = life.open()
    places = [TopicPartition("topic", number) for number in range(20)]
    for place in places:
        opened(logs, partition=place)
        appended(logs, batch, partition=place)
        logs.answer(effects.AdvanceHighWatermark(place, 3))
    replaced: list[str] = []
    replace = os.replace

    def counted(source: str, target: str) -> None:
        replaced.append(target.rpartition("/")[2])
        replace(source, target)

    monkeypatch.setattr(os, "replace", counted)
    assert logs.close()
    assert sorted(name for name in replaced if name.endswith("-offset-checkpoint")) == [
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    for name in ("recovery-point", "replication"):
        text = (life.root / "data" / f"{name}-offset-checkpoint").read_text()
        assert text.splitlines()[1:] == ["20", *sorted((f"topic {one.partition} 3" for one in places), key=by_number)]


def by_number(line: str) -> int:
    return int(line.split()[1])


def test_what_was_made_is_durable_before_the_answer(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody waits for an epoch that was dropped; a log that cannot be synced fails with its directory."""
    logs = life.open()
    told: list[str] = []
    sync_files = ManagedLog.sync_files

    def noted(log: ManagedLog) -> None:
        sync_files(log)
        told.append(str(log.topic_partition))

    def fail(log: ManagedLog) -> None:
        raise LogFailedError("the disk is gone")

    monkeypatch.setattr(ManagedLog, "sync_files", noted)

    async def answered() -> None:
        answer = asyncio.Event()

        def then() -> None:
            told.append("answer")
            answer.set()

        logs.sync_files(then)
        await answer.wait()

    async def work() -> None:
        for number in range(3):
            opened(logs, partition=TopicPartition("topic", number))
        await answered()
        assert sorted(told[:3]) == ["topic-0", "topic-1", "topic-2"] and told[3:] == ["answer"]
        told.clear()
        logs.answer(effects.TruncateTo(TP, 0))
        await answered()
        assert told[0] == "answer", "it is synced later"
        await until(lambda: told == ["answer", "topic-0"])
        monkeypatch.setattr(ManagedLog, "sync_files", fail)
        logs.answer(effects.TruncateTo(TP, 0))
        await answered()
        await until(lambda: events.LogFailed(TP) in life.events)

    run(work)
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
        logs.answer(effects.DeleteLog(TP))
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
        logs.answer(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log),) = logs.in_directory(logs.directories[0])

        def append() -> None:
            if follower:
                at = log.log_end_offset.to_bytes(8, "big")
                logs.answer(effects.AppendAsFollower(TP, at + batch[8:]))
            else:
                logs.answer(effects.AppendAsLeader(TP, batch, 0))

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


def test_a_sealed_segment_that_cannot_be_made_durable_fails_the_directory(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = life.open()
    other = TopicPartition("topic", 1)

    def fail(log: ManagedLog) -> None:
        raise LogFailedError("the disk is gone")

    monkeypatch.setattr(ManagedLog, "flush_sealed", fail)

    async def work() -> None:
        opened(logs, partition=other)
        logs.answer(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log), _) = logs.in_directory(logs.directories[0])
        while len(log.segments) < 3:
            logs.answer(effects.AppendAsLeader(TP, batch, 0))
        await until(lambda: len(life.events) >= 2)
        assert sorted(life.events, key=str) == [events.LogFailed(TP), events.LogFailed(other)]

    run(work)
    assert logs.directories[0].failed
    life.crash()


def test_nobody_hears_that_what_was_sealed_in_a_deleted_folder_cannot_be_made_durable(
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
        logs.answer(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log),) = logs.in_directory(logs.directories[0])
        while len(log.segments) < 3:
            logs.answer(effects.AppendAsLeader(TP, batch, 0))
        await until(begun.is_set)
        logs.answer(effects.DeleteLog(TP))
        go_on.set()
        await until(lambda: not list((life.root / "data").glob("topic-*")))

    run(work)
    assert life.events == [] and not logs.directories[0].failed
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == []
    life.crash()


def test_logs_of_a_failed_directory_are_left_to_the_threads_that_have_them(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits there for its turn at fsync would wait for ever, and the broker's end for it."""
    logs = life.open()
    first, go_on = threading.Event(), threading.Event()

    def slow(log: ManagedLog) -> None:
        first.set()
        assert go_on.wait(10)

    monkeypatch.setattr(ManagedLog, "flush_sealed", slow)
    other = TopicPartition("topic", 1)

    async def work() -> None:
        opened(logs, partition=other)
        logs.answer(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log), (_, idle)) = logs.in_directory(logs.directories[0])
        while len(log.segments) < 3:
            logs.answer(effects.AppendAsLeader(TP, batch, 0))
        await until(first.is_set)
        logs.directories[0].failed = True
        clean = logs.close()
        closed = log.closed, idle.closed
        go_on.set()
        assert (clean, *closed) == (False, False, True)

    run(work)


def test_what_retention_sealed_is_let_go_of(life: Life) -> None:
    """Its mapping would keep the deleted file's room."""
    logs = life.open()

    async def work() -> None:
        logs.answer(effects.OpenLog(TP, ID, TopicConfig(retention_ms=1)))
        ((_, log),) = logs.in_directory(logs.directories[0])
        logs.answer(effects.AppendAsLeader(TP, build([b"old"], timestamps_ms=[1]), 0))
        logs.answer(effects.AdvanceHighWatermark(TP, 1))
        log.flush()
        assert logs.answer(effects.EnforceRetention(TP)).log_start == 1
        await until(lambda: not log.has_unflushed_segments)

    run(work)
    life.crash()
