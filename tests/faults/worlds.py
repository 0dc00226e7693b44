"""World: the folders of one seed of a power-loss driver; the lives of its processes and the images of what they leave;
and the run of a driver's seeds, shared among the cores."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults import shim as faults
from tests.faults.forked import ends_by, result_of, shares
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


class OnlyDurable(random.Random):
    """Draws an image of nothing but what fsyncs have made durable."""

    def random(self) -> float:
        return 0.0


def shim_of_life(world: World, rng: random.Random, deadly: int) -> faults.Shim:
    """The shim of one process: what it syncs is in the shadow, and the `deadly`-th call of a kind kills it; 0: none."""
    shim, shadow = faults.Shim(), world.shadow
    shim.on_sync(shadow.synced, shadow.all_synced)
    kinds, mode = rng.choice(DEATHS)
    if deadly:
        shim.arm(kinds, str(world.live), deadly, mode=mode)
    return shim


def random_lives(
    world: World, rng: random.Random, life: Callable[[World, int, int], None], *, most: int, calls: int, weight: int
) -> Iterator[Callable[[], None]]:
    """Up to `most` lives, each drawn when it begins. One dies at one of its first `calls` file calls, `weight` times as
    often as at none (0)."""
    for number in range(rng.randint(1, most)):
        yield partial(life, world, number, rng.choice([0, *[rng.randint(1, calls)] * weight]))


def play_lives(
    world: World,
    rng: random.Random,
    lives: Iterable[Callable[[], None]],
    images: Sequence[tuple[str, Callable[[Path], None]]],
    check_after_death: Callable[[Path], object] | None = None,
    *,
    renames_folders: bool = False,
) -> tuple[int, int]:
    """All lives of one seed, each in a process of its own, and the images after each; returns deaths and images.
    images: their kinds, and what checks one in a child: of a file system with a journal (ordered), without one
    (unordered), or nothing but what is durable (durable). renames_folders: images have no folders but those of files,
    since a durable one may have another name there. Raises AssertionError."""
    world.live.mkdir(parents=True)
    world.events.touch()
    image, deaths, checked = world.folder / "image", 0, 0
    for number, life in enumerate(lives):
        code, _ = ends_by(life)
        assert code in (0, -9), f"life {number} ended with {code}"
        deaths += code == -9
        if check_after_death is not None:
            check_copy(world, check_after_death)
        for kind, check in images:
            files = world.shadow.image(OnlyDurable() if kind == "durable" else rng, kind == "ordered")
            restore(files, set() if renames_folders else world.shadow.folders(), image)
            code, _ = ends_by(partial(check, image))
            assert code == 0, f"the {kind} image after life {number} ended with {code}"
            checked += 1
    return deaths, checked


def restore(files: dict[str, bytes], folders: set[str], root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name in folders:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


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
