"""A leader epoch begins where records that were read may be gone: in another boot, or where the log has lost some."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native import recovery
from kreplog._native.writable import abandon
from kreplog.boot import boot_id
from kreplog.managed_log import ManagedLog
from tests.faults.boots import reboot

EPOCHS = "leader-epoch-checkpoint"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "topic-0"


def epochs_file(path: Path) -> list[str]:
    return (path / EPOCHS).read_text().splitlines()[2:]


def test_boots_have_ids() -> None:
    assert str(uuid.UUID(boot_id())) == boot_id()


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_none_in_the_same_boot(path: Path, ended: str) -> None:
    """The page and the records are those of the page cache, whoever was killed."""
    log = Log.open(path)
    log.append(b"a")
    log.close() if ended == "closed" else abandon(log)
    with Log.open(path) as log:
        log.append(b"b")
        assert log.leader_epochs == [(0, 0)]


@pytest.mark.parametrize("ended", ["closed", "killed"])
@pytest.mark.parametrize("how", ["append", "append_many", "appender"])
def test_another_boot(path: Path, ended: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(path)
    log.append(b"a")
    log.close() if ended == "closed" else abandon(log)
    reboot(monkeypatch)
    for _ in range(2):  # the second time in the same boot, where nothing was appended in between
        with Log.open(path) as log:
            assert (log.leader_epoch, log.leader_epochs, epochs_file(path)) == (1, [(0, 0)], ["0 0"])
    with Log.open(path, read_only=True) as reader:
        assert reader.leader_epochs == [(0, 0)]
    with Log.open(path) as log:
        if how == "append":
            log.append(b"b")
        elif how == "append_many":
            log.append_many([b"b"])
        else:
            with log.appender() as appender:
                appender.append(b"b")
        assert [int(batch["leader_epoch"]) for batches in log.batches() for batch in batches] == [0, 1]
        assert epochs_file(path) == ["0 0", "1 1"]
    with Log.open(path) as log:
        log.append(b"c")
        assert log.leader_epochs == [(0, 0), (1, 1)]


def test_records_that_are_gone(path: Path) -> None:
    with Log.open(path) as log:
        for value in (b"a", b"b", b"c"):
            log.append(value)
        (segment,) = path.glob("*.log")
        size = log.size
        abandon(log)
    os.truncate(segment, size - 1)
    with Log.open(path) as log:
        assert log.append(b"other") == 2
        assert log.leader_epochs == [(0, 0), (1, 2)]


def test_an_epoch_that_is_gone_comes_never_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are lost with some before them, so its entry goes; then the power is lost again."""
    log = Log.open(path)
    log.append_many([b"a"])
    log.append_many([b"b"])
    size = log.size
    abandon(log)
    page = (path / "kreplog.state").read_bytes()
    (segment,) = path.glob("*.log")
    reboot(monkeypatch)
    with Log.open(path) as log:
        log.append(b"read by somebody, and lost")
        assert log.leader_epochs == [(0, 0), (1, 2)]
        abandon(log)
    for _ in range(2):  # in the second boot nothing was appended since the first
        os.truncate(segment, size - 1)
        (path / "kreplog.state").write_bytes(page)
        reboot(monkeypatch)
        abandon(Log.open(path))
    with Log.open(path) as log:
        assert log.append(b"other") == 1 and log.leader_epoch > 1


def test_no_boot_is_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "boot_id", lambda: "")
    for number in range(3):
        with Log.open(path) as log:
            log.append(b"a")
            assert log.leader_epoch == number


def test_none_in_the_log_of_cursors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that commit by turns open it each time: on two hosts, or where no boot is known, each commit would
    begin an epoch, with its fsyncs, in a file that grows for ever. Nobody reads by them."""
    monkeypatch.setattr(recovery, "boot_id", lambda: "")
    for _ in range(3):
        with Log.open(tmp_path / "data" / "__consumer_offsets-0") as log:
            log.append(b"a", b"key")
            assert log.leader_epochs == [(0, 0)]


def test_no_page(path: Path) -> None:
    """Another program has written the log, or the page is damaged."""
    with Log.open(path) as log:
        log.append(b"a")
    (path / "kreplog.state").unlink()
    with Log.open(path) as log:
        assert log.leader_epoch == 1


@pytest.mark.parametrize("kind", ["managed", "replicated"])
def test_whoever_replicates_has_the_epochs(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    opener, config = (ManagedLog, None) if kind == "managed" else (Log, LogConfig(replicated=True))
    with opener.open(path, config) as log:
        log.append(b"a")
    reboot(monkeypatch)
    with opener.open(path, config) as log:
        assert log.leader_epoch == 0
    with Log.open(path) as log:
        assert log.leader_epoch == 1, "not known to have lost nothing"


def test_in_a_brokers_directory_brokers_have_the_epochs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log.open(path) as log:
        log.append(b"a")
    (path.parent / "meta.properties").write_text("version=0\nbroker.id=0\ncluster.id=abc\n")
    reboot(monkeypatch)
    with Log.open(path) as log:
        log.append(b"b")
        assert log.leader_epochs == [(0, 0)]


def test_a_copy_is_of_another_epoch_only_once_it_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log.open(path) as log:
        log.append(b"a")
    reboot(monkeypatch)
    copy = tmp_path / "copy" / path.name
    shutil.copytree(path, copy)
    with Log.open(copy, read_only=True) as reader:
        assert reader.leader_epoch == 0
    assert (copy / EPOCHS).read_bytes() == (path / EPOCHS).read_bytes()
