"""Topic.follow: the records of all partitions as they come, and what ends the wait for them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kreplog import Topic, errors
from kreplog.topic.partition_follows import TURN
from tests.reference import sent
from tests.waiting import InChild, InThread, until, until_waiting, wake_at


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 3) as opened:
        yield opened


def partition_path(path: Path, number: int) -> Path:
    return Path(f"{path}-{number}")


def test_records_of_a_writer_in_another_process_come_as_it_appends(path: Path) -> None:
    Topic.open(path, 3).close()

    def write() -> None:
        with Topic.open(path) as topic:
            for partition in (2, 0, 1, 3):
                if partition == 3:
                    topic.add_partitions(4)
                topic.append(b"%d" % partition, partition=partition)
                until_waiting(partition_path(path, partition), 1)  # two that are there at once may come in any order

    with Topic.open(path, read_only=True) as reader:
        follow = reader.follow(across_writers=True)
        child = InChild(write)
        assert [next(follow)[:2] for _ in range(4)] == [(2, 0), (0, 0), (1, 0), (3, 0)]
        assert not list(reader.follow(follow_places(reader), timeout=0))
        waiting = InThread(lambda: next(follow, None))
        child.result()
        assert waiting.running, "the next writer may come"
    assert waiting.result() is None, "the topic is closed"


def follow_places(topic: Topic) -> dict[int, int]:
    return {number: offsets.stop for number, offsets in topic.offsets().items()}


def test_partitions_have_turns(topic: Topic) -> None:
    topic.append_many([b"v"] * 3 * TURN, partition=0)
    topic.append(b"v", partition=1)
    partitions = [record.partition for record in topic.follow(timeout=0)]
    assert partitions.index(1) == TURN and partitions.count(0) == 3 * TURN


def test_starts_and_lists(topic: Topic) -> None:
    for number in range(10):
        topic.append(b"%d" % number, partition=number % 2)
    assert [record[:2] for record in topic.follow({0: 3, 1: 4}, timeout=0)] == [(0, 3), (0, 4), (1, 4)]
    lists = list(topic.follow_batches({0: 1}, timeout=0, max_records=3))
    assert [(records[0].partition, [record.offset for record in records]) for records in lists] == [
        (0, [1, 2, 3]), (0, [4]), (1, [0, 1, 2]), (1, [3, 4])
    ]  # fmt: skip


def test_a_timeout_is_the_time_without_a_record(topic: Topic) -> None:
    topic.append(b"v", partition=1)
    follow = topic.follow(timeout=0)
    assert [record.partition for record in follow] == [1]
    topic.append(b"v", partition=2)
    assert [record.partition for record in follow] == [2], "the iterator goes on after its end"


def test_bad_arguments(topic: Topic) -> None:
    with pytest.raises(errors.UsageError, match="no partition 3"):
        topic.follow({3: 0})
    with pytest.raises(errors.OffsetOutOfRangeError):
        topic.follow({0: 1})
    wrong: Any
    for wrong in ({"timeout": -1}, {"on_error": "ignore"}):
        with pytest.raises(errors.UsageError):
            topic.follow(**wrong)
    for count in (0, True):
        with pytest.raises(errors.UsageError):
            topic.follow_batches(max_records=count)
    topic.close()
    with pytest.raises(errors.LogClosedError):
        topic.follow()


def test_read_committed(topic: Topic, path: Path) -> None:
    """An open transaction holds back the partitions that it is in, and its decision wakes the reader."""
    for number in (0, 1):
        topic.log(number).append_batches(sent(7, 0, b"in it"), transactional=True)
    for number in (0, 1, 2):
        topic.append(b"behind it", partition=number)
    with Topic.open(path, read_only=True) as reader:
        follow = reader.follow(isolation="read_committed")
        lists = reader.follow_batches(timeout=0, isolation="read_committed")
        assert next(follow)[:2] == (2, 0)
        assert [[record.partition for record in records] for records in lists] == [[2]]
        for order in ("partition", "time"):
            assert [record[:2] for record in topic.read(order=order, isolation="read_committed")] == [(2, 0)]
        for number, committed in ((0, True), (1, False)):
            waiting = InThread(lambda: next(follow))
            until_waiting(partition_path(path, number), 0)
            topic.log(number).append_transaction_marker(7, 0, committed=committed, coordinator_epoch=0)
            assert waiting.result()[:2] == (number, 0 if committed else 1)
            if committed:
                assert next(follow)[:2] == (number, 1)
        assert [len(records) for records in lists] == [2, 1]
    with pytest.raises(errors.UsageError, match="read_committed"):
        topic.follow(isolation="committed")


def test_records_that_do_not_decode(path: Path) -> None:
    with Topic.open(path, 1) as topic:
        for value in (b"1", b"{", b"2"):
            topic.append(value)
    with Topic.open(path, value_codec="json", read_only=True) as topic:
        follow = topic.follow(timeout=0)
        assert next(follow).value == 1
        with pytest.raises(errors.RecordDecodeError):
            next(follow)
        assert next(follow).value == 2
        assert [record.value for record in topic.follow(timeout=0, on_error="skip")] == [1, 2]
        aside: list[errors.RecordDecodeError] = []
        lists = list(topic.follow_batches(timeout=0, max_records=2, on_error=aside.append))
        assert [[record.value for record in records] for records in lists] == [[1], [2]] and aside[0].offset == 1


class TestWriter:
    def test_a_topic_that_nobody_writes_ends(self, path: Path) -> None:
        with Topic.open(path, 2) as topic:
            topic.append(b"v", partition=1)
        with Topic.open(path, read_only=True) as reader:
            assert [record.value for record in reader.follow()] == [b"v"]

    def test_a_close_ends_it_and_a_partition_that_was_not_opened_does_not(self, path: Path) -> None:
        with Topic.open(path, 2) as topic:
            topic.log(0)
            topic.append(b"v", partition=1)
        with Topic.open(path) as topic, Topic.open(path, read_only=True) as reader:
            waiting = InThread(lambda: [record.value for record in reader.follow()])
            until(lambda: wake_at(partition_path(path, 1)) == 2)
            topic.log(1)
            topic.append(b"w", partition=0)
            until(lambda: wake_at(partition_path(path, 0)) == 2)
            topic.close()
            assert waiting.result() == [b"v", b"w"]

    def test_a_death_is_an_error_after_all_that_was_committed(self, path: Path) -> None:
        def die() -> None:
            topic = Topic.open(path, 2)
            topic.append(b"v", partition=1)
            until_waiting(partition_path(path, 1), 1)
            topic.append(b"w", partition=1)
            os.kill(os.getpid(), signal.SIGKILL)

        Topic.open(path, 2).close()
        with Topic.open(path, read_only=True) as reader:
            beginning = reader.follow(across_writers=True)
            child = InChild(die)
            assert next(beginning).value == b"v"
            follow = reader.follow()
            assert next(follow).value == b"v"
            assert next(follow).value == b"w"
            with pytest.raises(errors.WriterDiedError, match="orders-1"):
                next(follow)
            with pytest.raises(AssertionError, match="killed"):
                child.result()
            assert next(beginning).value == b"w"
            with Topic.open(path) as topic:
                topic.append(b"x", partition=0)
                assert next(beginning).value == b"x"

    def test_the_writer_itself_follows_until_it_closes(self, topic: Topic, path: Path) -> None:
        waiting = InThread(lambda: [record.value for record in topic.follow()])
        until_waiting(partition_path(path, 2), 0)
        topic.append(b"v", partition=2)
        until_waiting(partition_path(path, 2), 1)
        topic.close()
        assert waiting.result() == [b"v"]


def test_truncation_and_deletion(topic: Topic, path: Path) -> None:
    topic.append_many([b"v"] * 5, partition=1)
    with Topic.open(path, read_only=True) as reader:
        follow = reader.follow()
        assert sum(1 for _ in zip(range(5), follow, strict=False)) == 5
        topic.log(1).truncate_to(0)
        with pytest.raises(errors.LogTruncatedError) as raised:
            next(follow)
        assert raised.value.offset == 0 and raised.value.partition == "orders-1"
        follow = reader.follow()
        waiting = InThread(lambda: next(follow))
        until_waiting(partition_path(path, 1), 0)
        shutil.rmtree(partition_path(path, 1))
        with pytest.raises(errors.PartitionDeletedError):
            waiting.result()


def test_one_iterator_in_two_threads(topic: Topic, path: Path) -> None:
    follow = topic.follow()
    waiting = InThread(lambda: next(follow))
    until_waiting(partition_path(path, 2), 0)
    with pytest.raises(errors.UsageError, match="another thread"):
        next(follow)
    topic.append(b"v")
    assert waiting.result().value == b"v"


def test_tasks(topic: Topic, path: Path) -> None:
    async def main() -> None:
        follow = topic.follow()
        task = asyncio.create_task(anext(follow))
        while wake_at(partition_path(path, 2)) != 1:
            await asyncio.sleep(0)  # until the task sleeps: it reports that to no one
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        topic.append(b"v", partition=2)
        assert (await anext(follow)).value == b"v", "a task that was cancelled has lost no record"
        assert [record async for record in topic.follow({2: 1}, timeout=0)] == []
        task = asyncio.create_task(anext(follow))
        while wake_at(partition_path(path, 2)) != 2:
            await asyncio.sleep(0)  # as above
        topic.close()
        with pytest.raises(StopAsyncIteration):
            await task

    asyncio.run(main())


def test_tasks_share_a_thread_and_leave_the_executor_to_others(topic: Topic, path: Path) -> None:
    class Executor(ThreadPoolExecutor):
        submitted = 0

        def submit(self, *_arguments: Any, **_keywords: Any) -> Any:
            Executor.submitted += 1
            return super().submit(*_arguments, **_keywords)

    async def main() -> None:
        before = set(threading.enumerate())
        asyncio.get_running_loop().set_default_executor(Executor(1))
        tasks = [asyncio.create_task(anext(topic.follow())) for _ in range(20)]
        while not Executor.submitted and (
            topic._folder.waits is None or len(topic._folder.waits._pending) < len(tasks)
        ):
            await asyncio.sleep(0)  # until all wait: they report that to no one
        assert [thread.name for thread in threading.enumerate() if thread not in before] == ["kreplog-topic-wait"]
        topic.append(b"v", partition=1)
        assert {record.value for record in await asyncio.gather(*tasks)} == {b"v"}
        assert Executor.submitted == 0
        with Topic.open(path, read_only=True) as reader:
            task = asyncio.create_task(anext(reader.follow({1: 1})))
            while reader._folder.waits is None or not reader._folder.waits._pending:
                await asyncio.sleep(0)  # as above
            shutil.rmtree(partition_path(path, 0))
            with pytest.raises(errors.PartitionDeletedError):
                await task

    asyncio.run(main())
