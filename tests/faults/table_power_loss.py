"""Driver: a table in an LMDB file lives through several processes, most killed at a file call; then the power is cut.

Arguments: directory, first seed, seeds. Needs the shim: LMDB writes by pwrite and syncs by fdatasync, and maps its file
for reading alone. A power cut takes away records that the table has applied already, transactions of the file, or the
file. What must hold in the image: the table opens and has what the log has, also where other records were appended in
the place of those that are lost, before it is opened or afterwards. Where the file's name is durable, the table stands
no earlier than after the last refresh but one that applied anything: LMDB's last transaction alone may be lost.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

from kreplog import LogConfig, Topic
from kreplog.topic import lmdb_reader
from kreplog.topic.lmdb_store import LmdbStore
from tests.faults.forked import ends_by
from tests.faults.queue_power_loss import restore
from tests.faults.table_file_calls import Unloaded, newest
from tests.faults.worlds import World, play_seeds, shim_of_life

PARTITIONS = 2
KEYS = 30
CONFIG = LogConfig(segment_bytes=4000)

Offsets = dict[int, int]


def append(topic: Topic, rng: random.Random) -> None:
    """Values of any length, and tombstones; each key is in one partition."""
    for _ in range(rng.randint(1, 30)):
        key = rng.randrange(KEYS)
        value = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(300))
        topic.append(value, b"%d" % key, partition=key % PARTITIONS)


def life(world: World, number: int, deadly: int) -> None:
    """Append, flush and refresh; then close, or be killed. The `deadly`-th file call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    shim = shim_of_life(world, rng, deadly)
    with (
        Topic.open(world.live / "prices", PARTITIONS, config=CONFIG) as topic,
        topic.table(path=world.live / "tables") as table,
        world.events.open("a") as events,
    ):
        for _ in range(rng.randint(2, 20)):
            append(topic, rng)
            if rng.random() < 0.3:
                topic.flush()
            if rng.random() < 0.8:
                table.refresh()
                print(json.dumps(list(table.offsets.items())), file=events, flush=True)
        if rng.random() < 0.7:
            os.kill(os.getpid(), signal.SIGKILL)  # between two calls
    shim.on_sync(None)


def refreshes(world: World) -> list[Offsets]:
    """Where the table stood after each refresh that applied anything."""
    found: list[Offsets] = [{}]
    for line in world.events.read_text().splitlines():
        offsets = dict(json.loads(line))
        if offsets != found[-1]:
            found.append(offsets)
    return found


def check_image(root: Path, least: Offsets, seed: str) -> None:
    rng = random.Random(f"{seed}-image")
    with Topic.open(root / "prices", PARTITIONS, config=CONFIG) as topic:
        unloaded = Unloaded()
        store = LmdbStore(str(root / "tables"), topic.path, topic._folder.topic_id or "", unloaded.load)
        for partition, offset in least.items():
            place = store.place(partition)
            assert place is not None and place.next_offset >= offset, f"{partition} was applied to {offset}: {place}"
        store.close()
        if rng.random() < 0.5:
            append(topic, rng)
        for _ in range(2):
            with topic.table(path=root / "tables") as table:
                for _ in range(3):
                    assert table.offsets == {number: offsets.stop for number, offsets in topic.offsets().items()}
                    assert dict(table.items()) == newest(topic, table.offsets)
                    append(topic, rng)
                    table.refresh()


def play(world: World) -> tuple[int, int]:
    """All lives of a seed, and two images after each; returns deaths and images."""
    rng = random.Random(f"{world.seed}-world")
    world.live.mkdir(parents=True)
    world.events.touch()
    deaths = images = 0
    for number in range(rng.randint(1, 4)):
        code, _ = ends_by(partial(life, world, number, rng.choice([0, *[rng.randint(1, 300)] * 3])))
        assert code in (0, -9), f"life {number} ended with {code}"
        deaths += code == -9
        done = refreshes(world)
        for ordered in (True, False):
            image = world.folder / "image"
            restore(world.shadow.image(rng, ordered), world.shadow.folders(), image)
            least = done[-2] if ordered and len(done) > 1 else {}
            code, _ = ends_by(partial(check_image, image, least, world.seed))
            assert code == 0, f"the {'ordered' if ordered else 'unordered'} image after life {number} ended with {code}"
            images += 1
    return deaths, images


def main(directory: Path, first: int, seeds: int) -> None:
    lmdb_reader.PIECE_BYTES = 2000
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
