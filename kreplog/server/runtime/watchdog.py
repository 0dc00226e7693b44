"""Watchdog: ends the session of a broker whose event loop hangs, so that other brokers take over.

Heartbeats of the session are sent by a thread of their own, and so go on while the event loop hangs in a blocking call,
such as on a dead disk. So another thread checks that the loop runs. If it has not for a session time-out, the thread
logs the loop's stack and ends the session; a loop that runs again notices that before it serves any request.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic

_log = logging.getLogger("kreplog.server")

_CHECKS_PER_TIMEOUT = 8
"""Checks within the time after which a loop counts as stuck."""


class Watchdog:
    """Watches the running event loop until `close`. on_stuck: called on the watchdog's thread, once for each time that
    the loop hangs for `stuck_after_s`."""

    def __init__(self, stuck_after_s: float, on_stuck: Callable[[], None]) -> None:
        self._stuck_after_s = stuck_after_s
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ran_at = monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kreplog-watchdog", daemon=True)
        self._thread.start()

    def _ran(self) -> None:
        self._ran_at = monotonic()

    def _watch(self) -> None:
        reported_at = -1.0
        while not self._closed.wait(self._stuck_after_s / _CHECKS_PER_TIMEOUT):
            ran_at = self._ran_at
            silent_s = monotonic() - ran_at
            if silent_s > self._stuck_after_s and ran_at != reported_at:
                reported_at = ran_at
                _log.critical("the event loop has been blocked for %.1f s, here:\n%s", silent_s, self._where())
                self._on_stuck()
            try:
                self._loop.call_soon_threadsafe(self._ran)
            except RuntimeError:  # the event loop is closed
                return

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(in no Python code)"

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
