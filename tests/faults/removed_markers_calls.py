"""Driver: compactions that remove the markers of transactions, and their entries of the transaction indexes, broken off
at their n-th file call, for n = 1, 1 + stride, ... until none is reached.

Arguments: directory, what happens there (a key of MODES), a stride. Needs the shim. What must hold, in the process
itself, in another while it lives, and after the next opening: a reader of committed records finds the newest of each
key, the last stable offset is the log end offset, and producers have the epochs that they had; errors are typed, and
none speaks of damage; the log goes on, or refuses writes until it is opened again; and compaction comes to the same
batches as without the fault.
"""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

from kreplog import Log, errors
from tests.faults import shim as faults
from tests.faults.compaction_calls import MODES, check_error
from tests.faults.forked import broken_off_at_each_call, result_of
from tests.faults.removed_markers import CONFIG, PASSES, check_committed, check_log, write

Batches = list[tuple[int, int, int]]


def compact(log: Log, first: int = 0) -> None:
    """From pass `first` on; its clock lets markers go."""
    for number in range(first, first + PASSES):
        log.compact(2000 * number, force=True)


def batches(log: Log) -> Batches:
    """(base offset, attributes, records) of each."""
    return [
        header for piece in log.batches() for header in piece[["base_offset", "attributes", "record_count"]].tolist()
    ]


def complete(path: Path) -> Batches:
    """What more passes leave than it takes."""
    with Log.open(path, CONFIG) as log:
        check_log(log)
        compact(log, PASSES)
        compact(log, 2 * PASSES)
        check_log(log)
        assert not log.verify().damages
        left = [file.name for file in path.iterdir() if file.name.endswith((".cleaned", ".swap"))]
        assert not left, left
        return batches(log)


def look(path: Path) -> None:
    with Log.open(path, CONFIG, read_only=True) as reader:
        check_committed(reader)


def play(path: Path, mode: str, nth: int, _: int) -> None:
    kinds, how, error = MODES[mode]
    shim = faults.Shim()
    with Log.open(path, CONFIG) as log, Log.open(path, CONFIG, read_only=True) as reader:
        shim.arm(kinds, str(path.parent), nth, error, how)
        refused = False
        try:
            compact(log)
        except errors.StorageError as raised:
            refused = True
            check_error(raised)
            check_committed(log)
            check_committed(reader)
            result_of(partial(look, path))
        fired = shim.disarm()[1]
        if not log.failed:
            compact(log)
        for seen in (log, reader):
            check_committed(seen)
        result_of(partial(look, path))
    os._exit(faults.REFUSED if refused else 0 if fired else faults.UNHARMED)


def main(directory: Path, mode: str, stride: int) -> None:
    prepared, undisturbed = directory / "prepared" / "t-0", directory / "undisturbed" / "t-0"
    prepared.parent.mkdir()
    result_of(partial(write, prepared))
    shutil.copytree(prepared, undisturbed)
    wanted = result_of(partial(complete, undisturbed))

    def check(path: Path, _: list[tuple[int, int]]) -> None:
        found = result_of(partial(complete, path))
        assert found == wanted, f"{found}, not {wanted}"

    broken_off_at_each_call(directory, mode, "t-0", partial(shutil.copytree, prepared), play, check, stride)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
