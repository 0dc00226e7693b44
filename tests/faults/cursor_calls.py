"""Driver: commits of a cursor broken off at their n-th file call, for n = 1, 2, ... until none is reached; then the
cursor is opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC),
"handles" (EMFILE) or "sync" (EIO of an fsync). Needs the shim. What must hold: the place is that of the latest commit
that returned, or of the one under way, of all partitions together; and errors are typed.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from kreplog import LogConfig, Topic, errors
from kreplog.topic import cursor_log
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, result_of

COMMITS = 12


def play(path: Path, mode: str, nth: int, pipe: int) -> None:
    """Open, commit and close; acknowledge (commits begun, commits done)."""
    kinds, how, error = faults.MODES[mode]
    shim = faults.Shim()
    try:
        with Topic.open(path, read_only=True) as topic:
            shim.arm(kinds, str(path.parent), nth, error, how)
            with topic.cursor("billing") as cursor:
                for number in range(1, COMMITS + 1):
                    acknowledge(pipe, number, number - 1)
                    cursor.seek(0, number)
                    cursor.seek(1, number)
                    cursor.commit(durable=number % 5 == 0)
                    acknowledge(pipe, number, number)
    except errors.StorageError:
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


def look(path: Path) -> int:
    """The place; the cursor is then committed to, and opened again."""
    with Topic.open(path, read_only=True) as topic:
        with topic.cursor("billing") as cursor:
            found = cursor.positions
            assert found[0] == found[1], found
            cursor.seek_to_end()
            cursor.commit()
        with topic.cursor("billing") as cursor:
            assert cursor.committed == {0: COMMITS, 1: COMMITS}
    return found[0]


def prepare(path: Path) -> None:
    with Topic.open(path, 2) as topic:
        for number in range(2 * COMMITS):
            topic.append(b"", partition=number % 2)


def check(path: Path, steps: list[tuple[int, int]]) -> None:
    begun, done = steps[-1] if steps else (0, 0)
    found = result_of(partial(look, path))
    assert done <= found <= begun, f"{done} commits returned, {begun} were begun, the place is {found}"


def main(directory: Path, mode: str) -> None:
    cursor_log.CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=700)
    cursor_log.PARTITIONS = 2
    broken_off_at_each_call(directory, mode, "orders", prepare, play, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
