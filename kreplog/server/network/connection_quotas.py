"""ConnectionQuotas: how many connections an address of a client may have, and how many are accepted in a second; and
ThrottledSockets: those of an address that opens more than its quota.

Connections through unix sockets, which have no address, count for neither. Source: Kafka's ConnectionQuotas, KIP-612.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

from kreplog.errors import UsageError

MAX_THROTTLED = 100
"""Connections of throttled addresses that take a descriptor meanwhile."""


class ConnectionRate:
    """Accepts `per_second` connections in a second; as many may come at once after a second without any."""

    def __init__(self, per_second: int, now_s: Callable[[], float] = monotonic) -> None:
        self._per_second = per_second
        self._now_s = now_s
        self._available = float(per_second)
        self._at_s = now_s()

    def delay_s(self) -> float:
        """Seconds that the next connection has to wait; 0 if it may be accepted now."""
        now_s = self._now_s()
        self._available = min(self._per_second, self._available + (now_s - self._at_s) * self._per_second)
        self._at_s = now_s
        return max(0.0, (1 - self._available) / self._per_second)

    def accepted(self) -> None:
        self._available -= 1


class ConnectionQuotas:
    """The connections of each IP address. most: of one address. overrides: of host names and addresses.

    refused: connections that were closed for it. Raises UsageError for a host that cannot be resolved."""

    def __init__(self, most: int, overrides: Iterable[tuple[str, int]] = ()) -> None:
        self.refused = 0
        self._most = most
        self._of: dict[str, int] = {}
        self._open: Counter[str] = Counter()
        for host, limit in overrides:
            for address in _addresses(host):
                self._of[address] = limit

    def take(self, sock: socket.socket) -> str | None:
        """Count an accepted connection; returns its address for `release`, or None if the address has too many.

        Raises OSError if the connection is closed already."""
        name = sock.getpeername()
        if not isinstance(name, tuple):
            return ""
        address = _plain(name[0])
        if self._open[address] >= self._of.get(address, self._most):
            self.refused += 1
            return None
        self._open[address] += 1
        return address

    def release(self, address: str) -> None:
        """A connection that `take` counted is closed."""
        if address:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]


class ThrottledSockets:
    """Connections that were accepted and are not served, since their address is throttled. As Kafka does, they are
    closed once that is over, so that a client that connects again and again waits in between; and at once where
    MAX_THROTTLED wait already. refused: all of them since the start."""

    def __init__(self) -> None:
        self.refused = 0
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}

    def hold(self, sock: socket.socket, throttle_ms: int) -> None:
        self.refused += 1
        if len(self._waiting) >= MAX_THROTTLED:
            sock.close()
        else:
            loop = asyncio.get_running_loop()
            self._waiting[sock] = loop.call_later(throttle_ms / 1000, self._end, sock)

    def __len__(self) -> int:
        return len(self._waiting)

    def _end(self, sock: socket.socket) -> None:
        del self._waiting[sock]
        sock.close()

    def close(self) -> None:
        """Close all of them now."""
        for sock, timer in list(self._waiting.items()):
            timer.cancel()
            self._end(sock)


def _plain(address: str) -> str:
    """An IPv4 address of an IPv6 socket as IPv4, so that it counts once; no zone."""
    return address.removeprefix("::ffff:").partition("%")[0]


def _addresses(host: str) -> set[str]:
    try:
        return {_plain(str(found[4][0])) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UsageError(f"max.connections.per.ip.overrides: {host} cannot be resolved: {error.strerror}") from error
