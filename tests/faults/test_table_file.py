"""A table in an LMDB file broken off at every file call, and killed while it loads and follows."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kreplog import Topic, errors
from tests.faults.forked import acknowledge, kill_after, result_of, start
from tests.faults.shim import run_driver
from tests.faults.test_follow_processes import NOBODY, Outside, as_another_user, on_a_read_only_mount

pytest.importorskip("lmdb")

from kreplog.topic import lmdb_reader
from tests.faults.table_file_calls import look, prepare


@pytest.mark.parametrize(("mode", "least"), [("kill", 30), ("halfway", 12), ("full", 12), ("handles", 2), ("sync", 8)])
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


@pytest.mark.parametrize("kills", [12, pytest.param(500, marks=pytest.mark.long)])
def test_killed_while_it_loads_and_follows(tmp_path: Path, kills: int) -> None:
    """A topic of its own every 20 kills, since each look reads it from its start."""
    draw = random.Random(5)
    furthest = 0
    for kill in range(kills):
        path = tmp_path / f"data-{kill // 20}" / "prices"
        if kill % 20 == 0:
            prepare(path, 2)
        pid, reader = start(partial(append_and_follow, path, kill))
        code, _ = kill_after(pid, reader, draw.random())
        assert code == -9
        furthest = max(furthest, result_of(partial(look, path)))
    assert furthest > 0


def readable(path: Path) -> Path:
    """A topic that every user may read, with a table beside it that root has opened; returns the table's folder."""
    with Topic.open(path, 1) as topic:
        topic.append(b"1", b"tea")
        topic.table(path=path.parent / "table").close()
    for found in (path.parent.parent, path.parent, *path.parent.rglob("*")):
        found.chmod(0o755 if found.is_dir() else 0o644)
    return path.parent / "table"


def private_files(table: Path) -> Path:
    """Which another user may delete, and not open."""
    table.chmod(0o777)
    for file in table.iterdir():
        file.chmod(0o600)
    return table


def private_folder(table: Path) -> Path:
    table.chmod(0o700)
    return table


CASES: dict[str, tuple[Outside, Callable[[Path], Path]]] = {
    "files that may be read": (as_another_user, lambda table: table),
    "files of another user": (as_another_user, private_files),
    "a folder of another user": (as_another_user, private_folder),
    "no folder yet": (as_another_user, lambda table: table.parent / "new"),
    "a read-only mount": (on_a_read_only_mount, lambda table: table),
}


@pytest.mark.parametrize("case", CASES)
def test_a_user_without_rights_is_refused_by_name_and_harms_nothing(folder: Path, case: str) -> None:
    outside, take_rights = CASES[case]
    path = folder / "data" / "prices"
    table = take_rights(readable(path))
    files = {file: file.read_bytes() for file in (path.parent / "table").iterdir()}

    def refused(become: Callable[[], None], topic_path: Path, table_path: Path) -> str:
        become()
        with Topic.open(topic_path, read_only=True) as topic:
            assert topic.table() == {b"tea": b"1"}, "the topic may be read, and a table in memory needs no more"
            with pytest.raises(errors.StorageError) as caught:
                topic.table(path=table_path)
            assert caught.value.path == str(table_path)
        return str(caught.value)

    with outside(path) as (seen, become):
        message = result_of(partial(refused, become, seen, seen.parent / table.name))
    assert str(table.name) in message and "give this user that right, or a path of its own" in message
    assert {file: file.read_bytes() for file in files} == files
    with Topic.open(path) as topic, topic.table(path=path.parent / "table") as again:
        assert dict(again.items()) == {b"tea": b"1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_rights_that_are_lost_while_the_table_is_open(folder: Path) -> None:
    """What is open is used on, unless it may have been replaced; a file that has to be opened again is refused."""
    path = folder / "data" / "prices"
    table_path = readable(path)
    advice = "give this user that right, or a path of its own"

    def in_a_child() -> None:
        topic = Topic.open(path)
        table = topic.table(path=table_path)
        topic.append(b"2", b"tea")
        os.seteuid(NOBODY)
        table.refresh()
        assert dict(table.items()) == {b"tea": b"2"}

        topic.append(b"3", b"tea")
        os.seteuid(0)
        table_path.chmod(0o700)
        os.seteuid(NOBODY)
        with pytest.raises(errors.StorageError, match=advice):
            table.refresh()
        assert dict(table.items()) == {b"tea": b"2"}
        os.seteuid(0)
        table_path.chmod(0o755)
        os.seteuid(NOBODY)
        table.refresh()
        assert dict(table.items()) == {b"tea": b"3"}

        os.seteuid(0)
        for file in table_path.iterdir():
            file.rename(file.with_name(file.name.replace("kreplog-", "was-")))
        os.seteuid(NOBODY)
        with pytest.raises(errors.StorageError, match=advice):
            table.refresh()
        with pytest.raises(errors.StorageError, match="could not be opened again: close the table, and open another"):
            table.refresh()

    result_of(in_a_child)
    with Topic.open(path) as topic, topic.table(path=table_path) as table:
        assert dict(table.items()) == {b"tea": b"3"}
