"""The logs of a broker whose process has no descriptors or memory: none fails, what was refused is done again."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kreplog
from kreplog import Log
from kreplog.core import effects, events
from kreplog.errors import LogFailedError, ReplicaRefusedError, ResourceExhaustedError, StorageError, is_exhaustion
from kreplog.managed_log import ManagedLog, keep_open
from kreplog.server.storage import flusher
from kreplog.server.storage.directories import DataDirectory, known_topic_id
from kreplog.server.storage.open_files import UNLIMITED, OpenFiles
from kreplog.types import TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import ID, TP, Life, opened

NEW = TopicPartition("new", 0)


def exhausted(*_: Any, **_settings: Any) -> Any:
    raise ResourceExhaustedError("no descriptors are left")


def interrupted(*_: Any, **_settings: Any) -> Any:
    raise LogFailedError("half done") from ResourceExhaustedError("no descriptors are left")


@contextmanager
def refusing(owner: Any, name: str, how: Any = exhausted) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, how, raising=False)
        yield


@pytest.mark.parametrize("how", [exhausted, interrupted])
def test_no_effect_that_finds_no_descriptor_fails_its_directory(life: Life, batch: bytes, how: Any) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        with refusing(Log, "append_batches", how), pytest.raises(StorageError) as caught:
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
        assert is_exhaustion(caught.value)
        with refusing(Log, "delete_records_before", how), pytest.raises(StorageError):
            logs.execute(effects.DeleteRecordsBefore(TP, 0))
        assert logs.execute(effects.AppendAsLeader(TP, batch, 0))[1].leo == 3
        assert life.events == [] and not logs.hosted.directories[0].failed

    run(work)
    assert logs.close()


def test_all_logs_are_synced_where_descriptors_run_out(life: Life, batch: bytes) -> None:
    """A log holds a descriptor until its records are durable."""
    logs = life.open()

    async def work() -> None:
        opened(logs, partition=NEW)
        opened(logs)
        logs.execute(effects.AppendAsLeader(NEW, batch, 0))
        assert logs.hosted.of(NEW).log.recovery_point == 0
        with refusing(Log, "append_batches"), pytest.raises(ResourceExhaustedError):
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
        await until(lambda: logs.hosted.of(NEW).log.recovery_point == 3)

    run(work)
    assert logs.close()


def test_all_logs_are_synced_before_descriptors_run_out(life: Life, batch: bytes) -> None:
    """More sealed segments than may be open hold a descriptor each."""
    logs = life.open()

    async def work() -> None:
        opened(logs, partition=NEW)
        opened(logs)
        logs.execute(effects.AppendAsLeader(NEW, batch, 0))
        logs.execute(effects.AppendAsLeader(TP, batch, 0))
        logs.hosted.of(TP).log.roll()
        keep_open(2)
        logs.execute(effects.AppendAsLeader(TP, batch, 0))
        await until(lambda: logs.hosted.of(NEW).log.recovery_point == 3)

    try:
        run(work)
    finally:
        keep_open(-1)
    assert logs.close()


def test_an_error_of_python_itself_is_of_storage(life: Life) -> None:
    logs = life.open()

    def listed(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def work() -> None:
        opened(logs)
        with refusing(Log, "truncate_to", listed), pytest.raises(ResourceExhaustedError):
            logs.execute(effects.TruncateTo(TP, 0))
        assert life.events == [] and not logs.hosted.directories[0].failed

    run(work)
    assert logs.close()


def test_an_fsync_that_finds_no_descriptor_is_made_later(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "EXHAUSTED_RETRY_MS", 1)
    logs = life.open()
    tried = []

    def flush(*_: Any) -> Any:
        tried.append(1)
        exhausted()

    async def work() -> None:
        opened(logs)
        logs.execute(effects.AppendAsLeader(TP, batch, 0))
        with refusing(Log, "flush", flush):
            logs.execute(effects.Flush(TP))
            await until(lambda: len(tried) > 2)
            assert life.events == []
        await until(lambda: life.events == [events.Flushed(TP, 3)])

    run(work)
    assert logs.close()


def test_new_files_that_find_no_descriptor_are_made_durable_before_anybody_counts_on_them(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "EXHAUSTED_RETRY_MS", 1)
    logs = life.open()
    done: list[int] = []
    tried: list[int] = []

    right = ManagedLog.sync_files

    def sync(log: ManagedLog) -> None:
        tried.append(1)
        if len(tried) <= 3:
            assert done == []
            exhausted()
        right(log)

    async def work() -> None:
        opened(logs)
        with refusing(ManagedLog, "sync_files", sync):
            logs.sync_files(lambda: done.append(1))
            await until(lambda: done == [1])
        assert len(tried) == 4
        assert life.events == [] and not logs.hosted.directories[0].failed

    run(work)
    assert logs.close()


def test_checkpoints_that_find_no_descriptor_are_written_the_next_time(life: Life) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        with refusing(DataDirectory, "write_checkpoints"):
            await logs.write_checkpoints()
        assert life.events == [] and not logs.hosted.directories[0].failed

    run(work)
    assert logs.close()


def test_a_replica_that_could_not_be_made_for_want_of_descriptors_leaves_nothing(life: Life) -> None:
    logs = life.open()

    async def work() -> None:
        with refusing(kreplog.Log, "open"), pytest.raises(ResourceExhaustedError):
            opened(logs)
        assert not (life.root / "data" / str(TP)).exists()
        assert opened(logs).state.leo == 0

    run(work)
    assert logs.close()


def test_a_replica_that_found_no_descriptor_at_the_start_is_opened_later(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.execute(effects.AppendAsLeader(TP, batch, 0))

    run(work)
    assert logs.close()
    with refusing(kreplog.Log, "open"):
        logs = life.open()
    with refusing(kreplog.Log, "open"), pytest.raises(ResourceExhaustedError):
        opened(logs)
    assert opened(logs).state.leo == 3
    assert logs.close()


def test_a_log_that_a_change_was_interrupted_in_is_reopened(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.execute(effects.AppendAsLeader(TP, batch, 0))
        ((_, before),) = logs.hosted.in_directory(logs.hosted.directories[0])
        with refusing(Log, "failed", "half done"), refusing(Log, "cause", ResourceExhaustedError("no descriptors")):
            with refusing(ManagedLog, "open_named"), pytest.raises(ResourceExhaustedError):
                opened(logs)
            assert len(logs.execute(effects.ReadLog(TP, 0, 3, 1 << 20))) == len(batch), "what is left is read meanwhile"
            assert opened(logs).state.leo == 3
        ((_, after),) = logs.hosted.in_directory(logs.hosted.directories[0])
        assert after is not before and before.closed
        assert logs.execute(effects.AppendAsLeader(TP, batch, 0))[1].leo == 6
        await asyncio.sleep(0)  # a turn for what would have failed the directory
        assert life.events == [] and not logs.hosted.directories[0].failed

    run(work)
    assert logs.close()


def test_exhaustion_is_not_taken_for_a_missing_topic_id(tmp_path: Path) -> None:
    """One that cannot be read for want of a descriptor would make the replica one of no topic."""
    assert known_topic_id(tmp_path) is None
    (tmp_path / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}\n")
    assert known_topic_id(tmp_path) == ID

    def refuse(*_: Any, **_settings: Any) -> Any:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    with refusing(os, "open", refuse), pytest.raises(ResourceExhaustedError, match=r"metadata"):
        known_topic_id(tmp_path)


def test_replicas_that_do_not_fit_are_refused(life: Life, batch: bytes) -> None:
    files = OpenFiles(110)
    assert files.replicas == 1
    logs = life.open(files=files)

    async def work() -> None:
        opened(logs)
        with pytest.raises(ReplicaRefusedError, match=r"limit on open files, 110, .*ulimit -n"):
            opened(logs, partition=NEW)
        assert not (life.root / "data" / str(NEW)).exists()
        logs.execute(effects.DeleteLog(TP))
        opened(logs, partition=NEW)
        await until(lambda: logs.hosted.background.idle)

    run(work)
    assert logs.close()


def test_replicas_beyond_the_limit_are_refused_at_the_start_until_others_are_deleted(life: Life) -> None:
    logs = life.open()
    opened(logs)
    opened(logs, partition=NEW)
    assert logs.close()
    logs = life.open(files=OpenFiles(110))
    assert set(logs.hosted.topic_ids()) == {TP, NEW}

    async def work() -> None:
        opened(logs, partition=NEW)
        with pytest.raises(ReplicaRefusedError):
            opened(logs)
        logs.execute(effects.DeleteLog(NEW))
        opened(logs)
        await until(lambda: logs.hosted.background.idle)

    run(work)
    assert logs.close()


@pytest.mark.parametrize("limit", [64, 256, 400, 1024, 20_000, 1 << 20, UNLIMITED])
def test_the_shares_are_within_the_limit(limit: int) -> None:
    files = OpenFiles(limit)
    assert files.connections * 4 <= limit
    assert 0 < files.replicas <= files.logs
    if limit > 128:
        assert files.logs + files.connections + max(64, limit // 16) == limit


def test_ten_thousand_replicas_fit_under_a_limit_of_twenty_thousand() -> None:
    assert OpenFiles(20_000).replicas >= 10_000


def test_an_idle_replica_holds_no_descriptor(life: Life, batch: bytes) -> None:
    """And one that was written to one; that is what the shares count."""
    logs = life.open()

    def held() -> int:
        found = 0
        for name in os.listdir("/proc/self/fd"):
            try:
                found += os.readlink(f"/proc/self/fd/{name}").startswith(str(life.root / "data" / "topic"))
            except OSError:
                continue
        return found

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")

    async def work() -> None:
        for number in range(5):
            opened(logs, partition=TopicPartition("topic", number))
        assert held() == 0
        for _ in range(3):
            for number in range(5):
                logs.execute(effects.AppendAsLeader(TopicPartition("topic", number), batch, 0))
                logs.execute(effects.ReadLog(TopicPartition("topic", number), 0, 3, 1 << 20))
        assert held() <= 5

    run(work)
    assert logs.close()
