"""Watchdog: a broker whose event loop does not turn is as good as dead, and must not be taken for alive.

The session with the coordination store beats on a thread of its own, which goes on when the loop hangs: in a call that
does not come back, on a disk that does not answer. So another thread sees to it that the loop still turns. When it has
not for as long as a session may be silent, the thread says where it stands and gives up the session; others lead then,
and the loop, should it ever turn again, finds that out before it serves anybody.
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

_LOOKS = 8
"""In the time after which a loop is stuck."""


class Watchdog:
    """Watches the running event loop until `close`. on_stuck: called on the watchdog's thread, once for every time that
    the loop has not turned for `stuck_after_s`."""

    def __init__(self, stuck_after_s: float, on_stuck: Callable[[], None]) -> None:
        self._stuck_after_s = stuck_after_s
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._turned_at = monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kreplog-watchdog", daemon=True)
        self._thread.start()

    def _turned(self) -> None:
        self._turned_at = monotonic()

    def _watch(self) -> None:
        told_of = -1.0
        while not self._closed.wait(self._stuck_after_s / _LOOKS):
            turned_at = self._turned_at
            silent_s = monotonic() - turned_at
            if silent_s > self._stuck_after_s and turned_at != told_of:
                told_of = turned_at
                _log.critical("the event loop has not turned for %.1f s; it stands here:\n%s", silent_s, self._where())
                self._on_stuck()
            try:
                self._loop.call_soon_threadsafe(self._turned)
            except RuntimeError:  # it is closed
                return

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)) if frame is not None else "(in no Python code)"

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
