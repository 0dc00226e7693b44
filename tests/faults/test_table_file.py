"""A table in an LMDB file broken off at every file call, and killed while it loads and follows."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from kreplog import Topic
from tests.faults.forked import acknowledge, kill_after, result_of, start
from tests.faults.shim import run_driver

pytest.importorskip("lmdb")

from kreplog.topic import lmdb_reader
from tests.faults.table_file_calls import look, prepare


@pytest.mark.parametrize(("mode", "least"), [("kill", 30), ("halfway", 12), ("full", 12), ("handles", 2)])
def test_broken_off_at_every_file_call(folder: Path, shim: Path, mode: str, least: int) -> None:
    """The keys in the file are those of the place in it."""
    output = run_driver("table_file_calls", folder, mode, shim=shim)
    assert int(output.rpartition("broken_off=")[2]) >= least, output


def append_and_follow(path: Path, seed: int, pipe: int) -> None:
    """Append to two partitions, and load and follow in pieces of a few records; acknowledge (done, done)."""
    draw = random.Random(seed)
    lmdb_reader.PIECE_BYTES = 2000
    done = sum(offsets.stop for offsets in Topic.open(path, read_only=True).offsets().values())
    with Topic.open(path) as topic, topic.table(path=path.parent / "tables" / "prices", follow=True) as table:
        while True:
            for _ in range(draw.randrange(1, 200)):
                value = draw.choice([None, draw.randbytes(draw.randrange(100))])
                position = topic.append(value, b"%d" % draw.randrange(100))
                done += 1
            if draw.random() < 0.5:
                table.wait_for(position)
            acknowledge(pipe, done, done)


def test_killed_while_it_loads_and_follows(tmp_path: Path) -> None:
    path = tmp_path / "data" / "prices"
    prepare(path, 2)
    (path.parent / "tables").mkdir(exist_ok=True)
    draw = random.Random(5)
    furthest = 0
    for kill in range(12):
        pid, reader = start(partial(append_and_follow, path, kill))
        code, _ = kill_after(pid, reader, draw.random())
        assert code == -9
        furthest = max(furthest, result_of(partial(look, path)))
    assert furthest > 0
