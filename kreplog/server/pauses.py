"""Pauses of the event loop: how long everything else waits while one turn of it runs.

A turn is what the loop does between two looks at its sockets: the selector sees the end of the one and the start of the
next, so a pause is measured whatever caused it, for two looks at the clock a turn. Sockets have SOCKETS_S of each turn,
so that a thousand clients do not hold up timers and the store for a thousand requests.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from time import monotonic

LONG_PAUSE_S = 0.1
"""A pause above this counts as long: no request of at most 1 MB causes one."""

SOCKETS_S = 0.02
"""Of a turn, for sockets; those that are ready and were left are the first of the next turn."""

SHARE_S = 0.01
"""Of a turn, for requests that came together with others and were left for a later turn."""


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
        self._shared: deque[Callable[[], object]] = deque()
        self._share_due = False
        self._turn = self._sockets_until = 0.0
        super().__init__(_MeasuringSelector(self.pauses))

    def has_time(self) -> bool:
        """Whether a socket is served in this turn; the first of a turn always is."""
        if self._turn != self.pauses.began_at:
            self._turn = self.pauses.began_at
            self._sockets_until = monotonic() + SOCKETS_S
            return True
        return monotonic() < self._sockets_until

    def call_in_share(self, callback: Callable[[], object]) -> None:
        """Call it in the next turn, as call_soon does, or in a later one: all such calls of one turn together take
        SHARE_S, first come, first served."""
        self._shared.append(callback)
        self._plan_share()

    def _plan_share(self) -> None:
        if self._shared and not self._share_due:
            self._share_due = True
            self.call_soon(self._run_share)

    def _run_share(self) -> None:
        ends_at = monotonic() + SHARE_S
        try:
            for _ in range(len(self._shared)):
                self._shared.popleft()()
                if monotonic() > ends_at:
                    break
        finally:
            self._share_due = False
            self._plan_share()


def has_time(loop: asyncio.AbstractEventLoop) -> bool:
    """As MeasuredEventLoop's; always, where it is another kind of loop."""
    return not isinstance(loop, MeasuredEventLoop) or loop.has_time()


def call_in_share(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """As MeasuredEventLoop's; call_soon, where it is another kind of loop."""
    if isinstance(loop, MeasuredEventLoop):
        loop.call_in_share(callback)
    else:
        loop.call_soon(callback)


def pauses_of(loop: asyncio.AbstractEventLoop) -> Pauses:
    """What `loop` measured; nothing where it is another kind of loop."""
    return loop.pauses if isinstance(loop, MeasuredEventLoop) else Pauses()
