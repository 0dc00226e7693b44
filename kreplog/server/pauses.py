"""Pauses of the event loop: how long everything else waits while one turn of it runs.

A turn is what the loop does between two looks at its sockets: the selector sees the end of the one and the start of the
next, so a pause is measured whatever caused it, for two looks at the clock a turn.
"""

from __future__ import annotations

import asyncio
import selectors
from time import monotonic

LONG_PAUSE_S = 0.1
"""A pause above this counts as long: no request of at most 1 MB causes one."""


class Pauses:
    """The turns of one event loop. longest_s: of the longest turn since the start or since `reset`, in seconds.
    long: how many turns took more than LONG_PAUSE_S."""

    __slots__ = ("began_at", "long", "longest_s")

    def __init__(self) -> None:
        self.began_at = monotonic()
        self.longest_s = 0.0
        self.long = 0

    def end_turn(self) -> None:
        """The loop looks at its sockets again."""
        took = monotonic() - self.began_at
        if took > self.longest_s:
            self.longest_s = took
        if took > LONG_PAUSE_S:
            self.long += 1

    def reset(self) -> None:
        """Forget the longest pause; the count of long ones goes on."""
        self.longest_s = 0.0


class _MeasuringSelector(selectors.DefaultSelector):
    """The platform's selector, with the time outside of `select` measured."""

    def __init__(self, pauses: Pauses) -> None:
        super().__init__()
        self._pauses = pauses

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._pauses.end_turn()
        try:
            return super().select(timeout)
        finally:
            self._pauses.began_at = monotonic()


class MeasuredEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own event loop, with its pauses measured; a factory for asyncio.Runner."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        super().__init__(_MeasuringSelector(self.pauses))


def pauses_of(loop: asyncio.AbstractEventLoop) -> Pauses:
    """What `loop` measured; nothing where it is another kind of loop."""
    return loop.pauses if isinstance(loop, MeasuredEventLoop) else Pauses()
