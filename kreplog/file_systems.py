"""The file system of a directory: whether other hosts may write there too, a lock that they respect, and no copies.

The lock on a log's directory holds on one host: NFS and SMB send locks of files to their server, and none of
directories. So a log's writer locks a file there as well, and is refused where not even that reaches other hosts: the
records of two writers would overwrite each other. A topic's lock, and that of a broker's data directory, are files.

A btrfs writes each page that is changed to another place, which a full one has not: the store into a mapped file, as a
log's are, then ends the process (SIGBUS). So the files of a log are made without copy-on-write there.

Mounts are those of Linux, in /proc; elsewhere, and without /proc, every file system counts as local.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import warnings
from contextlib import suppress
from dataclasses import dataclass

from kreplog._native.files import error_of, file_system_type
from kreplog.errors import LogLockedError, NetworkFileSystemWarning, StorageError, UnsupportedFileSystemError

__all__ = ["HostLock", "Mount", "forgo_copy_on_write", "needs_host_lock", "network_mount_of", "warn_reader"]

HOST_LOCK = "kreplog.lock"

_GET_FLAGS, _SET_FLAGS, _NO_COPY_ON_WRITE = 0x8008_6601, 0x4008_6602, 0x0080_0000  # ioctl_iflags(2)

_TMPFS, _OVERLAY, _BTRFS = 0x0102_1994, 0x794C_7630, 0x9123_683E
_LOCAL = frozenset([_TMPFS, _OVERLAY, _BTRFS, 0x2FC1_2FC1])
"""Types, of statfs(2), of local file systems without a disk's device number; the last is ZFS."""

SHARE_LOCKS = frozenset(["ceph", "cifs", "fuse.ceph-fuse", "fuse.glusterfs", "lustre", "nfs", "nfs4", "smb3"])
"""Network file systems whose locks of files hold on all hosts, unless a mount option says otherwise."""

LOCK_LOCALLY = frozenset(
    ["afs", "coda"]
    + [f"fuse.{name}" for name in ("blobfuse2", "curlftpfs", "davfs", "gcsfuse", "goofys", "mountpoint-s3")]
    + [f"fuse.{name}" for name in ("rclone", "s3fs", "s3ql", "sshfs")]
)
"""File systems of which several hosts have the same files, and none the locks of another."""

LOCAL_LOCK_OPTIONS = frozenset(["local_lock=all", "local_lock=flock", "localflock", "nobrl", "noflock", "nolock"])
"""Mount options of nfs, cifs and lustre by which locks of files hold on one host."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system. kind: its type in /proc/self/mountinfo, such as `nfs4`. options: of the mount and of the
    file system."""

    kind: str
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether other hosts may have the same files."""
        return self.kind in SHARE_LOCKS or self.kind in LOCK_LOCALLY

    @property
    def shares_locks(self) -> bool:
        """Whether a lock of a file holds on all hosts that have it."""
        return self.kind in SHARE_LOCKS and not self.options & LOCAL_LOCK_OPTIONS


def parse_mount(line: str) -> Mount:
    """A line of /proc/self/mountinfo. Source: proc_pid_mountinfo(5)."""
    of_mount, _, of_file_system = line.partition(" - ")
    kind, _source, options = of_file_system.split()
    return Mount(kind, frozenset([*of_mount.split()[5].split(","), *options.split(",")]))


def network_mount_of(path: str | os.PathLike[str]) -> Mount | None:
    """The mount of a directory, or of the nearest one above it that exists; None for a local file system, or where
    that cannot be known."""
    try:
        nearest = os.path.abspath(os.fsdecode(path))
        while not os.path.exists(nearest):
            nearest = os.path.dirname(nearest)
        if os.major(os.stat(nearest).st_dev) or file_system_type(nearest) in _LOCAL:
            return None  # looking for the mount takes 40 times as long
        mount = _mount_of(nearest)
    except (OSError, StorageError, AttributeError, KeyError, StopIteration, TypeError, ValueError):
        return None
    return mount if mount.is_network else None


def _mount_of(path: str) -> Mount:
    file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{file}", "rb") as info:
            number = dict(line.split(None, 1) for line in info)[b"mnt_id:"].strip()
    finally:
        os.close(file)
    with open("/proc/self/mountinfo", "rb") as mounts:
        return next(parse_mount(line.decode()) for line in mounts if line.startswith(number + b" "))


def needs_host_lock(path: str | os.PathLike[str]) -> bool:
    """Whether a writer of the directory needs a HostLock, since other hosts may write there too.

    Raises UnsupportedFileSystemError where no lock reaches them; nothing was changed."""
    mount = network_mount_of(path)
    if mount is None:
        return False
    if not mount.shares_locks:
        raise UnsupportedFileSystemError(
            f"{os.fsdecode(path)} is on {mount.kind}, whose locks hold on one host only, so that another could write "
            "there at the same time: put it on a disk of this host, or on NFS or SMB with locks; or open it here with "
            "read_only=True",
            path=os.fsdecode(path),
        )
    return True


def forgo_copy_on_write(directory: str) -> None:
    """Have the files that are made in the directory from now on changed in place, where its file system copies."""
    try:
        if os.major(os.stat(directory).st_dev) or file_system_type(directory) == _TMPFS:
            return
        file = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, StorageError):
        return  # who opens it next gets the error
    try:
        (flags,) = struct.unpack("i", fcntl.ioctl(file, _GET_FLAGS, bytes(4)))
        if not flags & _NO_COPY_ON_WRITE:
            fcntl.ioctl(file, _SET_FLAGS, struct.pack("i", flags | _NO_COPY_ON_WRITE))
    except OSError:
        return  # a file system without such a flag
    finally:
        os.close(file)


def warn_reader(path: str | os.PathLike[str]) -> None:
    """Warn with NetworkFileSystemWarning if other hosts may write to the directory. For the callee of a public call."""
    mount = network_mount_of(path)
    if mount is not None:
        warnings.warn(
            f"{os.fsdecode(path)} is on {mount.kind}: what a process of another host appends is seen late or not at "
            "all, and that process seems to have died; follow its records through a broker",
            NetworkFileSystemWarning,
            stacklevel=3,
        )


class HostLock:
    """An exclusive lock on `kreplog.lock` in a directory, which holds on all hosts; from its making to `release`.

    The file has the holder's host and process id, and stays. Raises LogLockedError, StorageError.
    """

    def __init__(self, directory: str, partition: str) -> None:
        path = os.path.join(directory, HOST_LOCK)
        try:
            self._file = open(path, "r+b", buffering=0, opener=_open_or_create)  # noqa: SIM115 - until `release`
            try:
                self._lock(directory, partition)
                self._file.truncate(0)
                self._file.write(f"process {os.getpid()} on host {socket.gethostname()}\n".encode())
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise error_of("cannot lock the directory: a call failed on", path, error) from error

    def _lock(self, directory: str, partition: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the latter of SMB, which does not let it be read either
            holder = b""
            with suppress(OSError):
                holder = self._file.read(512)
            name = holder.decode(errors="replace").strip() or "another process"
            raise LogLockedError(
                f"{partition}: {directory} is open for writing in {name}; close it there, or open it here with "
                "read_only=True",
                partition=partition,
                path=directory,
            ) from None

    def release(self) -> None:
        """Unlock it, also where a child between fork and exec has the file open."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self.abandon()

    def abandon(self) -> None:
        """Close the file: in a forked child, the parent's lock stays."""
        self._file.close()


def _open_or_create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)
