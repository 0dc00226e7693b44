"""Tables that a thread keeps at the end of the topic."""

from __future__ import annotations

import gc
import operator
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kreplog import Table, Topic, errors
from kreplog._native.any_wait import sleep_any
from kreplog._native.waiting import HighWatermarkWait, Outcome, new_wait
from tests.waiting import InChild, InThread, until, until_waiting, wake_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "prices"


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 3) as opened:
        yield opened


def threads() -> int:
    return sum(thread.name == "kreplog-table" for thread in threading.enumerate())


def test_a_table_follows_the_writer_of_another_process(path: Path) -> None:
    Topic.open(path, 3).close()
    with Topic.open(path, read_only=True) as reader, reader.table(follow=True) as table:

        def write() -> None:
            with Topic.open(path) as topic:
                for partition in (2, 0, 1):
                    topic.append(b"%d" % partition, b"k%d" % partition, partition=partition)
                    until_waiting(Path(f"{path}-{partition}"), 1)
                topic.add_partitions(4)
                topic.append(b"3", b"k3", partition=3)

        InChild(write).result()
        until(lambda: len(table) == 4)
        assert dict(table.items()) == {b"k%d" % number: b"%d" % number for number in range(4)}


def test_more_partitions_than_the_kernel_waits_for(path: Path) -> None:
    with Topic.open(path, 130) as topic, topic.table(follow=True) as table:
        for partition in (0, 129):
            key = b"k%d" % partition
            topic.append(b"v", key, partition=partition)
            until(partial(operator.contains, table, key))


def test_a_truncation_and_a_deletion_are_seen(topic: Topic) -> None:
    for number in range(3):
        topic.append(b"%d" % number, b"k", partition=0)
    topic.append(b"v", b"other", partition=1)
    with topic.table(follow=True) as table:
        topic.log(0).truncate_to(1)
        until(lambda: table.get(b"k") == b"0")
        topic.log(1).delete_records_before(1)
        until(lambda: b"other" not in table)


def test_each_of_the_logs_wakes_the_thread(topic: Topic) -> None:
    """The sleep ends with the append, and the writer has no more to wake then."""
    for partition in range(3):
        waits = [new_wait(topic.log(number), True) for number in range(3)]
        assert all(wait.poll(0, -1) == Outcome.WAITING for wait in waits)
        assert wake_at(Path(f"{topic.path}-{partition}")) == 1

        def sleep(waits: list[HighWatermarkWait] = waits, partition: int = partition) -> int:
            while waits[partition].poll(0, -1) == Outcome.WAITING:
                sleep_any(waits)
            return sum(wait.poll(0, -1) == Outcome.REACHED for wait in waits)

        sleeping = InThread(sleep)
        topic.append(b"v", partition=partition)
        assert sleeping.result() == 1
        topic.log(partition).truncate_to(0)


def test_a_failure_is_raised_by_each_call(topic: Topic) -> None:
    with topic.table(follow=True) as table:
        topic.append(b"sound", b"k", partition=0)
        until(lambda: b"k" in table)
        with Topic.open(topic.path, read_only=True) as reader:
            other: Table = reader.table(follow=True)
            segment = Path(f"{topic.path}-1") / ("0" * 20 + ".log")
            Path(f"{topic.path}-1").rename(f"{topic.path}-1.gone")

            def fails() -> bool:
                try:
                    other.get(b"k")
                except errors.PartitionDeletedError:
                    return True
                return False

            until(fails)
            for call in (other.refresh, lambda: len(other), lambda: other[b"k"], lambda: list(other)):
                with pytest.raises(errors.PartitionDeletedError, match="prices-1"):
                    call()
            Path(f"{topic.path}-1.gone").rename(f"{topic.path}-1")
            assert segment.exists()


def test_the_thread_ends_with_its_table(topic: Topic) -> None:
    before = threads()
    with topic.table(follow=True):
        assert threads() == before + 1
    assert threads() == before
    table = topic.table(follow=True)
    del table
    gc.collect()
    until(lambda: threads() == before)
    table = topic.table(follow=True)
    topic.close()
    until(lambda: threads() == before)
    with pytest.raises(errors.LogClosedError):
        len(table)


def test_what_does_not_follow(topic: Topic) -> None:
    with pytest.raises(errors.UsageError, match="does not follow"):
        topic.table(at={0: 0}, follow=True)
