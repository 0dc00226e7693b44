"""Bad arguments and paths, closed and read-only logs, second writers, forked children: typed errors, no write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig, errors
from kreplog._native import batch
from tests.faults.forked import result_of

ARGUMENTS: dict[str, tuple[Callable[[Any], object], type[Exception]]] = {
    "value of type str": (lambda log: log.append("text"), errors.ArgumentTypeError),
    "value of type int": (lambda log: log.append(7), errors.ArgumentTypeError),
    "value of type list": (lambda log: log.append([b"x"]), errors.ArgumentTypeError),
    "key of type str": (lambda log: log.append(b"x", "key"), errors.ArgumentTypeError),
    "timestamp of type str": (lambda log: log.append(b"x", None, "now"), errors.ArgumentTypeError),
    "timestamp of type float": (lambda log: log.append(b"x", None, 1.5), errors.ArgumentTypeError),
    "timestamp not a number": (lambda log: log.append(b"x", None, float("nan")), errors.ArgumentTypeError),
    "timestamp beyond 64 bits": (lambda log: log.append(b"x", None, 2**63), errors.UsageError),
    "timestamp below -1": (lambda log: log.append(b"x", None, -2), errors.UsageError),
    "headers of type int": (lambda log: log.append(b"x", headers=3), errors.ArgumentTypeError),
    "header name of type bytes": (lambda log: log.append(b"x", headers=[(b"a", b"b")]), errors.ArgumentTypeError),
    "header value of type str": (lambda log: log.append(b"x", headers=[("a", "b")]), errors.ArgumentTypeError),
    "header of three parts": (lambda log: log.append(b"x", headers=[("a", b"b", b"c")]), errors.ArgumentTypeError),
    "header name with a lone surrogate": (lambda log: log.append(b"x", headers=[("\ud800", b"")]), errors.UsageError),
    "record too large": (lambda log: log.append(bytes(5000)), errors.RecordTooLargeError),
    "key too large": (lambda log: log.append(b"", bytes(5000)), errors.RecordTooLargeError),
    "a large record among many": (lambda log: log.append_many([b"a", bytes(5000), b"b"]), errors.RecordTooLargeError),
    "a str among many": (lambda log: log.append_many([b"a", "b"]), errors.ArgumentTypeError),
    "many of type int": (lambda log: log.append_many(5), errors.ArgumentTypeError),
    "many of type bytes": (lambda log: log.append_many(b"abc"), errors.ArgumentTypeError),
    "many of type str": (lambda log: log.append_many("abc"), errors.ArgumentTypeError),
    "fewer keys than values": (lambda log: log.append_many([b"a", b"b"], [b"k"]), errors.UsageError),
    "more timestamps than values": (lambda log: log.append_many([b"a"], None, [1, 2]), errors.UsageError),
    "a bad timestamp among many": (lambda log: log.append_many([b"a", b"b"], None, [1, "2"]), errors.ArgumentTypeError),
    "batches of type str": (lambda log: log.append_batches("x"), errors.ArgumentTypeError),
    "batches of type None": (lambda log: log.append_batches(None), errors.ArgumentTypeError),
    "a batch too large": (lambda log: log.append_batches(batch.build([bytes(5000)])), errors.RecordTooLargeError),
    "read before the start": (lambda log: list(log.read(4)), errors.OffsetOutOfRangeError),
    "read past the end": (lambda log: list(log.read(21)), errors.OffsetOutOfRangeError),
    "read from a negative offset": (lambda log: list(log.read(-1)), errors.OffsetOutOfRangeError),
    "read from a str": (lambda log: list(log.read("0")), errors.ArgumentTypeError),
    "fetch before the start": (lambda log: log.fetch(0), errors.OffsetOutOfRangeError),
    "fetch past the end": (lambda log: log.fetch(21), errors.OffsetOutOfRangeError),
    "fetch of negative size": (lambda log: log.fetch(5, max_bytes=-1), errors.UsageError),
    "fetch with another isolation": (lambda log: log.fetch(5, isolation="dirty"), errors.UsageError),
    "truncate past the end": (lambda log: log.truncate_to(21), errors.OffsetOutOfRangeError),
    "truncate before the start": (lambda log: log.truncate_to(4), errors.OffsetOutOfRangeError),
    "truncate to a float": (lambda log: log.truncate_to(7.0), errors.ArgumentTypeError),
    "delete past the end": (lambda log: log.delete_records_before(21), errors.OffsetOutOfRangeError),
    "start at a negative offset": (lambda log: log.truncate_fully_and_start_at(-1), errors.UsageError),
    "high watermark past the end": (lambda log: log.advance_high_watermark(21), errors.OffsetOutOfRangeError),
    "high watermark of type str": (lambda log: log.advance_high_watermark("9"), errors.ArgumentTypeError),
    "timestamp lookup of a str": (lambda log: log.offset_for_timestamp("now"), errors.ArgumentTypeError),
    "a lower leader epoch": (lambda log: log.assign_leader_epoch(1), errors.FencedLeaderEpochError),
    "a negative leader epoch": (lambda log: log.assign_leader_epoch(-5), errors.KreplogError),
    "appender with a strange codec": (lambda log: log.appender(compression="rar"), errors.UsageError),
    "appender with a negative size": (lambda log: log.appender(batch_bytes=-1), errors.UsageError),
    "appender with a negative linger": (lambda log: log.appender(linger_ms=-1), errors.UsageError),
    "appender with a linger of type str": (lambda log: log.appender(linger_ms="5"), errors.ArgumentTypeError),
    "appender with a linger of type None": (lambda log: log.appender(linger_ms=None), errors.ArgumentTypeError),
    "appender with a linger that is no number": (lambda log: log.appender(linger_ms=float("nan")), errors.UsageError),
    "appender with an endless linger": (lambda log: log.appender(linger_ms=float("inf")), errors.UsageError),
    "appender with a size of type str": (lambda log: log.appender(batch_bytes="1"), errors.ArgumentTypeError),
    "appender with a codec id": (lambda log: log.appender(compression=3), errors.ArgumentTypeError),
    "arrow with a column of type int": (lambda log: log.to_arrow(columns=[3]), errors.ArgumentTypeError),
    "arrow with columns of type int": (lambda log: log.to_arrow(columns=3), errors.ArgumentTypeError),
    "arrow with an unhashable column": (lambda log: log.to_arrow(columns=[["key"]]), errors.ArgumentTypeError),
    "arrow with one str for columns": (lambda log: log.to_arrow(columns="key"), errors.UsageError),
    "arrow without columns": (lambda log: log.to_arrow(columns=[]), errors.UsageError),
    "arrow with a strange unit": (lambda log: log.to_arrow(timestamp_unit="ns"), errors.UsageError),
    "arrow with a unit of type int": (lambda log: log.to_arrow(timestamp_unit=3), errors.ArgumentTypeError),
    "arrow with a size of type str": (lambda log: log.to_arrow(max_bytes="1"), errors.ArgumentTypeError),
    "arrow with a size of 0": (lambda log: log.to_arrow(max_bytes=0), errors.UsageError),
    "fetch with a size of type str": (lambda log: log.fetch(5, max_bytes="1"), errors.ArgumentTypeError),
    "fetch with an isolation of type int": (lambda log: log.fetch(5, isolation=3), errors.UsageError),
    "ranges with a size of type None": (lambda log: log.offset_ranges(5, 6, None), errors.ArgumentTypeError),
    "settings of another type": (lambda log: log.configure({"retention_ms": 5}), errors.ArgumentTypeError),
    "retention at a str": (lambda log: log.enforce_retention("now"), errors.ArgumentTypeError),
    "arrow with a strange column": (lambda log: list(log.to_arrow(columns=["price"])), errors.UsageError),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_argument(tmp_path: Path, case: str) -> None:
    call, kind = ARGUMENTS[case]
    with Log.open(tmp_path / "args-0", LogConfig(max_message_bytes=2000)) as log:
        log.append_many([b"%d" % offset for offset in range(20)])
        log.delete_records_before(5)
        log.assign_leader_epoch(3)
        before = (log.size, log.log_start_offset, log.log_end_offset, log.high_watermark, log.leader_epoch)
        with pytest.raises(kind) as caught:
            call(log)
        assert isinstance(caught.value, errors.KreplogError) and str(caught.value)
        assert (log.size, log.log_start_offset, log.log_end_offset, log.high_watermark, log.leader_epoch) == before
        assert not log.failed
        assert log.append(b"goes on") == 20


def test_oversized_record_in_an_appender(tmp_path: Path) -> None:
    """The record is refused; those before and after it are written."""
    with Log.open(tmp_path / "args-0", LogConfig(max_message_bytes=2000)) as log:
        with log.appender() as out:
            assert out.append(b"before") == 0
            with pytest.raises(errors.RecordTooLargeError):
                out.append(bytes(5000))
            with pytest.raises(errors.ArgumentTypeError):
                out.append("text")  # type: ignore[arg-type]
            assert out.append(b"after") == 1
        assert list(log.values()) == [b"before", b"after"]


@pytest.mark.parametrize(
    "name",
    ["nodash", "-0", "topic-", "topic-x", "topic-01", "topic-1.5", "topic-2147483648",
     "to pic-0", "töpic-0", "t" * 250 + "-0", "..-0", ".-0", "topic-0.deleted", "topic-0\n", "topic-\u0663", "a:b-0",
     "topic-0-delete"],
)  # fmt: skip
def test_bad_directory_names(tmp_path: Path, name: str) -> None:
    for read_only in (False, True):
        with pytest.raises(errors.InvalidTopicError):
            Log.open(tmp_path / name, read_only=read_only)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", "", "a-0/..", "x/../..-0"])
def test_paths_that_climb(tmp_path: Path, name: str) -> None:
    """A path is taken as it is; whatever its last part names must be a partition directory."""
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises((errors.InvalidTopicError, errors.StorageError)):
        Log.open(f"{inner}/{name}")
    assert [entry.name for entry in tmp_path.rglob("*")] == ["inner"]


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file-0").write_bytes(b"not a directory")
    for path in (tmp_path / "file-0", tmp_path / "file-0" / "topic-0", tmp_path / ("nul\0" + "-0")):
        with pytest.raises(errors.KreplogError):
            Log.open(path)
    for strange in (7, None, b"\xff-0"):
        with pytest.raises(errors.KreplogError):
            Log.open(strange)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match=r"file-0 is no directory"):
        Log.open(tmp_path / "file-0", read_only=True)
    for absent in (tmp_path / "absent-0", tmp_path / "file-0" / "topic-0"):
        with pytest.raises(errors.StorageError, match=re.escape(f"{absent} does not exist")):
            Log.open(absent, read_only=True)
    assert not (tmp_path / "absent-0").exists(), "a reader makes no directory"


@pytest.mark.skipif(os.geteuid() == 0 and not sys.platform.startswith("linux"), reason="root may write anywhere")
def test_directory_without_permission(tmp_path: Path) -> None:
    """Refused with the path named; a reader needs no right to write."""
    with Log.open(tmp_path / "data" / "perm-0") as log:
        log.append(b"x")

    def as_nobody() -> str:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
        with pytest.raises(errors.StorageError) as caught:
            Log.open(tmp_path / "data" / "perm-0")
        with Log.open(tmp_path / "data" / "perm-0", read_only=True) as log:
            assert list(log.values()) == [b"x"]
        return str(caught.value)

    tops = [tmp_path, *tmp_path.parents[:3]]
    modes = [top.stat().st_mode for top in tops]
    try:
        for top in tops:
            top.chmod(0o755)
        (tmp_path / "data").chmod(0o755)
        (tmp_path / "data" / "perm-0").chmod(0o555)
        for file in (*(tmp_path / "data").glob("*-checkpoint"), *(tmp_path / "data" / "perm-0").iterdir()):
            file.chmod(0o444)
        assert "perm-0" in result_of(as_nobody)
    finally:
        (tmp_path / "data" / "perm-0").chmod(0o755)
        for top, mode in zip(tops, modes, strict=True):
            top.chmod(mode & 0o7777)


WRITES: dict[str, Callable[[Log], object]] = {
    "append": lambda log: log.append(b"x"),
    "append_many": lambda log: log.append_many([b"x"]),
    "append_batches": lambda log: log.append_batches(batch.build([b"x"])),
    "append_as_follower": lambda log: log.append_as_follower(batch.build([b"x"], base_offset=1)),
    "appender": lambda log: log.appender().append(b"x"),
    "truncate_to": lambda log: log.truncate_to(0),
    "truncate_fully_and_start_at": lambda log: log.truncate_fully_and_start_at(9),
    "delete_records_before": lambda log: log.delete_records_before(1),
    "advance_high_watermark": lambda log: log.advance_high_watermark(1),
    "assign_leader_epoch": lambda log: log.assign_leader_epoch(9),
    "enforce_retention": lambda log: log.enforce_retention(),
    "configure": lambda log: log.configure(LogConfig()),
    "flush": lambda log: log.flush(),
}
READS: dict[str, Callable[[Log], object]] = {
    "read": lambda log: list(log.read()),
    "values": lambda log: list(log.values()),
    "fetch": lambda log: log.fetch(0),
    "verify": lambda log: log.verify(),
    "offset_for_timestamp": lambda log: log.offset_for_timestamp(0),
    "offset_ranges": lambda log: log.offset_ranges(0, 1, 100),
    "to_arrow": lambda log: list(log.to_arrow()),
}


@pytest.mark.parametrize("name", [*WRITES, *READS])
def test_closed_log(tmp_path: Path, name: str) -> None:
    log = Log.open(tmp_path / "closed-0")
    log.append(b"x")
    reading = log.read()
    log.close()
    log.close()
    assert log.closed
    with pytest.raises(errors.LogClosedError):
        ({**WRITES, **READS})[name](log)
    with pytest.raises(errors.LogClosedError):
        list(reading)


@pytest.mark.parametrize("name", WRITES)
def test_read_only_log(tmp_path: Path, name: str) -> None:
    path = tmp_path / "reader-0"
    with Log.open(path) as log:
        log.append(b"x")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with Log.open(path, read_only=True) as log:
        with pytest.raises(errors.UsageError, match=r"read.only"):
            WRITES[name](log)
        assert list(log.values()) == [b"x"]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before, "a reader changes no file"


def test_second_writer(tmp_path: Path) -> None:
    """Refused with the holder's pid, in this process and in another; readers are let in; free again after close."""
    path = tmp_path / "locked-0"
    with Log.open(path) as log:
        log.append(b"x")
        with pytest.raises(errors.LogLockedError, match=rf"\b{os.getpid()}\b") as caught:
            Log.open(path)
        assert caught.value.path is not None
        code = (
            "import sys, kreplog\n"
            "try:\n    kreplog.Log.open(sys.argv[1])\n"
            "except kreplog.errors.LogLockedError as error:\n    print(error)\n"
            "print(list(kreplog.Log.open(sys.argv[1], read_only=True).values()))"
        )
        output = subprocess.run(
            [sys.executable, "-c", code, path],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        assert re.search(rf"\b{os.getpid()}\b", output) and "[b'x']" in output
        with Log.open(path, read_only=True) as reader:
            assert list(reader.values()) == [b"x"]
        assert log.append(b"y") == 1, "a refused writer must not take the lock with it"
        with pytest.raises(errors.LogLockedError):
            Log.open(path)
    with Log.open(path) as log:
        assert list(log.values()) == [b"x", b"y"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere locks are the process's, and go with the first close")
def test_a_broker_and_writers_keep_each_other_out(tmp_path: Path) -> None:
    """In a Kafka broker's log directory, whose lock file the broker deletes when it stops."""
    lock = tmp_path / ".lock"
    take = "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    broker = [sys.executable, "-c", f"{take}; print(flush=True); input()", str(lock)]

    def broker_gets_it() -> bool:
        return subprocess.run(broker, input=b"\n", capture_output=True).returncode == 0

    Log.open(tmp_path / "t-0").close()
    assert not lock.exists()
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=a3JlcGxvZy1pbnRlcm9wMQ\n")
    with Log.open(tmp_path / "t-0"):
        Log.open(tmp_path / "t-1").close()
        assert not broker_gets_it()
    assert broker_gets_it()
    with subprocess.Popen(broker, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline()
        with pytest.raises(errors.LogLockedError, match="Kafka broker"):
            Log.open(tmp_path / "t-0")
        with Log.open(tmp_path / "t-0", read_only=True) as log:
            assert log.log_end_offset == 0
        running.communicate(b"\n")
    Log.open(tmp_path / "t-0").close()


def test_forked_child_must_not_write(tmp_path: Path) -> None:
    """The child of a fork holds the parent's Log but not its right to write; the parent goes on unharmed."""
    log = Log.open(tmp_path / "forked-0")
    log.append(b"parent")

    def child() -> list[bytes | None]:
        for write in WRITES.values():
            with pytest.raises(errors.KreplogError):
                write(log)
        log.close()
        with pytest.raises(errors.LogLockedError):
            Log.open(tmp_path / "forked-0")
        with Log.open(tmp_path / "forked-0", read_only=True) as reader:
            return list(reader.values())

    assert result_of(child) == [b"parent"]
    assert log.append(b"again") == 1
    with pytest.raises(errors.LogLockedError):
        Log.open(tmp_path / "forked-0")
    log.close()
    with Log.open(tmp_path / "forked-0") as log:
        assert list(log.values()) == [b"parent", b"again"]


@pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="needs Linux, whose /proc/self/fd shows which files are open"
)
def test_a_closed_log_can_be_opened_while_a_child_has_yet_to_run_its_program(tmp_path: Path) -> None:
    """Between fork and exec a child of any other thread has all our files open, and so has a share in their locks."""
    path = tmp_path / "flights-0"
    log = Log.open(path)
    log.append(b"first")
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    childs = [os.dup(file) for file in files if _target(file).startswith(str(path))]
    try:
        log.close()
        with Log.open(path) as log:
            assert log.append(b"second") == 1
    finally:
        for file in childs:
            os.close(file)


def _target(file: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return ""


def test_errors_carry_their_facts(tmp_path: Path) -> None:
    with Log.open(tmp_path / "facts-7") as log:
        log.append(b"x")
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            log.fetch(5)
        assert (caught.value.partition, caught.value.offset) == ("facts-7", 5)
        assert "facts-7" in str(caught.value) and "5" in str(caught.value)
        assert "facts-7" in repr(log), "a log says which one it is"
