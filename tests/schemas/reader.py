"""A call by a user who may read the files of a folder, and write none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.waiting import InChild


def as_who_may_only_read(path: Path, call: Callable[[], Any]) -> Any:
    """The result of `call` in another process, for which the file at `path` and its neighbours are read-only."""

    def run() -> Any:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
        return call()

    # Those that pytest has made for this user alone; another user's are open to all, or this user's own.
    closed = [place for place in path.parent.parents if os.geteuid() == 0 and not place.stat().st_mode & 0o001]
    folders = [path.parent, *filter(Path.is_dir, path.parent.iterdir())]
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    modes = {place: place.stat().st_mode for place in (*closed, *folders, *files)}
    try:
        for place in closed:
            place.chmod(modes[place] | 0o011)
        for folder in folders:
            folder.chmod(0o755)
        for file in files:
            file.chmod(0o444)
        return InChild(run).result()
    finally:
        for place, mode in modes.items():
            place.chmod(mode)
