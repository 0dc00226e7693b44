"""FailedLogins: failed authentications, counted and logged by listener, mechanism and address of the client.

The first of each are logged, and then those whose number is a power of two: who tries many passwords hides nobody
else's attempts, nor fills the log. Those of the MAX_REMEMBERED that failed last are counted, and no more than so many
lines are in a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from kreplog.server.network.connections import is_power_of_two

_log = logging.getLogger("kreplog.server")

MAX_REMEMBERED = 10_000
LINES_PER_SECOND = 100


class Origin(NamedTuple):
    """Where an attempt came from. mechanism: "" where the client did not name one that is enabled."""

    listener: str
    mechanism: str
    address: str


class FailedLogins:
    """The failed authentications at one broker. now_ms: returns the time. total: their number since the start."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.total = 0
        self._now_ms = now_ms
        self._counts: dict[Origin, int] = {}  # who failed last is at the end
        self._second = -1
        self._lines = 0
        self._omitted = 0

    def record(self, origin: Origin, peer: str, reason: str) -> None:
        """Count an attempt, and log it if it is its turn. peer: the client's address and port."""
        self.total += 1
        count = self._counts.pop(origin, 0) + 1
        if len(self._counts) >= MAX_REMEMBERED:
            del self._counts[next(iter(self._counts))]
        self._counts[origin] = count
        if is_power_of_two(count) and self._has_room():
            text = "%s: failed authentication at %s%s: %s; from this address there: %d, failed ones since the start: %d"
            by = f" by {origin.mechanism}" if origin.mechanism else ""
            _log.warning(text, peer, origin.listener, by, reason, count, self.total)

    def _has_room(self) -> bool:
        second = self._now_ms() // 1000
        if second != self._second:
            if self._omitted:
                text = "%d failed authentications were not logged: more than %d lines in a second"
                _log.warning(text, self._omitted, LINES_PER_SECOND)
            self._second, self._lines, self._omitted = second, 0, 0
        self._lines += 1
        self._omitted += self._lines > LINES_PER_SECOND
        return self._lines <= LINES_PER_SECOND
