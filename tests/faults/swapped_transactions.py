"""Driver: a log with aborted transactions is compacted and killed at a file call, so is the opening that completes the
swap, then the power is cut.

Arguments: directory, first seed, seeds. Needs the shim. What must hold in the image: a reader of committed records,
which compaction leaves as they are, finds them all and none that was aborted, though recovery does not read the flushed
segments whose aborted transactions the index of a merged one has.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from tests.faults import shim as faults
from tests.faults.aborted_transactions import read_committed
from tests.faults.worlds import World, play_lives, play_seeds, shim_of_life
from tests.reference import TRANSACTIONAL, Batch, Rec, encode

CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=1000, min_cleanable_dirty_ratio=0)
MERGING = replace(CONFIG, segment_bytes=4000)
TRANSACTIONS = 24
CALLS = 90
"""So many file calls a compaction has, and an opening that completes one not more."""
COMMITTED = [b"%d" % producer for producer in range(0, TRANSACTIONS, 3)]


def compact(world: World, rng: random.Random) -> None:
    """The log is closed and opened before, so that all is flushed and its last snapshot says that."""
    path = world.live / "t-0"
    shim = shim_of_life(world, rng, 0)
    with Log.open(path, CONFIG) as log:
        for producer in range(TRANSACTIONS):
            record = Rec(0, 5, b"key %d" % producer, b"%d" % producer)
            batch = Batch((record,), 0, 0, TRANSACTIONAL, None, None, producer, 0, 0)
            log.append_batches(encode(batch), transactional=True)
            log.append_transaction_marker(producer, 0, committed=producer % 3 == 0, coordinator_epoch=0)
    with Log.open(path, MERGING) as log:
        shim.arm(faults.ALL_WRITES, str(world.live), rng.randint(1, CALLS), mode=faults.KILL_BEFORE)
        log.compact(force=True)
    shim.on_sync(None)


def complete(world: World, rng: random.Random) -> None:
    shim = shim_of_life(world, rng, 0)
    shim.arm(faults.ALL_WRITES, str(world.live), rng.randint(1, CALLS), mode=faults.KILL_BEFORE)
    Log.open(world.live / "t-0", CONFIG).close()
    shim.on_sync(None)


def check_image(root: Path) -> None:
    """Raises AssertionError."""
    Log.open(root / "t-0", CONFIG).close()
    found = read_committed(root / "t-0")
    assert found == COMMITTED, found


def play(world: World) -> tuple[int, int]:
    kinds = ("unordered", "ordered", "unordered", "unordered")
    return play_phases(world, (compact, complete), [(kind, check_image) for kind in kinds])


def play_phases(
    world: World,
    phases: Sequence[Callable[[World, random.Random], None]],
    images: Sequence[tuple[str, Callable[[Path], None]]],
) -> tuple[int, int]:
    """As play_lives, of lives that are not drawn."""
    lives = [partial(phase, world, random.Random(f"{world.seed}-{phase.__name__}")) for phase in phases]
    return play_lives(world, random.Random(f"{world.seed}-world"), lives, images)


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
