"""A cursor group whose members are killed at random: each record is read, by one owner of its partition at a time.

A member notes each step in a file of the partition, under a lock of its own that two owners at once would meet. The
committed offsets are compared over their whole history, which the log of the cursors has.
"""

from __future__ import annotations

import fcntl
import random
from functools import partial
from pathlib import Path

import pytest

from kreplog import Log, Topic
from kreplog.core.group_messages import OffsetRecord, partition_of_group
from kreplog.topic import cursor_log
from kreplog.wire.group_records import decode_records
from tests.faults.forked import KilledChildren
from tests.waiting import until

PARTITIONS = 6
MEMBERS = 4
NAME = "billing"


def read(path: Path, seed: int) -> None:
    """A member: until it is killed, it commits after a few records of a partition."""
    drawn = random.Random(seed)
    with Topic.open(path, read_only=True) as topic, topic.group_cursor(NAME) as cursor:
        for records in cursor.follow_batches(max_records=1 + drawn.randrange(8)):
            with open(f"{path}.seen-{records[0].partition}", "a") as witness:
                fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where another owns the partition, too
                for record in records:
                    witness.write(f"{record.offset}\n")
                    witness.flush()
            if drawn.randrange(3):
                cursor.commit()


def seen(path: Path, partition: int) -> list[int]:
    try:
        text = Path(f"{path}.seen-{partition}").read_text()
    except FileNotFoundError:
        return []
    return [int(line) for line in text.split("\n")[:-1]]


def committed(path: Path) -> dict[int, list[int]]:
    """All committed offsets of each partition, in the order of their commits."""
    number = partition_of_group(NAME, cursor_log.PARTITIONS)
    found: dict[int, list[int]] = {}
    with Log.open(path.parent / f"__consumer_offsets-{number}", read_only=True) as log:
        for _, record in decode_records((record.offset, record.key, record.value) for record in log.read()):
            assert isinstance(record, OffsetRecord) and record.value is not None
            found.setdefault(record.partition.partition, []).append(record.value.offset)
    return found


@pytest.mark.parametrize("kills", [12, pytest.param(500, marks=pytest.mark.long)])
def test_members_that_are_killed(tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "LOCK_TIMEOUT_S", 120.0)  # a machine that has other work may stop a member so long
    path = tmp_path / "data" / "orders"
    drawn = random.Random(kills)
    members = KilledChildren()

    def join() -> None:
        seed = drawn.randrange(1 << 30)
        members.start(lambda _: read(path, seed))

    def steps() -> int:
        return sum(len(seen(path, number)) for number in range(PARTITIONS))

    def has_moved(target: int) -> bool:
        return steps() >= target

    with Topic.open(path, PARTITIONS) as topic:
        try:
            for _ in range(MEMBERS):
                join()
            for _ in range(kills):
                before = steps()
                for _ in range(30):
                    topic.append(b"v", partition=drawn.randrange(PARTITIONS))
                until(partial(has_moved, before + drawn.randrange(25)))
                members.kill_one(drawn)
                join()
            ends = {number: offsets.stop for number, offsets in topic.offsets().items()}
            until(lambda: all(set(seen(path, number)) == set(range(end)) for number, end in ends.items()))
        finally:
            members.kill_all()
    assert not members.failed, "a member ended by itself"
    history = committed(path)
    assert len(history) == PARTITIONS
    for number, offsets in history.items():
        assert offsets == sorted(offsets), f"a committed offset of partition {number} went back"
        assert offsets[-1] <= ends[number]
