"""Driver: the creation, growth and use of a topic broken off at its n-th file call, for n = 1, 2, ... until none is
reached; then it is opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC),
"handles" (EMFILE) or "sync" (EIO of an fsync). Needs the shim. What must hold: every acknowledged record is there once,
the partitions are those before or after the step under way, and errors are typed.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from kreplog import LogConfig, Topic, errors
from kreplog.topic import folder
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, result_of

CONFIG = LogConfig(segment_bytes=1000)
FIRST, GROWN = 3, 5


def play(path: Path, mode: str, nth: int, pipe: int) -> None:
    """Create, append, grow, append and close; acknowledge (step, records appended)."""
    kinds, how, error = faults.MODES[mode]
    folder.CREATED_TOGETHER = 2
    shim = faults.Shim()
    shim.arm(kinds, str(path.parent), nth, error, how)
    done = 0
    try:
        with Topic.open(path, FIRST, config=CONFIG) as topic:
            acknowledge(pipe, 1, 0)
            for partitions in (FIRST, GROWN):
                topic.add_partitions(partitions)
                acknowledge(pipe, partitions, done)
                for number in range(4 * partitions):
                    topic.append(b"%d" % done, partition=number % partitions)
                    done += 1
                    acknowledge(pipe, partitions, done)
    except errors.StorageError:
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


def look(path: Path) -> tuple[int, list[int]]:
    """The number of partitions and the records, after they are opened, appended to, and opened again to be read."""
    try:
        opened = Topic.open(path, FIRST, config=CONFIG)
    except errors.InvalidPartitionsError as error:
        assert error.existing == GROWN
        opened = Topic.open(path, config=CONFIG)
    with opened as topic:
        found = [int(record.value or b"") for record in topic.read()]
        for number in range(topic.partitions):
            topic.append(b"-1", partition=number)
    with Topic.open(path, read_only=True) as reader:
        assert sum(len(offsets) for offsets in reader.offsets().values()) == len(found) + reader.partitions
        return reader.partitions, found


def check(path: Path, steps: list[tuple[int, int]]) -> None:
    appended = max((records for _, records in steps), default=0)
    partitions, found = result_of(partial(look, path))
    assert sorted(found) == list(range(len(found))), found
    assert appended <= len(found) <= appended + 1, f"{appended} acknowledged, {found}"
    if steps and steps[-1][0] == GROWN:
        assert partitions == GROWN, f"{partitions} partitions"
    assert partitions in (FIRST, GROWN), f"{partitions} partitions"


def main(directory: Path, mode: str) -> None:
    broken_off_at_each_call(directory, mode, "orders", lambda path: path.parent.mkdir(), play, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
