"""Fsyncs of directories: the name of a file or directory is durable once the directory that contains it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Fsync a directory: the names in it are durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def sync_parents(path: Path) -> None:
    """Fsync all directories that contain `path`, directly or not: its name is durable, and theirs.

    For the first use of a file or directory: the process that created any of them may have been killed before it synced
    them. Raises OSError.
    """
    for directory in path.absolute().parents:
        with suppress(PermissionError):  # then this user has created nothing in it
            sync_directory(directory)
