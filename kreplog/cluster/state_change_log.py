"""StateChangeLogs: the lines of brokers' state-change logs, newest first, filtered; also of those that do not run."""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from kreplog.errors import UsageError

NAME = "state-change.log"
LIMIT = 300
"""Lines that are returned at a time."""

MAX_BYTES = 32 << 20
"""Bytes of files that are searched at a time: some 100,000 lines."""

CHUNK_BYTES = 256 << 10
MAX_LINE_BYTES = 1 << 20
"""A longer line is none of a broker."""

_REQUESTS = ("LeaderAndIsr", "StopReplica", "UpdateMetadata")
_LOADED = re.compile(r"\S+: (?:its groups|\d+ groups|\d+ transactional ids) are loaded\b")
"""What follows from a decision, 50 times where a broker leads all of the offsets."""


class StateChangeLine(NamedTuple):
    """A line. time_ms: since 1970. facts: its fields."""

    time_ms: int
    broker: int
    facts: Mapping[str, Any]


KINDS = ("", "problems", "decisions", *_REQUESTS)
"""Kinds of lines: all; warnings, errors and requests that were refused; elections, ISR changes and whatever else is
neither a request nor _LOADED; and each request, as sent, applied or refused."""


class StateChangeLogs:
    """The logs of a cluster on this host. folders: of each broker's log files, by its id."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self._folders = folders

    def read(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The newest lines that match, as JSON: {"lines": [{"time_ms", "broker", and the fields of the line}], "next",
        "searched_ms", "notes"}.

        parameters: "broker" an id, "partition" as in t-0, "kind" of KINDS, "text" in any case; "" or nothing for all.
        "next" of a result continues behind its lines; "" where there are no more. searched_ms: the time at which the
        search has ended, at MAX_BYTES; else None. Raises UsageError."""
        matches = _filter(parameters)
        chosen = self._chosen(parameters.get("broker", ""))
        before = _cursor(parameters.get("next", ""))
        before_ms, skip = before
        budget = _Budget(MAX_BYTES)
        notes: list[str] = []
        newest = heapq.merge(
            *(_changes(broker, folder, budget, notes) for broker, folder in chosen.items()),
            key=lambda change: change.time_ms,
            reverse=True,
        )
        found: list[StateChangeLine] = []
        searched_ms = None
        for change in newest:
            if budget.spent:
                break
            searched_ms = change.time_ms
            if change.time_ms > before_ms or not matches(change):
                continue
            if change.time_ms == before_ms and skip:
                skip -= 1
            elif len(found) < LIMIT:
                found.append(change)
            else:
                break
        following = ""
        if len(found) == LIMIT:
            at_ms = found[-1].time_ms
            returned = before.returned if at_ms == before.time_ms else 0
            following = f"{at_ms}.{returned + sum(change.time_ms == at_ms for change in found)}"
        return {
            "lines": [{"time_ms": change.time_ms, **_shown(change.facts), "broker": change.broker} for change in found],
            "next": following,
            "searched_ms": searched_ms if budget.spent else None,
            "notes": notes,
        }

    def _chosen(self, broker: str) -> Mapping[int, Path]:
        if not broker:
            return self._folders
        if not (broker.isascii() and broker.isdecimal() and int(broker) in self._folders):
            raise UsageError(f"broker = {broker!r}: this host has the logs of {sorted(self._folders)}")
        return {int(broker): self._folders[int(broker)]}


class _Budget:
    """Bytes that may still be read."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.spent = False

    def take(self, size: int) -> bool:
        """Whether so many may be read."""
        self.spent = self.spent or size > self.left
        self.left -= size
        return not self.spent


def _filter(parameters: Mapping[str, str]) -> Callable[[StateChangeLine], bool]:
    kind, text, name = (parameters.get(key, "") for key in ("kind", "text", "partition"))
    if kind not in KINDS:
        raise UsageError(f"kind = {kind!r}: choose from {', '.join(filter(None, KINDS))}")
    wanted = text.casefold()
    partition = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])") if name else None

    def matches(change: StateChangeLine) -> bool:
        if partition is not None and not partition.search(str(change.facts.get("partition", change.facts["message"]))):
            return False
        return _is_of_kind(change, kind) and (
            not wanted or wanted in json.dumps(change.facts, ensure_ascii=False).casefold()
        )

    return matches


def _is_of_kind(change: StateChangeLine, kind: str) -> bool:
    name = str(change.facts["message"]).partition(" ")[0]
    if kind == "problems":
        return change.facts.get("level") in ("warning", "error") or "error" in change.facts
    if kind == "decisions":
        return name not in _REQUESTS and not _LOADED.match(str(change.facts["message"]))
    return kind in ("", name)


class _Cursor(NamedTuple):
    """The end of a page. time_ms: of its last line. returned: how many lines of that time it and earlier pages had."""

    time_ms: int
    returned: int


def _cursor(text: str) -> _Cursor:
    """All lines are before that of ""."""
    if not text:
        return _Cursor(1 << 62, 0)
    time_ms, _, skip = text.partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in (time_ms, skip)):
        raise UsageError(f"next = {text!r}: give that of the result before")
    return _Cursor(int(time_ms), int(skip))


def _shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in ("time", "logger")}


def _changes(broker: int, folder: Path, budget: _Budget, notes: list[str]) -> Iterator[StateChangeLine]:
    """The newest first. Lines that are no JSON objects of a broker are left out."""
    paths = [path for path in folder.glob(f"{NAME}.*") if path.suffix[1:].isdigit()]
    paths.sort(key=lambda path: int(path.suffix[1:]))
    foreign = False
    for path in (folder / NAME, *paths):
        try:
            for line in _lines_backwards(path, budget):
                change = _parsed(line, broker)
                if change is not None:
                    yield change
                elif not foreign and line.strip():
                    foreign = True
                    notes.append(f"broker {broker}: some lines are no JSON (server.log.format) and are left out")
        except FileNotFoundError:  # none yet, or rotated meanwhile
            continue
        except OSError as error:
            notes.append(f"broker {broker}: {path.name} cannot be read: {error.strerror or error}")


def _lines_backwards(path: Path, budget: _Budget) -> Iterator[bytes]:
    """The whole lines of a file, the last first. Raises OSError."""
    with open(path, "rb") as file:
        start = file.seek(0, os.SEEK_END)
        rest: bytes | None = None  # the part of a line that is read already; None: the last, which is being written
        while start:
            size = min(CHUNK_BYTES, start)
            if not budget.take(size):
                return
            start -= size
            file.seek(start)
            *before, last = file.read(size).split(b"\n")
            if rest is not None:
                rest = last + rest if len(rest) <= MAX_LINE_BYTES else b""
            if before:
                if rest is not None:
                    yield rest
                yield from reversed(before[1:])
                rest = before[0]
        if rest is not None:
            yield rest


def _parsed(line: bytes, broker: int) -> StateChangeLine | None:
    try:
        facts = json.loads(line)
        at = datetime.fromisoformat(facts["time"])
        if isinstance(facts["message"], str):
            return StateChangeLine(int(at.timestamp() * 1000), broker, facts)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None
