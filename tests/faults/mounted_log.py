"""Driver: a log on a file system of its own, see mounted.py. Argument: its directory.

What the writer acknowledged is compared with what is there after its death, and after the file system was full and
read-only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog.errors import DiskFullError, LogFailedError, StorageError, WriterDiedError, is_disk_full
from tests.integration.faults import fill
from tests.waiting import InChild, until, until_open, until_waiting, wake_at

CONFIG = LogConfig(segment_bytes=20_000)
COMPACTED = LogConfig(segment_bytes=4_000, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
KEYS = 7


def value(offset: int) -> bytes:
    return b"%0200d" % offset


def values(path: Path) -> list[bytes | None]:
    with Log.open(path, read_only=True) as log:
        return [record.value for record in log.read()]


def follow_and_kill(path: Path) -> None:
    """A reader in another process is woken for each record, and sees the kill; nothing acknowledged is lost."""
    acknowledged, answers = os.pipe()
    orders, ordering = os.pipe()
    Log.open(path, CONFIG).close()

    def write() -> None:
        with Log.open(path, CONFIG) as log:
            while order := os.read(orders, 1):
                for _ in range(1 if order == b"1" else 1000):
                    offset = log.append(value(log.log_end_offset))
                    os.write(answers, b"%d " % offset)

    def follow() -> int:
        with Log.open(path, read_only=True) as log:
            log.wait(0, across_writers=True)
            count = 0
            try:
                for record in log.follow():
                    assert record.value == value(record.offset)
                    count += 1
            except WriterDiedError:
                return count
            raise AssertionError("the writer's death was not seen")

    writer = InChild(write)
    os.close(orders)
    os.close(answers)
    until_open(path)
    os.write(ordering, b"1")
    until(lambda: os.read(acknowledged, 100) == b"0 ")
    follower = InChild(follow)
    for offset in range(1, 50):
        until_waiting(path, offset)
        os.write(ordering, b"1")
    until_waiting(path, 50)
    os.write(ordering, b"n")
    received = bytearray()
    while len(received) < 2_000:
        received += os.read(acknowledged, 4096)
    os.kill(writer.pid, signal.SIGKILL)
    while more := os.read(acknowledged, 4096):
        received += more
    os.waitpid(writer.pid, 0)
    os.close(acknowledged)
    os.close(ordering)
    end = int(received.split()[-1] if received.endswith(b" ") else received.split()[-2]) + 1
    followed = follower.result()
    assert end <= followed <= end + 1, (end, followed)
    with Log.open(path, CONFIG) as log:
        assert log.log_end_offset >= end
        assert [record.value for record in log.read()] == [value(offset) for offset in range(log.log_end_offset)]
    assert wake_at(path) == 0
    print(f"woken=49 acknowledged={end}")


def truncate_and_retain(path: Path) -> None:
    with Log.open(path, CONFIG) as log, Log.open(path, read_only=True) as reader:
        log.append_many([value(offset) for offset in range(log.log_end_offset, log.log_end_offset + 300)])
        end = log.truncate_to(log.log_end_offset - 150)
        assert reader.log_end_offset == end
        assert [record.value for record in reader.read()] == [value(offset) for offset in range(end)]
        log.append_many([value(offset) for offset in range(end, end + 300)])
        log.configure(LogConfig(segment_bytes=20_000, retention_bytes=40_000))
        assert log.enforce_retention() > 0
        start = log.log_start_offset
        assert 0 < start == reader.log_start_offset
        assert [record.offset for record in reader.read()] == [*range(start, end + 300)]
    print(f"truncated_to={end} retained_from={start}")


def compact(path: Path) -> None:
    """A follower in another process goes on while its segments are replaced; then the newest of each key is left."""
    Log.open(path, COMPACTED).close()

    def follow() -> dict[bytes | None, bytes | None]:
        newest = {}
        with Log.open(path, read_only=True) as log:
            log.wait(0, across_writers=True)
            for record in log.follow():
                newest[record.key] = record.value
        return newest

    follower = InChild(follow)
    with Log.open(path, COMPACTED) as log:
        for round_ in range(10):
            for i in range(100):
                log.append(b"%d %d" % (round_, i), key=b"%d" % (i % KEYS))
            if round_ == 5:
                until_waiting(path, log.log_end_offset)
            log.compact(force=True)
        log.roll()
        report = log.compact(force=True)
        assert report is not None and report.records_dropped
        left = [(record.key, record.value) for record in log.read()]
    newest = {b"%d" % (i % KEYS): b"9 %d" % i for i in range(100)}
    assert dict(left) == newest == follower.result()
    with Log.open(path, COMPACTED) as log:
        assert [(record.key, record.value) for record in log.read()] == left
        assert not log.verify().damages
    print(f"left={len(left)}")


def fill_up(path: Path, where: Path) -> None:
    log = Log.open(path, CONFIG)
    ballast = fill(where)
    end = log.log_end_offset
    try:
        while end < 1_000_000:
            log.append_many([value(end + i) for i in range(100)])
            end += 100
        raise AssertionError("the file system is not full")
    except StorageError as error:
        assert is_disk_full(error), error
        assert isinstance(error, (DiskFullError, LogFailedError)), error
    with suppress(LogFailedError):
        log.close()
    try:
        Log.open(path.with_name("new-0")).close()
        raise AssertionError("a log was made although the file system is full")
    except StorageError as error:
        assert is_disk_full(error), error
    ballast.unlink()
    start = require_whole(path, end)
    print(f"full_at={end} from={start}")


def require_whole(path: Path, end: int) -> int:
    """What was acknowledged is there, and the log takes more."""
    with Log.open(path, CONFIG) as log:
        start = log.log_start_offset
        assert log.log_end_offset >= end
        found = [record.value for record in log.read()]
        assert found == [value(offset) for offset in range(start, log.log_end_offset)]
        assert not log.verify().damages
        log.append(value(log.log_end_offset))
        return start


@contextmanager
def read_only(where: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,bind,ro", where], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,bind,rw", where], check=True)


def remount(path: Path, where: Path) -> None:
    before = values(path)
    with read_only(where):
        for target in (path, path.with_name("new-0")):
            try:
                Log.open(target, CONFIG)
                raise AssertionError("a log was opened for writing on a read-only file system")
            except StorageError as error:
                assert "Read-only file system" in str(error), error
        assert values(path) == before
    require_whole(path, 0)
    print("remounted=1")


def main(where: Path) -> None:
    path = where / "t-0"
    follow_and_kill(path)
    truncate_and_retain(path)
    compact(where / "compacted-0")
    fill_up(path, where)
    remount(path, where)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
