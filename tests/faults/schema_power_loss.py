"""Driver: processes register schemas in a file, most of them killed at a file call; then the power is cut.

Arguments: directory, first seed, seeds. Needs the shim. What must hold in the image: a schema whose registration has
returned is there under its number and version, no number is given a second time, and the next registration goes on.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

from kreplog.schemas import Schema, SchemaFile
from tests.faults import shim as faults
from tests.faults.worlds import DEATHS, World, play_lives, play_seeds, random_lives

NAME = "kreplog.schemas"
SUBJECTS = ("orders-value", "orders-key")


def schema(number: int) -> Schema:
    """Some of them longer than a sector."""
    return Schema("AVRO", f'{{"type":"fixed","name":"F{number}","size":16,"doc":"{"x" * (number % 7 * 150)}"}}')


def life(world: World, number: int, deadly: int) -> None:
    """Register schemas, new and old; then end, or be killed. The `deadly`-th file call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    shim = faults.Shim()
    shim.on_sync(world.shadow.synced)
    file = SchemaFile(world.live / NAME)
    if deadly:
        kinds, mode = rng.choice(DEATHS)
        shim.arm(kinds, str(world.live), deadly, mode=mode)
    for _ in range(rng.randint(1, 4)):
        wanted, subject = rng.randrange(4), rng.choice(SUBJECTS)
        registered = file.register(subject, schema(wanted))
        with world.events.open("a") as events:
            events.write(f"{subject} {wanted} {registered.id} {registered.version}\n")
    if rng.random() < 0.7:
        os.kill(os.getpid(), signal.SIGKILL)
    shim.on_sync(None)


def check_image(world: World, root: Path) -> None:
    """Raises AssertionError."""
    file = SchemaFile(root / NAME)
    taken = set()
    for line in world.events.read_text().splitlines():
        subject, wanted, schema_id, version = line.split()
        taken.add(int(schema_id))
        assert file.schema(int(schema_id)) == schema(int(wanted)), f"schema {schema_id} is lost, or another: {line}"
        assert file.version(subject, int(version)) == schema(int(wanted)), f"the version is lost, or another: {line}"
        assert file.find(subject, schema(int(wanted))) == (int(schema_id), int(version))
    new = file.register("later-value", schema(100))
    assert new.version == 1 and new.id not in taken, f"{new} is taken"
    assert SchemaFile(root / NAME).schema(new.id) == schema(100)


def play(world: World) -> tuple[int, int]:
    rng = random.Random(f"{world.seed}-world")
    lives = random_lives(world, rng, life, most=4, calls=20, weight=3)
    return play_lives(world, rng, lives, [(kind, partial(check_image, world)) for kind in ("ordered", "unordered") * 3])


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
