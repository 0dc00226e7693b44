"""Scheduler: virtual time as one heap of events, and the only source of randomness.

Time is an int of microseconds since the start of the seed; cores get milliseconds. Events of the same instant run in
the order in which they were scheduled, so a seed replays exactly, on any machine and with any hash seed of the process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

MS = 1000
"""Microseconds in a millisecond."""

_MASK = (1 << 64) - 1


class Timer:
    """A scheduled call, until it runs or is cancelled."""

    __slots__ = ("action", "arguments", "at_us")

    def __init__(self, at_us: int, action: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
        self.at_us = at_us
        self.action = action
        self.arguments = arguments

    def cancel(self) -> None:
        self.action = None
        self.arguments = ()

    @property
    def pending(self) -> bool:
        """Neither run nor cancelled."""
        return self.action is not None


class Scheduler:
    """Runs calls in the order of virtual time.

    now_us: the present. random: the only randomness that a seed may use. fingerprint: a hash of the times of all events
    that ran, equal for two runs that took the same course.
    """

    def __init__(self, seed: int) -> None:
        self.now_us = 0
        self.random = Random(seed)
        self.fingerprint = seed & _MASK
        self.events = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0

    @property
    def now_ms(self) -> int:
        return self.now_us // MS

    def at(self, at_us: int, action: Callable[..., object], *arguments: Any) -> Timer:
        """Call `action(*arguments)` at `at_us`, or at once when that has passed."""
        timer = Timer(max(at_us, self.now_us), action, arguments)
        self._sequence += 1
        heapq.heappush(self._heap, (timer.at_us, self._sequence, timer))
        return timer

    def after(self, delay_us: int, action: Callable[..., object], *arguments: Any) -> Timer:
        return self.at(self.now_us + delay_us, action, *arguments)

    def run_until(self, end_us: int) -> None:
        """Run every event before or at `end_us`; then it is `end_us`."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            self.run_next()
        self.now_us = max(self.now_us, end_us)

    def run_next(self) -> bool:
        """Run the next event that has not been cancelled; False when nothing is left."""
        heap = self._heap
        while heap:
            at_us, sequence, timer = heapq.heappop(heap)
            action = timer.action
            if action is None:
                continue
            arguments = timer.arguments
            timer.action = None
            timer.arguments = ()
            self.now_us = at_us
            self.events += 1
            self.fingerprint = ((self.fingerprint ^ at_us) * 0x100000001B3 + sequence) & _MASK
            action(*arguments)
            return True
        return False
