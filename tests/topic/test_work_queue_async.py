"""Work queues of asyncio: tasks that take, acknowledge, release, and are cancelled."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kreplog import DeliveredRecord, Topic, WorkQueue, errors
from kreplog.topic.cursor_log import CursorLog
from kreplog.topic.dead_letters import DeadLetterTopic
from kreplog.topic.queue_member import QueueMember
from tests.faults.forked import result_of
from tests.waiting import InThread


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
    sleepless = {**vars(time), "sleep": lambda _: pytest.fail("a thread waits")}
    monkeypatch.setattr("kreplog.topic.work_queue.time", SimpleNamespace(**sleepless))  # other threads may sleep

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


class TestAcksOfTasksThatWait:
    """They are one commit."""

    @pytest.fixture
    def commits(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[set[int], bool]]:
        """(partitions, durable) of each."""
        found: list[tuple[set[int], bool]] = []
        commit = WorkQueue._commit

        def noted(queue: WorkQueue, numbers: Any, durable: bool = False) -> None:
            commit(queue, numbers, durable)
            found.append((set(numbers), durable))

        monkeypatch.setattr(WorkQueue, "_commit", noted)
        return found

    @staticmethod
    async def together(queue: WorkQueue, acks: list[Any]) -> list[Any]:
        """The outcomes of acks that all wait before one begins."""
        tasks = [asyncio.create_task(ack) for ack in acks]
        with queue._changed:
            await until(lambda: sum(map(len, queue._acks.values())) == len(tasks))
        return await asyncio.gather(*tasks, return_exceptions=True)

    def test_are_one_commit(self, topic: Topic, commits: list[tuple[set[int], bool]]) -> None:
        async def main() -> None:
            with topic.work_queue("a") as queue:
                records = await queue.take_async(10)
                commits.clear()
                assert await self.together(queue, [queue.ack_async(record) for record in records[:8]]) == [None] * 8
                assert commits == [({0, 1}, False)] and not queue._acks
                assert await self.together(queue, [queue.ack_async(r, durable=r is records[9]) for r in records[8:]])
                assert commits[1:] == [({1}, True)], "durable, as one of them is to be"
                assert queue.committed == {0: 5, 1: 5}

        asyncio.run(main())
        with topic.work_queue("a") as queue:
            assert queue.take(timeout=0) == []

    def test_return_when_they_are_committed(self, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
        """And those that come while a commit is under way are in the next."""
        entered, going_on = threading.Event(), threading.Event()
        commit = WorkQueue._commit

        def held_up(*arguments: Any) -> None:
            entered.set()
            assert going_on.wait(30)
            commit(*arguments)

        async def main() -> None:
            with topic.work_queue("a") as queue:
                records = await queue.take_async(10)
                monkeypatch.setattr(WorkQueue, "_commit", held_up)
                first = asyncio.create_task(queue.ack_async(records[0]))
                await until(entered.is_set)
                others = [asyncio.create_task(queue.ack_async(record)) for record in records[1:]]
                await until(lambda: sum(map(len, queue._acks.values())) == 9)
                assert not any(task.done() for task in (first, *others))
                going_on.set()
                await asyncio.gather(first, *others)
                assert queue.committed == {0: 5, 1: 5}

        asyncio.run(main())

    def test_that_are_cancelled_hold_up_no_others(self, topic: Topic, commits: list[tuple[set[int], bool]]) -> None:
        async def main() -> None:
            with topic.work_queue("a") as queue:
                records = await queue.take_async(10)
                commits.clear()
                tasks = [asyncio.create_task(queue.ack_async(record)) for record in records]
                with queue._changed:
                    await until(lambda: sum(map(len, queue._acks.values())) == 10)
                    for task in tasks[:4]:
                        task.cancel()
                    await asyncio.wait(tasks[:4])
                assert await asyncio.gather(*tasks[4:]) == [None] * 6
                assert all(task.cancelled() for task in tasks[:4])
                assert queue.committed == {0: 0, 1: 5} and commits == [({0, 1}, False)]
                await queue.ack_async(*records[:4])
                assert queue.committed == {0: 5, 1: 5}
                tasks = [asyncio.create_task(self._cancelled(queue, topic)) for _ in range(3)]
                await asyncio.gather(*tasks)

        asyncio.run(main())

    @staticmethod
    async def _cancelled(queue: WorkQueue, topic: Topic) -> None:
        """An ack that is cancelled at some time is done or not, and the queue goes on."""
        topic.append(b"more", partition=0)
        (record,) = await queue.take_async(timeout=30)
        task = asyncio.create_task(queue.ack_async(record))
        await asyncio.sleep(0)  # one turn of the event loop, so that the ack waits for its commit when it is cancelled
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        with suppress(errors.DeliveryExpiredError):
            await queue.ack_async(record)

    def test_have_errors_of_their_own(self, topic: Topic) -> None:
        async def main() -> None:
            with topic.work_queue("a") as queue:
                records = await queue.take_async(10)
                await queue.nack_async(records[1])
                wrong: Any = b"record"
                no_number: Any = []
                outcomes = await self.together(
                    queue,
                    [
                        queue.ack_async(records[0]),
                        queue.ack_async(records[1], records[2]),
                        queue.ack_async(records[3], wrong),
                        queue.ack_async(records[0]),
                        queue.ack_async(records[4]),
                        queue.ack_async(),
                        queue.ack_async(records[3]._replace(partition=no_number)),
                    ],
                )
                assert [type(outcome) for outcome in outcomes] == [
                    type(None),
                    errors.DeliveryExpiredError,
                    errors.ArgumentTypeError,
                    errors.DeliveryExpiredError,
                    type(None),
                    type(None),
                    TypeError,
                ]
                assert outcomes[1].offset == records[1].offset and outcomes[3].offset == records[0].offset
                left = queue.take(10, timeout=0)
                assert [(record.offset, record.delivery_count) for record in left] == [(records[1].offset, 2)]
                await queue.ack_async(*records[3:4], *records[5:], *left)
                assert queue.committed == {0: 5, 1: 5}, "of what was acknowledged beside an error all is done"

        asyncio.run(main())

    @pytest.mark.parametrize("failing", ["commit", "flush"])
    def test_all_have_the_error_of_their_commit(
        self, topic: Topic, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        def fail(*_: Any) -> None:
            raise errors.DiskFullError("no space left on device")

        async def main() -> None:
            with topic.work_queue("a") as queue:
                records = await queue.take_async(10)
                with monkeypatch.context() as patch:
                    patch.setattr(CursorLog if failing == "commit" else Topic, failing, fail)
                    acks = [queue.ack_async(record, durable=True) for record in records]
                    outcomes = await self.together(queue, acks)
                assert [type(outcome) for outcome in outcomes] == [errors.DiskFullError] * 10
                assert queue.committed == {0: 0, 1: 0}
                await asyncio.gather(*(queue.ack_async(record) for record in records))
                assert queue.committed == {0: 5, 1: 5}, "none was done, and each can be acknowledged again"

        asyncio.run(main())

    def test_of_a_queue_that_is_closed(self, topic: Topic) -> None:
        async def main() -> None:
            queue = topic.work_queue("a")
            records = await queue.take_async(10)
            tasks = [asyncio.create_task(queue.ack_async(record)) for record in records]
            with queue._changed:
                await until(lambda: sum(map(len, queue._acks.values())) == 10)
                QueueMember.close(queue)  # WorkQueue's waits for the lock
                assert queue.closed
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [errors.LogClosedError] * 10

        asyncio.run(main())

    def test_of_several_event_loops(self, topic: Topic) -> None:
        """Each has its own threads: those of one may be busy for long."""

        async def other(records: list[DeliveredRecord]) -> None:
            await asyncio.gather(*(queue.ack_async(record) for record in records))

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(executor := ThreadPoolExecutor(1))
            executor.submit(going_on.wait, 30)
            records = queue.take(10)
            waiting = asyncio.create_task(queue.ack_async(*records[:5]))
            await until(lambda: len(queue._acks) == 1)
            others = InThread(lambda: asyncio.run(other(records[5:])))
            await until(lambda: not others.running)
            others.result()
            assert not waiting.done()
            going_on.set()
            await waiting

        going_on = threading.Event()
        with topic.work_queue("a") as queue:
            asyncio.run(main())
            assert queue.committed == {0: 5, 1: 5} and not queue._acks

    def test_of_an_executor_that_is_shut_down(self, topic: Topic) -> None:
        """The error is that of the ack which could not begin, and no later one waits for it."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            await loop.shutdown_default_executor()
            with pytest.raises(RuntimeError, match="shutdown"):
                await queue.ack_async(record)

        with topic.work_queue("a") as queue:
            (record,) = queue.take()
            asyncio.run(main())
            assert not queue._acks
            asyncio.run(queue.ack_async(record))
            assert queue.committed[record.partition] == 1

    def test_that_an_executor_has_dropped_are_cancelled(self, topic: Topic) -> None:
        """As it does where it is shut down with `cancel_futures`: a task would wait for ever."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(executor := ThreadPoolExecutor(1))
            executor.submit(going_on.wait, 30)
            tasks = [asyncio.create_task(queue.ack_async(record)) for record in records]
            await until(lambda: sum(map(len, queue._acks.values())) == len(tasks))
            executor.shutdown(wait=False, cancel_futures=True)
            await until(lambda: all(task.done() for task in tasks))
            assert all(task.cancelled() for task in tasks) and not queue._acks
            going_on.set()

        going_on = threading.Event()
        with topic.work_queue("a") as queue:
            records = queue.take(10)
            asyncio.run(main())
            asyncio.run(queue.ack_async(*records))
            assert queue.committed == {0: 5, 1: 5}

    def test_of_a_forked_child(self, topic: Topic) -> None:
        """It has none of its parent's that wait."""

        async def main() -> None:
            records = await queue.take_async(10)
            tasks = [asyncio.create_task(queue.ack_async(record)) for record in records]
            with queue._changed:
                await until(lambda: sum(map(len, queue._acks.values())) == 10)
                with queue._acks_mutex:
                    assert result_of(lambda: len(queue._acks)) == 0
            await asyncio.gather(*tasks)

        with topic.work_queue("a") as queue:
            asyncio.run(main())
            assert queue.committed == {0: 5, 1: 5}
