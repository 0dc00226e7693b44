"""TopicWaits: the waits of all tasks that follow a topic, and the one thread that sleeps for them.

The thread is started for the first of them and ends a second after the last. The event loop's executor is left to
others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from kreplog._native.any_wait import sleep_any
from kreplog._native.waiting import HighWatermarkWait

if TYPE_CHECKING:
    from kreplog.topic.folder import TopicFolder

Poll: TypeAlias = Callable[[], list[HighWatermarkWait] | None]
"""The waits of all partitions, whose wake-ups are registered; None where there is more by now. Raises StopIteration at
the end."""

_IDLE_S = 1.0


class TopicWaits:
    """The waits of tasks, of any event loops, for one topic."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()  # also held while a task's wait is polled, which then cannot go on with it
        self._added = threading.Event()
        self._pending: dict[asyncio.Future[bool], Poll] = {}
        self._thread: threading.Thread | None = None

    async def wait(self, poll: Poll) -> bool:
        """Wait until there is more, or False at the end; raises what `poll` raises else. Nobody else may call it
        meanwhile."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._lock:
            # The wake-up for it is that of a word on which the thread sleeps, and finds it here from now on.
            self._pending[future] = poll
            self._poll(future, poll)
            if self._thread is None and future in self._pending:
                self._thread = threading.Thread(target=self._run, name="kreplog-topic-wait", daemon=True)
                self._thread.start()
        self._added.set()
        try:
            return await future
        finally:
            with self._lock:
                self._pending.pop(future, None)

    def _run(self) -> None:
        while True:
            self._added.clear()
            with self._lock:
                pending = list(self._pending.items())
            longest: list[HighWatermarkWait] = []  # one may not have found the latest partitions yet
            for future, poll in pending:
                with self._lock:
                    waits = self._poll(future, poll) if future in self._pending else None
                if waits is not None and len(waits) > len(longest):
                    longest = waits
            del pending
            if longest:
                sleep_any(longest)
            elif not self._pending and not self._added.wait(_IDLE_S):
                with self._lock:
                    if not self._pending:
                        self._thread = None
                        return

    def _poll(self, future: asyncio.Future[bool], poll: Poll) -> list[HighWatermarkWait] | None:
        """The waits to sleep on, or None where the future has its result."""
        result: bool | Exception
        try:
            if (waits := poll()) is not None:
                return waits
            result = True
        except StopIteration:
            result = False
        except Exception as error:  # the task raises it
            result = error
        del self._pending[future]
        with suppress(RuntimeError):  # its loop was closed
            future.get_loop().call_soon_threadsafe(_resolve, future, result)
        return None


def _resolve(future: asyncio.Future[bool], result: bool | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def waits_of(folder: TopicFolder) -> TopicWaits:
    """The waits for a topic, kept with its folder. A forked child has the object and not its thread."""
    if folder.waits is None or folder.waits.pid != os.getpid():
        folder.waits = TopicWaits()
    return folder.waits
