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
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from kreplog import Log
from kreplog.server.storage import replica_moves
from kreplog.server.storage.directories import DataDirectory
from kreplog.types import TopicPartition
from tests.faults.broker_power_loss import PARTITIONS, History, create, delete, history_of_image, produce
from tests.faults.worlds import DEATHS, World, play_lives, play_seeds, random_lives, shim_of_life
from tests.server.brokers import serving
from tests.server.test_broker import Client

DIRECTORIES = ("data-1", "other-1")
TOPIC = "flushed"


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
    DataDirectory.remove = lambda *_: None  # type: ignore[method-assign]  # this process is of the driver alone
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
                await asyncio.sleep(0.02)  # a move goes on meanwhile, with nothing produced
            case _:
                await produce(client, history, at, rng.choice([1, 1, 3, 30]))


def check_image(world: World, root: Path) -> None:
    """A broker starts from the image, has what was promised, and takes more. Raises AssertionError."""
    history = history_of_image(world)

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
    rng = random.Random(f"{world.seed}-world")
    lives = random_lives(world, rng, life, most=3, calls=400, weight=7)
    images = [(kind, partial(check_image, world)) for kind in ("ordered", "durable")]
    return play_lives(world, rng, lives, images, renames_folders=True)


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
