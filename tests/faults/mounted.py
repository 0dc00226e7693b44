"""Runs a command with a file system of its own at a directory, which ends with the command, killed or not.

    python -m tests.faults.mounted KIND DIRECTORY COMMAND...

The namespace of mounts is the command's alone. Of two directories that are mounted as `fuse.sshfs` or `fuse.glusterfs`,
`DIRECTORY` and `DIRECTORY-2`, the kernel knows as little as two hosts do of each other: caches, mapped files and locks
of one do not reach the other, except that bindfs, which stands in for GlusterFS and NFS, forwards locks of files.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.waiting import until

MEGABYTES = 320  # XFS takes no less than 300
SFTP_SERVER = "/usr/lib/openssh/sftp-server"


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL)


def tmpfs(where: Path, _beside: Path) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=64m", "kreplog-test", where)


def in_image(kind: str, *options: str) -> Callable[[Path, Path], None]:
    def mount(where: Path, beside: Path) -> None:
        image = beside / "image"
        with image.open("wb") as file:
            file.truncate(MEGABYTES << 20)
        run(f"mkfs.{kind}", "-q", *options, image)
        run("mount", "-o", "loop", image, where)

    return mount


def overlay(where: Path, beside: Path) -> None:
    """Upper and lower layer on a tmpfs of their own; the lower has what the directory has."""
    layers = beside / "layers"
    layers.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=64m", "kreplog-test", layers)
    shutil.copytree(where, layers / "lower")
    (layers / "upper").mkdir()
    (layers / "work").mkdir()
    options = ",".join(f"{name}dir={layers / name}" for name in ("lower", "upper", "work"))
    run("mount", "-t", "overlay", "-o", options, "kreplog-test", where)


def on_two_hosts(mount: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def mount_both(where: Path, beside: Path) -> None:
        server = beside / "server"
        server.mkdir()
        for host in (where, second_host(where)):
            host.mkdir(exist_ok=True)
            mount(server, host)
            until(partial(os.path.ismount, host))

    return mount_both


def second_host(where: Path) -> Path:
    return where.with_name(where.name + "-2")


def sshfs(server: Path, where: Path) -> None:
    """Without ssh: sshfs has the protocol's server at the other end of a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for command, end in (
            ([SFTP_SERVER], theirs),
            (["sshfs", "-f", "-o", "passive", f":{server}", str(where)], ours),
        ):
            subprocess.Popen(command, stdin=end.fileno(), stdout=end.fileno())


def bindfs(server: Path, where: Path) -> None:
    options = ("--enable-lock-forwarding", "--multithreaded", "-o", "subtype=glusterfs")
    run("bindfs", *options, server, where)


MOUNTS: dict[str, Callable[[Path, Path], None]] = {
    "tmpfs": tmpfs,
    "ext4": in_image("ext4", "-m", "0"),
    "xfs": in_image("xfs"),
    "btrfs": in_image("btrfs"),
    "overlay": overlay,
    "fuse.sshfs": on_two_hosts(sshfs),
    "fuse.glusterfs": on_two_hosts(bindfs),
}
PROGRAMS = {
    "ext4": ["mkfs.ext4"],
    "xfs": ["mkfs.xfs"],
    "btrfs": ["mkfs.btrfs"],
    "fuse.sshfs": ["sshfs", SFTP_SERVER],
    "fuse.glusterfs": ["bindfs"],
}


def cannot_have(kind: str) -> str:
    """Why this file system cannot be mounted here; empty where it can."""
    if os.geteuid() != 0:
        return "only root can mount"
    known = Path("/proc/filesystems")
    if not known.exists():
        return "file systems are mounted on Linux only"
    if kind.partition(".")[0] not in known.read_text().split():
        return f"this kernel has no {kind.partition('.')[0]}"
    missing = [program for program in PROGRAMS.get(kind, []) if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    device = "/dev/fuse" if kind.startswith("fuse") else "/dev/loop-control"
    if kind in PROGRAMS and not os.access(device, os.W_OK):
        return f"no {device} here"
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return "" if probe.returncode == 0 else f"this root cannot mount: {probe.stderr.decode(errors='replace').strip()}"


NAMESPACES = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")
"""What starts a command that may mount, and whose processes end with it."""


def under(kind: str, where: Path) -> Sequence[str]:
    """What starts a command with the file system at `where`."""
    return [*NAMESPACES, sys.executable, "-m", "tests.faults.mounted", kind, str(where)]


def main(kind: str, where: Path, *command: str) -> int:
    where.mkdir(exist_ok=True)
    beside = where.with_name(where.name + "-beside")
    beside.mkdir()
    MOUNTS[kind](where, beside)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
