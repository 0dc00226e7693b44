"""The LMDB file of a table beside forks, locks and other processes; its contents: test_table_file.py."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kreplog import Topic
from tests.faults.forked import result_of
from tests.topic.test_table import newest
from tests.waiting import until

pytest.importorskip("lmdb", reason="needs lmdb, the extra `tables`")
lmdb_store = pytest.importorskip("kreplog.topic.lmdb_store", reason="needs lmdb, the extra `tables`")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Topic.open(tmp_path / "data" / "prices", 2) as opened:
        yield opened


@pytest.fixture
def filled(topic: Topic, tmp_path: Path) -> Path:
    """Of four keys, two in each partition."""
    for number in range(20):
        topic.append(b"%d" % number, b"k%d" % (number % 4), partition=number % 2)
    topic.table(path=tmp_path / "prices.table").close()
    return tmp_path / "prices.table"


def test_a_child_ends_nothing_of_its_parent(topic: Topic, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another thread of the parent had the lock. Pages that an iteration still sees are not used again."""
    monkeypatch.setattr(lmdb_store, "PIECE", 1)
    with topic.table(path=filled) as table:
        store: Any = table._entries
        before = dict(table.items())
        items = iter(table.items())
        next(items)

        def in_a_child() -> bool:
            table.close()
            return store._env.readers() == readers and bool(store._scans)

        readers = store._env.readers()
        for lock in (store._lock, store._lock.exclusive(), nullcontext()):
            with lock:
                assert result_of(in_a_child)
        assert store._env.readers() == readers
        topic.append(None, b"k3", partition=1)
        table.refresh()
        assert len(dict(items)) == len(before) - 1
        assert dict(table.items()) == newest(topic)


def test_a_child_does_not_have_the_lock_on_the_folder(topic: Topic, filled: Path) -> None:
    with topic.table(path=filled) as table:
        store: Any = table._entries
        with store._folder_lock():
            child = os.fork()
            if not child:
                signal.pause()
                os._exit(0)
        folder = os.open(filled, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(folder)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_who_waits_to_be_alone_comes_before_those_who_share() -> None:
    lock = lmdb_store._SharedLock()
    order = []

    def alone() -> None:
        with lock.exclusive():
            order.append("alone")

    def share() -> None:
        with lock:
            order.append("shared")

    threads = [threading.Thread(target=alone), threading.Thread(target=share)]
    with lock:
        threads[0].start()
        until(lambda: lock._waiting)
        threads[1].start()
        threads[1].join(0.05)
        assert not order
    for thread in threads:
        thread.join()
    assert order == ["alone", "shared"]


def test_a_process_that_has_another_log_open_has_moved_the_place(topic: Topic, filled: Path) -> None:
    """Its log has the same generation."""
    with topic.table(path=filled) as table:
        store: Any = table._entries
        place = store.place(0)
        other = place._replace(incarnation=place.incarnation ^ 1)
        assert store.apply(0, place, {b"k0": (9, 9, b"of another log")}, other)
        table.refresh()
        assert dict(table.items()) == newest(topic)


def test_old_values_take_no_memory(topic: Topic, tmp_path: Path) -> None:
    keys = [b"%d" % number for number in range(200)]
    topic.append_many([bytes(200_000)] * 200, keys)
    with topic.table(path=tmp_path / "table") as table:
        topic.append_many([None] * 200, keys)
        tracemalloc.start()
        try:
            table.refresh()
            assert tracemalloc.get_traced_memory()[1] < 10_000_000 and not len(table)
        finally:
            tracemalloc.stop()
