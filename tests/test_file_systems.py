"""Mounts as Linux lists them: which are of a network, and whose locks hold on all hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kreplog import Log, Topic, file_systems
from kreplog._native.files import file_system_type
from kreplog.errors import NetworkFileSystemWarning, StorageError, UnsupportedFileSystemError
from kreplog.file_systems import Mount, needs_host_lock, parse_mount

NFS = (
    "412 29 0:52 /a\\040b /mnt/a\\040b rw,relatime shared:230 - nfs4 server:/a\\040b "
    "rw,vers=4.2,rsize=1048576,hard,proto=tcp,sec=sys,clientaddr=10.0.0.2,local_lock={},addr=10.0.0.1"
)
CIFS = "500 29 0:60 / /mnt/share rw,relatime - cifs //server/share rw,vers=3.1.1,uid=0{},soft"


def test_a_line_of_mountinfo() -> None:
    mount = parse_mount("36 35 98:0 /mnt1 /mnt2 ro,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n")
    assert mount == Mount("ext3", frozenset({"ro", "noatime", "rw", "errors=continue"}))
    assert not mount.is_network


@pytest.mark.parametrize(
    ("line", "shares_locks"),
    [
        (NFS.format("none"), True),
        (NFS.format("posix"), True),
        (NFS.format("flock"), False),
        (NFS.format("all"), False),
        (CIFS.format(""), True),
        (CIFS.format(",nobrl"), False),
        ("65 44 0:39 / /mnt rw,nosuid,nodev - fuse.sshfs host:/data rw,user_id=0,group_id=0", False),
        ("65 44 0:39 / /mnt rw,nosuid,nodev shared:1 - ceph 10.0.0.1:/ rw,acl", True),
    ],
)
def test_network_file_systems(line: str, shares_locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "network_mount_of", lambda _path: parse_mount(line))
    assert parse_mount(line).is_network
    if shares_locks:
        assert needs_host_lock(tmp_path)
        with Log.open(tmp_path / "t-0"):
            assert (tmp_path / "t-0" / "kreplog.lock").read_text().startswith("process ")
    else:
        for opening in (lambda: Log.open(tmp_path / "t-0"), lambda: Topic.open(tmp_path / "t", partitions=1)):
            with pytest.raises(UnsupportedFileSystemError, match="locks hold on one host only"):
                opening()
        assert list(tmp_path.iterdir()) == []


def test_a_reader_is_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log.open(tmp_path / "t-0").close()
    monkeypatch.setattr(file_systems, "network_mount_of", lambda _path: parse_mount(NFS.format("none")))
    with pytest.warns(NetworkFileSystemWarning, match="is on nfs4") as caught:
        Log.open(tmp_path / "t-0", read_only=True).close()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_log_whose_recovery_fails_can_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log.open(tmp_path / "t-0").close()
    monkeypatch.setattr(file_systems, "network_mount_of", lambda _path: parse_mount(NFS.format("none")))
    failing = tmp_path / "t-0" / "kreplog.state"
    content = failing.read_bytes()
    failing.unlink()
    failing.mkdir()
    with pytest.raises(Exception, match=r"kreplog\.state"):
        Log.open(tmp_path / "t-0")
    failing.rmdir()
    failing.write_bytes(content)
    Log.open(tmp_path / "t-0").close()
    Log.open(tmp_path / "t-0").close()


def test_a_local_directory(tmp_path: Path) -> None:
    assert file_systems.network_mount_of(tmp_path / "missing" / "t-0") is None
    assert not needs_host_lock(tmp_path)
    with Log.open(tmp_path / "t-0"):
        assert not (tmp_path / "t-0" / "kreplog.lock").exists()


@pytest.mark.parametrize(("kind", "looks"), [(0x0102_1994, False), (0x794C_7630, False), (0x6969, True)])
def test_the_mount_is_looked_up_where_a_type_may_be_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, looks: bool
) -> None:
    """tmpfs, overlay and NFS, each without a disk's device number."""
    looked_up: list[str] = []

    def mount_of(path: str) -> file_systems.Mount:
        looked_up.append(path)
        return parse_mount(NFS.format("none"))

    monkeypatch.setattr(os, "major", lambda _device: 0)
    monkeypatch.setattr(file_systems, "file_system_type", lambda _path: kind)
    monkeypatch.setattr(file_systems, "_mount_of", mount_of)
    assert (file_systems.network_mount_of(tmp_path) is not None) is looks
    assert bool(looked_up) is looks


def test_a_file_system_has_a_type(tmp_path: Path) -> None:
    assert file_system_type(str(tmp_path)) > 0
    with pytest.raises(StorageError, match="cannot find the file system of"):
        file_system_type(str(tmp_path / "missing"))
