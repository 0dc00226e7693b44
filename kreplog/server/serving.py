"""Clients: the connections that a broker serves, each with its requests under way, answered in the order they came.

A client that has more under way than it may, in requests or in bytes, is not read from until it has less.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kreplog.errors import PeerProtocolError
from kreplog.server.network import Connection, Frame, ListeningSocket
from kreplog.server.settings import Listener
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import BETWEEN_BROKERS

_log = logging.getLogger("kreplog.server")


class Exchange:
    """One request and, in time, its answer; a core's `reply_to`.

    encode: makes the whole frame of a response that a core gives; set by whoever handed the request to the core. Any of
    answer, reply and close ends the exchange; what comes after counts no more.
    """

    __slots__ = ("_buffers", "_client", "encode", "header")

    def __init__(self, client: Client, header: RequestHeader) -> None:
        self.header = header
        self.encode: Callable[[Any], Sequence[Any]] | None = None
        self._client = client
        self._buffers: Sequence[Any] | None = None

    @property
    def client(self) -> Client:
        return self._client

    @property
    def answered(self) -> bool:
        return self._buffers is not None

    def answer(self, buffers: Sequence[Any]) -> None:
        """With this frame; with nothing at all if it is empty."""
        if self._buffers is None:
            self._buffers = buffers
            self._client.send_answers()

    def reply(self, response: Any) -> None:
        """With a core's response. One that cannot be written costs the connection, never the core that gave it."""
        if self._buffers is not None or self.encode is None:
            return
        try:
            self.answer(() if self._client.closed else self.encode(response))
        except Exception:
            _log.exception("%s: the answer to %s cannot be written", self._client.peer, self.header)
            self.close()

    def take_answer(self) -> Sequence[Any] | None:
        return self._buffers

    def close(self) -> None:
        """By closing the connection: there is no answer that the client would understand, or the broker has failed."""
        self._client.close()


Handle = Callable[[Exchange, Frame], None]


class Client:
    """One client's connection."""

    def __init__(
        self, sock: socket.socket, handle: Handle, limits: Limits, on_closed: Callable[[Client], None]
    ) -> None:
        self._handle = handle
        self._limits = limits
        self._under_way: deque[Exchange] = deque()
        self._gone = on_closed
        self._connection = Connection(sock, limits.max_frame_bytes, self._on_frame, self._on_closed)
        self._connection.on_drained = self._relieve

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def peer(self) -> str:
        return self._connection.peer

    def _on_frame(self, frame: Frame) -> None:
        exchange = Exchange(self, decode_request_header(frame, BETWEEN_BROKERS))
        self._under_way.append(exchange)
        try:
            self._handle(exchange, frame)
        except PeerProtocolError:
            raise
        except Exception:
            _log.exception("%s: request %s could not be handled; its connection is closed", self.peer, exchange.header)
            self.close()
        if self._has_too_much():
            self._connection.pause()

    def _has_too_much(self) -> bool:
        return (
            len(self._under_way) >= self._limits.max_in_flight
            or self._connection.queued_bytes >= self._limits.max_queued_bytes
        )

    def send_answers(self) -> None:
        """Those that have come, up to the first that has not."""
        waiting = self._under_way
        while waiting and (buffers := waiting[0].take_answer()) is not None:
            waiting.popleft()
            self._connection.send(buffers)
        self._relieve()

    def _relieve(self) -> None:
        if not self._has_too_much():
            self._connection.resume()

    def _on_closed(self) -> None:
        self._under_way.clear()
        self._gone(self)

    def close(self) -> None:
        self._connection.close()


class Limits:
    """Of every connection; see BrokerSettings."""

    __slots__ = ("max_frame_bytes", "max_in_flight", "max_queued_bytes")

    def __init__(self, max_frame_bytes: int, max_in_flight: int, max_queued_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_in_flight = max_in_flight
        self.max_queued_bytes = max_queued_bytes


class Server:
    """All listeners of a broker and the clients that came through them."""

    def __init__(self, handle: Handle, limits: Limits) -> None:
        self._handle = handle
        self._limits = limits
        self._listening: list[ListeningSocket] = []
        self._clients: set[Client] = set()

    def listen(self, address: Listener) -> Listener:
        """Begin to take connections there; the address with the port that was found. Raises OSError, StorageError."""
        listening = ListeningSocket(address, self._accept)
        self._listening.append(listening)
        return listening.address

    def _accept(self, sock: socket.socket) -> None:
        try:
            self._clients.add(Client(sock, self._handle, self._limits, self._clients.discard))
        except OSError:  # it is gone already
            sock.close()

    @property
    def connections(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        """Take no more connections, and close those there are."""
        for listening in self._listening:
            listening.close()
        for client in list(self._clients):
            client.close()
