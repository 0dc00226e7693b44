"""Driver: a broker lives through several processes, most of them killed at a system call, then the power is cut.

Arguments: directory, first seed, seeds. Needs the shim. What is durable is noted of all that the broker keeps: its log
directory with checkpoints and topic ids, and the embedded store beside it. From each image a broker starts; it must
know every topic whose creation was acknowledged, and have every record that was acknowledged under flush.messages=1 and
not deleted since, each at its offset; of other topics no record that was never sent. It takes more records then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kreplog import Log
from kreplog._native.batch import build
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.faults.worlds import World, play_lives, play_seeds, random_lives, shim_of_life
from tests.server.brokers import eventually, serving
from tests.server.test_broker import Client

TOPICS = {"flushed": "1", "cached": str(2**63 - 1)}
"""flush.messages of each. A third topic, "later", is made while the first two are written to."""
PRODUCE_TIMEOUT_MS = 30_000
"""A flush takes seconds on a machine that has other work, where the shadow looks at all files after each fsync."""
PARTITIONS = 3

SETTINGS = {
    "log_segment_bytes": 2000,
    "log_flush_offset_checkpoint_interval_ms": 60,
}


@dataclass
class History:
    """What was sent and acknowledged, in a file that survives the process. Records are numbers, each sent once."""

    path: Path
    topics: set[str] = field(default_factory=set)
    sent: dict[TopicPartition, set[int]] = field(default_factory=dict)
    acknowledged: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    last: int = 0

    def note(self, kind: str, *values: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([kind, *values]) + "\n")

    @classmethod
    def read(cls, path: Path) -> History:
        history = cls(path)
        for line in path.read_text().splitlines():
            kind, topic, *numbers = json.loads(line)
            if kind == "created":
                history.topics.add(topic)
                continue
            at, values = TopicPartition(topic, numbers[0]), numbers[1:]
            if kind == "sent":
                history.sent.setdefault(at, set()).update(values)
                history.last = max(history.last, *values)
            elif kind == "acknowledged":
                history.acknowledged.setdefault(at, {}).update(enumerate(values[1:], values[0]))
            elif kind == "deleted":
                history.starts[at] = max(history.starts.get(at, 0), values[0])
        return history

    def check(self, at: TopicPartition, start: int, found: list[int]) -> None:
        """`found`, from offset `start` on, holds what was promised and nothing that never was."""
        assert start <= self.starts.get(at, 0), f"{at} starts at {start}"
        assert set(found) <= self.sent.get(at, set()) and len(set(found)) == len(found), f"{at}: {found}"
        if at.topic == "flushed":
            for offset, number in self.acknowledged.get(at, {}).items():
                if offset >= self.starts.get(at, 0):
                    assert offset < start + len(found), f"{at}: {offset} was flushed, but ends at {start + len(found)}"
                    assert found[offset - start] == number, f"{at}: {offset} was {number}, is {found[offset - start]}"


def with_broker(root: Path, work: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(root, 1, **SETTINGS) as (broker,):
            client = Client(broker)
            try:
                await work(client)
            finally:
                client.peer.close()

    asyncio.run(main())


def life(world: World, number: int, deadly: int) -> None:
    """Start, create what is not there, produce, delete records; then stop. The `deadly`-th system call kills; 0: none
    does."""
    rng = random.Random(f"{world.seed}-life-{number}")
    shim = shim_of_life(world, rng, deadly)
    with_broker(world.live, partial(work, world, rng))
    shim.on_sync(None)


async def work(world: World, rng: random.Random, client: Client) -> None:
    history = History.read(world.events)
    for topic, flush in TOPICS.items():
        await create(client, history, topic, flush)
    for step in range(rng.randint(5, 40)):
        at = TopicPartition(rng.choice([*TOPICS]), rng.randrange(PARTITIONS))
        if step == 4:
            await create(client, history, "later", "1")
        elif rng.random() < 0.1:
            await delete(client, history, at, rng)
        else:
            await produce(client, history, at, rng.choice([1, 1, 3, 30]))


async def create(client: Client, history: History, topic: str, flush: str) -> None:
    configs = [{"name": "flush.messages", "value": flush}]
    wanted = {
        "name": topic,
        "num_partitions": PARTITIONS,
        "replication_factor": 1,
        "assignments": [],
        "configs": configs,
    }
    answer = await client.call(
        ApiKey.CREATE_TOPICS, 5, topics=[wanted | {"configs": configs}], timeout_ms=10_000, validate_only=False
    )
    assert answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    history.note("created", topic)


async def produce(client: Client, history: History, at: TopicPartition, count: int) -> None:
    numbers = [*range(history.last + 1, history.last + 1 + count)]
    history.last += count
    history.note("sent", *at, *numbers)
    batch = build([b"%d" % number for number in numbers])

    async def taken() -> bool:
        (answer,) = (await client.produce(batch, at=at, timeout_ms=PRODUCE_TIMEOUT_MS)).partitions
        if answer.error is ErrorCode.NONE:
            history.note("acknowledged", *at, answer.base_offset, *numbers)
        else:
            assert answer.error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), answer
        return answer.error is ErrorCode.NONE

    await eventually(taken)


async def delete(client: Client, history: History, at: TopicPartition, rng: random.Random) -> None:
    replica = client.broker.manager.partitions[at]
    offset = rng.randint(replica.log.log_start, replica.high_watermark)
    history.note("deleted", *at, offset)
    topics = [{"name": at.topic, "partitions": [{"partition_index": at.partition, "offset": offset}]}]
    await client.call(ApiKey.DELETE_RECORDS, 1, topics=topics, timeout_ms=10_000)


def history_of_image(world: World) -> History:
    """What was promised so far; what is noted in it is not of the next life."""
    copy = world.folder / "events-of-image"
    shutil.copyfile(world.events, copy)
    return History.read(copy)


def check_image(world: World, root: Path) -> None:
    """A broker starts from the image, has what was promised, and takes more. Raises AssertionError."""
    history = history_of_image(world)

    async def go_on(client: Client) -> None:
        for topic in sorted(history.topics):
            for number in range(PARTITIONS):
                await produce(client, history, TopicPartition(topic, number), 1)

    with_broker(root, go_on)
    after = History.read(history.path)
    for topic in sorted(history.topics):
        for number in range(PARTITIONS):
            at = TopicPartition(topic, number)
            with Log.open(root / "data-1" / str(at)) as log:
                found = [int(record.value or b"") for record in log.read(log.log_start_offset)]
                after.check(at, log.log_start_offset, found)


def play(world: World) -> tuple[int, int]:
    rng = random.Random(f"{world.seed}-world")
    lives = random_lives(world, rng, life, most=3, calls=300, weight=5)
    images = [(kind, partial(check_image, world)) for kind in ("ordered", "unordered")]
    return play_lives(world, rng, lives, images, renames_folders=True)


def main(directory: Path, first: int, seeds: int) -> None:
    play_seeds(play, directory, first, seeds)


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
