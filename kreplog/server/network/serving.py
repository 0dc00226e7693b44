"""Server: a broker's listeners, its connections, and their requests in flight, answered in the order of arrival.

A connection over its limit on requests in flight, or on queued bytes, is not read until it is below. Idle connections
are closed after connections.max.idle.ms. At max.connections, a connection that has sent no request, or has not
authenticated itself, is closed for a new one. Where there is none, the new one is admitted, and once it has done so the
one that is idle for longest is closed: somebody who only connects costs no client its connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kreplog.core.memory import MemoryAccount
from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.core.security.sasl import SaslConnection
from kreplog.errors import InvariantError, PeerProtocolError, UsageError
from kreplog.server.clock import monotonic_ms
from kreplog.server.listeners import Listener
from kreplog.server.monitoring.counters import Requests
from kreplog.server.monitoring.repeated_failures import RepeatedFailures, is_power_of_two
from kreplog.server.network.client_quotas import RequestCharge, begin_charge
from kreplog.server.network.connection_quotas import ConnectionQuotas, ConnectionRate, ThrottledSockets
from kreplog.server.network.connections import (
    ConnectionMemory,
    Frame,
    ListeningSocket,
    own_bytes,
    peer_of,
)
from kreplog.server.network.failed_logins import FailedLogins, Origin
from kreplog.server.network.internal import authenticate, channel_binding, check_peer_user, endpoint_name
from kreplog.server.network.muted_connections import MutedConnections
from kreplog.server.network.tls_connections import connection_over
from kreplog.server.network.tls_handshakes import MAX_TLS_HANDSHAKES, TlsHandshakes
from kreplog.server.network.tls_listeners import TlsListener
from kreplog.server.runtime.pauses import has_time_to_send
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.handshake import ServerHandshake
from kreplog.wire.produce import decode_request as decode_produce
from kreplog.wire.versions import BETWEEN_BROKERS, TO_CLIENTS, ApiKey

_log = logging.getLogger("kreplog.server")

MAX_HANDSHAKES = 256
"""Maximum of concurrent handshakes; beyond it the oldest is closed."""


LINGER_S = 0.1
"""Time for a client to read why it is refused, before its connection is closed: kafka-python drops a response that it
reads together with the end of the stream."""


AT_ONCE_BYTES = 64 << 10
AT_ONCE_BUFFERS = 64
"""Size of a response up to which it may be sent in the iteration of the event loop that encodes it; a larger one has an
iteration of its own."""


class RequestContext:
    """A request and its response; a core's `reply_to`. The first call of `respond`, `reply` or `close` counts.

    encode: makes the frame of a core's response; set before the request goes to the core. began: time of arrival, by
    the loop's clock. follower: the request is a follower's fetch. offload: encodes a large response in a thread; None
    for a small one. held_bytes: size of the response while it waits for those to earlier requests of the connection.
    charge: to the quotas of the client; None where there are none.
    """

    __slots__ = ("_buffers", "_client", "began", "charge", "encode", "follower", "header", "held_bytes", "offload")

    def __init__(self, client: ClientConnection, header: RequestHeader, began: float) -> None:
        self.header = header
        self.began = began
        self.follower = False
        self.held_bytes = 0
        self.charge: RequestCharge | None = None
        self.encode: Callable[[Any], Sequence[Any]] | None = None
        self.offload: Callable[[Callable[[], Sequence[Any]], RequestContext], None] | None = None
        self._client = client
        self._buffers: Sequence[Any] | None = None

    @property
    def client(self) -> ClientConnection:
        return self._client

    @property
    def principal(self) -> Principal:
        """The principal of the request's connection."""
        return self._client.principal

    @property
    def answered(self) -> bool:
        return self._buffers is not None

    def respond(self, buffers: Sequence[Any]) -> None:
        """Send a frame; an empty one sends nothing, as after acks=0."""
        if self._buffers is None:
            charge = self.charge
            if charge is not None:
                buffers = charge.finish(buffers)
                self._client.mute(charge.throttle_ms)
            self._buffers = buffers
            self.encode = None  # often a closure over this context: in a cycle both, and the frames, would wait for gc
            self._client.send_ready_responses(self)

    def reply(self, response: Any) -> None:
        """Send a core's response. One that cannot be encoded closes the connection, and never fails the core."""
        encode = self.encode
        if self._buffers is not None or encode is None:
            return
        if self.offload is not None:
            self.offload(lambda: encode(response), self)
            return
        try:
            if self.charge is None:
                self.respond(() if self._client.closed else encode(response))
            else:
                with self.charge.timed():
                    self.respond(() if self._client.closed else encode(response))
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Log an error of this request if it is its turn, and close its connection; others are not affected."""
        self._client.failed(error, self.header)
        self.close()

    def refuse(self, buffers: Sequence[Any] = ()) -> None:
        """Send a frame, or none, and close the connection, whose client has not authenticated itself; both later, so
        that nobody tries many passwords."""
        self._client.refuse(self, buffers)

    def hold(self, size: int) -> None:
        """Take no other request of the connection before `release`, and charge it `size` bytes until then, since the
        request is handled outside the event loop."""
        self._client.hold(size)

    def release(self, size: int) -> None:
        self._client.release(size)

    @property
    def response(self) -> Sequence[Any] | None:
        """The frame to send; None while there is none."""
        return self._buffers

    def close(self) -> None:
        """Close the connection, when there is no response that the client would understand."""
        self._client.close()


class LocalRequest:
    """A request of this process to its own core; a core's `reply_to`. then: called with the response."""

    __slots__ = ("reply",)

    def __init__(self, then: Callable[[Any], None]) -> None:
        self.reply = then


Handle = Callable[[RequestContext, Frame], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each connection, and of all together; see BrokerSettings."""

    max_frame_bytes: int
    max_in_flight: int
    max_queued_bytes: int
    max_memory: int = 1 << 30
    max_connections: int = 1 << 30
    max_idle_ms: int = 600_000
    handshake_timeout_ms: int = 10_000
    max_per_ip: int = 1 << 30
    per_ip_overrides: tuple[tuple[str, int], ...] = ()
    max_creation_rate: int = 1 << 30
    max_unauthenticated_frame_bytes: int = 512 << 10
    failed_authentication_delay_ms: int = 100


_RAW_TOKEN = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0)
"""In place of the header of a token that has none, after SaslHandshake version 0."""


class ClientConnection:
    """A connection that a listener accepted. It is proved once it has sent a whole request, or where there is SASL, has
    authenticated itself. principal: whose it is. sasl: None for a listener without. authentication: of a token that is
    checked later; ended with the connection.

    listener: the name of its listener. security_protocol: of that listener, a SecurityProtocol of kreplog.types.
    counted_at: as of ConnectionQuotas, "" for one that it has not counted. address: that of the client, for ACLs of
    hosts; 127.0.0.1 for a unix socket. Both are those of the moment when it was accepted: later the system may have
    none, since the client has closed it. internal: of another broker, authenticated; only there are inter-broker
    requests allowed, and its buffers are not charged to the memory that clients share.
    """

    def __init__(
        self,
        sock: socket.socket,
        server: Server,
        listener: Listener,
        principal: Principal = ANONYMOUS,
        *,
        internal: bool = False,
        counted_at: str = "",
    ) -> None:
        self.counted_at = counted_at
        self.address = counted_at or "127.0.0.1"
        self.internal = internal
        self.listener = listener.name
        self.security_protocol = listener.security_protocol
        self.sasl = server.sasl_of(listener) if listener.security_protocol.authenticates else None
        self.principal = principal if self.sasl is None else ANONYMOUS
        self.authentication: asyncio.Task[None] | None = None
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._in_flight: deque[RequestContext] = deque()
        self._holds = 0
        self._held_bytes = 0
        self._muted: asyncio.TimerHandle | None = None
        self.peer_has_closed = False
        memory = None if internal else server.memory
        limits = server.limits
        max_frame_bytes = limits.max_frame_bytes if self.sasl is None else limits.max_unauthenticated_frame_bytes
        self._connection = connection_over(sock, max_frame_bytes, self._on_frame, self._on_closed, memory)
        self._connection.on_drained = self._resume_if_possible
        self._connection.on_invalid = self.failed

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def host(self) -> str:
        """The client's address as Kafka shows that of a group's member."""
        return self._connection.host

    @property
    def quiet_since(self) -> float | None:
        """Time of the last byte in or out; None while the broker owes it a response."""
        connection = self._connection
        return None if self._in_flight and not connection.queued_bytes else connection.active_at

    @property
    def idle_since(self) -> float | None:
        """As quiet_since, or when it is muted no longer."""
        since = self.quiet_since
        return since if since is None or self._muted is None else max(since, self._muted.when())

    def failed(self, error: Exception, request: RequestHeader | None = None) -> None:
        """Log an error for which this connection is closed, if it is its turn."""
        self._server.failed(self, error, request)

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame has no header."""
        return self.sasl is not None and self.sasl.expects_raw_token

    def _on_frame(self, frame: Frame) -> None:
        sasl = self.sasl
        if sasl is None:
            self._proved()
            if self.closed:
                return
        raw = self.expects_raw_token
        header = _RAW_TOKEN if raw else decode_request_header(frame, BETWEEN_BROKERS if self.internal else TO_CLIENTS)
        if self.peer_has_closed and _is_repeatable(header, frame):
            return
        context = RequestContext(self, header, self._connection.active_at)
        quotas = self._server.client_quotas
        is_allowed = sasl is None or raw or sasl.allows(ApiKey(header.api_key).name, monotonic_ms())
        if is_allowed and quotas.is_active and self._has_quotas(header):
            context.charge, delay_ms = begin_charge(quotas, header, self.principal, len(frame))
            if delay_ms:
                self._connection.put_back(frame)
                self.mute(delay_ms)
                return
        self._in_flight.append(context)
        try:
            if is_allowed:
                if context.charge is None:
                    self._server.handle(context, frame)
                else:
                    with context.charge.timed():
                        self._server.handle(context, frame)
            else:
                context.refuse()
        except PeerProtocolError:
            raise
        except Exception as error:
            context.failed(error)
        if self._over_limit():
            self._connection.pause()

    def _has_quotas(self, header: RequestHeader) -> bool:
        """Whether quotas hold for a request: not for those of brokers, nor for a login."""
        sasl = self.sasl
        return not self.internal and (sasl is None or not sasl.is_login(ApiKey(header.api_key).name, monotonic_ms()))

    def mute(self, ms: int) -> None:
        """Take no more requests for that long, whose client is throttled (KIP-219)."""
        if self.closed or not ms:
            return
        until = self._loop.time() + ms / 1000
        if self._muted is not None:
            if self._muted.when() >= until:
                return
            self._muted.cancel()
        self._muted = self._loop.call_at(until, self.unmute)
        self._server.muted.add(self)
        self._connection.pause()
        self._connection.hold(0)  # what it has received and nobody handles now; the account may close it

    def fileno(self) -> int:
        return self._connection.fileno()

    def peer_closed(self) -> None:
        self.peer_has_closed = True
        self._connection.discard(self._is_obsolete)
        self._connection.peer_closed()

    def _is_obsolete(self, frame: Frame) -> bool:
        try:
            return _is_repeatable(decode_request_header(frame, TO_CLIENTS), frame)
        except PeerProtocolError:  # to be reported when it is delivered
            return False

    def unmute(self) -> None:
        """Take requests again."""
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            self._server.muted.remove(self)
            self._resume_if_possible()

    def authenticated(self, principal: Principal) -> None:
        """The client has proved who it is."""
        self.principal = principal
        self._connection.limit_frames(self._server.limits.max_frame_bytes)
        self._proved()

    def _proved(self) -> None:
        """The connection is of a client, and not of somebody who only connects."""
        if not self._connection.is_proved:
            self._connection.prove()
            self._server.proved(self)

    def refuse(self, context: RequestContext, buffers: Sequence[Any]) -> None:
        """As RequestContext.refuse."""
        self.hold(0)
        self._server.authentication_failed(self)
        loop, delay_s = asyncio.get_running_loop(), self._server.limits.failed_authentication_delay_ms / 1000
        loop.call_later(delay_s, context.respond, buffers)
        loop.call_later(delay_s + LINGER_S, self.close)

    def _over_limit(self) -> bool:
        limits = self._server.limits
        return (
            self._holds > 0
            or self._muted is not None
            or len(self._in_flight) >= limits.max_in_flight
            or self._connection.queued_bytes + self._held_bytes >= limits.max_queued_bytes
        )

    def hold(self, size: int) -> None:
        """Take no more requests until `release`, so that they are handled in order; charges `size` bytes."""
        self._holds += 1
        self._connection.hold(size)

    def release(self, size: int) -> None:
        self._holds -= 1
        self._connection.hold(-size)
        self._resume_if_possible()

    def send_ready_responses(self, answered: RequestContext) -> None:
        """Send all responses up to the first request without one; a small one at once if the client has no other
        request in flight, else together with those that follow in this iteration of the event loop. answered: the
        request that just got its response."""
        waiting = self._in_flight
        if waiting and waiting[0] is not answered:
            self._charge_response(answered, own_bytes(answered.response or ()))
        while waiting and (buffers := waiting[0].response) is not None:
            context = waiting.popleft()
            if context.held_bytes:
                self._charge_response(context, 0)
            self._server.requests.answered(context.header.api_key, context.follower, context.began)
            at_once = not waiting and _is_small(buffers) and has_time_to_send(self._loop)
            self._connection.send(buffers, at_once=at_once)
        self._resume_if_possible()

    def _charge_response(self, context: RequestContext, size: int) -> None:
        more = size - context.held_bytes
        context.held_bytes = size
        self._held_bytes += more
        self._connection.hold(more)

    def _resume_if_possible(self) -> None:
        if self._connection.is_paused and not self._over_limit():
            self._connection.resume()

    def _on_closed(self) -> None:
        self._server.connection_closed(self)
        if self.authentication is not None:
            self.authentication.cancel()
        contexts = list(self._in_flight)
        self._in_flight.clear()
        self.unmute()
        for context in contexts:
            if context.charge is not None:
                context.charge.finish(())  # also of a request that nobody can answer

    def close(self) -> None:
        self._connection.close()


def _is_small(buffers: Sequence[Any]) -> bool:
    return len(buffers) <= AT_ONCE_BUFFERS and sum(map(len, buffers)) <= AT_ONCE_BYTES


def _is_repeatable(header: RequestHeader, frame: Frame) -> bool:
    """Whether it is a Produce request that its client repeats on another connection, having closed this one without the
    response: appended, its records would be there twice. After acks=0 nobody waits for a response.

    Raises PeerProtocolError."""
    return header.api_key == ApiKey.PRODUCE and decode_produce(frame, header)[0].acks != 0


SaslOf = Callable[[Listener], SaslConnection]
"""Makes the state of SASL on a new connection of a listener that has it."""


def _not_served(context: RequestContext, frame: Frame) -> None:
    context.close()


class Server:
    """The listeners of a broker and their connections. account: charged for clients' buffers. failed_logins: of
    connections that were refused for want of authentication.

    The listeners can be opened first, since a broker registers their ports; a request before `serve` closes its
    connection."""

    def __init__(self, limits: Limits, account: MemoryAccount | None = None) -> None:
        self.handle: Handle = _not_served
        self._sasl_of: SaslOf | None = None
        self.failed_logins = FailedLogins(monotonic_ms)
        self._failures = RepeatedFailures("failed requests")
        self.limits = limits
        self.memory = ConnectionMemory(account or MemoryAccount(limits.max_memory))
        self.requests = Requests()
        self.client_quotas = ClientQuotaManager(QuotaWindow(), QuotaWindow())
        self.muted: MutedConnections[ClientConnection] = MutedConnections()
        self.refused = 0
        self.quotas = ConnectionQuotas(limits.max_per_ip, limits.per_ip_overrides)
        self.throttled = ThrottledSockets()
        self._rate = ConnectionRate(limits.max_creation_rate)
        self.refused_peers = 0
        self._listening: list[ListeningSocket] = []
        self._unproved: dict[ClientConnection, None] = {}  # the oldest first
        self._clients: dict[ClientConnection, None] = {}
        self._brokers: dict[ClientConnection, None] = {}
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        timeout_s, most = limits.handshake_timeout_ms / 1000, max(1, limits.max_connections // 4)
        self.tls_handshakes = TlsHandshakes(timeout_s, min(MAX_TLS_HANDSHAKES, most))
        self.peer_tls_handshakes = TlsHandshakes(timeout_s)  # which no flood of clients ends
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None

    def serve(self, handle: Handle, sasl_of: SaslOf | None = None) -> None:
        """Pass the requests of all connections to `handle`. sasl_of: needed where a listener has SASL."""
        self.handle = handle
        self._sasl_of = sasl_of

    def listen(self, address: Listener, tls: TlsListener | None = None, creation_rate: int | None = None) -> Listener:
        """Open a listener for clients; returns its address with the actual port. tls: of a listener that encrypts.
        creation_rate: its own maximum of new connections in a second, beside that of all.

        Raises OSError, StorageError."""
        rates = (self._rate,) if creation_rate is None else (self._rate, ConnectionRate(creation_rate))
        listening = ListeningSocket(address, lambda sock: self._accept(sock, address, tls), rates)
        self._listening.append(listening)
        return listening.address

    def listen_internally(
        self,
        address: Listener,
        key: bytes | None,
        tls: TlsListener | None = None,
        advertised: Listener | None = None,
    ) -> Listener:
        """Open the listener for other brokers; returns the address by which they reach it. key: the cluster's key,
        required for a TCP address. tls: of one that encrypts; connections prove the key in it. advertised: the address
        where other brokers reach it, None for its own.

        Raises UsageError, OSError, StorageError."""
        if not address.path and key is None:
            raise UsageError(f"the internal listener {address} needs the cluster's key: set inter.broker.key.file")
        listening = ListeningSocket(address, lambda sock: self._accept_broker(sock, reached, key, tls))
        reached = listening.address if advertised is None else advertised
        self._listening.append(listening)
        return reached

    def _accept_broker(self, sock: socket.socket, at: Listener, key: bytes | None, tls: TlsListener | None) -> None:
        if key is None or at.path:  # a unix socket
            try:
                check_peer_user(sock)
                self._add_broker(sock, at)
            except (OSError, PeerProtocolError) as error:
                self._refuse_broker(sock, str(at), str(error))
            return
        if tls is None:
            self._begin_authentication(sock, key, at)
        else:
            self.peer_tls_handshakes.begin(sock, tls, lambda secured, _: self._begin_authentication(secured, key, at))

    def _begin_authentication(self, sock: socket.socket, key: bytes, at: Listener) -> None:
        if len(self._handshakes) >= MAX_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # now, since the task ends in a later iteration
            oldest.cancel()
        sock.setblocking(False)
        task = self._loop.create_task(self._authenticate(sock, key, at))
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _authenticate(self, sock: socket.socket, key: bytes, at: Listener) -> None:
        try:
            endpoint = endpoint_name((at.host, at.port))
            await authenticate(sock, ServerHandshake(key, endpoint, channel_binding(sock)))
            self._add_broker(sock, at)
        except (OSError, TimeoutError, PeerProtocolError) as error:
            self._refuse_broker(sock, peer_of(sock), str(error) or "no response in time")
        except BaseException:
            sock.close()
            raise

    def _refuse_broker(self, sock: socket.socket, peer: str, reason: str) -> None:
        sock.close()
        self.refused_peers += 1
        if is_power_of_two(self.refused_peers):
            text = "%s: refused at the internal listener: %s; connections refused there since the start: %d"
            _log.warning(text, peer, reason, self.refused_peers)

    def _add_broker(self, sock: socket.socket, at: Listener) -> None:
        self._brokers[ClientConnection(sock, self, at, internal=True)] = None
        if self._sweep is None:
            self._sweep_later()

    def _accept(self, sock: socket.socket, at: Listener, tls: TlsListener | None) -> None:
        try:
            address = self.quotas.take(sock)
        except OSError:  # the client has closed it already
            sock.close()
            return
        if address is None:
            self._refuse_address(sock)
        elif address and (throttle_ms := self.client_quotas.record_connection(address, monotonic_ms())):
            self.quotas.release(address)
            self._throttle(sock, address, throttle_ms)
        elif tls is None:
            self._admit(sock, at, ANONYMOUS, address)
        else:
            self.tls_handshakes.begin(
                sock,
                tls,
                lambda secured, principal: self._admit(secured, at, principal, address),
                lambda: self.quotas.release(address),
            )

    def _refuse_address(self, sock: socket.socket) -> None:
        refused = self.quotas.refused
        if is_power_of_two(refused):
            text = "%s is closed: its address has max.connections.per.ip; closed for that since the start: %d"
            _log.warning(text, peer_of(sock), refused)
        sock.close()

    def _throttle(self, sock: socket.socket, address: str, throttle_ms: int) -> None:
        self.throttled.hold(sock, throttle_ms)
        if is_power_of_two(self.throttled.refused):
            text = "%s opens more connections than its connection_creation_rate; closed for that since the start: %d"
            _log.warning(text, address, self.throttled.refused)

    def _admit(self, sock: socket.socket, at: Listener, principal: Principal, address: str) -> None:
        if self._unproved and len(self._unproved) + len(self._clients) >= self.limits.max_connections:
            self._close_for_another(next(iter(self._unproved)))
        try:
            self._unproved[ClientConnection(sock, self, at, principal, counted_at=address)] = None
        except OSError:  # the client has closed it already
            sock.close()
            self.quotas.release(address)
        if self._sweep is None:
            self._sweep_later()

    def _close_for_another(self, victim: ClientConnection) -> None:
        self.refused += 1
        if is_power_of_two(self.refused):
            _log.warning(
                "max.connections or the open file limit is reached at %d: %s is closed; closed since the start: %d",
                self.connections,
                victim.peer,
                self.refused,
            )
        victim.close()

    def sasl_of(self, listener: Listener) -> SaslConnection:
        if self._sasl_of is None:
            raise InvariantError(f"the listener {listener} has SASL, and the broker none")
        return self._sasl_of(listener)

    def unmute_all(self) -> None:
        """Take requests of all connections again, since other quotas hold."""
        for client in self.muted:
            client.unmute()

    def authentication_failed(self, client: ClientConnection) -> None:
        """A client has failed to authenticate itself, and will be disconnected."""
        if client.sasl is not None:
            origin = Origin(client.listener, client.sasl.mechanism, client.address)
            self.failed_logins.record(origin, client.peer, client.sasl.failure)

    def failed(self, client: ClientConnection, error: Exception, request: RequestHeader | None) -> None:
        """A connection is closed for an error, which is logged if it is its turn. request: its header, where known."""
        count = self._failures.count((client.address, type(error), request and request.api_key))
        if not count:
            return
        times = f"; such failures from {client.address}: {count}"
        if isinstance(error, PeerProtocolError):
            _log.warning("%s: %s; its connection is closed%s", client.peer, error, times)
        else:
            text = "%s: request %s failed; its connection is closed%s"
            _log.error(text, client.peer, request, times, exc_info=error)

    def proved(self, client: ClientConnection) -> None:
        """A connection has sent its first request, or has authenticated itself; another may be closed for it, or it, if
        every other one has a request in flight."""
        if client not in self._unproved:
            return
        del self._unproved[client]
        if len(self._clients) >= self.limits.max_connections:
            idle = [
                (not other.peer_has_closed, since, other)
                for other in self._clients
                if (since := other.quiet_since) is not None
            ]
            self._close_for_another(min(idle, key=lambda entry: entry[:2])[-1] if idle else client)
        if not client.closed:
            self._clients[client] = None

    def connection_closed(self, client: ClientConnection) -> None:
        """A connection is closed."""
        for clients in (self._unproved, self._clients, self._brokers):
            clients.pop(client, None)
        self.quotas.release(client.counted_at)

    def _sweep_later(self) -> None:
        self._sweep = self._loop.call_later(self.limits.max_idle_ms / 4000, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        latest = self._loop.time() - self.limits.max_idle_ms / 1000
        for client in [*self._unproved, *self._clients, *self._brokers]:
            since = client.idle_since
            if since is not None and since <= latest:
                _log.info("%s is closed: it has been idle for %d ms", client.peer, self.limits.max_idle_ms)
                client.close()
        if self.connections:
            self._sweep_later()

    @property
    def connections(self) -> int:
        return len(self._unproved) + len(self._clients) + len(self._brokers)

    def close(self) -> None:
        """Close all listeners and connections."""
        for listening in self._listening:
            listening.close()
        for task in self._handshakes:
            task.cancel()
        self.throttled.close()
        self.tls_handshakes.close()
        self.peer_tls_handshakes.close()
        for client in [*self._unproved, *self._clients, *self._brokers]:
            client.close()
        self.muted.close()
        if self._sweep is not None:
            self._sweep.cancel()
