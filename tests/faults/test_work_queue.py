"""A work queue whose workers are killed at random: each record is done, none again after its ack has returned.

A worker notes in a file of the partition each delivery, and each ack before and after it. Some records always fail,
until they are dead letters; some kill their worker.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kreplog import DeliveredRecord, Topic, WorkQueue, errors
from kreplog.topic import cursor_log
from tests.faults.forked import KilledChildren
from tests.waiting import until

PARTITIONS = 4
WORKERS = 3
LIMIT = 3
FAILS, KILLS, WORKS = b"fails", b"kills", b"works"


def note(path: Path, step: str, record: DeliveredRecord) -> None:
    with open(f"{path}.steps-{record.partition}", "a") as steps:
        steps.write(f"{step} {record.offset} {record.delivery_count}\n")


def work(path: Path, seed: int) -> None:
    """A worker: until it is killed, it takes a few records, and acknowledges them in any order."""
    drawn = random.Random(seed)
    with (
        Topic.open(path, read_only=True) as topic,
        topic.work_queue("mail", dead_letter="dead", delivery_count_limit=LIMIT, record_lock_duration_ms=200) as queue,
    ):
        while True:
            records = queue.take(1 + drawn.randrange(5))
            drawn.shuffle(records)
            done: list[DeliveredRecord] = []
            for record in records:
                note(path, "taken", record)
                if record.value == FAILS:
                    with noting_expired(path, record):
                        queue.nack(record, drawn.randrange(3), "always")
                elif record.value == KILLS:
                    os.kill(os.getpid(), signal.SIGKILL)
                elif drawn.randrange(10):
                    done.append(record)
            if drawn.randrange(2):
                asyncio.run(acknowledge_together(path, queue, done))
            else:
                for record in done:
                    with noting_expired(path, record):
                        queue.ack(record)
                        note(path, "acked", record)


async def acknowledge_together(path: Path, queue: WorkQueue, records: list[DeliveredRecord]) -> None:
    async def acknowledge(record: DeliveredRecord) -> None:
        with noting_expired(path, record):
            await queue.ack_async(record)
            note(path, "acked", record)

    await asyncio.gather(*map(acknowledge, records))


@contextmanager
def noting_expired(path: Path, record: DeliveredRecord) -> Iterator[None]:
    try:
        yield
    except errors.DeliveryExpiredError:
        note(path, "expired", record)


def steps_of(path: Path, partition: int) -> list[tuple[str, int, int]]:
    try:
        lines = Path(f"{path}.steps-{partition}").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [(step, int(offset), int(count)) for step, offset, count in map(str.split, lines)]


def steps(path: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in path.parent.glob(f"{path.name}.steps-*"))


def check(path: Path, ends: dict[int, int], values: dict[tuple[int, int], bytes]) -> None:
    acked: set[tuple[int, int]] = set()
    for number in range(PARTITIONS):
        latest: dict[int, int] = {}
        for step, offset, count in steps_of(path, number):
            if step == "taken":
                assert (number, offset) not in acked, f"{number}-{offset} was delivered after its ack"
                assert count > latest.get(offset, 0), f"{number}-{offset}: delivery {count} came twice"
                assert count <= LIMIT
                latest[offset] = count
            elif step == "acked":
                acked.add((number, offset))
    with Topic.open(path.parent / "dead", read_only=True) as dead:
        letters = [dict(record.headers) for record in dead.read()]
    buried: set[tuple[int, int]] = set()
    for headers in letters:
        place = int(headers["__dlq.errors.partition"] or b""), int(headers["__dlq.errors.offset"] or b"")
        assert headers["__dlq.errors.delivery.count"] == b"%d" % LIMIT, headers
        buried.add(place)
    assert {place for place, value in values.items() if value != WORKS} <= buried
    # An ack that was committed as its worker was killed is not noted, and neither done again.
    assert not acked & buried
    with Topic.open(path, read_only=True) as topic:
        assert topic.committed_offsets()["mail"] == ends


@pytest.mark.parametrize("kills", [6, pytest.param(500, marks=pytest.mark.long)])
def test_workers_that_are_killed(tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "LOCK_TIMEOUT_S", 120.0)  # a machine that has other work may stop a worker so long
    path = tmp_path / "data" / "mails"
    drawn = random.Random(kills)
    workers = KilledChildren()
    values: dict[tuple[int, int], bytes] = {}

    def begin() -> None:
        seed = drawn.randrange(1 << 30)
        workers.start(lambda _: work(path, seed))

    def revive() -> None:
        """Workers that a record has killed are replaced."""
        for _ in range(workers.ended()):
            begin()

    def has_moved(target: int) -> bool:
        revive()
        return steps(path) >= target or bool(workers.failed)

    def is_done() -> bool:
        revive()
        committed = topic.committed_offsets().get("mail", {})
        return committed == {number: offsets.stop for number, offsets in topic.offsets().items()} or bool(
            workers.failed
        )

    def goes_on(before: int) -> bool:
        return has_moved(before + 1) or is_done()

    with Topic.open(path, PARTITIONS) as topic:
        try:
            for _ in range(WORKERS):
                begin()
            for _ in range(kills):
                before = steps(path)
                for _ in range(20):
                    value = KILLS if drawn.randrange(80) == 0 else FAILS if drawn.randrange(20) == 0 else WORKS
                    number, offset = topic.append(value, partition=drawn.randrange(PARTITIONS))
                    values[number, offset] = value
                until(partial(has_moved, before + drawn.randrange(20)))
                workers.kill_one(drawn)
                begin()
            while not is_done():  # what is left takes minutes on a machine that has other work
                until(partial(goes_on, steps(path)))
            ends = {number: offsets.stop for number, offsets in topic.offsets().items()}
        finally:
            workers.kill_all()
    assert not workers.failed, "a worker ended by itself"
    check(path, ends, values)
