"""Driver: a network file system, by bindfs, that autofs mounts when its directory is first used.

Arguments: an empty directory. Needs the right to mount, in a mount namespace of its own. What must hold: kreplog has it
mounted by looking at it, and finds what was mounted, not autofs.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
from pathlib import Path

from kreplog import file_systems
from tests.faults.forked import finish, start
from tests.faults.mounted import bindfs

_READY = 0x9360  # AUTOFS_IOC_READY
_PACKET = struct.Struct("=iiIIQIIIII")  # autofs_v5_packet, without the name
_PACKET_BYTES = 304
WAIT_S = 120.0


def mount_automatically(directory: Path, mounter: int) -> None:
    """Raises OSError where the kernel has no autofs."""
    library = ctypes.CDLL(None, use_errno=True)
    options = f"fd={mounter},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
    if library.mount(b"auto", os.fsencode(directory), b"autofs", ctypes.c_ulong(0), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(directory))


def look(directory: Path, pipe: int) -> None:
    """As a process of another group than the mounting one, for which alone the kernel mounts nothing."""
    os.setpgid(0, 0)
    mount = file_systems.network_mount_of(directory)
    os.write(pipe, (mount.kind if mount else "a local file system").encode())


def main(directory: Path) -> None:
    os.setpgid(0, 0)
    requests, mounter = os.pipe()
    mount_automatically(directory, mounter)
    os.close(mounter)
    root = os.open(directory, os.O_RDONLY)
    pid, result = start(lambda pipe: look(directory, pipe))
    assert select.select([requests, result], [], [], WAIT_S)[0] == [requests], "nothing is to be mounted"
    _, _, token, *_ = _PACKET.unpack_from(os.read(requests, _PACKET_BYTES))
    (server := directory.with_name("server")).mkdir()
    bindfs(server, directory)
    fcntl.ioctl(root, _READY, token)
    print(f"found {finish(pid, result)[1].decode()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
