"""Driver: commits of a cursor broken off at their n-th file call, for n = 1, 2, ... until none is reached; then the
cursor is opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC) or
"handles" (EMFILE). Needs the shim. What must hold: the place is that of the latest commit that returned, or of the one
under way, of all partitions together; and errors are typed.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from kreplog import LogConfig, Topic, errors
from kreplog.topic import cursor_log
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, acknowledged, finish, result_of, start

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
            found = cursor.places
            assert found[0] == found[1], found
            cursor.seek_to_end()
            cursor.commit()
        with topic.cursor("billing") as cursor:
            assert cursor.committed == {0: COMMITS, 1: COMMITS}
    return found[0]


def main(directory: Path, mode: str) -> None:
    cursor_log.CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=700)
    cursor_log.PARTITIONS = 2
    nth = 0
    broken_off = 0
    while True:
        nth += 1
        path = directory / f"{mode}-{nth}" / "orders"
        with Topic.open(path, 2) as topic:
            for number in range(2 * COMMITS):
                topic.append(b"", partition=number % 2)
        code, received = finish(*start(partial(play, path, mode, nth)))
        assert code in (0, faults.REFUSED, faults.UNHARMED, -9), f"call {nth}: the reader ended with {code}"
        steps = acknowledged(received)
        begun, done = steps[-1] if steps else (0, 0)
        found = result_of(partial(look, path))
        assert done <= found <= begun, f"call {nth}: {done} commits returned, {begun} were begun, the place is {found}"
        shutil.rmtree(path.parent)
        if code == faults.UNHARMED:
            break
        broken_off += code != 0
    print(f"calls={nth} broken_off={broken_off}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
