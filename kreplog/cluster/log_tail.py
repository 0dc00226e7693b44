"""The end of a broker's log files: its last lines, and its last message."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILES = ("server.log", "console.log")
"""In a broker's logs directory. console.log has the output of a process that fails before it can log."""

_MAX_BYTES = 64 << 10

Marks = Mapping[str, int]
"""Sizes by file name."""


def marks(home: Path) -> Marks:
    """The sizes of the log files of the broker in `home`."""
    sizes = {}
    for name in FILES:
        try:
            sizes[name] = os.stat(home / "logs" / name).st_size
        except OSError:
            sizes[name] = 0
    return sizes


def last_lines(home: Path, since: Marks, limit: int) -> list[str]:
    """The last lines that were written after `since`, up to `limit` of each file."""
    return [line for name in FILES for line in _lines(home / "logs" / name, since.get(name, 0))[-limit:]]


def last_message(home: Path, since: Marks) -> str:
    """The last message that was written after `since`; "" for none."""
    for name in reversed(FILES):
        for line in reversed(_lines(home / "logs" / name, since.get(name, 0))):
            if text := _message(line):
                return text
    return ""


def _lines(path: Path, start: int) -> list[str]:
    with suppress(OSError), open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - _MAX_BYTES))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return []


def _message(line: str) -> str:
    """The message of a JSON line; of any other line all of it, without the prefix of the command."""
    try:
        facts: Any = json.loads(line)
    except ValueError:
        return line.removeprefix("kreplog: ").strip()
    return str(facts.get("message", "")) if isinstance(facts, dict) else line
