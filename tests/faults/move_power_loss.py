"""Driver: a broker moves replicas between its log directories while it appends, is killed at a system call, and then
the power is cut.

Arguments: directory, first seed, seeds. Needs the shim. As broker_power_loss, of a topic with flush.messages=1 alone.
From each image a broker starts; one directory has each replica, and in it every record that was acknowledged, at its
offset. The images are those of a journal, and what fsyncs alone have made durable: others would have one half of a
directory that is renamed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from kreplog import Log
from kreplog.server.storage import replica_moves
from kreplog.server.storage.directories import DataDirectory
from kreplog.types import TopicPartition
from tests.faults.broker_power_loss import PARTITIONS, History, create, delete, produce
from tests.faults.forked import ends_by
from tests.faults.worlds import DEATHS, World, play_seeds, shim_of_life
from tests.server.brokers import serving
from tests.server.test_broker import Client

DIRECTORIES = ("data-1", "other-1")
TOPIC = "flushed"


class OnlyDurable(random.Random):
    """Draws an image of nothing but what is durable."""

    def random(self) -> float:
        return 0.0


def with_broker(root: Path, work: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        directories = ",".join(str(root / name) for name in DIRECTORIES)
        async with serving(
            root, 1, log_dirs=directories, log_segment_bytes=2000, log_flush_offset_checkpoint_interval_ms=60
        ) as (broker,):
            client = Client(broker)
            try:
                await work(client)
            finally:
                client.peer.close()

    asyncio.run(main())


def life(world: World, number: int, deadly: int) -> None:
    """The shadow needs directories to stay: what is deleted keeps its name `-delete`."""
    rng = random.Random(f"{world.seed}-life-{number}")
    DataDirectory.remove = lambda *_: None  # type: ignore[method-assign]
    replica_moves.PIECE_BYTES = rng.choice([1, 1 << 20])
    shim = shim_of_life(world, rng, 0)
    kinds, mode = rng.choice(DEATHS)

    def arm() -> None:
        if deadly:
            shim.arm(kinds, str(world.live), deadly, mode=mode)

    with_broker(world.live, partial(work, world, rng, arm))
    shim.on_sync(None)


async def work(world: World, rng: random.Random, arm: Callable[[], object], client: Client) -> None:
    """Produce, and move meanwhile. arm: called once there is something to move."""
    history = History.read(world.events)
    await create(client, history, TOPIC, "1")
    for number in range(PARTITIONS):
        await produce(client, history, TopicPartition(TOPIC, number), 5)
    arm()
    hosted = client.broker.hosted
    for _ in range(rng.randint(10, 60)):
        at = TopicPartition(TOPIC, rng.randrange(PARTITIONS))
        match rng.randrange(10):
            case 0:
                await delete(client, history, at, rng)
            case 1 | 2 | 3:
                replica = hosted.get(at)
                assert replica is not None
                target = next(each for each in hosted.directories if each is not replica.directory)
                await client.broker.logs.moves.alter(at, str(target.path), ())
            case 4:
                await asyncio.sleep(0.02)
            case _:
                await produce(client, history, at, rng.choice([1, 1, 3, 30]))


def check_image(files: dict[str, bytes], history: History, root: Path) -> None:
    """A broker starts from the image, has what was promised, and takes more. Raises AssertionError."""
    shutil.rmtree(root, ignore_errors=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    async def go_on(client: Client) -> None:
        if TOPIC in history.topics:
            for number in range(PARTITIONS):
                await produce(client, history, TopicPartition(TOPIC, number), 1)

    with_broker(root, go_on)
    after = History.read(history.path)
    for number in range(PARTITIONS if TOPIC in history.topics else 0):
        at = TopicPartition(TOPIC, number)
        left = [path for name in DIRECTORIES for path in (root / name).glob(f"{at}*")]
        assert len(left) == 1 and left[0].name == str(at), left
        with Log.open(left[0]) as log:
            found = [int(record.value or b"") for record in log.read(log.log_start_offset)]
            after.check(at, log.log_start_offset, found)


def play(world: World) -> tuple[int, int]:
    """All lives of one seed, and the images after each; returns deaths and images."""
    rng = random.Random(f"{world.seed}-world")
    world.live.mkdir(parents=True)
    world.events.touch()
    deaths = images = 0
    for number in range(rng.randint(1, 3)):
        code, _ = ends_by(partial(life, world, number, rng.choice([0, *[rng.randint(1, 400)] * 7])))
        assert code in (0, -9), f"life {number} ended with {code}"
        deaths += code == -9
        for kind, files in (
            ("ordered", world.shadow.image(rng, True)),
            ("durable", world.shadow.image(OnlyDurable(), False)),
        ):
            history = History.read(world.events)
            history.path = world.folder / "events-of-image"
            shutil.copyfile(world.events, history.path)
            code, _ = ends_by(partial(check_image, files, history, world.folder / "image"))
            assert code == 0, f"the {kind} image after life {number} ended with {code}"
            images += 1
    return deaths, images


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
