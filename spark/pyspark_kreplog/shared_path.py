"""Checks that the path of a sink is the same directory for the driver and for every task.

Tasks stage files that the driver commits. If each host had a directory of its own at that path, the driver would find
none of them. The driver therefore marks the directory, and a task reads the mark before its first row.

    <path>/.kreplog-writes/id        random text, written once
"""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

from kreplog.errors import StorageError, UsageError
from pyspark_kreplog.staging import FOLDER


def mark(path: str) -> str:
    """The mark of the directory, which is written if it has none. Raises StorageError."""
    folder = Path(path, FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "id").exists():
            draft = folder / f"id.{uuid.uuid4().hex}"
            draft.touch(0o600)
            draft.write_text(uuid.uuid4().hex)
            with suppress(FileExistsError):  # another driver was first
                os.link(draft, folder / "id")
            draft.unlink()
        return (folder / "id").read_text()
    except OSError as error:
        raise StorageError(f"{folder / 'id'} cannot be written: {error.strerror}", path=str(folder / "id")) from error


def require_mark(path: str, expected: str) -> None:
    """Raise UsageError unless the directory at `path` is the one that the driver has marked."""
    try:
        found = Path(path, FOLDER, "id").read_text()
    except OSError:
        found = ""
    if found != expected:
        raise UsageError(
            f"option 'path' = {path!r} is not shared: on host {socket.gethostname()}, where this task runs, it is not "
            "the directory of the driver. Nothing is written. Give a directory of a file system that the driver and "
            "all workers mount at the same path",
            path=path,
        )
