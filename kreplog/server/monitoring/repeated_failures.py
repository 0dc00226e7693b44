"""RepeatedFailures: counts failures that clients cause, and chooses those that are logged.

Of each origin the first is logged, and then those whose number is a power of two: an origin that fails again and again
hides no other's failures, nor fills the log. Those of the MAX_REMEMBERED origins that failed last are counted, and no
more than so many lines are in a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from kreplog.server.clock import monotonic_ms

_log = logging.getLogger("kreplog.server")

MAX_REMEMBERED = 10_000
LINES_PER_SECOND = 100


def is_power_of_two(count: int) -> bool:
    """Whether to log a repeated failure, by its number: the 1st, 2nd, 4th, 8th... only, lest they flood the log."""
    return count & (count - 1) == 0


class RepeatedFailures:
    """The failures of one kind. subject: that kind, in the plural, for the log. total: their number since the start."""

    def __init__(self, subject: str, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self.total = 0
        self._subject = subject
        self._now_ms = now_ms
        self._counts: dict[Hashable, int] = {}  # the origin that failed last is at the end
        self._second = -1
        self._lines = 0
        self._omitted = 0

    def count(self, origin: Hashable) -> int:
        """Count a failure; returns its number among those of its origin if it is to be logged, else 0."""
        self.total += 1
        count = self._counts.pop(origin, 0) + 1
        if len(self._counts) >= MAX_REMEMBERED:
            del self._counts[next(iter(self._counts))]
        self._counts[origin] = count
        return count if is_power_of_two(count) and self._has_room() else 0

    def _has_room(self) -> bool:
        second = self._now_ms() // 1000
        if second != self._second:
            if self._omitted:
                text = "%d %s were not logged: more than %d lines in a second"
                _log.warning(text, self._omitted, self._subject, LINES_PER_SECOND)
            self._second, self._lines, self._omitted = second, 0, 0
        self._lines += 1
        self._omitted += self._lines > LINES_PER_SECOND
        return self._lines <= LINES_PER_SECOND
