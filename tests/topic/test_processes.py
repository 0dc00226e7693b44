"""Who may write a topic: one process, and not beside a partition's own writer or a broker; and what a death leaves.

Deaths at each file call: tests/faults/test_topic_calls.py."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kreplog import Cursor, GroupCursor, Log, LogConfig, Topic, WorkQueue, errors
from kreplog._native.shown_lock import is_topic_locked
from kreplog.managed_log import OWNER_LOCK, ManagedLog
from tests.faults.forked import ends_by, result_of

OTHER_USER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone can")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def refusal(open_it: Callable[[], object]) -> str:
    """The LogLockedError that another process gets."""

    def attempt() -> str:
        try:
            open_it()
        except errors.LogLockedError as error:
            return str(error)
        return ""

    return result_of(attempt)


def test_one_process_writes_and_others_read(path: Path) -> None:
    with Topic.open(path, 2) as topic:
        topic.append(b"x", partition=0)
        assert f"process {os.getpid()}" in refusal(lambda: Topic.open(path))
        assert f"process {os.getpid()}" in refusal(lambda: Log.open(f"{path}-1")), "also of one that is not open yet"
        assert f"process {os.getpid()}" in refusal(lambda: ManagedLog.open(f"{path}-0"))

        def read() -> int:
            with Topic.open(path, read_only=True) as reader:
                return len(list(reader.read()))

        assert result_of(read) == 1
    assert refusal(lambda: Topic.open(path).close()) == ""
    assert refusal(lambda: Log.open(f"{path}-0").close()) == ""


def test_a_partition_that_is_open_by_itself_is_refused_alone(path: Path) -> None:
    Topic.open(path, 2).close()
    with Log.open(f"{path}-1"), Topic.open(path) as topic:
        topic.append(b"x", partition=0)
        with pytest.raises(errors.LogLockedError, match="orders-1"):
            topic.append(b"x", partition=1)
    with Topic.open(path) as topic:
        topic.append(b"x", partition=1)


def test_a_folder_of_a_kreplog_broker(path: Path) -> None:
    Topic.open(path, 1).close()
    with open(path.parent / OWNER_LOCK, "w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        with pytest.raises(errors.LogLockedError, match="kreplog broker"):
            Topic.open(path)
        Topic.open(path, read_only=True).close()
    Topic.open(path).close()


def test_a_folder_of_a_kafka_broker(path: Path) -> None:
    """Which locks `.lock` by fcntl, and alone."""
    Topic.open(path, 1).close()
    (path.parent / "meta.properties").write_text("version=1\ncluster.id=abc\n")
    lock = path.parent / ".lock"
    lock.touch()

    def broker_starts() -> bool:
        with open(lock, "r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True

    def topic_opens() -> str:
        with open(lock, "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return refusal(lambda: Topic.open(path))

    assert "a Kafka broker holds" in topic_opens()
    with Topic.open(path) as topic:
        topic.append(b"x")
        assert not result_of(broker_starts)
    assert result_of(broker_starts)


def test_a_fork_takes_nothing_with_it(path: Path) -> None:
    with Topic.open(path, 2) as topic:
        topic.append(b"x", partition=0)

        def child() -> str:
            try:
                topic.append(b"y", partition=0)
            except errors.LogClosedError:
                topic.close()
                return "closed"
            return "appended"

        assert result_of(child) == "closed"
        assert topic.append(b"z", partition=0) == (0, 1)
        assert refusal(lambda: Topic.open(path)), "and the child's end has not released the lock"


def test_a_killed_writer_leaves_what_it_appended(path: Path) -> None:
    def die() -> None:
        topic = Topic.open(path, 3)
        for number in range(30):
            topic.append(b"%d" % number, partition=number % 3, timestamp_ms=number)
        os.kill(os.getpid(), 9)

    code, _ = ends_by(die)
    assert code == -9
    with Topic.open(path) as topic:
        assert [int(record.value or b"") for record in topic.read(order="time")] == list(range(30))


@as_root
@pytest.mark.parametrize("end", ["flush", "close"])
def test_what_a_killed_writer_did_not_flush_is_flushed_with_the_rest(path: Path, end: str) -> None:
    """Of partitions, too, that nobody has used since."""

    def killed() -> None:
        topic = Topic.open(path, 4)
        for number in range(4):
            topic.append(b"v", partition=number)
        os.kill(os.getpid(), signal.SIGKILL)

    assert ends_by(killed)[0] == -signal.SIGKILL
    with Topic.open(path) as topic:
        topic.append(b"v", partition=0)
        if end == "flush":
            topic.flush()
            assert [topic.log(number).recovery_point for number in range(4)] == [2, 1, 1, 1]
    checkpoint = (path.parent / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]
    assert sorted(checkpoint) == ["orders 0 2", "orders 1 1", "orders 2 1", "orders 3 1"]


def test_a_user_without_rights(path: Path, open_folder: Path) -> None:
    place = open_folder / "orders"
    Topic.open(place, 2, config=LogConfig(directory_group=str(OTHER_USER))).close()

    def attempt() -> tuple[str, int]:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        with Topic.open(place, read_only=True) as reader:
            partitions = reader.partitions
        try:
            Topic.open(place)
        except errors.StorageError as error:
            return f"{type(error).__name__}: {error}", partitions
        return "opened", partitions

    said, partitions = result_of(attempt)
    assert said.startswith("StorageError: cannot open") and "Permission denied" in said and partitions == 2


@as_root
@pytest.mark.parametrize("opening", [Topic.cursor, Topic.group_cursor, Topic.work_queue])
def test_a_user_who_may_only_read_has_no_cursor_or_queue(
    open_folder: Path, opening: Callable[[Topic, str], Cursor | GroupCursor | WorkQueue]
) -> None:
    place = open_folder / "orders"
    Topic.open(place, 2, config=LogConfig(directory_group=str(OTHER_USER))).close()

    def attempt() -> str:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        with Topic.open(place, read_only=True) as reader:
            try:
                opening(reader, "mail")
            except errors.StorageError as error:
                return str(error)
        return "opened"

    message = result_of(attempt)
    assert "cannot open" in message and "orders@mail.lock" in message and "Permission denied" in message


@as_root
def test_a_group_reads_a_topic_in_a_folder_that_is_not_its_own(folder: Path) -> None:
    """Its partitions alone are made for the group; the file and the lock of the topic are to be read with them."""
    place = folder / "data" / "orders"
    place.parent.mkdir()
    place.parent.chmod(0o755)
    folder.chmod(0o711)

    def read() -> tuple[int, int, bool]:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        with Topic.open(place, read_only=True) as reader:
            return reader.partitions, len(list(reader.read())), is_topic_locked(str(place.parent), "orders")

    with Topic.open(place, 2, config=LogConfig(directory_group=str(OTHER_USER))) as topic:
        topic.append(b"a")
        assert result_of(read) == (2, 1, True)
        topic.add_partitions(3)
        assert result_of(read) == (3, 1, True)
    with Topic.open(place) as topic:  # without the setting
        topic.add_partitions(4)
        assert result_of(read) == (4, 1, True)


@pytest.fixture
def open_folder(folder: Path) -> Iterator[Path]:
    """A directory that a group may read."""
    place = folder / "shared"
    place.mkdir()
    os.chown(place, 0, OTHER_USER)
    place.chmod(0o2750)
    folder.chmod(0o711)
    yield place
