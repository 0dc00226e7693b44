"""Driver: a topic and a reader live through several processes, most killed at a file call; then the power is cut.

Arguments: directory, "cursor" or "group" (a group cursor), first seed, seeds. Needs the shim. In each process the
topic's writer appends and flushes, and the reader reads some records and commits, with durable=True or without. After
each death all records are there, and the committed offset is that of the latest commit that has returned or of the one
under way, in a cursor all partitions of one commit. A power cut takes away what was not flushed: records that were
read, committed offsets. What must hold in the image: the committed offset of a partition is that of the latest durable
commit that has returned or of one that began later, in a cursor again of all partitions; a reader that goes on from
there returns each record that is there and was not read below it, those appended in the place of lost ones too, and
none that was.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from kreplog import Cursor, GroupCursor, LogConfig, Topic, errors
from kreplog.topic import TopicRecord, cursor_log
from kreplog.types import TopicPartition
from tests.faults.boots import reboot
from tests.faults.worlds import World, play_lives, play_seeds, random_lives, shim_of_life

PARTITIONS = 2
NAME = "billing"
CONFIG = LogConfig(segment_bytes=600)

Offsets = dict[int, int]


@dataclass
class History:
    """What was read and committed, in a file that survives the process.

    seen: by partition and offset. possible: the commits of which one is that of an image; returned: of a death alone.
    appended, flushed: values."""

    path: Path
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)
    possible: list[Offsets] = field(default_factory=lambda: [{}])
    returned: list[Offsets] = field(default_factory=lambda: [{}])
    appended: set[bytes] = field(default_factory=set)
    flushed: set[bytes] = field(default_factory=set)

    def note(self, kind: str, *facts: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([kind, *facts]) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls(path)
        for line in path.read_text().splitlines():
            kind, *facts = json.loads(line)
            if kind == "append":
                history.appended.add(facts[0].encode())
            elif kind == "flushed":
                history.flushed |= history.appended
            elif kind == "read":
                number, offset, value = facts
                history.seen[number, offset] = value.encode()
            elif kind == "commit":  # of all partitions, since a group's commit leaves out those that have not moved
                history.possible.append({**history.possible[-1], **dict(facts[0])})
                history.returned.append(history.possible[-1])
            elif kind == "returned":
                history.returned = history.returned[-1:]
            elif kind == "durable":
                history.possible = history.possible[-1:]
        return history


def open_reader(topic: Topic, kind: str) -> Cursor | GroupCursor:
    return topic.cursor(NAME) if kind == "cursor" else topic.group_cursor(NAME)


def records_of(reader: Cursor | GroupCursor) -> Iterator[TopicRecord]:
    """All that there are now."""
    return iter(reader) if isinstance(reader, Cursor) else reader.follow(timeout=0)


def append(topic: Topic, life: object, rng: random.Random) -> list[bytes]:
    values = [f"{life} {rng.getrandbits(40)}".encode() for _ in range(rng.randint(1, 8))]
    topic.append_many(values, partition=rng.randrange(PARTITIONS))
    return values


def life(kind: str, world: World, number: int, deadly: int) -> None:
    """Append, read and commit; then close, or be killed. The `deadly`-th file call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    shim = shim_of_life(world, rng, deadly)
    history = History(world.events)
    with Topic.open(world.live / "orders", PARTITIONS, config=CONFIG) as topic, open_reader(topic, kind) as reader:
        for _ in range(rng.randint(3, 30)):
            if rng.random() < 0.5:
                for value in append(topic, number, rng):
                    history.note("append", value.decode())
            if rng.random() < 0.2:
                topic.flush()
                history.note("flushed")
            for record in islice(records_of(reader), rng.randint(0, 9)):
                history.note("read", record.partition, record.offset, record.value.decode())
            if rng.random() < 0.6:
                durable = rng.random() < 0.4
                history.note("commit", list(reader.positions.items()))
                reader.commit(durable=durable)
                history.note("returned")
                if durable:
                    history.note("durable")
                    history.note("flushed")
        if rng.random() < 0.7:
            os.kill(os.getpid(), signal.SIGKILL)  # between two calls
    shim.on_sync(None)


def check_committed(committed: Offsets, possible: list[Offsets], kind: str) -> None:
    """Raises AssertionError. A cursor commits all partitions together, a group each by itself."""
    if kind == "cursor":
        assert committed in possible, f"{committed} is not one of {possible}"
    for number in range(PARTITIONS):
        offsets = {found.get(number) for found in possible}
        assert committed.get(number) in offsets, f"{number}: committed is {committed}, not one of {offsets}"


def check_after_death(kind: str, world: World, root: Path) -> None:
    """Of the files as the page cache has them: raises AssertionError."""
    history = History.read(world.events)
    with Topic.open(root / "orders", PARTITIONS, config=CONFIG) as topic:
        present = {record.value for record in topic.read()}
        assert history.appended <= present, f"{sorted(history.appended - present)} were appended, and are lost"
        with topic.cursor(NAME) as cursor:
            check_committed(cursor.committed, history.returned, kind)


def check_image(kind: str, world: World, root: Path) -> None:
    """Raises AssertionError."""
    history = History.read(world.events)
    rng = random.Random(f"{world.seed}-image")
    reboot(pytest.MonkeyPatch())
    with Topic.open(root / "orders", PARTITIONS, config=CONFIG) as topic:
        present = {record.value for record in topic.read()}
        assert history.flushed <= present, f"{sorted(history.flushed - present)} were flushed, and are lost"
        with topic.cursor(NAME) as cursor:
            committed = cursor.committed
        check_committed(committed, history.possible, kind)
        delivered = read_on(topic, kind) if rng.random() < 0.2 else []
        for _ in range(3):
            append(topic, "image", rng)
        delivered += read_on(topic, kind)
        for record in topic.read():
            place = record.partition, record.offset
            was_read = record.offset < committed.get(record.partition, 0) and history.seen.get(place) == record.value
            assert delivered.count(place) == (not was_read), f"{place} came {delivered.count(place)} times: {committed}"
        ends = {number: offsets.stop for number, offsets in topic.offsets().items()}
        found = topic.committed_offsets().get(NAME, {})
        assert {number: found.get(number, 0) for number in ends} == ends, f"{found} was committed, not {ends}"


def read_on(topic: Topic, kind: str) -> list[tuple[int, int]]:
    """Read all that was not read, and commit; the place of a partition whose end is lost is where that is."""
    delivered = []
    with open_reader(topic, kind) as reader:
        for _ in range(PARTITIONS + 1):
            try:
                delivered += [(record.partition, record.offset) for record in records_of(reader)]
                break
            except errors.LogTruncatedError as error:
                if error.offset is None:  # no record of the leader epoch is left
                    reader.seek(TopicPartition.parse(str(error.partition)).partition, 0)
        reader.commit(durable=True)
    return delivered


def play(kind: str, world: World) -> tuple[int, int]:
    rng = random.Random(f"{world.seed}-world")
    lives = random_lives(world, rng, partial(life, kind), most=4, calls=300, weight=3)
    images = [(image, partial(check_image, kind, world)) for image in ("ordered", "unordered")]
    return play_lives(world, rng, lives, images, partial(check_after_death, kind, world))


def main(directory: Path, kind: str, first: int, seeds: int) -> None:
    cursor_log.CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=2000)
    cursor_log.PARTITIONS = 2
    play_seeds(partial(play, kind), directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
