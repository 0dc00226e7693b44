"""Driver: the snapshot of a table, broken off at its n-th file call, for n = 1, 2, ... until none is reached; then the
table is opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC),
"handles" (EMFILE) or "sync" (EIO of an fsync). Needs the shim. What must hold: the snapshot is sound, that of the
latest `save` that returned or of the one under way; the table has what the log has; the next `save` works; and errors
are typed.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from kreplog import Topic, errors
from kreplog._native.key_table import KeyTable
from kreplog.topic.table_snapshot import read_snapshot
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, result_of

SAVES = 3


def play(path: Path, mode: str, nth: int, pipe: int) -> None:
    """Append, refresh and save; acknowledge (saves begun, saves done)."""
    kinds, how, error = faults.MODES[mode]
    shim = faults.Shim()
    snapshot = path.parent / "snapshots" / "prices"
    try:
        with Topic.open(path) as topic:
            shim.arm(kinds, str(snapshot.parent), nth, error, how)
            with topic.table(snapshot=snapshot) as table:
                for number in range(1, SAVES + 1):
                    acknowledge(pipe, number, number - 1)
                    topic.append(b"%d" % number, b"k%d" % number, partition=0)
                    table.refresh()
                    table.save()
                    acknowledge(pipe, number, number)
    except errors.StorageError:
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


def look(path: Path) -> int:
    """How far the snapshot goes; it is then loaded, and saved again."""
    snapshot = path.parent / "snapshots" / "prices"
    with Topic.open(path) as topic:
        assert topic.topic_id is not None
        applied = read_snapshot(str(snapshot), topic._folder.topic_id or "", KeyTable())
        with topic.table(snapshot=snapshot) as table:
            assert dict(table.items()) == {record.key: record.value for record in topic.read()}
            table.save()
    return applied[0].next_offset if applied else 0


def prepare(path: Path) -> None:
    Topic.open(path, 1).close()
    (path.parent / "snapshots").mkdir()


def check(path: Path, steps: list[tuple[int, int]]) -> None:
    begun, done = steps[-1] if steps else (0, 0)
    found = result_of(partial(look, path))
    assert done <= found <= begun, f"{done} saves returned, {begun} were begun, there are {found}"


def main(directory: Path, mode: str) -> None:
    broken_off_at_each_call(directory, mode, "prices", prepare, play, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
