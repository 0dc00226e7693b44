"""The lock of committed offsets, whose file stays open between commits: forks, deaths, deletion, brokers, limits."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from kreplog import Topic, errors
from kreplog._native.directory import TopicLock, was_topic_released
from kreplog.core.group_messages import partition_of_group
from kreplog.managed_log import OWNER_LOCK
from kreplog.topic import cursor_log
from kreplog.topic.cursor_log import PARTITIONS, Committed, CursorLog, CursorOffset
from kreplog.topic.folder import TopicFolder
from tests.faults.forked import ends_by, result_of, start
from tests.topic.test_processes import OTHER_USER, as_root, open_folder, refusal
from tests.waiting import InThread

__all__ = ["open_folder"]


@pytest.fixture
def folder_path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(folder_path: Path) -> Iterator[CursorLog]:
    """Which has its lock file open."""
    folder_path.mkdir()
    opened = CursorLog(str(folder_path))
    commit(opened, 1)
    yield opened
    opened.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits do not wait for a lock."""
    monkeypatch.setattr(cursor_log, "LOCK_TIMEOUT_S", 0.0)


@contextmanager
def child_in(context: Callable[[], AbstractContextManager[object]]) -> Iterator[int]:
    """A child that is in that context until this one ends; its process id."""
    reading, writing = os.pipe()

    def stay(pipe: int) -> None:
        os.close(writing)
        with context():
            os.write(pipe, b"in")
            os.read(reading, 1)

    pid, pipe = start(stay)
    try:
        assert os.read(pipe, 2) == b"in"
        yield pid
    finally:
        os.close(writing)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(pipe)


def commit(log: CursorLog, offset: int, durable: bool = False) -> None:
    log.commit("a", "mails", {0: CursorOffset(offset)}, durable)


def committed(folder: Path) -> Committed:
    """As another process reads it."""
    return result_of(partial(committed_here, folder))


def committed_here(folder: Path) -> Committed:
    log = CursorLog(str(folder))
    try:
        return log.read("a", "mails")
    finally:
        log.close()


def lock_file(folder: Path) -> Path:
    return folder / "__consumer_offsets.lock"


def open_files(folder: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the list itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(file for file in found if file.startswith(str(folder)))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.touch()
    other.rename(path)


def move_away(path: Path) -> None:
    path.rename(path.with_name("other"))


Removal = Callable[[Path], None]

WAYS = pytest.mark.parametrize("change", [os.unlink, replace, move_away])


@pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="needs Linux, whose /proc/self/fd shows which files are open"
)
class TestOpenFiles:
    def test_one_of_the_lock_until_the_log_is_closed(self, folder_path: Path, log: CursorLog) -> None:
        for offset in range(2, 20):
            commit(log, offset, durable=offset % 2 == 0)
            log.read("a", "mails")
        files = open_files(folder_path)
        assert files.count(str(lock_file(folder_path))) == 1
        log.close()
        assert open_files(folder_path) == []
        commit(log, 20)
        log.close()
        assert open_files(folder_path) == [] and committed(folder_path) == {0: CursorOffset(20)}

    @WAYS
    def test_none_of_a_lock_file_that_was_deleted(
        self, folder_path: Path, log: CursorLog, change: Callable[[Path], None]
    ) -> None:
        before = len(open_files(folder_path))
        for offset in range(2, 6):
            change(lock_file(folder_path))
            commit(log, offset)
            assert [file for file in open_files(folder_path) if file.endswith((" (deleted)", "other"))] == []
        assert len(open_files(folder_path)) == before

    def test_none_more_after_refusals(self, folder_path: Path, log: CursorLog, hasty: None) -> None:
        before = open_files(folder_path)
        other = TopicLock(str(folder_path), "__consumer_offsets")
        for _ in range(3):
            other.acquire()
            with pytest.raises(errors.LogLockedError):
                commit(log, 2)
            other.close()
        assert open_files(folder_path) == before

    def test_none_of_a_log_that_is_forgotten(self, folder_path: Path) -> None:
        folder_path.mkdir()
        log = CursorLog(str(folder_path))
        with log._turn():
            pass
        assert open_files(folder_path) != []
        del log
        assert open_files(folder_path) == []

    def test_a_child_has_none(self, folder_path: Path, log: CursorLog) -> None:
        def child() -> list[str]:
            return [file for file in open_files(folder_path) if file.endswith(".lock")]

        assert child() != [] == result_of(child)


class TestReleased:
    def test_between_two_commits(self, folder_path: Path, log: CursorLog) -> None:
        """The other has its own time, and each sees what the other has committed."""

        def other() -> Committed:
            theirs = CursorLog(str(folder_path))
            before = theirs.read("a", "mails")
            commit(theirs, before[0].offset + 1)
            return before

        for offset in range(2, 20, 2):
            commit(log, offset)
            assert result_of(other) == {0: CursorOffset(offset)}
            assert log.read("a", "mails") == {0: CursorOffset(offset + 1)}

    @pytest.mark.parametrize("failing", [OSError, KeyboardInterrupt])
    def test_by_a_commit_that_fails(
        self, folder_path: Path, log: CursorLog, hasty: None, failing: type[BaseException]
    ) -> None:
        with pytest.raises(failing), log._locked("a"):
            raise failing
        assert refusal(lambda: committed(folder_path)) == ""

    def test_at_a_death_in_the_middle(self, folder_path: Path, log: CursorLog) -> None:
        def die() -> None:
            theirs = CursorLog(str(folder_path))
            commit(theirs, 2)
            with theirs._turn():
                os.kill(os.getpid(), signal.SIGKILL)

        assert ends_by(die)[0] == -signal.SIGKILL
        assert not was_topic_released(str(folder_path), "__consumer_offsets"), "for readers, that it has died"
        assert log.read("a", "mails") == {0: CursorOffset(2)}
        assert was_topic_released(str(folder_path), "__consumer_offsets")
        commit(log, 3)
        assert committed(folder_path) == {0: CursorOffset(3)}

    def test_at_the_death_of_a_process_whose_child_lives_on(
        self, folder_path: Path, log: CursorLog, hasty: None
    ) -> None:
        """The child would hold it for as long as it lives if it had the file still."""
        reading, writing = os.pipe()

        def live_on(pipe: int) -> None:
            os.write(pipe, b"on")  # the fork's handlers have run
            os.read(reading, 1)  # which returns when the test has closed its end

        def die(_: int) -> None:
            theirs = CursorLog(str(folder_path))
            commit(theirs, 2)
            os.close(writing)
            _, child = start(live_on)
            os.read(child, 2)
            with theirs._turn():
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            pid, pipe = start(die)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            commit(log, 3)
            os.close(pipe)
        finally:
            os.close(writing)
            os.close(reading)


class TestExcluded:
    def test_a_child_by_its_parent(self, folder_path: Path, log: CursorLog, hasty: None) -> None:
        """And its end releases nothing of the parent's."""
        with log._turn():
            for _ in range(2):
                assert f"process {os.getpid()}" in refusal(lambda: commit(log, 2))
        assert refusal(lambda: commit(log, 2)) == ""
        assert log.read("a", "mails") == {0: CursorOffset(2)}

    def test_a_parent_by_its_child(self, log: CursorLog, hasty: None) -> None:
        with child_in(log._turn) as pid, pytest.raises(errors.LogLockedError, match=f"process {pid};"):
            commit(log, 2)
        commit(log, 2)

    def test_two_logs_of_a_process(self, folder_path: Path, log: CursorLog, hasty: None) -> None:
        other = CursorLog(str(folder_path))
        with other._turn(), pytest.raises(errors.LogLockedError, match="this process"):
            commit(log, 2)
        commit(log, 2)

    @WAYS
    def test_by_the_file_that_is_there_now(
        self, folder_path: Path, log: CursorLog, hasty: None, change: Callable[[Path], None]
    ) -> None:
        change(lock_file(folder_path))
        other = CursorLog(str(folder_path))
        with other._turn(), pytest.raises(errors.LogLockedError):
            commit(log, 2)
        commit(log, 2)
        with log._turn(), pytest.raises(errors.LogLockedError):
            commit(other, 3)

    @WAYS
    def test_not_by_a_file_that_was_deleted(
        self, folder_path: Path, log: CursorLog, hasty: None, change: Callable[[Path], None]
    ) -> None:
        """Such as that of a process which is stopped."""
        with open(lock_file(folder_path)) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(errors.LogLockedError):
                commit(log, 2)
            change(lock_file(folder_path))
            commit(log, 2)

    def test_by_a_broker_that_comes_between_two_commits(self, folder_path: Path, log: CursorLog, hasty: None) -> None:
        with open(folder_path / OWNER_LOCK, "w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            with pytest.raises(errors.LogLockedError, match="kreplog broker"):
                commit(log, 2)
            refused = TopicLock(str(folder_path), "__consumer_offsets")
            with pytest.raises(errors.LogLockedError, match="kreplog broker"):
                refused.acquire()
            with open(lock_file(folder_path)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # neither of them holds it
        commit(log, 2)
        assert committed(folder_path) == {0: CursorOffset(2)}

    def test_by_a_kafka_broker_that_comes_between_two_commits(
        self, folder_path: Path, log: CursorLog, hasty: None
    ) -> None:
        (folder_path / "meta.properties").write_text("version=1\ncluster.id=abc\n")

        @contextmanager
        def broker() -> Iterator[None]:
            with open(folder_path / ".lock", "w") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield

        def broker_starts() -> bool:
            with open(folder_path / ".lock", "r+") as file:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return False
                return True

        with child_in(broker):
            with pytest.raises(errors.LogLockedError, match="a Kafka broker holds"):
                commit(log, 2)
            with open(lock_file(folder_path)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        commit(log, 2)
        with log._turn():
            assert not result_of(broker_starts)
        assert result_of(broker_starts)


def test_a_commit_of_10000_partitions_with_long_names(folder: Path) -> None:
    """One batch, since they are committed together."""
    offsets = {number: CursorOffset(number) for number in range(10_000)}
    log = CursorLog(str(folder))
    log.commit("c" * 200, "t" * 200, offsets, False)
    assert log.read("c" * 200, "t" * 200) == offsets
    log.close()


def test_threads_commit_in_turn(folder_path: Path, log: CursorLog) -> None:
    def commits(number: int) -> None:
        for offset in range(100):
            log.commit("a", "mails", {number: CursorOffset(offset)}, False)

    threads = [InThread(partial(commits, number)) for number in range(4)]
    for thread in threads:
        thread.result()
    assert committed(folder_path) == {number: CursorOffset(99) for number in range(4)}


def test_commits_go_on_where_no_more_files_can_be_opened(folder_path: Path, log: CursorLog) -> None:
    def child() -> None:
        own = CursorLog(str(folder_path))
        commit(own, 2)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        for offset in range(3, 10):
            commit(own, offset)

    result_of(child)
    assert committed(folder_path) == {0: CursorOffset(9)}


@as_root
def test_rights_that_are_taken_away(folder_path: Path, open_folder: Path) -> None:
    """From the file, which stays open; and from the folder, where it is no longer known which file is there."""
    os.chown(open_folder, OTHER_USER, OTHER_USER)

    def child() -> str:
        os.setgroups([])
        os.setgid(OTHER_USER)
        os.setuid(OTHER_USER)
        log = CursorLog(str(open_folder))
        commit(log, 1)
        lock_file(open_folder).chmod(0)
        commit(log, 2)
        open_folder.chmod(0)
        with pytest.raises(errors.StorageError, match=r"cannot look at .*Permission denied") as caught:
            commit(log, 3)
        open_folder.chmod(0o700)
        commit(log, 4)
        return str(caught.value)

    assert "__consumer_offsets.lock" in result_of(child)


def test_a_folder_that_is_gone(folder_path: Path, log: CursorLog) -> None:
    folder_path.rename(folder_path.with_name("elsewhere"))
    with pytest.raises(errors.StorageError, match=r"cannot open .*__consumer_offsets\.lock: No such file"):
        commit(log, 2)
    folder_path.with_name("elsewhere").rename(folder_path)
    commit(log, 3)


def delete(directory: Path) -> None:
    """All but the lock file."""
    for path in directory.glob("__consumer_offsets*[!k]"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def put_aside(directory: Path) -> None:
    aside = directory / "aside"
    aside.mkdir()
    for path in directory.glob("__consumer_offsets*[!k]"):
        path.rename(aside / path.name)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("remove", [delete, put_aside])
class TestADeletedTopic:
    """Its files, which are open, are not taken for those of the one that is at their path."""

    def test_is_made_again(self, folder_path: Path, log: CursorLog, remove: Removal, durable: bool) -> None:
        remove(folder_path)
        commit(log, 2, durable)
        assert committed(folder_path) == {0: CursorOffset(2)}
        assert len(list(folder_path.glob("__consumer_offsets-*"))) == PARTITIONS

    def test_is_made_again_as_a_whole(self, folder_path: Path, log: CursorLog, remove: Removal, durable: bool) -> None:
        """Not only the partition of the first commit, which was not open."""
        remove(folder_path)
        log.commit("b", "mails", {0: CursorOffset(1)}, durable)
        assert len(list(folder_path.glob("__consumer_offsets-*"))) == PARTITIONS
        commit(log, 2, durable)
        assert committed(folder_path) == {0: CursorOffset(2)}

    def test_that_another_has_made_again(
        self, folder_path: Path, log: CursorLog, remove: Removal, durable: bool
    ) -> None:
        remove(folder_path)
        TopicFolder(str(folder_path / "__consumer_offsets"), 3, cursor_log.CONFIG, False, 1).close()
        assert log.read("a", "mails") == {} == committed(folder_path)
        commit(log, 2, durable)
        assert committed(folder_path) == {0: CursorOffset(2)}

    def test_leaves_no_checkpoints(self, folder_path: Path, log: CursorLog, remove: Removal, durable: bool) -> None:
        for offset in range(2, 10):
            commit(log, offset, durable)
        remove(folder_path)
        for path in folder_path.glob("*-checkpoint"):
            path.unlink()
        log.close()
        assert not any("__consumer_offsets" in path.read_text() for path in folder_path.glob("*-checkpoint"))


def test_a_topic_closes_the_lock_of_its_cursors(path: Path) -> None:
    with Topic.open(path, 1) as topic, topic.cursor("a") as cursor:
        cursor.commit()
        assert str(lock_file(path.parent)) in open_files(path.parent)
    assert open_files(path.parent) == []


def test_the_process_id_is_the_first_line_whatever_was_there(folder_path: Path) -> None:
    folder_path.mkdir()
    lock_file(folder_path).write_text("1234567890123\n")
    lock = TopicLock(str(folder_path), "__consumer_offsets")
    lock.acquire()
    assert f"(pid {os.getpid()})" in _refused_here(folder_path)
    assert not was_topic_released(str(folder_path), "__consumer_offsets")
    lock.release()
    assert was_topic_released(str(folder_path), "__consumer_offsets")
    lock_file(folder_path).write_text("9" * 30)
    with lock_file(folder_path).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert "another process" in _refused_here(folder_path)
    lock.close()


def _refused_here(folder: Path) -> str:
    with pytest.raises(errors.LogLockedError) as caught:
        TopicLock(str(folder), "__consumer_offsets").acquire()
    return str(caught.value)


def test_no_damaged_byte_gives_an_offset_that_was_not_committed(folder_path: Path, log: CursorLog) -> None:
    """A reader finds an earlier commit, or an error; a writer that goes on does from one of these."""
    for offset in (300, 5000):
        log.commit("a", "mails", {0: CursorOffset(offset, f"work queue {offset}"), 1: CursorOffset(offset)}, False)
    log.close()
    possible: list[Committed] = [{}, {0: CursorOffset(1)}]
    possible += [{0: CursorOffset(at, f"work queue {at}"), 1: CursorOffset(at)} for at in (300, 5000)]
    partition = f"__consumer_offsets-{partition_of_group('a', PARTITIONS)}"
    segment = next((folder_path / partition).glob("*.log"))
    sound = segment.read_bytes()
    assert committed(folder_path) == possible[-1] and 200 < len(sound) < 1000
    shutil.copytree(folder_path / partition, spare := folder_path.with_name("spare"))
    for position in range(len(sound)):
        for mask in (1, 0x80, 0xFF):
            data = bytearray(sound)
            data[position] ^= mask
            segment.write_bytes(data)
            with suppress(errors.StorageError):
                assert CursorLog(str(folder_path)).read_all("mails").get("a", {}) in possible, (position, mask)
        if position % 40 == 0:
            with suppress(errors.StorageError):
                assert committed_here(folder_path) in possible, position
            shutil.rmtree(folder_path / partition)
            shutil.copytree(spare, folder_path / partition)


def test_a_partition_that_power_left_without_a_segment_has_no_committed_offsets(
    log: CursorLog, folder_path: Path
) -> None:
    """Of a new folder: its directory is durable, and the file in it is not yet. No cursor may ever open it again."""
    before = log.read_all("mails")
    assert before == {"a": {0: CursorOffset(1)}}
    for number in set(range(PARTITIONS)) - {partition_of_group("a", PARTITIONS)}:
        for file in (folder_path / f"__consumer_offsets-{number}").iterdir():
            file.unlink()
    assert log.read_all("mails") == before
