"""BackgroundTasks: work on a broker's logs that no caller awaits, in tasks of the event loop or in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any

_log = logging.getLogger("kreplog.server")


class BackgroundTasks:
    """References to the running tasks, without which asyncio may drop them; for the event loop alone.

    on_failure: called with a name and the error where work raises, which stops the broker: whatever waits for that
    work would wait for good."""

    def __init__(self, pool: Executor, on_failure: Callable[[str, BaseException], None]) -> None:
        self._pool = pool
        self._on_failure = on_failure
        self._running: set[asyncio.Future[Any]] = set()

    @property
    def idle(self) -> bool:
        """Whether no task is running."""
        return not self._running

    def run_task(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task. name: for the log, should it fail."""
        self._add(name, asyncio.get_running_loop().create_task(work))

    def run_in_thread(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run a blocking call in the pool."""
        self._add(call.__qualname__, asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments))

    def fail(self, name: str, error: BaseException) -> None:
        """Stop the broker: work in the background has failed in a way that it is not made for."""
        _log.critical("%s: a background task has failed, the broker stops", name, exc_info=error)
        self._on_failure(name, error)

    def _add(self, name: str, future: asyncio.Future[Any]) -> None:
        self._running.add(future)
        future.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            self.fail(name, error)
