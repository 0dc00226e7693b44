"""Driver: a table in an LMDB file, broken off at its n-th file call, for n = 1, 2, ... until none is reached; then the
table is opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC),
"handles" (EMFILE) or "sync" (EIO of an fsync). Needs the shim. What must hold: the table then has what the log has, the
file has had the keys of the place that it stands at, that of the latest refresh that returned or of the one under way;
and errors are typed.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from kreplog import Topic, errors
from kreplog.topic.lmdb_store import LmdbStore
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, result_of

STEPS = 3


def play(path: Path, mode: str, nth: int, pipe: int) -> None:
    """Load, follow, close, go on; acknowledge (refreshes begun, refreshes done)."""
    kinds, how, error = faults.MODES[mode]
    shim = faults.Shim()
    folder = path.parent / "tables" / "prices"
    try:
        with Topic.open(path) as topic:
            shim.arm(kinds, str(folder.parent), nth, error, how)
            for opening in range(2):
                with topic.table(path=folder) as table:
                    for number in range(1 + opening * STEPS, 1 + (opening + 1) * STEPS):
                        acknowledge(pipe, number, number - 1)
                        topic.append(None if number % 3 == 0 else b"%d" % number, b"k%d" % (number % 2), partition=0)
                        table.refresh()
                        acknowledge(pipe, number, number)
    except errors.StorageError:
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


class Unloaded:
    def load(self) -> None:
        raise AssertionError("the file is damaged")


def look(path: Path) -> int:
    """The number of records that the file has applied: its keys are those of the log up to there. The table then has
    what the log has."""
    folder = path.parent / "tables" / "prices"
    with Topic.open(path) as topic:
        unloaded = Unloaded()
        store = LmdbStore(str(folder), topic.path, topic._folder.topic_id or "", unloaded.load)
        places = {number: store.place(number) for number in topic.offsets()}
        applied = {number: 0 if place is None else place.next_offset for number, place in places.items()}
        assert {record[3]: record[4] for record in store.records()} == newest(topic, applied)
        store.close()
        for _ in range(2):
            with topic.table(path=folder) as table:
                assert dict(table.items()) == newest(topic, table.offsets)
    return sum(applied.values())


def newest(topic: Topic, stops: dict[int, int]) -> dict[bytes, bytes]:
    """By the log; each key is in one partition."""
    found: dict[bytes, bytes] = {}
    for record in topic.read():
        if record.offset < stops[record.partition]:
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
    return found


def prepare(path: Path, partitions: int = 1) -> None:
    Topic.open(path, partitions).close()
    (path.parent / "tables").mkdir()


def check(path: Path, steps: list[tuple[int, int]]) -> None:
    begun, done = steps[-1] if steps else (0, 0)
    found = result_of(partial(look, path))
    assert done <= found <= begun, f"{done} refreshes returned, {begun} were begun, the file has {found} records"


def main(directory: Path, mode: str) -> None:
    broken_off_at_each_call(directory, mode, "prices", prepare, play, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
