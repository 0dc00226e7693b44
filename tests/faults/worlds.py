"""World: the folders of one seed of a power-loss driver; and the run of a driver's seeds, shared among the cores."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults import shim as faults
from tests.faults.forked import result_of, shares
from tests.faults.shadow import Shadow

DEATHS = (
    (faults.ALL_WRITES, faults.KILL_BEFORE),
    (faults.SYNC, faults.KILL_BEFORE),
    (faults.WRITE, faults.KILL_HALFWAY),
)


@dataclass(frozen=True)
class World:
    """The folders of one seed. live: what the processes write to. shadow: what of that is durable. events: what they
    report."""

    folder: Path
    seed: str

    @property
    def live(self) -> Path:
        return self.folder / "live"

    @property
    def shadow(self) -> Shadow:
        return Shadow(self.live, self.folder / "shadow")

    @property
    def events(self) -> Path:
        return self.folder / "events"


def shim_of_life(world: World, rng: random.Random, deadly: int) -> faults.Shim:
    """The shim of one process: what it syncs is in the shadow, and the `deadly`-th call of a kind kills it; 0: none."""
    shim, shadow = faults.Shim(), world.shadow
    shim.on_sync(shadow.synced, shadow.all_synced)
    kinds, mode = rng.choice(DEATHS)
    if deadly:
        shim.arm(kinds, str(world.live), deadly, mode=mode)
    return shim


def check_copy(world: World, check: Callable[[Path], object]) -> None:
    """Run `check` in a child on a copy of the files as they are, which the page cache has after a death. Raises
    AssertionError."""
    spare = world.folder / "spare"
    shutil.copytree(world.live, spare)
    result_of(partial(check, spare))
    shutil.rmtree(spare)


def play_seeds(play: Callable[[World], tuple[int, int]], directory: Path, first: int, seeds: int) -> None:
    """Play the seeds from `first` on and print their deaths and images, which `play` returns. Raises AssertionError
    with the seed that failed."""
    numbers = range(first, first + seeds)
    played = shares(lambda share, step: _in_turn(play, directory, numbers[share::step]))
    deaths, images = map(sum, zip(*played, strict=True))
    print(f"seeds={seeds} from {first} deaths={deaths} images={images}")


def _in_turn(play: Callable[[World], tuple[int, int]], directory: Path, seeds: range) -> tuple[int, int]:
    deaths = images = 0
    for number in seeds:
        world = World(directory / f"seed-{number}", str(number))
        try:
            killed, checked = play(world)
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {error}") from error
        deaths, images = deaths + killed, images + checked
        shutil.rmtree(world.folder)
    return deaths, images
