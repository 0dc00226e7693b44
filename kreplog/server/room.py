"""Room: whether a file system that was full can take records again."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHARE = 0.05
"""Of a file system's size that is to be free before it counts as one with room; MOST_BYTES where that is less."""

MOST_BYTES = 1 << 30
PROBE_BYTES = 1 << 20
PROBE_NAME = ".kreplog.room"


def have_room(directories: Iterable[Path]) -> bool:
    """Whether every one of them has; blocks for as long as the disks take."""
    return all(map(has_room, directories))


def has_room(directory: Path) -> bool:
    """By what the file system says is free for this user, and by a file that is written and removed again: a quota is
    seen by that alone."""
    try:
        facts = os.statvfs(directory)
    except OSError:
        return False
    if facts.f_bavail * facts.f_frsize < min(MOST_BYTES, SHARE * facts.f_blocks * facts.f_frsize):
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
