"""MutedConnections: connections that are not read while their clients are throttled; they notice its end nevertheless.

The event loop sees no end of a connection that it does not read. Linux reports it to an epoll object of its own, which
the event loop reads; elsewhere it is noticed when the connection is read again.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar


class MutableConnection(Protocol):
    """A connection that may be muted."""

    def fileno(self) -> int: ...

    def peer_closed(self) -> None:
        """The peer has closed its end, or the connection is broken."""

    def unmute(self) -> None: ...


def make_epoll() -> select.epoll | None:
    """None where the system has none."""
    return select.epoll() if sys.platform == "linux" else None


C = TypeVar("C", bound=MutableConnection)


class MutedConnections(Generic[C]):
    """The muted connections of a server."""

    def __init__(self) -> None:
        self._by_connection: dict[C, int] = {}
        self._by_fd: dict[int, C] = {}
        self._epoll: select.epoll | None = None

    def __len__(self) -> int:
        return len(self._by_connection)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._by_connection))

    def add(self, connection: C) -> None:
        """A connection is muted; it may be so already."""
        if connection in self._by_connection:
            return
        fd = connection.fileno()
        self._by_connection[connection] = fd
        self._by_fd[fd] = connection
        if self._epoll is None:
            self._epoll = make_epoll()
            if self._epoll is None:
                return
            asyncio.get_running_loop().add_reader(self._epoll, self._on_ends)
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def remove(self, connection: C) -> None:
        """A connection is muted no more, or has been closed."""
        fd = self._by_connection.pop(connection)
        del self._by_fd[fd]
        if self._epoll is not None:
            with suppress(OSError):  # closed sockets leave it by themselves
                self._epoll.unregister(fd)

    def _on_ends(self) -> None:
        if self._epoll is not None:
            for fd, _ in self._epoll.poll(0):
                if fd in self._by_fd:
                    self._by_fd[fd].peer_closed()

    def close(self) -> None:
        """End the watch; connections are closed by their owner."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll)
            self._epoll.close()
            self._epoll = None
