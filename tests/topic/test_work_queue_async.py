"""Work queues of asyncio: tasks that take, acknowledge, release, and are cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kreplog import DeliveredRecord, Topic, WorkQueue, errors
from kreplog.topic.dead_letters import DeadLetterTopic


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 2) as opened:
        for number in range(10):
            opened.append(b"%d" % number, partition=number % 2)
        yield opened


async def until(condition: Any) -> None:
    """The event loop goes round until it holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)  # each turn is looked at: a task is cancelled before its next one


def test_tasks_share_the_records_and_one_thread_that_waits(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    taking: set[int] = set()
    at_once: set[int] = set()
    take_or_wait = WorkQueue._take_or_wait

    def counted(queue: WorkQueue, *arguments: Any) -> list[DeliveredRecord] | None:
        taking.add(threading.get_ident())
        at_once.add(len(taking))
        try:
            return take_or_wait(queue, *arguments)
        finally:
            taking.discard(threading.get_ident())

    monkeypatch.setattr(WorkQueue, "_take_or_wait", counted)

    async def main() -> None:
        done: list[tuple[int, int]] = []
        with topic.work_queue("a") as queue:

            async def work() -> None:
                async for record in queue:
                    if record.value == b"again" and record.delivery_count == 1:
                        await queue.nack_async(record)
                        continue
                    await queue.ack_async(record)
                    done.append((record.partition, record.offset))

            workers = [asyncio.create_task(work()) for _ in range(20)]
            await until(lambda: len(done) == 10)
            topic.append_many([b"again", b"new"], partition=1)
            await until(lambda: len(done) == 12)
            assert queue.committed == {0: 5, 1: 7}
            queue.close()
            await asyncio.gather(*workers)
        assert sorted(done) == [(0, n) for n in range(5)] + [(1, n) for n in range(7)]

    asyncio.run(main())
    assert at_once == {1}


def test_a_timeout_passes_while_others_wait(topic: Topic) -> None:
    async def main() -> None:
        with topic.work_queue("a") as queue:
            await queue.ack_async(*await queue.take_async(10), durable=True)
            waiting = asyncio.create_task(queue.take_async())
            await until(lambda: queue._sleeping)
            assert await queue.take_async(timeout=0) == [] == await queue.take_async(timeout=0.001)
            topic.append(b"new", partition=0)
            (record,) = await waiting
            assert record.value == b"new" and await queue.take_async(timeout=0) == []
            with pytest.raises(errors.UsageError):
                await queue.take_async(0)
            with pytest.raises(errors.UsageError):
                await queue.take_async(timeout=-1)

    asyncio.run(main())


def test_a_task_that_is_cancelled_has_taken_nothing(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the records are delivered to it, after that, and while it waits for its turn."""
    taken, going_on = threading.Event(), threading.Event()
    take_or_wait = WorkQueue._take_or_wait

    def held_up(queue: WorkQueue, *arguments: Any) -> list[DeliveredRecord] | None:
        records = take_or_wait(queue, *arguments)
        taken.set()
        assert going_on.wait(30)
        return records

    async def main() -> None:
        with topic.work_queue("a") as queue:
            with monkeypatch.context() as patch:
                patch.setattr(WorkQueue, "_take_or_wait", held_up)
                first, second = (asyncio.create_task(queue.take_async(3)) for _ in range(2))
                await until(taken.is_set)
                for task in (second, first):  # the second waits for its turn
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert len(queue._partitions[0]._records) == 3, "they are on their way to the task"
                going_on.set()
                await until(lambda: not queue._partitions[0].locked(0))
            records = await queue.take_async(10)
            assert len(records) == 10 and {record.delivery_count for record in records} == {1}
            await queue.ack_async(*records)
            waiting = asyncio.create_task(queue.take_async())
            await until(lambda: queue._sleeping)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            topic.append(b"new", partition=0)
            assert [record.value for record in await queue.take_async(timeout=30)] == [b"new"]

    asyncio.run(main())


def test_a_cancelled_task_leaves_the_event_loop_to_others(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gives back needs the lock of the queue, which the commit of another thread may have for long."""
    giving_back: list[int] = []
    give_back = WorkQueue._give_back

    def noted(*arguments: Any) -> None:
        giving_back.append(threading.get_ident())
        give_back(*arguments)

    monkeypatch.setattr(WorkQueue, "_give_back", noted)

    async def main() -> None:
        with topic.work_queue("a") as queue:
            await queue.ack_async(*await queue.take_async(10))
            waiting = asyncio.create_task(queue.take_async())
            await until(lambda: queue._sleeping)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            await until(lambda: len(giving_back) == 1)
            topic.append(b"new", partition=0)
            taking = asyncio.create_task(queue.take_async())
            await until(lambda: queue._partitions[0].locked(0))
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
                pytest.fail("it was to be cancelled")
            await until(lambda: len(giving_back) == 2)
            (record,) = await queue.take_async(timeout=30)
            assert record.value == b"new" and record.delivery_count == 1
        assert threading.get_ident() not in giving_back

    asyncio.run(main())


def test_an_event_loop_that_has_ended_is_freed(topic: Topic) -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        tasks = [asyncio.create_task(queue.take_async()) for _ in range(3)]
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(task.exception()) for task in (tasks[0], tasks[2])] == [type(None)] * 2, "they have waited in turn"
        return weakref.ref(asyncio.get_running_loop())

    with topic.work_queue("a") as queue:
        ended = asyncio.run(main())
        gc.collect()
        assert ended() is None


def test_a_dead_letter_that_waits_has_no_thread(path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = threading.Event()
    append = DeadLetterTopic.append

    def signalled(*arguments: Any) -> None:
        tried.set()
        append(*arguments)

    monkeypatch.setattr(DeadLetterTopic, "append", signalled)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("a thread waits"))

    async def main() -> None:
        with topic.work_queue("a", dead_letter="orders.dead", delivery_count_limit=1) as queue:
            first, second, third, *rest = await queue.take_async(10)
            with Topic.open(path.parent / "orders.dead", 1):
                with pytest.raises(errors.LogLockedError, match="process"):
                    await queue.reject_async(first, timeout=0)
                waiting = [
                    asyncio.create_task(queue.nack_async(second, error="no such customer", timeout=None)),
                    asyncio.create_task(queue.reject_async(third, timeout=None)),
                ]
                tried.clear()
                await until(tried.is_set)
                await queue.ack_async(*rest)
                assert not any(task.done() for task in waiting)
            await asyncio.gather(*waiting)
        with topic.work_queue("b") as queue, pytest.raises(errors.UsageError, match="no dead-letter topic"):
            await queue.reject_async((await queue.take_async())[0])

    asyncio.run(main())
    with Topic.open(path.parent / "orders.dead", read_only=True) as dead:
        assert len(list(dead.read())) == 2
