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
from tests.faults.forked import ends_by
from tests.faults.queue_power_loss import restore
from tests.faults.worlds import World, play_seeds, shim_of_life
from tests.reference import TRANSACTIONAL, Batch, Rec, encode

CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=600, min_cleanable_dirty_ratio=0, delete_retention_ms=1000)
TRANSACTIONS, PRODUCERS, KEYS = 24, 3, 4
PASSES, CALLS = 6, 1200
"""So many file calls all passes have, and the opening and compaction after them 90."""
COMMITTED = {b"%d" % (number % KEYS): b"%d" % number for number in range(0, TRANSACTIONS, 2)}


def compact(world: World, rng: random.Random) -> None:
    path = world.live / "t-0"
    shim = shim_of_life(world, rng, 0)
    with Log.open(path, CONFIG) as log:
        for number in range(TRANSACTIONS):
            producer, sequence = number % PRODUCERS, number // PRODUCERS
            record = Rec(0, 5, b"%d" % (number % KEYS), b"%d" % number)
            batch = Batch((record,), 0, 0, TRANSACTIONAL, None, None, producer, 0, sequence)
            log.append_batches(encode(batch), transactional=True)
            log.append_transaction_marker(producer, 0, committed=number % 2 == 0, coordinator_epoch=0)
        log.roll()
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


def check_image(root: Path, torn: bool) -> None:
    """Raises AssertionError."""
    for snapshot in (root / "t-0").glob("*.snapshot") if torn else ():
        snapshot.write_bytes(b"")
    with Log.open(root / "t-0", CONFIG) as log:
        found = {record.key: record.value for record in log.read(isolation="read_committed")}
        assert found == COMMITTED, found
        assert log.last_stable_offset == log.log_end_offset
        assert {active.producer_id: active.producer_epoch for active in active_producers(log)} == dict.fromkeys(
            range(PRODUCERS), 0
        )


def play(world: World) -> tuple[int, int]:
    """Both lives of a seed, and some images after each; returns deaths and images."""
    rng = random.Random(f"{world.seed}-world")
    world.live.mkdir(parents=True)
    deaths = images = 0
    for life in (compact, complete):
        code, _ = ends_by(partial(life, world, random.Random(f"{world.seed}-{life.__name__}")))
        assert code in (0, -9), f"{life.__name__} ended with {code}"
        deaths += code == -9
        for ordered, torn in ((False, False), (True, False), (False, True), (True, True)):
            image = world.folder / "image"
            restore(world.shadow.image(rng, ordered), world.shadow.folders(), image)
            code, _ = ends_by(partial(check_image, image, torn))
            kind = "ordered" if ordered else "unordered"
            assert code == 0, f"the {kind} image after {life.__name__} (snapshots torn: {torn}) ended with {code}"
            images += 1
    return deaths, images


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
