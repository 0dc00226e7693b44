"""Logs on file systems of several kinds, each mounted for the test: what docs/file-systems.md promises of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kreplog import Log
from tests.faults.mounted import NAMESPACES, cannot_have, under
from tests.faults.shim import run_driver

LOCAL = ["tmpfs", "ext4", "xfs", "btrfs", "overlay"]


def on(kind: str, folder: Path, driver: str, *arguments: object) -> str:
    if reason := cannot_have(kind):  # names the right, the tool or the kernel's file system that is missing
        pytest.skip(reason)
    return run_driver(driver, folder / "mount", *arguments, under=under(kind, folder / "mount"))


@pytest.mark.parametrize("kind", LOCAL)
def test_a_log_on_a_local_file_system(folder: Path, kind: str) -> None:
    """Followed, killed, truncated, compacted, full, read-only."""
    output = on(kind, folder, "mounted_log")
    assert re.findall(r"^\w+=", output, re.M) == ["woken=", "truncated_to=", "left=", "full_at=", "remounted="]


@pytest.mark.long
@pytest.mark.parametrize("kind", LOCAL)
def test_kills_on_a_local_file_system(folder: Path, kind: str) -> None:
    assert "kills=60 " in on(kind, folder, "kill_loop", 60, 1)


@pytest.mark.parametrize("kind", ["fuse.sshfs", "fuse.glusterfs"])
def test_two_hosts_never_write_at_the_same_time(folder: Path, kind: str) -> None:
    """sshfs has no locks that hold on both: it is refused. bindfs forwards locks of files and not of directories, as
    NFS does."""
    on(kind, folder, "two_hosts", kind)


def test_a_file_system_that_is_mounted_when_it_is_first_used(folder: Path) -> None:
    """As NFS is by autofs or systemd: what counts is the mounted one, also where the mount point is the log itself."""
    if reason := cannot_have("autofs") or cannot_have("fuse.glusterfs"):
        pytest.skip(reason)
    (folder / "mount").mkdir()
    assert "found fuse.glusterfs" in run_driver("automounted", folder / "mount", under=NAMESPACES)


def test_a_log_of_a_lower_layer(folder: Path) -> None:
    with Log.open(folder / "mount" / "t-0") as log:
        log.append(b"below")
    on("overlay", folder, "lower_layer")
