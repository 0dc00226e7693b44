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

    tops = [*path.parent.parents[:3], path.parent, *filter(Path.is_dir, path.parent.iterdir())]
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    modes = {place: place.stat().st_mode for place in (*tops, *files)}
    try:
        for top in tops:
            top.chmod(0o755)
        for file in files:
            file.chmod(0o444)
        return InChild(run).result()
    finally:
        for place, mode in modes.items():
            place.chmod(mode)
