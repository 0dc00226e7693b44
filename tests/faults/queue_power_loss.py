"""Driver: a work queue lives through several processes, most of them killed at a file call; then the power is cut.

Arguments: directory, first seed, seeds. Needs the shim. In each process the topic's writer appends, a queue takes,
acknowledges with durable=True or without, releases, and rejects. A power cut takes away what was not flushed: records,
acknowledgements, counts of deliveries. What must hold in the image: nothing whose durable ack has returned is delivered
again, each record that is there and was not acknowledged is delivered or a dead letter, none more often than
delivery_count_limit; what is appended then is delivered, too.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kreplog import DeliveredRecord, LogConfig, Topic, WorkQueue, errors
from kreplog.topic import cursor_log
from tests.faults.worlds import World, play_lives, play_seeds, random_lives, shim_of_life

PARTITIONS = 2
LIMIT = 3
CONFIG = LogConfig(segment_bytes=600)


@dataclass
class History:
    """What became of the records, by their values, in a file that survives the process. A value is appended once.
    acked: whether that has returned or not; done: durably, and that has returned."""

    path: Path
    appended: set[int] = field(default_factory=set)
    flushed: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)

    def note(self, kind: str, *values: int) -> None:
        with self.path.open("a") as file:
            file.write(" ".join([kind, *map(str, values)]) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls(path)
        for line in path.read_text().splitlines():
            kind, *values = line.split()
            numbers = set(map(int, values))
            if kind == "appended":
                history.appended |= numbers
            elif kind == "flushed":
                history.flushed |= history.appended
            elif kind == "acked":
                history.acked |= numbers
            elif kind == "done":
                history.done |= numbers
        return history


def open_queue(topic: Topic, dead_letter: Topic | str = "dead") -> WorkQueue:
    return topic.work_queue("mail", dead_letter=dead_letter, delivery_count_limit=LIMIT)


def life(world: World, number: int, deadly: int) -> None:
    """Append, take and settle; then close, or be killed. The `deadly`-th file call kills; 0: none does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    shim = shim_of_life(world, rng, deadly)
    history = History(world.events)
    with (
        Topic.open(world.live / "mails", PARTITIONS, config=CONFIG) as topic,
        Topic.open(world.live / "dead", 1) if rng.random() < 0.5 else nullcontext("dead") as dead_letter,
        open_queue(topic, dead_letter) as queue,
    ):
        for step in range(rng.randint(5, 40)):
            if rng.random() < 0.5:
                values = [number * 100_000 + step * 100 + n for n in range(rng.randint(1, 8))]
                topic.append_many([b"%d" % value for value in values], partition=rng.randrange(PARTITIONS))
                history.note("appended", *values)
            if rng.random() < 0.2:
                topic.flush()
                history.note("flushed")
            settle(history, queue, queue.take(rng.randint(1, 6), timeout=0), rng)
        if rng.random() < 0.7:
            os.kill(os.getpid(), signal.SIGKILL)  # between two calls
    shim.on_sync(None)


def settle(history: History, queue: WorkQueue, records: list[DeliveredRecord], rng: random.Random) -> None:
    rng.shuffle(records)
    for record in records:
        drawn = rng.random()
        if drawn < 0.6:
            durable = rng.random() < 0.5
            history.note("acked", int(record.value))
            queue.ack(record, durable=durable)
            if durable:
                history.note("flushed")
                history.note("done", int(record.value))
        elif drawn < 0.8:
            queue.nack(record, error="refused")
        elif drawn < 0.9:
            queue.reject(record, error="not wanted")


def check_image(world: World, root: Path) -> None:
    """Every record is taken until it is done, its deliveries counted. Raises AssertionError."""
    history = History.read(world.events)
    counts: dict[int, int] = {}
    acknowledged: set[int] = set()
    with Topic.open(root / "mails", PARTITIONS, config=CONFIG) as topic:
        present = {int(record.value) for record in topic.read()}
        new = set(range(-PARTITIONS, 0))
        assert history.flushed <= present, f"{sorted(history.flushed - present)} were flushed, and are lost"
        with open_queue(topic) as queue:
            records = queue.take(7, timeout=0)
            for number, value in enumerate(new):
                topic.append(b"%d" % value, partition=number)
            while records := records or queue.take(7, timeout=0):
                while records:
                    record = records.pop()
                    value = int(record.value)
                    assert value not in acknowledged, f"{value} was delivered after its ack"
                    assert record.delivery_count > counts.get(value, 0), f"{value}: {record.delivery_count} came twice"
                    assert record.delivery_count <= LIMIT, f"{value}: delivery {record.delivery_count}"
                    counts[value] = record.delivery_count
                    if value % 3 and record.delivery_count < LIMIT:
                        queue.nack(record)
                    else:
                        queue.ack(record, durable=True)
                        acknowledged.add(value)
            ends = {number: offsets.stop for number, offsets in topic.offsets().items()}
            assert queue.committed == ends
    letters = letters_in(root)
    delivered = set(counts)
    assert not delivered & history.done, f"{sorted(delivered & history.done)} were done durably, and delivered again"
    lost = (present | new) - delivered - letters - history.acked
    assert not lost, f"{sorted(lost)} were not acknowledged, and are neither delivered nor dead letters"
    with Topic.open(root / "mails", read_only=True) as topic, open_queue(topic) as queue:
        assert not queue.take(1, timeout=0), "all was done"


def letters_in(root: Path) -> set[int]:
    try:
        dead = Topic.open(root / "dead")  # for writing, which recovers it
    except errors.UsageError:  # there is none yet
        return set()
    with dead:
        return {int(record.value) for record in dead.read()}


def play(world: World) -> tuple[int, int]:
    rng = random.Random(f"{world.seed}-world")
    lives = random_lives(world, rng, life, most=4, calls=400, weight=3)
    return play_lives(world, rng, lives, [(kind, partial(check_image, world)) for kind in ("ordered", "unordered")])


def main(directory: Path, first: int, seeds: int) -> None:
    cursor_log.CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=2000)
    cursor_log.PARTITIONS = 2
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
