"""FailedLogins: failed authentications, counted and logged by listener, mechanism and address of the client: who tries
many passwords hides nobody else's attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from kreplog.server.monitoring.repeated_failures import RepeatedFailures

_log = logging.getLogger("kreplog.server")


class Origin(NamedTuple):
    """Where an attempt came from. mechanism: "" where the client did not name one that is enabled."""

    listener: str
    mechanism: str
    address: str


class FailedLogins:
    """The failed authentications at one broker. now_ms: returns the time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._failures = RepeatedFailures("failed authentications", now_ms)

    @property
    def total(self) -> int:
        """Their number since the start."""
        return self._failures.total

    def record(self, origin: Origin, peer: str, reason: str) -> None:
        """Count an attempt, and log it if it is its turn. peer: the client's address and port."""
        if count := self._failures.count(origin):
            text = "%s: failed authentication at %s%s: %s; from this address there: %d, failed ones since the start: %d"
            by = f" by {origin.mechanism}" if origin.mechanism else ""
            _log.warning(text, peer, origin.listener, by, reason, count, self.total)
