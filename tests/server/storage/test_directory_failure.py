"""A log that fails takes its directory offline (F37)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import kreplog
from kreplog.config import TopicConfig
from kreplog.core import effects, events
from kreplog.errors import LogFailedError, ResourceExhaustedError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directory_failure import DirectoryFailureHandler
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.types import TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import ID, TP, Life, opened


def test_a_failed_log_takes_its_directory_with_it_and_no_other(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """F37: the broker lives on with the others."""
    logs = life.open("a", "b")
    neighbour, elsewhere = TopicPartition("neighbour", 0), TopicPartition("elsewhere", 0)

    async def work() -> None:
        opened(logs)
        opened(logs, ID, elsewhere)
        opened(logs, ID, neighbour)
        assert [at for at, _ in logs.hosted.in_directory(logs.hosted.directories[0])] == [neighbour, TP]

        def fail(*_: Any, **_settings: Any) -> None:
            raise LogFailedError("the disk is gone")

        monkeypatch.setattr(kreplog.Log, "append_batches", fail)
        with pytest.raises(LogFailedError):
            logs.execute(effects.AppendAsLeader(TP, b"", 0))
        await asyncio.sleep(0)
        assert set(life.events) == {events.LogFailed(TP), events.LogFailed(neighbour)}
        with pytest.raises(LogFailedError):
            opened(logs)
        assert opened(logs, ID, elsewhere).state.leo == 0
        assert opened(logs, ID, TopicPartition("new", 0)).state.leo == 0
        assert [at.topic for at, _ in logs.hosted.in_directory(logs.hosted.directories[1])] == ["elsewhere", "new"]

    run(work)
    logs.close()
    assert not (life.root / "a" / ".kafka_cleanshutdown").exists()


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
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log), _) = logs.hosted.in_directory(logs.hosted.directories[0])
        while len(log.segments) < 3:
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
        await until(lambda: len(life.events) >= 2)
        assert sorted(life.events, key=str) == [events.LogFailed(TP), events.LogFailed(other)]

    run(work)
    assert logs.hosted.directories[0].failed
    life.crash()


def test_logs_of_a_failed_directory_are_abandoned_though_a_thread_has_them(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's end does not wait for an fsync there."""
    logs = life.open()
    first, go_on = threading.Event(), threading.Event()

    def slow(log: ManagedLog) -> None:
        first.set()
        assert go_on.wait(10)

    monkeypatch.setattr(ManagedLog, "flush_sealed", slow)
    other = TopicPartition("topic", 1)

    async def work() -> None:
        opened(logs, partition=other)
        logs.execute(effects.OpenLog(TP, ID, TopicConfig(segment_bytes=300)))
        ((_, log), (_, idle)) = logs.hosted.in_directory(logs.hosted.directories[0])
        while len(log.segments) < 3:
            logs.execute(effects.AppendAsLeader(TP, batch, 0))
        await until(first.is_set)
        logs.hosted.directories[0].failed = True
        clean = logs.close()
        closed = log.closed, idle.closed
        go_on.set()
        assert (clean, *closed) == (False, True, True)

    run(work)


def test_replicas_are_walked_at_the_first_failure_alone(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of thousands of logs reports the failure of their directory."""
    logs = life.open()
    opened(logs)
    walks: list[HostedReplicas] = []
    items = HostedReplicas.items

    def counted(hosted: HostedReplicas) -> Any:
        walks.append(hosted)
        return items(hosted)

    monkeypatch.setattr(HostedReplicas, "items", counted)
    handler = DirectoryFailureHandler(logs.hosted, life.events.append)
    (directory,) = logs.hosted.directories
    handler.fail(directory, ResourceExhaustedError("no descriptors"))
    assert (len(walks), life.events) == (0, [])
    for _ in range(3):
        handler.fail(directory, LogFailedError("the disk is gone"))
    assert (len(walks), life.events) == (1, [events.LogFailed(TP)])
    life.crash()
