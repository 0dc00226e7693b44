"""Event loop pauses: how long each iteration of the loop blocks it, and time budgets that keep iterations short.

An iteration is everything the loop runs between two calls of select(). The selector takes the time before and after
select(), so a pause is measured whatever caused it, at the cost of two clock reads an iteration. Sockets get SOCKETS_S
of each iteration, so that a thousand ready clients do not delay timers and the store by a thousand requests.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from time import monotonic

LONG_PAUSE_S = 0.1
"""Threshold of the metric for long pauses; no request of up to 1 MB takes the loop for so long."""

SOCKETS_S = 0.02
"""Time for socket callbacks in one iteration; ready sockets that are left come first in the next."""

PACED_S = 0.01
"""Time for paced calls in one iteration: pipelined requests that were put off to a later iteration."""


class Pauses:
    """Iteration times of one event loop. longest_s: the longest since the start or the last `reset`, in seconds.
    long: number of iterations above LONG_PAUSE_S. began_at: start of the current iteration, monotonic seconds."""

    __slots__ = ("began_at", "long", "longest_s")

    def __init__(self) -> None:
        self.began_at = monotonic()
        self.longest_s = 0.0
        self.long = 0

    def end_iteration(self) -> None:
        """The loop calls select() again."""
        took = monotonic() - self.began_at
        if took > self.longest_s:
            self.longest_s = took
        if took > LONG_PAUSE_S:
            self.long += 1

    def reset(self) -> None:
        """Forget the longest pause; `long` goes on counting."""
        self.longest_s = 0.0


class _MeasuringSelector(selectors.DefaultSelector):
    """The platform's selector, which also measures the time between two calls of select()."""

    def __init__(self, pauses: Pauses) -> None:
        super().__init__()
        self._pauses = pauses

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._pauses.end_iteration()
        try:
            return super().select(timeout)
        finally:
            self._pauses.began_at = monotonic()


class MeasuredEventLoop(asyncio.SelectorEventLoop):
    """asyncio's selector event loop with measured pauses and time budgets; a loop_factory of asyncio.Runner."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self._paced: deque[Callable[[], object]] = deque()
        self._paced_scheduled = False
        self._iteration = self._sockets_until = 0.0
        super().__init__(_MeasuringSelector(self.pauses))

    def has_socket_time(self) -> bool:
        """Whether a socket callback may still run in this iteration; the first of each iteration always may."""
        if self._iteration != self.pauses.began_at:
            self._iteration = self.pauses.began_at
            self._sockets_until = monotonic() + SOCKETS_S
            return True
        return monotonic() < self._sockets_until

    def has_time_to_send(self) -> bool:
        """Whether sockets have time in this iteration, without taking the turn of its first socket callback."""
        is_begun = self._iteration == self.pauses.began_at
        return monotonic() < (self._sockets_until if is_begun else self.pauses.began_at + SOCKETS_S)

    def call_paced(self, callback: Callable[[], object]) -> None:
        """As call_soon, but all callbacks given to call_paced together get PACED_S of an iteration, in FIFO order; the
        others wait for later iterations."""
        self._paced.append(callback)
        self._schedule_paced()

    def _schedule_paced(self) -> None:
        if self._paced and not self._paced_scheduled:
            self._paced_scheduled = True
            self.call_soon(self._run_paced)

    def _run_paced(self) -> None:
        ends_at = monotonic() + PACED_S
        try:
            for _ in range(len(self._paced)):
                self._paced.popleft()()
                if monotonic() > ends_at:
                    break
        finally:
            self._paced_scheduled = False
            self._schedule_paced()


def has_socket_time(loop: asyncio.AbstractEventLoop) -> bool:
    """MeasuredEventLoop.has_socket_time; True on any other event loop."""
    return not isinstance(loop, MeasuredEventLoop) or loop.has_socket_time()


def has_time_to_send(loop: asyncio.AbstractEventLoop) -> bool:
    """MeasuredEventLoop.has_time_to_send; True on any other event loop."""
    return not isinstance(loop, MeasuredEventLoop) or loop.has_time_to_send()


def call_paced(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """MeasuredEventLoop.call_paced; call_soon on any other event loop."""
    if isinstance(loop, MeasuredEventLoop):
        loop.call_paced(callback)
    else:
        loop.call_soon(callback)


def pauses_of(loop: asyncio.AbstractEventLoop) -> Pauses:
    """The pauses that `loop` measured; none on any other event loop than MeasuredEventLoop."""
    return loop.pauses if isinstance(loop, MeasuredEventLoop) else Pauses()
