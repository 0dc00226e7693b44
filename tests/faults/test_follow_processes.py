"""Readers in other processes that wait, while the writer is killed, and readers that may not write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kreplog import Log, LogConfig, Topic
from kreplog._native.batch import build
from kreplog.errors import WriterClosedError, WriterDiedError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory
from tests.faults.forked import ends_by
from tests.integration.faults import cannot_mount
from tests.reference import sent
from tests.waiting import InChild, looked_at, until, until_open, until_waiting, wake_at

NOBODY = 65534


def test_a_record_wakes_a_reader_in_another_process(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as writer:
        reader = InChild(lambda: following(tmp_path / "t-0"))
        for i in range(200):
            until_waiting(tmp_path / "t-0", i)
            writer.append(b"%d" % i)
        writer.close()
        assert reader.result() == [b"%d" % i for i in range(200)]


def following(path: Path) -> list[bytes | None]:
    with Log.open(path, read_only=True) as log:
        return [record.value for record in log.follow()]


@pytest.mark.parametrize("seed", range(12))
def test_the_writer_is_killed(tmp_path: Path, seed: int) -> None:
    """The reader gets all that was appended before, and then an error; one across writers goes on with the next."""
    random_ = random.Random(seed)
    path = tmp_path / "t-0"
    config = LogConfig(segment_bytes=random_.choice([2000, 1 << 20]))
    reports, answers = os.pipe()
    Log.open(path, config).close()

    def write() -> None:
        with Log.open(path, config) as log:
            os.write(answers, b"\0")
            while True:
                log.append_many([b"%d" % log.log_end_offset] * random_.choice([1, 1, 1, 20]))
                os.write(answers, b"\0")

    writer = InChild(write)
    os.close(answers)
    os.read(reports, 1)
    with Log.open(path, read_only=True) as log:
        onward = log.follow(across_writers=True)
        appended = 0
        died = InChild(lambda: until_death(path))
        for _ in range(random_.randrange(1, 200)):
            appended += len(os.read(reports, 100))
        os.kill(writer.pid, signal.SIGKILL)
        while more := os.read(reports, 1 << 16):
            appended += len(more)
        os.close(reports)
        with pytest.raises(AssertionError, match="was killed"):
            writer.result()
        count = died.result()
        assert count >= appended > 0
        assert [next(onward).offset for _ in range(count)] == [*range(count)]
        with pytest.raises(WriterDiedError, match=f"ended without closing it, at offset {count}, before {count}"):
            log.wait(count)
        before = log.follow(count)
        with Log.open(path, config) as writing:
            found = (
                writing.log_end_offset - count
            )  # in a batch that was written when the writer was killed, and not shown
            assert found in (0, 1, 20)
            assert writing.append(b"next") == count + found
            values = [b"%d" % count] * found + [b"next"]
            assert [next(onward).value for _ in values] == values
            assert [next(before).value for _ in values] == values
            with pytest.raises(WriterDiedError):
                next(before)


def until_death(path: Path) -> int:
    """How many records a reader gets before it sees that the writer has died."""
    count = 0
    with Log.open(path, read_only=True) as log:
        with pytest.raises(WriterDiedError):
            for _ in log.follow():
                count += 1
        return count


@pytest.mark.parametrize("written", [False, True])
def test_a_reader_goes_on_in_the_segment_that_a_killed_writer_had_begun(tmp_path: Path, written: bool) -> None:
    """Its file is there, perhaps with a batch, but the state file does not name it."""
    path = tmp_path / "t-0"

    def write() -> None:
        with Log.open(path) as log:
            log.append(b"0")
            os._exit(9)

    assert ends_by(write)[0] == 9
    begun = path / f"{1:020}.log"
    begun.write_bytes(build([b"1"], base_offset=1) if written else b"")
    with Log.open(path, read_only=True) as log:
        follower = log.follow(across_writers=True)
        assert next(follower).value == b"0"
        with Log.open(path) as writing:
            assert [segment.base_offset for segment in writing.segments] == [0, 1]
            writing.append(b"next")
            assert [next(follower).value for _ in range(1 + written)] == [b"1"] * written + [b"next"]


def test_the_writer_is_killed_while_nothing_happens(tmp_path: Path) -> None:
    path = tmp_path / "t-0"

    def write() -> None:
        with Log.open(path) as log:
            log.append(b"")
            signal.pause()

    writer = InChild(write)
    until_open(path)
    with Log.open(path, read_only=True) as log:
        assert log.wait(0, across_writers=True)
        waiting = InChild(lambda: until_death(path))
        until_waiting(path, 1)
        os.kill(writer.pid, signal.SIGKILL)
        assert waiting.result() == 1


def test_one_reader_looks_at_the_writer_for_all(tmp_path: Path) -> None:
    """Whichever of them is stopped, another looks; the one that finds the writer dead lets all look."""
    path = tmp_path / "t-0"

    def write() -> None:
        with Log.open(path) as log:
            log.append(b"")
            signal.pause()

    def looks_go_on() -> None:
        before = looked_at(path)
        until(lambda: looked_at(path) > before)

    writer = InChild(write)
    until_open(path)
    readers = [InChild(lambda: until_death(path)) for _ in range(3)]
    looks_go_on()
    for reader in readers:
        os.kill(reader.pid, signal.SIGSTOP)
        looks_go_on()
        os.kill(reader.pid, signal.SIGCONT)
    os.kill(writer.pid, signal.SIGKILL)
    assert [reader.result() for reader in readers] == [1] * 3
    assert looked_at(path) == -1
    with Log.open(path) as log:
        log.append(b"")
        reader = InChild(lambda: following(path))
        looks_go_on()
    assert len(reader.result()) == 2


def test_a_killed_reader_costs_the_writer_one_wake_up(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with Log.open(path) as writer:
        reader = InChild(lambda: following(path))
        until_waiting(path, 0)
        os.kill(reader.pid, signal.SIGKILL)
        with pytest.raises(AssertionError, match="was killed"):
            reader.result()
        assert wake_at(path) == 1
        writer.append(b"")
        assert wake_at(path) == 0


def test_a_stopped_reader_does_not_hold_up_others(tmp_path: Path) -> None:
    """It may be the one that was woken, and wakes the others no more."""
    path = tmp_path / "t-0"
    with Log.open(path) as writer:
        stopped = InChild(lambda: following(path))
        until_waiting(path, 0)
        os.kill(stopped.pid, signal.SIGSTOP)
        readers = [InChild(lambda: following(path)) for _ in range(3)]
        for _ in range(10):
            writer.append(b"")
        writer.close()
        assert [len(reader.result()) for reader in readers] == [10] * 3
        os.kill(stopped.pid, signal.SIGCONT)
        assert len(stopped.result()) == 10


def test_a_hundred_readers(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with Log.open(path, LogConfig(segment_bytes=20_000)) as writer:
        readers = [InChild(lambda: following(path)) for _ in range(100)]
        for i in range(50):
            if i % 10 == 0:
                until_waiting(path, i)
            writer.append(b"%d" % i)
        writer.append_many([b"%d" % i for i in range(50, 5000)])
        writer.close()
        expected = [b"%d" % i for i in range(5000)]
        assert all(reader.result() == expected for reader in readers)


Outside = Callable[[Path], AbstractContextManager[tuple[Path, Callable[[], None]]]]
"""Yields the log's path as another reader sees it, and what makes a process that reader."""


@contextmanager
def as_another_user(path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    path.parent.chmod(0o755)

    def become() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    yield path, become


@contextmanager
def on_a_read_only_mount(path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    if reason := cannot_mount():
        pytest.skip(reason)
    mount = path.parent / "mount"
    mount.mkdir()
    subprocess.run(["mount", "--bind", path.parent, mount], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)
        yield mount / path.name, lambda: None
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.mark.parametrize("outside", [as_another_user, on_a_read_only_mount])
@pytest.mark.parametrize("killed", [True, False])
def test_a_reader_that_may_only_read(folder: Path, outside: Outside, killed: bool) -> None:
    """It registers nowhere, gets each record, and sees the writer's end."""
    path = folder / "t-0"
    config = LogConfig(directory_group=str(NOBODY) if os.geteuid() == 0 else None)
    Log.open(path, config).close()
    orders, ordering = os.pipe()

    def write() -> None:
        os.close(ordering)
        with Log.open(path, config) as log:
            while order := os.read(orders, 1):
                log.append(order)

    writer = InChild(write)
    os.close(orders)
    got, reporting = os.pipe()
    with outside(path) as (seen, become):

        def follow() -> int:
            os.close(ordering)
            become()
            count = 0
            with Log.open(seen, read_only=True) as log:
                os.write(reporting, b"\0")
                with pytest.raises(OSError):
                    open(seen / "kreplog.state", "r+b").close()
                try:
                    for record in log.follow(across_writers=False):
                        os.write(reporting, record.value or b"")
                        count += 1
                except WriterDiedError:
                    return -count
                return count

        os.write(ordering, b"a")
        with Log.open(path, read_only=True) as log:
            log.wait(0, 30, across_writers=True)
        reader = InChild(follow)
        os.close(reporting)
        assert os.read(got, 1) == b"\0"
        assert os.read(got, 1) == b"a"
        for order in (b"b", b"c", b"d"):
            os.write(ordering, order)
            assert os.read(got, 1) == order
        assert wake_at(path) == 0
        if killed:
            os.kill(writer.pid, signal.SIGKILL)
        os.close(ordering)
        assert reader.result() == (-4 if killed else 4)
    os.close(got)


@pytest.mark.parametrize("outside", [as_another_user, on_a_read_only_mount])
def test_a_reader_that_may_only_read_sees_decisions(folder: Path, outside: Outside) -> None:
    """With read_committed: nothing is appended behind the marker, and nobody wakes it."""
    path = folder / "t-0"
    config = LogConfig(directory_group=str(NOBODY) if os.geteuid() == 0 else None)
    got, reporting = os.pipe()
    with Log.open(path, config) as log, outside(path) as (seen, become):
        log.append(b"a")

        def follow() -> list[bytes | None]:
            become()
            found = []
            with Log.open(seen, read_only=True) as reader:
                for record in reader.follow(isolation="read_committed"):
                    found.append(record.value)
                    os.write(reporting, b".")
            return found

        reader = InChild(follow)
        for sequence in range(10):
            assert os.read(got, 1) == b"."
            log.append_batches(sent(7, 2 * sequence, b"aborted"), transactional=True)
            log.append_transaction_marker(7, 0, committed=False, coordinator_epoch=0)
            log.append_batches(sent(7, 2 * sequence + 1, b"b"), transactional=True)
            log.append_transaction_marker(7, 0, committed=True, coordinator_epoch=0)
        assert os.read(got, 1) == b"."
        assert wake_at(path) == 0
        log.close()
        assert reader.result() == [b"a"] + [b"b"] * 10
    os.close(got)
    os.close(reporting)


@contextmanager
def of_a_broker(folder: Path) -> Iterator[Callable[[bytes], object]]:
    """The log of a process that has locked the data directory."""
    directory = DataDirectory(str(folder), 1, "boot")
    with ManagedLog.open(folder / "t-0") as log:
        log.append(b"")
        yield log.append
    directory.close(False)


@contextmanager
def of_a_topic(folder: Path) -> Iterator[Callable[[bytes], object]]:
    with Topic.open(folder / "t", partitions=2) as topic:
        topic.append(b"", partition=0)
        yield lambda value: topic.append(value, partition=0)


@pytest.mark.parametrize("opened", [of_a_broker, of_a_topic])
@pytest.mark.parametrize("killed", [True, False])
def test_the_lock_is_that_of_many_logs(
    tmp_path: Path, opened: Callable[[Path], AbstractContextManager[Callable[[bytes], object]]], killed: bool
) -> None:
    """It shows that the writer lives, to readers of a log whose own directory has no lock."""
    path = tmp_path / "t-0"
    orders, ordering = os.pipe()

    def write() -> None:
        os.close(ordering)
        with opened(tmp_path) as append:
            while order := os.read(orders, 1):
                append(order)

    writer = InChild(write)
    os.close(orders)
    until_open(path)
    with Log.open(path, read_only=True) as log:
        assert log.wait(0, across_writers=True)

        def follow() -> int:
            os.close(ordering)
            return until_death(path) if killed else -len(following(path))

        count = InChild(follow)
        until_waiting(path, 1)
        os.write(ordering, b"a")
        until_waiting(path, 2)
        if killed:
            os.kill(writer.pid, signal.SIGKILL)
        os.close(ordering)
        assert count.result() == (2 if killed else -2)
        with pytest.raises(WriterDiedError if killed else WriterClosedError):
            log.wait(2, 30)
