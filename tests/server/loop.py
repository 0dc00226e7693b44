"""An event loop for one test, and waiting on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

MOST_S = 20
"""Far more than any test takes, so that one which hangs fails where it waits."""


def run(work: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(MOST_S):
            await work()

    asyncio.run(bounded())


async def until(true: Callable[[], bool]) -> None:
    """For what threads and sockets do, of which nobody tells the test."""
    while not true():
        await asyncio.sleep(0.001)  # they have no event that could be waited for
