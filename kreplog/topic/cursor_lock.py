"""The lock file of a cursor: held alone by a cursor of one process, shared by the members of a cursor group.

data/orders@billing.lock   of the cursor "billing" of the topic "orders"; holds the process id of its latest owner
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from kreplog._native.files import error_of
from kreplog.errors import CursorLockedError

if TYPE_CHECKING:
    from kreplog.topic import Topic

GROUP = b"a group\n"


def locked(topic: Topic, name: str, *, shared: bool) -> int:
    """The descriptor of the cursor's lock file, locked. Raises CursorLockedError, StorageError."""
    path = f"{topic.path}@{name}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise error_of("cannot open", path, error) from error
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(file, 32, 0)
        os.close(file)
        if holder == GROUP and not shared:
            in_use = "by members of a group, which share it: end them, or open it with Topic.group_cursor"
        else:
            process = holder.decode("ascii", "replace").strip() or "unknown"
            in_use = f"in process {process}, by which {path} is locked: close it there"
        raise CursorLockedError(f"cursor {name} is open {in_use}; or choose another name", path=path) from error
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, GROUP if shared else b"%d\n" % os.getpid(), 0)
    except OSError as error:
        os.close(file)
        raise error_of("cannot write", path, error) from error
    return file


def unlock(file: int) -> None:
    """Release the lock and close its file; not left to closing: a child may have the descriptor."""
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)
