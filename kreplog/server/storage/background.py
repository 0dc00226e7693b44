"""BackgroundTasks: work on a broker's logs that no caller awaits, in tasks of the event loop or in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any


class BackgroundTasks:
    """References to the running tasks, without which asyncio may drop them; for the event loop alone."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._running: set[asyncio.Future[Any]] = set()

    @property
    def idle(self) -> bool:
        """Whether no task is running."""
        return not self._running

    def run_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task."""
        self._add(asyncio.get_running_loop().create_task(work))

    def run_in_thread(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run a blocking call in the pool."""
        self._add(asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments))

    def _add(self, future: asyncio.Future[Any]) -> None:
        self._running.add(future)
        future.add_done_callback(self._running.discard)
