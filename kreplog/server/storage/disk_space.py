"""Free disk space: whether a log directory that failed for lack of space (ENOSPC, EDQUOT) can be written again."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kreplog.core.broker.log_directory_state import has_room

PROBE_BYTES = 1 << 20
PROBE_NAME = ".kreplog.room"


def all_have_space(directories: Iterable[Path]) -> bool:
    """Whether every directory has space; blocks on disk I/O."""
    return all(map(has_space, directories))


def has_space(directory: Path) -> bool:
    """Whether enough is free for this user, and a probe file can be written: statvfs does not show a user's quota."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return False
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    if not has_room(free, total):
        return False
    probe = directory / PROBE_NAME
    try:
        with open(probe, "wb", opener=_private) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
