"""Clients: the connections that a broker serves, each with its requests under way, answered in the order they came.

A client that has more under way than it may, in requests or in bytes, is not read from until it has less. One that has
said nothing for long is closed; where there are too many, it is who has never asked anything, or not for longest.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kreplog.core.memory import MemoryAccount
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.server.monitoring.counters import Requests
from kreplog.server.network.connections import Connection, Frame, ListeningSocket, Memory, is_power_of_two, own_bytes
from kreplog.server.network.internal import authenticate, check_peer_user, endpoint_name
from kreplog.server.settings import Listener
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.handshake import ServerHandshake
from kreplog.wire.versions import BETWEEN_BROKERS, TO_CLIENTS

_log = logging.getLogger("kreplog.server")

MAX_HANDSHAKES = 256
"""Connections in the handshake at a time; beyond that the oldest is closed."""


class RequestContext:
    """One request and, in time, its answer; a core's `reply_to`.

    encode: makes the whole frame of a response that a core gives; set by whoever handed the request to the core. Any of
    answer, reply and close ends the exchange; what comes after counts no more. began: when, by the loop's clock.
    follower: the request is a follower's fetch. offload: encodes a large response in a thread; None for a small one.
    held_bytes: size of its answer while that waits for the answer to an earlier request of the connection.
    """

    __slots__ = ("_buffers", "_client", "began", "encode", "follower", "header", "held_bytes", "offload")

    def __init__(self, client: Client, header: RequestHeader, began: float) -> None:
        self.header = header
        self.began = began
        self.follower = False
        self.held_bytes = 0
        self.encode: Callable[[Any], Sequence[Any]] | None = None
        self.offload: Callable[[Callable[[], Sequence[Any]], RequestContext], None] | None = None
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
            self._client.send_answers(self)

    def reply(self, response: Any) -> None:
        """With a core's response. One that cannot be written costs the connection, never the core that gave it."""
        encode = self.encode
        if self._buffers is not None or encode is None:
            return
        if self.offload is not None:
            self.offload(lambda: encode(response), self)
            return
        try:
            self.answer(() if self._client.closed else encode(response))
        except Exception:
            _log.exception("%s: the answer to %s cannot be written", self._client.peer, self.header)
            self.close()

    def hold(self, size: int) -> None:
        """Take no other request of the connection before `release`, and charge the connection `size` bytes until then:
        the request is being worked on outside the event loop."""
        self._client.hold(size)

    def release(self, size: int) -> None:
        self._client.release(size)

    def take_answer(self) -> Sequence[Any] | None:
        return self._buffers

    def close(self) -> None:
        """By closing the connection: there is no answer that the client would understand, or the broker has failed."""
        self._client.close()


class LocalRequest:
    """A request that this broker has of itself; a core's `reply_to`. then: given the response."""

    __slots__ = ("reply",)

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.reply = then


Handle = Callable[[RequestContext, Frame], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of every connection, and of all together; see BrokerSettings."""

    max_frame_bytes: int
    max_in_flight: int
    max_queued_bytes: int
    max_memory: int = 1 << 30
    max_connections: int = 1 << 30
    max_idle_ms: int = 600_000


class Client:
    """One client's connection. asked: it has sent a whole request.

    internal: it is another broker, authenticated; it alone may send inter-broker requests, and its memory is not that
    which clients share.
    """

    def __init__(self, sock: socket.socket, server: Server, *, internal: bool = False) -> None:
        self.asked = False
        self.internal = internal
        self._server = server
        self._under_way: deque[RequestContext] = deque()
        self._holds = 0
        self._held_bytes = 0
        memory = None if internal else server.memory
        self._connection = Connection(sock, server.limits.max_frame_bytes, self._on_frame, self._on_closed, memory)
        self._connection.on_drained = self._relieve

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def idle_since(self) -> float | None:
        """When it last sent or took anything; None while it is the broker who owes it an answer."""
        connection = self._connection
        return None if self._under_way and not connection.queued_bytes else connection.active_at

    def _on_frame(self, frame: Frame) -> None:
        if not self.asked:
            self.asked = True
            self._server.has_asked(self)
        header = decode_request_header(frame, BETWEEN_BROKERS if self.internal else TO_CLIENTS)
        exchange = RequestContext(self, header, self._connection.active_at)
        self._under_way.append(exchange)
        try:
            self._server.handle(exchange, frame)
        except PeerProtocolError:
            raise
        except Exception:
            _log.exception("%s: request %s could not be handled; its connection is closed", self.peer, exchange.header)
            self.close()
        if self._has_too_much():
            self._connection.pause()

    def _has_too_much(self) -> bool:
        limits = self._server.limits
        return (
            self._holds > 0
            or len(self._under_way) >= limits.max_in_flight
            or self._connection.queued_bytes + self._held_bytes >= limits.max_queued_bytes
        )

    def hold(self, size: int) -> None:
        """Take no more requests until `release`, so that requests are carried out in order; charges `size` bytes."""
        self._holds += 1
        self._connection.hold(size)

    def release(self, size: int) -> None:
        self._holds -= 1
        self._connection.hold(-size)
        self._relieve()

    def send_answers(self, answered: RequestContext) -> None:
        """Send all answers up to the first that is missing. answered: the exchange whose answer has just come."""
        waiting = self._under_way
        if waiting and waiting[0] is not answered:
            self._hold_answer(answered, own_bytes(answered.take_answer() or ()))
        while waiting and (buffers := waiting[0].take_answer()) is not None:
            exchange = waiting.popleft()
            if exchange.held_bytes:
                self._hold_answer(exchange, 0)
            self._server.requests.answered(exchange.header.api_key, exchange.follower, exchange.began)
            self._connection.send(buffers)
        self._relieve()

    def _hold_answer(self, exchange: RequestContext, size: int) -> None:
        more = size - exchange.held_bytes
        exchange.held_bytes = size
        self._held_bytes += more
        self._connection.hold(more)

    def _relieve(self) -> None:
        if not self._has_too_much():
            self._connection.resume()

    def _on_closed(self) -> None:
        self._under_way.clear()
        self._server.is_gone(self)

    def close(self) -> None:
        self._connection.close()


class Server:
    """All listeners of a broker and the connections that they accepted. account: charged for clients' buffers."""

    def __init__(self, handle: Handle, limits: Limits, account: MemoryAccount | None = None) -> None:
        self.handle = handle
        self.limits = limits
        self.memory = Memory(account or MemoryAccount(limits.max_memory))
        self.requests = Requests()
        self.refused = 0
        self.refused_peers = 0
        self._listening: list[ListeningSocket] = []
        self._silent: dict[Client, None] = {}  # who has asked nothing yet; the oldest first
        self._clients: dict[Client, None] = {}
        self._brokers: dict[Client, None] = {}
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None

    def listen(self, address: Listener) -> Listener:
        """Begin to take connections there; the address with the port that was found. Raises OSError, StorageError."""
        listening = ListeningSocket(address, self._accept)
        self._listening.append(listening)
        return listening.address

    def listen_internally(self, address: Listener, key: bytes | None) -> Listener:
        """As `listen`, for other brokers of the cluster. key: the cluster's key, required for a TCP address.

        Raises UsageError as well."""
        if not address.path and key is None:
            raise UsageError(f"the internal listener {address} needs the cluster's key: set inter.broker.key.file")
        listening = ListeningSocket(address, lambda sock: self._accept_broker(sock, listening.address, key))
        self._listening.append(listening)
        return listening.address

    def _accept_broker(self, sock: socket.socket, at: Listener, key: bytes | None) -> None:
        if key is None or at.path:  # a unix socket
            try:
                check_peer_user(sock)
                self._take_broker(sock)
            except (OSError, PeerProtocolError) as error:
                self._refuse_broker(sock, str(at), str(error))
            return
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # now: it ends in the next turn, after others were accepted in this one
            oldest.cancel()
        sock.setblocking(False)
        task = self._loop.create_task(self._authenticate(sock, key, endpoint_name((at.host, at.port))))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _authenticate(self, sock: socket.socket, key: bytes, endpoint: str) -> None:
        try:
            await authenticate(sock, ServerHandshake(key, endpoint))
            self._take_broker(sock)
        except (OSError, TimeoutError, PeerProtocolError) as error:
            peer = "a closed connection"
            with suppress(OSError):
                peer = str(sock.getpeername())
            self._refuse_broker(sock, peer, str(error) or "no answer in time")
        except BaseException:
            sock.close()
            raise

    def _refuse_broker(self, sock: socket.socket, peer: str, why: str) -> None:
        sock.close()
        self.refused_peers += 1
        if is_power_of_two(self.refused_peers):
            text = "%s: refused at the internal listener: %s; connections refused there since the start: %d"
            _log.warning(text, peer, why, self.refused_peers)

    def _take_broker(self, sock: socket.socket) -> None:
        self._brokers[Client(sock, self, internal=True)] = None
        if self._sweep is None:
            self._sweep_later()

    def _accept(self, sock: socket.socket) -> None:
        clients = len(self._silent) + len(self._clients)
        if clients >= self.limits.max_connections and not self._make_room():
            sock.close()
            return
        try:
            self._silent[Client(sock, self)] = None
        except OSError:  # it is gone already
            sock.close()
        if self._sweep is None:
            self._sweep_later()

    def _make_room(self) -> bool:
        """Close one connection for another; False when all of them have something under way."""
        self.refused += 1
        victim = next(iter(self._silent), None)
        if victim is None:
            idle = [(since, client) for client in self._clients if (since := client.idle_since) is not None]
            victim = min(idle, key=lambda one: one[0])[1] if idle else None
        if is_power_of_two(self.refused):
            _log.warning(
                "max.connections or the limit on open files is reached at %d: %s is closed; closed since the start: %d",
                self.connections,
                "the newest" if victim is None else victim.peer,
                self.refused,
            )
        if victim is None:
            return False
        victim.close()
        return True

    def has_asked(self, client: Client) -> None:
        """It is a client indeed."""
        if client in self._silent:
            del self._silent[client]
            self._clients[client] = None

    def is_gone(self, client: Client) -> None:
        """It is closed."""
        for clients in (self._silent, self._clients, self._brokers):
            clients.pop(client, None)

    def _sweep_later(self) -> None:
        self._sweep = self._loop.call_later(self.limits.max_idle_ms / 4000, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        latest = self._loop.time() - self.limits.max_idle_ms / 1000
        for client in [*self._silent, *self._clients, *self._brokers]:
            since = client.idle_since
            if since is not None and since <= latest:
                _log.info("%s is closed: it has been idle for %d ms", client.peer, self.limits.max_idle_ms)
                client.close()
        if self.connections:
            self._sweep_later()

    @property
    def connections(self) -> int:
        return len(self._silent) + len(self._clients) + len(self._brokers)

    def close(self) -> None:
        """Take no more connections, and close those there are."""
        for listening in self._listening:
            listening.close()
        for task in self._handshakes:
            task.cancel()
        for client in [*self._silent, *self._clients, *self._brokers]:
            client.close()
        if self._sweep is not None:
            self._sweep.cancel()
