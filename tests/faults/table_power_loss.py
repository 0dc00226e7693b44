"""Driver: a table lives through several processes, most killed at a file call; then the power is cut.

Arguments: directory, "file" (a table in an LMDB file) or "snapshot" (one in memory, with a snapshot that is saved now
and then), first seed, seeds. Needs the shim: LMDB writes by pwrite and syncs by fdatasync, and maps its file to read
it. After each death the table has what the log has, and a snapshot no less than the latest save that has returned. A
power cut takes away records that the table has applied already, transactions of the file, or the file. What must hold
in the image: the table opens and has what the log has, also where other records were appended in the place of those
that are lost, before it is opened or afterwards, and the last of them is the same byte by byte. A file whose name is
durable stands no earlier than after the last refresh but one that applied anything: LMDB's last transaction alone may
be lost. A snapshot is that of the latest save that has returned, or of one that began later.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from kreplog import LogConfig, Table, Topic
from kreplog._native.key_table import KeyTable
from kreplog.topic import lmdb_reader
from kreplog.topic.lmdb_store import LmdbStore
from kreplog.topic.table_snapshot import read_snapshot
from tests.faults.boots import reboot
from tests.faults.table_file_calls import Unloaded, newest
from tests.faults.worlds import World, play_lives, play_seeds, random_lives, shim_of_life

PARTITIONS = 2
KEYS = 30
FEW = 2
CONFIG = LogConfig(segment_bytes=4000)
TIMESTAMP = 1_700_000_000_000

Offsets = dict[int, int]


@dataclass
class History:
    """What the table had applied, in a file that survives the process. refreshes: after each that applied anything;
    saves: of the latest save that has returned, and those that began later."""

    path: Path
    refreshes: list[Offsets] = field(default_factory=lambda: [{}])
    saves: list[Offsets] = field(default_factory=lambda: [{}])

    def note(self, kind: str, table: Table) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([kind, list(table.offsets.items())]) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls(path)
        for line in path.read_text().splitlines():
            kind, pairs = json.loads(line)
            offsets = dict(pairs)
            if kind == "refreshed" and offsets != history.refreshes[-1]:
                history.refreshes.append(offsets)
            elif kind == "saving":
                history.saves.append(offsets)
            elif kind == "saved":
                history.saves = [offsets]
        return history


def append(topic: Topic, rng: random.Random) -> None:
    """Values of any length, and tombstones; each key is in one partition. Half of the records are of few, of one
    time, so that others in the place of lost ones are often the same."""
    for _ in range(rng.randint(1, 30)):
        key = rng.randrange(KEYS)
        value = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(300))
        if rng.random() < 0.5:
            key, value = key % (FEW * PARTITIONS), b"the same"
        topic.append(value, b"%d" % key, partition=key % PARTITIONS, timestamp_ms=TIMESTAMP)


def open_table(topic: Topic, root: Path, kind: str) -> Table:
    return topic.table(path=root / "tables") if kind == "file" else topic.table(snapshot=root / "snapshot")


def life(kind: str, world: World, number: int, deadly: int) -> None:
    """Append, flush, refresh and save; then close, or be killed. The `deadly`-th file call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    shim = shim_of_life(world, rng, deadly)
    history = History(world.events)
    with (
        Topic.open(world.live / "prices", PARTITIONS, config=CONFIG) as topic,
        open_table(topic, world.live, kind) as table,
    ):
        for _ in range(rng.randint(2, 20)):
            append(topic, rng)
            if rng.random() < 0.3:
                topic.flush()
            if rng.random() < 0.8:
                table.refresh()
                history.note("refreshed", table)
            if kind == "snapshot" and rng.random() < 0.5:
                history.note("saving", table)
                table.save()
                history.note("saved", table)
        if rng.random() < 0.7:
            os.kill(os.getpid(), signal.SIGKILL)  # between two calls
    shim.on_sync(None)


def check_snapshot(topic: Topic, root: Path, history: History) -> None:
    """How far each partition has been applied in it. Raises AssertionError, CorruptCheckpointError."""
    applied = read_snapshot(str(root / "snapshot"), topic._folder.topic_id or "", KeyTable())
    found = {number: place.next_offset for number, place in applied.items()}
    assert found in history.saves, f"the snapshot is of {found}, not one of {history.saves}"


def check_after_death(kind: str, world: World, root: Path) -> None:
    """Of the files as the page cache has them: raises AssertionError."""
    history = History.read(world.events)
    with Topic.open(root / "prices", PARTITIONS, config=CONFIG) as topic:
        if kind == "snapshot":
            check_snapshot(topic, root, history)
        with open_table(topic, root, kind) as table:
            assert dict(table.items()) == newest(topic, table.offsets)


def check_image(kind: str, world: World, ordered: bool, root: Path) -> None:
    """Raises AssertionError."""
    history = History.read(world.events)
    rng = random.Random(f"{world.seed}-image")
    reboot(pytest.MonkeyPatch())
    with Topic.open(root / "prices", PARTITIONS, config=CONFIG) as topic:
        if kind == "snapshot":
            check_snapshot(topic, root, history)
        elif ordered and len(history.refreshes) > 1:
            check_places(topic, root, history.refreshes[-2])
        if rng.random() < 0.5:
            append(topic, rng)
        for _ in range(2):
            with open_table(topic, root, kind) as table:
                for _ in range(3):
                    assert table.offsets == {number: offsets.stop for number, offsets in topic.offsets().items()}
                    assert dict(table.items()) == newest(topic, table.offsets)
                    append(topic, rng)
                    table.refresh()
                if kind == "snapshot":
                    table.save()


def check_places(topic: Topic, root: Path, least: Offsets) -> None:
    """Raises AssertionError, also where the file is damaged."""
    store = LmdbStore(str(root / "tables"), topic.path, topic._folder.topic_id or "", Unloaded().load)
    for partition, offset in least.items():
        place = store.place(partition)
        assert place is not None and place.next_offset >= offset, f"{partition} was applied to {offset}: {place}"
    store.close()


def play(kind: str, world: World) -> tuple[int, int]:
    rng = random.Random(f"{world.seed}-world")
    lives = random_lives(world, rng, partial(life, kind), most=4, calls=300, weight=3)
    images = [(image, partial(check_image, kind, world, image == "ordered")) for image in ("ordered", "unordered")]
    return play_lives(world, rng, lives, images, partial(check_after_death, kind, world))


def main(directory: Path, kind: str, first: int, seeds: int) -> None:
    lmdb_reader.PIECE_BYTES = 2000
    play_seeds(partial(play, kind), directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
