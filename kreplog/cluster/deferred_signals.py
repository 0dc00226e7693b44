"""Signals that wait until a process that is being started is known to the one that has to end it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_DEFERRED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """SIGINT and SIGTERM are handled at the end of the block, until a handler raises. Where one raised an exception
    within subprocess.Popen, the new process would go on, and nobody would have its pid. Without effect in other threads
    than the main one, and on a signal that no function of Python handles, since that raises nothing here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {int(number): handler for number in _DEFERRED if callable(handler := signal.getsignal(number))}
    came: list[int] = []
    waits = False

    def handle(number: int, frame: FrameType | None) -> None:
        """At the edges of the block a handler may raise before all are set: those that stay pass their signal on."""
        if waits:
            came.append(number)
        else:
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, handle)
        waits = True
        yield
    finally:
        waits = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)
