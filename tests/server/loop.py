"""An event loop for a test, in real or virtual time, and waiting on it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

MOST_S = 20
"""Far more than any test takes, so that one which hangs fails where it waits."""


def run(work: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(MOST_S):
            await work()

    asyncio.run(bounded())


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Where it would wait for a time, that time has come. For what has no sockets and no threads."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_NoWaiting(self))

    def time(self) -> float:
        return self.now_s


class _NoWaiting(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.now_s = round(self._loop.now_s + (timeout or 0.0), 6)  # us: no sum of rounding errors
        return super().select(0)


def run_in_virtual_time(work: Callable[[], Awaitable[None]]) -> None:
    async def awaited() -> None:
        await work()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(awaited())


async def until(true: Callable[[], bool]) -> None:
    """Wait for threads and sockets, which send the test no event."""
    while not true():
        await asyncio.sleep(0.001)  # they have no event that could be waited for
