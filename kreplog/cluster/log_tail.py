"""What a broker on this host has written to its logs, for those who see it from outside: its last lines and words."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILES = ("server.log", "console.log")
"""Of its logs directory; the last is what a process says that cannot even begin to log."""

_MOST_BYTES = 64 << 10

Marks = Mapping[str, int]
"""By file: how long it was."""


def marks(home: Path) -> Marks:
    """Where the logs of the broker at `home` end now."""
    found = {}
    for name in FILES:
        try:
            found[name] = os.stat(home / "logs" / name).st_size
        except OSError:
            found[name] = 0
    return found


def last_lines(home: Path, since: Marks, most: int) -> list[str]:
    """The last lines that it wrote after `since`, as many of each file."""
    return [line for name in FILES for line in _lines(home / "logs" / name, since.get(name, 0))[-most:]]


def last_words(home: Path, since: Marks) -> str:
    """What it said last, as one sentence; "" for nothing."""
    for name in reversed(FILES):
        for line in reversed(_lines(home / "logs" / name, since.get(name, 0))):
            if text := _message(line):
                return text
    return ""


def _lines(path: Path, start: int) -> list[str]:
    with suppress(OSError), open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - _MOST_BYTES))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return []


def _message(line: str) -> str:
    """Of a line of JSON its message; of any other the line, without who says it."""
    try:
        facts: Any = json.loads(line)
    except ValueError:
        return line.removeprefix("kreplog: ").strip()
    return str(facts.get("message", "")) if isinstance(facts, dict) else line
