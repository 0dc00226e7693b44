"""Driver: a log with transactions is compacted again and again, by a clock that lets their markers go, and killed at a
file call of that, so is the opening after it, then the power is cut.

Arguments: directory, first seed, seeds. Needs the shim. What must hold in the image, with the snapshots that it has or
without any: a reader of committed records finds the newest of each key, the last stable offset is the log end offset,
and producers have the epochs that they had.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog._native.encoded import active_producers
from tests.faults import shim as faults
from tests.faults.swapped_transactions import play_phases
from tests.faults.worlds import World, play_seeds, shim_of_life
from tests.reference import TRANSACTIONAL, Batch, Rec, encode

CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=600, min_cleanable_dirty_ratio=0, delete_retention_ms=1000)
TRANSACTIONS, PRODUCERS, KEYS = 24, 3, 4
PASSES, CALLS = 6, 1200
"""So many file calls all passes have, and the opening and compaction after them 90."""
COMMITTED = {b"%d" % (number % KEYS): b"%d" % number for number in range(0, TRANSACTIONS, 2)}


def write(path: Path) -> None:
    with Log.open(path, CONFIG) as log:
        for number in range(TRANSACTIONS):
            producer, sequence = number % PRODUCERS, number // PRODUCERS
            record = Rec(0, 5, b"%d" % (number % KEYS), b"%d" % number)
            batch = Batch((record,), 0, 0, TRANSACTIONAL, None, None, producer, 0, sequence)
            log.append_batches(encode(batch), transactional=True)
            log.append_transaction_marker(producer, 0, committed=number % 2 == 0, coordinator_epoch=0)
        log.roll()


def compact(world: World, rng: random.Random) -> None:
    path = world.live / "t-0"
    shim = shim_of_life(world, rng, 0)
    write(path)
    with Log.open(path, CONFIG) as log:
        shim.arm(faults.ALL_WRITES, str(world.live), rng.randint(1, CALLS), mode=faults.KILL_BEFORE)
        for number in range(PASSES):
            log.compact(2000 * number, force=True)
    shim.on_sync(None)


def complete(world: World, rng: random.Random) -> None:
    shim = shim_of_life(world, rng, 0)
    shim.arm(faults.ALL_WRITES, str(world.live), rng.randint(1, 90), mode=faults.KILL_BEFORE)
    with Log.open(world.live / "t-0", CONFIG) as log:
        log.compact(2000 * PASSES, force=True)
    shim.on_sync(None)


def check_image(torn: bool, root: Path) -> None:
    """Raises AssertionError."""
    for snapshot in (root / "t-0").glob("*.snapshot") if torn else ():
        snapshot.write_bytes(b"")
    with Log.open(root / "t-0", CONFIG) as log:
        check_log(log)


def check_log(log: Log) -> None:
    """Raises AssertionError."""
    check_committed(log)
    assert {active.producer_id: active.producer_epoch for active in active_producers(log)} == dict.fromkeys(
        range(PRODUCERS), 0
    )


def check_committed(log: Log) -> None:
    """Of a reader as well: raises AssertionError."""
    found = {record.key: record.value for record in log.read(isolation="read_committed")}
    assert found == COMMITTED, found
    assert log.last_stable_offset == log.log_end_offset


def play(world: World) -> tuple[int, int]:
    """With the snapshots that there are, and with torn ones."""
    kinds = (("unordered", False), ("ordered", False), ("unordered", True), ("ordered", True))
    return play_phases(world, (compact, complete), [(kind, partial(check_image, torn)) for kind, torn in kinds])


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
