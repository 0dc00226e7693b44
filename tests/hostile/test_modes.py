"""Data, checkpoints, logs, sockets and the store are their owner's alone, whatever the umask; a group may be let in."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kreplog
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import KreplogError, StorageError, UsageError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory
from kreplog.types import TopicPartition

UMASKS = (0, 0o022, 0o077, 0o277, 0o777)
READER, READERS, STRANGERS = 54321, 54322, 54323
"""A user and two groups that nobody has."""

RECORDS = [b"%d" % number for number in range(500)]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

WRITE_A_LOG = """
import os, sys
os.umask(int(sys.argv[2]))
import kreplog
from kreplog import LogConfig
with kreplog.Log.open(sys.argv[1] + "/made/data/topic-0", LogConfig(segment_bytes=2000)) as log:
    for number in range(500):
        log.append(b"%d" % number)
    log.flush()
    log.truncate_to(400)
    log.delete_records_before(100)
"""

RUN_A_CLUSTER = """
import os, sys
os.umask(int(sys.argv[2]))
from kreplog.cluster.local_cluster import LocalCluster
cluster = LocalCluster.create(sys.argv[1] + "/made/cluster", [0], 0)
cluster.start()
print(cluster.bootstrap(), flush=True)
sys.stdin.read()
cluster.stop()
"""


def modes(root: Path) -> dict[str, str]:
    """The paths below `root` that have another mode than their owner's alone: 0700 directories, 0600 for all else."""
    wrong = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        wanted = 0o700 if stat.S_ISDIR(status.st_mode) else 0o600
        if stat.S_IMODE(status.st_mode) != wanted:
            wrong[str(path.relative_to(root))] = oct(stat.S_IMODE(status.st_mode))
    return wrong


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_an_embedded_log_is_for_its_owner_alone(tmp_path: Path, umask: int) -> None:
    subprocess.run([sys.executable, "-c", WRITE_A_LOG, str(tmp_path), str(umask)], check=True, timeout=60)
    assert len(list(tmp_path.rglob("*.log"))) > 3
    assert modes(tmp_path) == {}


@pytest.mark.parametrize("umask", [0, 0o777], ids=oct)
def test_all_that_a_cluster_makes_is_for_its_owner_alone(tmp_path: Path, umask: int) -> None:
    command = [sys.executable, "-c", RUN_A_CLUSTER, str(tmp_path), str(umask)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None and running.stdout is not None
        assert running.stdout.readline().startswith("127.0.0.1:")
        kinds = {stat.S_IFMT(path.lstat().st_mode) for path in tmp_path.rglob("*")}
        while_it_runs = modes(tmp_path)
        running.stdin.close()
        assert running.wait(60) == 0
    assert kinds >= {stat.S_IFDIR, stat.S_IFREG, stat.S_IFSOCK}
    assert while_it_runs == {}
    assert modes(tmp_path) == {}


@pytest.fixture
def open_root() -> Iterator[Path]:
    """A directory that everybody can enter, unlike tmp_path."""
    root = Path(tempfile.mkdtemp(prefix="kreplog-modes-"))
    root.chmod(0o711)
    try:
        yield root
    finally:
        shutil.rmtree(root)


def in_child(group: int, work: Callable[[], bool]) -> bool:
    """Whether `work()` is true in a process of another user of that group."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            os.setgroups([group])
            os.setgid(group)
            os.setuid(READER)
            status = 0 if work() else 1
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) != 2
    return os.WEXITSTATUS(status) == 0


def reads(path: Path, count: int) -> bool:
    """Whether this process can read so many records there, as the state file publishes them."""
    try:
        with kreplog.Log.open(path, read_only=True) as log:
            return log.high_watermark == count and list(log.values()) == RECORDS[:count] and not log.verify().damages
    except KreplogError:
        return False


@as_root
@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_a_group_that_is_let_in_reads_an_embedded_log_while_it_is_written(open_root: Path, umask: int) -> None:
    path = open_root / "made" / "data" / "topic-0"
    config = kreplog.LogConfig(segment_bytes=2000, directory_group=str(READERS))
    before = os.umask(umask)
    try:
        with kreplog.Log.open(path, config) as log:
            for count, record in enumerate(RECORDS, 1):
                log.append(record)
                if count in (1, 250, 500):
                    assert in_child(READERS, lambda count=count: reads(path, count))  # type: ignore[misc]
                    assert not in_child(STRANGERS, lambda count=count: reads(path, count))  # type: ignore[misc]
    finally:
        os.umask(before)
    assert in_child(READERS, lambda: reads(path, 500))
    for made in (open_root / "made").rglob("*"):
        status = made.lstat()
        assert status.st_gid == READERS
        assert stat.S_IMODE(status.st_mode) == (0o2750 if stat.S_ISDIR(status.st_mode) else 0o640), made


@as_root
def test_a_group_that_is_let_in_reads_a_log_in_a_directory_that_was_there_before(open_root: Path) -> None:
    data = open_root / "data"
    data.mkdir(mode=0o711)
    data.chmod(0o711)
    with kreplog.Log.open(data / "topic-0", kreplog.LogConfig(directory_group=str(READERS))) as log:
        log.append_many(RECORDS)
        assert in_child(READERS, lambda: reads(data / "topic-0", 500))
    assert in_child(READERS, lambda: reads(data / "topic-0", 500))
    assert stat.S_IMODE(data.stat().st_mode) == 0o711, "what kreplog has not made it leaves"
    assert not in_child(READERS, lambda: os.access(data / "topic-0" / "kreplog.state", os.W_OK))


@as_root
@pytest.mark.parametrize("tls", [False, True])
def test_a_brokers_log_directory_is_open_to_its_group_and_nothing_else_of_it(open_root: Path, tls: bool) -> None:
    home = open_root / "cluster" / "broker-1"
    if tls:
        pytest.importorskip("cryptography", reason="needs cryptography, the extra `tls`")
    LocalCluster.create(home.parent, [1], 0, [f'"log.dir.group" = "{READERS}"'], tls=tls)
    directory = DataDirectory(str(home / "data"), 1, "boot", str(READERS))
    folder = directory.make(TopicPartition("topic", 0), "A" * 22)
    with ManagedLog.open(folder) as log:
        log.append_many(RECORDS)
        assert in_child(READERS, lambda: reads(folder, 500))
        assert not in_child(STRANGERS, lambda: reads(folder, 500))
    directory.close(clean=True)
    assert in_child(READERS, lambda: reads(folder, 500))
    for path in (home, home / "broker.toml", home.parent / "cluster.json"):
        assert not in_child(READERS, lambda path=path: os.access(path, os.R_OK))  # type: ignore[misc]


def test_a_group_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no group"):
        kreplog.Log.open(tmp_path / "topic-0", kreplog.LogConfig(directory_group="no such group"))
    assert list(tmp_path.iterdir()) == []


@as_root
def test_a_group_that_this_user_is_not_in_is_refused(open_root: Path) -> None:
    own = open_root / "own"
    own.mkdir()
    os.chown(own, READER, STRANGERS)

    def refused() -> bool:
        try:
            kreplog.Log.open(own / "topic-0", kreplog.LogConfig(directory_group=str(READERS)))
        except StorageError as error:
            return "is not in it" in str(error) and list(own.iterdir()) == []
        return False

    assert in_child(STRANGERS, refused)


def test_what_is_open_to_others_is_left_so_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    DataDirectory(str(data), 1, "boot").close(clean=True)
    assert "0755" in caplog.text
    assert stat.S_IMODE(data.stat().st_mode) == 0o755
    data.chmod(0o700)
    caplog.clear()
    DataDirectory(str(data), 1, "boot").close(clean=True)
    assert "mode" not in caplog.text
