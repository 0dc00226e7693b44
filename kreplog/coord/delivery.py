"""One thread that calls a session's watches, so that a slow one delays neither heartbeats nor other calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger(__name__)


class Deliveries:
    """Calls what it is given one at a time, in order, on its own daemon thread. What a call raises is logged."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Have `call` called after those before it. Never waits; thread-safe."""
        self._calls.put(call)

    def stop(self) -> None:
        """Drop what has not been called yet; a call that is running ends in its own time, and is not waited for."""
        self._stopped = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._stopped:
            run_logged(call)


def run_logged(call: Callable[[], None]) -> None:
    """Call it; log what it raises, since nobody is there to take it."""
    try:
        call()
    except Exception:
        _log.exception("a callback of a coordination session raised")
