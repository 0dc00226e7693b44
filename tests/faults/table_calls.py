"""Driver: the snapshot of a table, broken off at its n-th file call, for n = 1, 2, ... until none is reached; then the
table is opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC) or
"handles" (EMFILE). Needs the shim. What must hold: the snapshot is sound, that of the latest `save` that returned or of
the one under way; the table has what the log has; the next `save` works; and errors are typed.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from kreplog import Topic, errors
from kreplog._native.key_table import KeyTable
from kreplog.topic.table_snapshot import read_snapshot
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, acknowledged, finish, result_of, start

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


def main(directory: Path, mode: str) -> None:
    nth = 0
    broken_off = 0
    while True:
        nth += 1
        path = directory / f"{mode}-{nth}" / "prices"
        Topic.open(path, 1).close()
        (path.parent / "snapshots").mkdir()
        code, received = finish(*start(partial(play, path, mode, nth)))
        assert code in (0, faults.REFUSED, faults.UNHARMED, -9), f"call {nth}: the reader ended with {code}"
        steps = acknowledged(received)
        begun, done = steps[-1] if steps else (0, 0)
        found = result_of(partial(look, path))
        assert done <= found <= begun, f"call {nth}: {done} saves returned, {begun} were begun, there are {found}"
        shutil.rmtree(path.parent)
        if code == faults.UNHARMED:
            break
        broken_off += code != 0
    print(f"calls={nth} broken_off={broken_off}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
