"""Peer: a connection to another broker, for one request at a time; reconnects after it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kreplog.errors import CoordinationError, PeerProtocolError
from kreplog.server.network.connections import Connection, Frame, ReceivingThread
from kreplog.server.network.internal import Address, connect
from kreplog.server.network.tls_connections import connection_over

if TYPE_CHECKING:
    from typing_extensions import Buffer

Connect = Callable[[Address], Awaitable[socket]]
"""Connects to an address: kreplog.server.network.internal.connect as a client, Dialer.connect as a broker."""

_FAILURES = (OSError, TimeoutError, PeerProtocolError, CoordinationError)
"""Those of another broker, the network or the store; any other is a fault of this broker."""

_log = logging.getLogger("kreplog.server")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PeerReply(Generic[T]):
    """The response to a request, decoded; or why there is none."""

    value: T | None = None
    error: Exception | None = None


class Peer:
    """The client's end of a connection, for one caller at a time. on_closed: called when the other end closes it.
    thread: with one worker, which receives and decodes long responses while uses_thread is set; otherwise the event
    loop does."""

    def __init__(
        self,
        max_frame_bytes: int,
        on_closed: Callable[[], None] | None = None,
        connect: Connect = connect,
        thread: Executor | None = None,
    ) -> None:
        self._connect = connect
        self._thread = None if thread is None else ReceivingThread(thread, self._decoded_frame)
        self.uses_thread = False
        self._decode: Callable[[Frame], Any] = _as_it_is
        self._on_closed = on_closed
        self._max_frame_bytes = max_frame_bytes
        self._connection: Connection | None = None
        self._address: Address | None = None
        self._then: Callable[[PeerReply[Any]], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def call(self, address: Address, request: Sequence[Buffer], timeout_s: float) -> Frame:
        """Send a framed request and return the frame of its response; as `decoded`."""
        return await self.decoded(address, request, timeout_s, _as_it_is)

    async def decoded(
        self, address: Address, request: Sequence[Buffer], timeout_s: float, decode: Callable[[Frame], T]
    ) -> T:
        """Send a framed request, and return its response as `decode` returns it.

        Raises OSError, TimeoutError or PeerProtocolError, the connection is closed then; and what `decode` raises.
        """
        response: asyncio.Future[PeerReply[T]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                self._send(await self._connected(address), request, decode, partial(_set_outcome, response))
                outcome = await response
        except BaseException:
            self._then = None
            self.close()
            raise
        return _value(outcome)

    def begin(
        self,
        address: Address,
        request: Sequence[Buffer],
        timeout_s: float,
        decode: Callable[[Frame], T],
        then: Callable[[PeerReply[T]], None],
    ) -> bool:
        """Send a framed request now, if there is an open connection to `address`; whether it was sent. `then` gets the
        outcome, as soon as it is received: a task would learn of it only in a later iteration of the event loop. The
        errors are those of `decoded`; the connection is closed at them. `decode` has to check which request a frame
        responds to: it may be a second response to the one before."""
        connection = self._connection_to(address)
        if connection is None:
            return False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._timed_out)
        self._send(connection, request, decode, then)
        return True

    def _send(
        self,
        connection: Connection,
        request: Sequence[Buffer],
        decode: Callable[[Frame], T],
        then: Callable[[PeerReply[T]], None],
    ) -> None:
        self._decode = decode
        self._then = then
        connection.thread = self._thread if self.uses_thread else None
        connection.send(request, at_once=True)

    def _decoded_frame(self, frame: Frame) -> PeerReply[Any]:
        try:
            return PeerReply(self._decode(frame))
        except Exception as error:  # for the caller
            return PeerReply(error=error)

    def _connection_to(self, address: Address) -> Connection | None:
        connection = self._connection
        return None if connection is None or connection.closed or address != self._address else connection

    async def _connected(self, address: Address) -> Connection:
        connection = self._connection_to(address)
        if connection is not None:
            return connection
        self.close()
        sock = await self._connect(address)
        try:
            self._connection = connection_over(
                sock,
                self._max_frame_bytes,
                self._on_frame,
                self._connection_closed,
                trusting=True,
            )
        except BaseException:
            sock.close()
            raise
        self._address = address
        return self._connection

    def _on_frame(self, frame: Frame | PeerReply[Any]) -> None:
        if self._then is None:
            raise PeerProtocolError("a response without a request")
        self._finish(frame if isinstance(frame, PeerReply) else self._decoded_frame(frame))

    def _connection_closed(self) -> None:
        if self._connection is not None and self._on_closed is not None:
            self._on_closed()
        self._finish(PeerReply(error=ConnectionResetError("the other broker closed the connection")))

    def _timed_out(self) -> None:
        self._finish(PeerReply(error=TimeoutError("no response in time")))

    def _finish(self, outcome: PeerReply[Any]) -> None:
        """End the request under way, if there is one."""
        then, self._then = self._then, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            if outcome.error is not None:
                self.close()
        if then is not None:
            then(outcome)

    def close(self) -> None:
        """Close the connection; a request under way ends with ConnectionResetError."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _as_it_is(frame: Frame) -> Frame:
    return frame


def _set_outcome(response: asyncio.Future[PeerReply[T]], outcome: PeerReply[T]) -> None:
    if not response.done():
        response.set_result(outcome)


def _value(outcome: PeerReply[T]) -> T:
    if outcome.error is not None:
        raise outcome.error
    return cast("T", outcome.value)


def log_lost(request: str, error: Exception) -> None:
    """Log why a request has no response; a fault of this broker as an error, with its traceback. request: its API, and
    the broker that it went to."""
    unexpected = None if isinstance(error, _FAILURES) else error
    level = logging.INFO if unexpected is None else logging.ERROR
    _log.log(level, "%s: no response: %s", request, str(error) or type(error).__name__, exc_info=unexpected)
