"""Signals that wait until a process that is being started is known to the one that has to end it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_DEFERRED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """SIGINT and SIGTERM are handled at the end of the block. Where one raised an exception within subprocess.Popen,
    the new process would go on, and nobody would have its pid. Without effect in other threads than the main one, and
    on a signal that a program in C around Python handles, since that raises nothing here."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    own = [number for number in _DEFERRED if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in own}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)
