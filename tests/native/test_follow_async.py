"""Log.wait_async and `async for` over Log.follow: many tasks, one thread a log, cancellation that loses no record."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kreplog import Log
from kreplog.errors import LogClosedError, LogTruncatedError, PartitionDeletedError, UsageError, WriterClosedError
from tests.waiting import TIMEOUT_S, until, wake_at


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await main()

    asyncio.run(bounded())


async def until_tasks_wait(path: Path, offset: int) -> None:
    while wake_at(path) != offset + 1:
        await asyncio.sleep(0)


def waiting_threads() -> int:
    return sum(thread.name == "kreplog-wait" for thread in threading.enumerate())


@pytest.mark.parametrize("own", [True, False])
def test_many_tasks_and_one_thread(path: Path, own: bool) -> None:
    async def main() -> None:
        with Log.open(path) as writer, Log.open(path, read_only=True) as reader:
            log = writer if own else reader

            async def values() -> list[bytes | None]:
                return [record.value async for record in log.follow()]

            tasks = [asyncio.create_task(values()) for _ in range(50)]
            for i in range(20):
                await until_tasks_wait(path, i)
                assert waiting_threads() == 1
                writer.append(b"%d" % i)
            writer.append_many([b"more"] * 1000)
            writer.close()
            expected = [b"%d" % i for i in range(20)] + [b"more"] * 1000
            got = await asyncio.gather(*tasks)
            assert all(values == expected[: len(values)] for values in got)
            assert own or all(len(values) == len(expected) for values in got)  # its own log is closed under the tasks

    run(main)
    until(lambda: waiting_threads() == 0)


def test_a_cancelled_task_has_lost_no_record(path: Path) -> None:
    async def main() -> None:
        with Log.open(path) as writer, Log.open(path, read_only=True) as reader:
            records = reader.follow()
            for i in range(10):
                task = asyncio.create_task(records.__anext__())
                await until_tasks_wait(path, i)
                task.cancel()
                if i % 2:
                    writer.append(b"%d" % i)
                with pytest.raises(asyncio.CancelledError):
                    await task
                if not i % 2:
                    writer.append(b"%d" % i)
                assert (await records.__anext__()).value == b"%d" % i

    run(main)


def test_waits(path: Path) -> None:
    async def main() -> None:
        with Log.open(path) as writer, Log.open(path, read_only=True) as reader:
            far, near = (asyncio.create_task(reader.wait_async(offset)) for offset in (5, 1))
            await until_tasks_wait(path, 1)
            writer.append_many([b""] * 2)
            assert await near is True and not far.done()
            writer.append_many([b""] * 4)
            assert await far is True
            assert await reader.wait_async(5, 0) is True
            assert await reader.wait_async(6, 0) is False
            assert await reader.wait_async(6, 0.001) is False
            with pytest.raises(UsageError, match="timeout"):
                await reader.wait_async(0, -1)
            with pytest.raises(UsageError):
                await reader.wait_async(-1)
            assert [record.offset async for record in reader.follow(4, timeout=0.001)] == [4, 5]
            ending = asyncio.create_task(reader.wait_async(6))
            await until_tasks_wait(path, 6)
            writer.close()
            with pytest.raises(WriterClosedError):
                await ending
            reader.close()
            with pytest.raises(LogClosedError):
                await reader.wait_async(0)

    run(main)


@pytest.mark.parametrize("deleted", [True, False])
def test_errors_end_a_task(path: Path, deleted: bool) -> None:
    async def main() -> None:
        writer = Log.open(path)
        writer.append(b"")
        with Log.open(path, read_only=True) as reader:
            records = reader.follow()
            assert (await anext(records)).offset == 0
            task = asyncio.create_task(records.__anext__())
            await until_tasks_wait(path, 1)
            if deleted:
                shutil.rmtree(path)
            else:
                writer.truncate_to(0)
            with pytest.raises(PartitionDeletedError if deleted else LogTruncatedError):
                await task
        if not deleted:
            writer.close()

    run(main)


def test_the_log_is_closed_under_its_tasks(path: Path) -> None:
    async def main() -> None:
        with Log.open(path), Log.open(path, read_only=True) as reader:
            following = asyncio.create_task(anext(reader.follow(), None))
            waiting = asyncio.create_task(reader.wait_async(0))
            await until_tasks_wait(path, 0)
            reader.close()
            assert await following is None
            with pytest.raises(LogClosedError):
                await waiting

    run(main)


def test_a_long_log_lets_other_tasks_run(path: Path) -> None:
    async def main() -> None:
        with Log.open(path) as writer:
            writer.append_many([b""] * 2000)
            turns = 0

            async def count_turns() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(count_turns())
            assert len([record async for record in writer.follow(timeout=0)]) == 2000
            other.cancel()
            assert turns > 5

    run(main)


def test_one_loop_after_the_other(path: Path) -> None:
    """A loop that is closed with a task waiting leaves the log usable for the next."""
    with Log.open(path) as writer, Log.open(path, read_only=True) as reader:

        async def leave() -> None:
            asyncio.get_running_loop().create_task(reader.wait_async(0))
            await until_tasks_wait(path, 0)

        async def go_on() -> None:
            task = asyncio.create_task(reader.wait_async(0))
            await until_tasks_wait(path, 0)
            writer.append(b"")
            assert await task is True

        run(leave)
        run(go_on)
