"""Deliveries: a thread that calls a session's watches, so that a slow watch delays neither heartbeats nor other
calls."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger(__name__)


class Deliveries:
    """Runs calls one at a time, in order, on its own daemon thread. Exceptions are logged."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Queue `call`. Never waits; thread-safe."""
        self._calls.put(call)

    def stop(self) -> None:
        """Drop queued calls; a running call is not waited for."""
        self._stopped = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None and not self._stopped:
            run_logged(call)


def run_logged(call: Callable[[], None]) -> None:
    """Run `call` and log its exception, since it has no caller."""
    try:
        call()
    except Exception:
        _log.exception("a callback of a coordination session raised")
