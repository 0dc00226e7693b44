"""Checks that the path of a sink is the same directory for the driver and for every task.

Tasks stage files that the driver commits. If each host had a directory of its own at that path, the driver would find
none of them. The driver therefore marks the directory, and a task reads the mark before its first row.

    <path>/.kreplog-writes/id-<random>      an empty file, made once
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

from kreplog.errors import StorageError, UsageError
from pyspark_kreplog.staging import FOLDER

PREFIX = "id-"


def mark(path: str) -> str:
    """The mark of the directory, which is made if it has none. Raises StorageError."""
    folder = Path(path, FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = sorted(file.name for file in folder.glob(f"{PREFIX}*"))
        if present:
            return present[0]
        made = folder / f"{PREFIX}{uuid.uuid4().hex}"  # where two drivers make one each, both are marks
        made.touch(0o600)
        return made.name
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}", path=str(folder)) from error


def require_mark(path: str, expected: str) -> None:
    """Raise UsageError unless the directory at `path` is the one that the driver has marked."""
    if not Path(path, FOLDER, expected).exists():
        raise UsageError(
            f"option 'path' = {path!r} is not shared: on host {socket.gethostname()}, where this task runs, it is not "
            "the directory of the driver. Nothing is written. Give a directory of a file system that the driver and "
            "all workers mount at the same path, or write to brokers",
            path=path,
        )
