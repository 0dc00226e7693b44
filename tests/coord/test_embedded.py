"""What only the embedded store has: files that can be locked, full, damaged or of another boot, and forks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kreplog.boot import boot_id
from kreplog.coord import database, liveness
from kreplog.coord.base import StoreFailedError
from kreplog.coord.embedded import EmbeddedStore
from kreplog.errors import ConnectionLossError, SessionExpiredError, StorageError, UsageError
from kreplog.types import Create, SetData, WatchEvent
from tests.coord.puppet import ROOT, Puppet
from tests.coord.servers import until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "coordination"


@pytest.fixture
def store(directory: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(directory, busy_timeout_ms=200)
    yield opened
    opened.close()


def test_a_store_locked_by_another_process_is_reported(store: EmbeddedStore, directory: Path) -> None:
    """As by a process that is stopped in the middle of a commit. Reads go on, and nobody's session ends of it."""
    session, other = store.connect(500), store.connect(500)
    session.create("/a")
    holder = sqlite3.connect(directory / "coordination.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConnectionLossError, match="another process"):
        session.set_data("/a", b"x")
    until(lambda: not _waited(2.0), "four timeouts", 10)
    assert session.get("/a").stat.version == 0
    assert not other.expired
    holder.execute("ROLLBACK")
    holder.close()
    assert session.set_data("/a", b"x").version == 1


_deadlines: dict[float, float] = {}


def _waited(seconds: float) -> bool:
    """Whether fewer than `seconds` have passed since the first call."""
    return time.monotonic() < _deadlines.setdefault(seconds, time.monotonic() + seconds)


def test_a_dead_session_is_ended_once_a_lock_is_free(store: EmbeddedStore, directory: Path) -> None:
    session = store.connect(10_000)
    puppet = Puppet(f"embedded:{directory}")
    puppet("create", "/e", b"", ephemeral=True)
    holder = sqlite3.connect(directory / "coordination.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    puppet.kill()
    before = time.process_time()
    until(lambda: not _waited(0.5), "half a second", 10)
    assert time.process_time() - before < 0.2, "the keeper waits for the lock without spinning"
    assert session.exists("/e") is not None
    holder.execute("ROLLBACK")
    holder.close()
    until(lambda: session.exists("/e") is None, "the dead session's end", 10)


def test_a_full_disk_is_reported_and_recovered_from(directory: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk."""
    script = """if True:
        import resource, sys
        from kreplog.coord.base import StoreFailedError
        from kreplog.coord.embedded import EmbeddedStore
        session = EmbeddedStore(sys.argv[1]).connect(10_000)
        session.create("/a", b"x" * 500_000)
        version, hard = 0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
        while version < 20:
            try:
                version = session.set_data("/a", bytes([version]) * 500_000, version).version
            except StoreFailedError as error:
                print(version, "free space" in str(error), session.get("/a").stat.version == version, session.expired)
                break
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        print(session.set_data("/a", b"z", version).version == version + 1)
    """
    done = subprocess.run(
        [sys.executable, "-c", script, directory], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    words = done.stdout.split()
    assert words[1:] == ["True", "True", "False", "True"], done.stdout + done.stderr
    assert 0 < int(words[0]) < 20


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + bytes(range(256)) * 20])
def test_a_damaged_database_is_reported(content: bytes, directory: Path) -> None:
    directory.mkdir()
    (directory / "coordination.db").write_bytes(content)
    with pytest.raises(StoreFailedError) as raised:
        EmbeddedStore(directory, busy_timeout_ms=100).connect(1000)
    assert isinstance(raised.value, StorageError)
    assert raised.value.path == str(directory / "coordination.db")
    assert (directory / "coordination.db").read_bytes() == content


def test_an_unusable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFailedError, match="file"):
        EmbeddedStore(tmp_path / "file").connect(1000)


def test_a_database_of_another_version_is_refused(store: EmbeddedStore, directory: Path) -> None:
    store.connect(1000)
    store.close()
    with sqlite3.connect(directory / "coordination.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreFailedError, match="99"):
        EmbeddedStore(directory).connect(1000)


def test_files_are_their_owners_only(store: EmbeddedStore, directory: Path) -> None:
    old = os.umask(0)
    try:
        store.connect(1000).create("/a")
        for path in [directory, *directory.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path
    finally:
        os.umask(old)


def test_sessions_of_before_a_reboot_are_ended(store: EmbeddedStore, directory: Path) -> None:
    """Even if their files look alive: after a boot the clock of their last heartbeat says nothing."""
    ghost = store.connect(10_000)
    ghost.create("/ghost", ephemeral=True)
    connection = sqlite3.connect(directory / "coordination.db")
    connection.execute("UPDATE sessions SET boot = 'another' WHERE id = ?", (ghost.id,))
    connection.commit()
    connection.close()
    session = store.connect(10_000)
    assert session.exists("/ghost") is None
    with pytest.raises(SessionExpiredError):
        ghost.create("/ghost", ephemeral=True)
    until(lambda: ghost.expired, "the ghost's own insight", 10)


def test_an_ended_session_writes_nothing_although_its_process_runs(
    store: EmbeddedStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is looked for in the transaction of the write: no clock, flag or wake-up is needed for the refusal."""
    session, other = store.connect(10_000), store.connect(10_000)
    session.create("/a")
    monkeypatch.setattr(liveness, "ring", lambda *_: None)
    connection = sqlite3.connect(directory / "coordination.db")
    connection.execute("DELETE FROM sessions WHERE id = ?", (session.id,))
    connection.commit()
    connection.close()
    with pytest.raises(SessionExpiredError):
        session.set_data("/a", b"x")
    assert session.expired
    assert other.get("/a").stat.version == 0


def test_a_session_that_left_no_files_is_ended_by_the_others(store: EmbeddedStore, directory: Path) -> None:
    """As one that closes, or is ended, before the others have looked at it."""
    sessions = [store.connect(10_000) for _ in range(2)]
    for token in ("0123", "4567"):
        with database.Database(directory / "coordination.db", 1000) as connection:
            with connection.writing():
                id = connection.add_session(token, 10_000, boot_id())
            liveness.ring(directory / "sessions", sessions[0]._token)
            until(lambda: not connection.has_session(id), "its end", 10)  # noqa: B023  # called before the next turn
    sessions[0].create("/a")
    until(lambda: all(session.exists("/a") is not None for session in sessions), "life")


def test_a_forked_child_is_refused_and_does_not_hide_its_parents_death(store: EmbeddedStore, directory: Path) -> None:
    script = """if True:
        import os, sys, time
        from kreplog.coord.embedded import EmbeddedStore
        from kreplog.errors import UsageError
        store = EmbeddedStore(sys.argv[1])
        session = store.connect(60_000)
        session.create("/parent", ephemeral=True)
        child = os.fork()
        if child == 0:
            try:
                session.set_data("/parent", b"child")
            except UsageError:
                session.close()
                store.connect(60_000).create("/child", str(os.getpid()).encode(), ephemeral=True)
        time.sleep(60)
    """
    session = store.connect(10_000)
    parent = subprocess.Popen([sys.executable, "-c", script, directory], cwd=ROOT)
    until(lambda: session.exists("/child") is not None, "the child's own session")
    child = int(session.get("/child").data)
    assert session.get("/parent").data == b""
    parent.kill()
    parent.wait()
    until(lambda: session.exists("/parent") is None, "the parent's end, its child still living", 10)
    assert session.exists("/child") is not None
    os.kill(child, signal.SIGKILL)
    until(lambda: session.exists("/child") is None, "the child's end", 10)


def test_watches_fire_when_no_bell_rings(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session, writer, fired = store.connect(400), store.connect(400), threading.Event()
    session.exists("/a", lambda _: fired.set())
    monkeypatch.setattr(liveness, "ring", lambda *_: None)
    writer.create("/a")
    assert fired.wait(10)


@pytest.mark.parametrize("max_changes", [0, 1])
def test_watches_fire_when_the_changes_were_dropped(
    max_changes: int, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has fallen behind compares its watches with the tree."""
    monkeypatch.setattr(database, "_MAX_CHANGES", max_changes)
    monkeypatch.setattr(liveness, "ring", lambda *_: None)
    writer = store.connect(1000)
    writer.multi([Create(path) for path in ("/a", "/a/x", "/b", "/c", "/d", "/quiet", "/r")])
    session, events = store.connect(1000), list[WatchEvent]()
    for path in ("/a", "/b", "/c", "/none", "/never", "/quiet", "/r"):
        session.exists(path, events.append)
    for path in ("/a", "/d", "/c", "/quiet"):
        session.children(path, events.append)
    writer.set_data("/a", b"x")
    writer.delete("/a/x")
    writer.delete("/b")
    writer.create("/c/y")
    writer.delete("/d")
    writer.create("/none")
    writer.multi([Create("/never"), SetData("/never", b"")])
    writer.delete("/never")
    writer.delete("/r")
    writer.create("/r")
    seen = {("/a", "changed"), ("/a", "children"), ("/b", "deleted"), ("/c", "children")}
    seen |= {("/d", "deleted"), ("/none", "created"), ("/r", "changed")}
    # "/r" was deleted and created again, seen as a change; "/never" came and went unseen.
    fired = {(event.path, event.kind) for event in events}
    until(
        lambda: fired | {(event.path, event.kind) for event in events} >= seen - {("/r", "changed")}, "the events", 10
    )
    session.exists("/last", events.append)
    writer.create("/last")
    until(lambda: events[-1] == WatchEvent("/last", "created"), "the last event", 10)
    fired = {(event.path, event.kind) for event in events[:-1]}
    assert fired - {("/never", "created"), ("/r", "deleted")} | {("/r", "changed")} == seen
    assert len(events) == len(set(events)), "no event fires twice"


def test_kept_changes_do_not_grow_for_ever(store: EmbeddedStore, directory: Path) -> None:
    session = store.connect(10_000)
    session.multi([Create(f"/{number:0100}") for number in range(1000)])
    for _ in range(20):
        session.multi([SetData(f"/{number:0100}", b"") for number in range(1000)])
    for _ in range(database._MAX_CHANGES):
        session.set_data("/", b"")
    connection = sqlite3.connect(directory / "coordination.db")
    assert connection.execute("SELECT count(*) FROM changes").fetchone() == (database._MAX_CHANGES,)
    assert connection.execute("SELECT max(size) FROM changes").fetchone()[0] < 1000
    connection.close()


def test_an_idle_session_costs_next_to_nothing(store: EmbeddedStore) -> None:
    sessions = [store.connect(10_000) for _ in range(5)]
    for session in sessions:
        session.exists("/a", lambda _: None)
    until(lambda: not _waited(0.25), "the start to be over", 10)
    before, start = time.process_time(), time.monotonic()
    time.sleep(1)
    assert (time.process_time() - before) / (time.monotonic() - start) < 0.1


def open_files(directory: Path) -> int:
    """How many files below it this process has open; other tests' threads open and close files of their own."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{directory}/")
    return count


def test_files_and_threads_of_ended_sessions_are_let_go(store: EmbeddedStore, directory: Path) -> None:
    store.connect(10_000).create("/a")
    # While one connection lives SQLite keeps the files of the others open, and uses them again: as many as were there
    # at one time. Below that is two sessions and a connection where the end of one overlaps with the next.
    at_one_time = [store.connect(10_000) for _ in range(4)]
    for number, session in enumerate(at_one_time):
        session.create(f"/e{number}", ephemeral=True)
    for session in at_one_time:
        session.close()
    files = open_files(directory) if os.path.exists("/proc/self/fd") else 0
    threads = threading.active_count()
    for _ in range(20):
        session = store.connect(10_000)
        session.create("/e", ephemeral=True)
        session.close()
    expired = store.connect(10_000)
    with database.Database(directory / "coordination.db", 1000) as connection, connection.writing():
        connection.end_session(expired.id)
    with pytest.raises(SessionExpiredError):
        expired.get("/a")
    until(lambda: threading.active_count() <= threads, "threads", 10)
    if files:
        until(lambda: open_files(directory) <= files, "files", 10)


def test_threads_share_a_session(store: EmbeddedStore) -> None:
    session, failures = store.connect(10_000), list[BaseException]()
    session.create("/n")
    session.create("/count", b"0")

    def work(number: int) -> None:
        try:
            for step in range(30):
                session.create(f"/n/{number}-{step}")
                session.get(f"/n/{number}-{step}", lambda _: None)
                session.multi([SetData("/count", b""), SetData(f"/n/{number}-{step}", b"x", 0)])
                assert session.children("/n")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert session.get("/count").stat.version == len(session.children("/n")) == 120


def test_a_session_made_before_a_fork_says_so(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session = store.connect(10_000)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(UsageError, match="forked"):
            session.get("/")
