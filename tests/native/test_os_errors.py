"""Errors of the system reach the user as StorageError, with the path; a log that has failed says so when it closes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig, Topic
from kreplog._native.directory import TopicLock
from kreplog.errors import LogFailedError, LogLockedError, StorageError
from kreplog.managed_log import ManagedLog

SMALL = LogConfig(segment_bytes=600)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "power-0"


def filled(path: Path, config: LogConfig = SMALL) -> None:
    with Log.open(path, config) as log:
        for number in range(40):
            log.append(b"%0100d" % number, b"%d" % (number % 3), timestamp_ms=number)


def failing(monkeypatch: pytest.MonkeyPatch, call: str, part: str) -> None:
    """Have an os call fail on paths that contain `part`."""
    real = getattr(os, call)

    def fail(path: Any, *rest: Any, **named: Any) -> Any:
        if part in os.fspath(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *rest, **named)

    monkeypatch.setattr(os, call, fail)


def open_and_close(path: Path) -> None:
    Log.open(path, SMALL).close()


def look_again(path: Path) -> None:
    """At the log of another program, which has no state file."""
    (path / "kreplog.state").unlink()
    with Log.open(path, SMALL, read_only=True) as log, pytest.MonkeyPatch.context() as patch:
        failing(patch, "stat", "power-0")
        log.high_watermark  # noqa: B018 - it looks at the directory


def compact(path: Path) -> None:
    with Log.open(path, LogConfig(segment_bytes=600, cleanup_policy="compact")) as log:
        log.compact(force=True)


@pytest.mark.parametrize(
    ("call", "part", "act", "message"),
    [
        ("listdir", "power-0", open_and_close, "cannot list"),
        ("stat", "no file", look_again, "cannot look at"),
        ("utime", "power-0", compact, "cannot change the time of"),
        ("stat", ".log", compact, "cannot look at"),
    ],
)
def test_a_failed_call(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, part: str, act: Callable[[Path], None], message: str
) -> None:
    filled(path)
    failing(monkeypatch, call, part)
    with pytest.raises(StorageError, match=f"{message} .*power-0.*errno 5") as caught:
        act(path)
    assert caught.value.path is not None and "power-0" in caught.value.path


def test_the_time_of_a_damaged_segment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    segment = min(path.glob("*.log"))
    segment.write_bytes(bytes(segment.stat().st_size))
    (path / segment.name.replace(".log", ".timeindex")).unlink()
    with Log.open(path, LogConfig(segment_bytes=600, retention_ms=1)) as log:
        with monkeypatch.context() as patch:
            failing(patch, "stat", ".log")
            with pytest.raises(StorageError, match=r"cannot look at .*\.log: .*errno 5"):
                log.enforce_retention()
        assert log.enforce_retention(10**14) > 0


def test_a_file_system_without_locks_is_not_another_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    for act in (open_and_close, lambda path: Topic.open(path.with_name("orders"), 1).close()):
        with pytest.raises(StorageError, match=r"cannot lock .*No locks available") as caught:
            act(path)
        assert not isinstance(caught.value, LogLockedError)


def test_a_lock_file_that_is_never_the_one_that_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another replaces it all the time, or on a file system whose stat and fstat differ."""
    lock = TopicLock(str(tmp_path), "orders")
    lock.acquire()
    lock.release()
    real = fcntl.flock
    locked: list[int] = []

    def replace_and_lock(file: int, operation: int) -> None:
        locked.append(operation)
        (tmp_path / "other").touch()
        os.replace(tmp_path / "other", tmp_path / "orders.lock")
        real(file, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", replace_and_lock)
        with pytest.raises(StorageError, match=r"cannot lock .*orders\.lock: each time it is another file") as caught:
            lock.acquire()
    assert caught.value.path == str(tmp_path / "orders.lock")
    assert len(locked) == 1000
    lock.acquire()
    lock.close()


def fail_an_append(log: Log) -> None:
    """Which needs a new segment, where its directory cannot be found."""
    os.rename(log.path, log.path + "-moved")
    Path(log.path).touch()
    with pytest.raises(LogFailedError):
        log.append(b"x" * 1000)
    os.unlink(log.path)
    os.rename(log.path + "-moved", log.path)


@pytest.mark.parametrize("flushed", [True, False])
def test_a_log_that_has_failed_says_when_it_closes_what_may_not_be_durable(path: Path, flushed: bool) -> None:
    log = Log.open(path, SMALL)
    for number in range(4):
        log.append(b"%d" % number)
        if number == 1 or flushed:
            log.flush()
    fail_an_append(log)
    if flushed:
        log.close()
    else:
        with pytest.raises(LogFailedError, match="the records from offset 2 on were not made durable") as caught:
            log.close()
        assert (caught.value.partition, caught.value.path, caught.value.offset) == ("power-0", str(path), 2)
        assert isinstance(caught.value.__cause__, StorageError)
    log.close()
    with Log.open(path) as again:
        assert [record.value for record in again.read()] == [b"0", b"1", b"2", b"3"]


def test_a_topic_with_a_failed_log_says_so_when_it_closes(path: Path) -> None:
    topic = Topic.open(path.with_name("orders"), 2, config=SMALL)
    topic.append(b"a", partition=0)
    topic.append(b"b", partition=1)
    fail_an_append(topic.log(0))
    with pytest.raises(LogFailedError, match="orders-0: the records from offset 0 on"):
        topic.close()
    with Topic.open(path.with_name("orders")) as again:
        assert sorted(record.value for record in again.read()) == [b"a", b"b"]


def test_a_managed_log_leaves_that_to_its_owner(path: Path) -> None:
    log = ManagedLog.open(path, SMALL)
    log.append(b"a")
    fail_an_append(log)
    log.close()
    assert log.closed
