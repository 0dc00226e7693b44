"""Peer: a connection to another broker, for one request at a time; reconnects after it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING, Any, TypeVar

from kreplog.errors import PeerProtocolError
from kreplog.server.network.connections import Connection, Frame, ReceivingThread
from kreplog.server.network.internal import Address, connect
from kreplog.server.network.tls_connections import connection_over

if TYPE_CHECKING:
    from typing_extensions import Buffer

Connect = Callable[[Address], Awaitable[socket]]
"""Connects to an address: kreplog.server.network.internal.connect as a client, Dialer.connect as a broker."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A response that the thread has decoded, or the error of it."""

    value: Any
    error: Exception | None = None


class Peer:
    """The client's end of a connection, for one caller at a time. on_closed: called when the other end closes it.
    thread: with one worker, which receives and decodes long responses; None: the event loop does."""

    def __init__(
        self,
        max_frame_bytes: int,
        on_closed: Callable[[], None] | None = None,
        connect: Connect = connect,
        thread: Executor | None = None,
    ) -> None:
        self._connect = connect
        self._thread = None if thread is None else ReceivingThread(thread, self._decode_in_thread)
        self._decode: Callable[[Frame], Any] = _as_it_is
        self._on_closed = on_closed
        self._max_frame_bytes = max_frame_bytes
        self._connection: Connection | None = None
        self._address: Address | None = None
        self._response: asyncio.Future[Frame | _Decoded] | None = None

    async def call(self, address: Address, request: Sequence[Buffer], timeout_s: float) -> Frame:
        """Send a framed request and return the frame of its response; as `decoded`."""
        return await self.decoded(address, request, timeout_s, _as_it_is)

    async def decoded(
        self, address: Address, request: Sequence[Buffer], timeout_s: float, decode: Callable[[Frame], T]
    ) -> T:
        """Send a framed request, unless `begin` has sent it, and return its response as `decode` returns it.

        Raises OSError, TimeoutError or PeerProtocolError, the connection is closed then; and what `decode` raises.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self._response is None:
                    self._send(await self._connected(address), request, decode)
                assert self._response is not None
                response = await self._response
        except BaseException:
            self.close()
            raise
        finally:
            self._response = None
        if not isinstance(response, _Decoded):
            return decode(response)
        if response.error is not None:
            raise response.error
        decoded: T = response.value
        return decoded

    def begin(self, address: Address, request: Sequence[Buffer], decode: Callable[[Frame], Any]) -> None:
        """Send the request of the next `decoded` now, if there is an open connection to `address`.

        A task that calls that runs only in a later iteration of the event loop, after appends perhaps."""
        connection = self._connection_to(address)
        if connection is not None:
            self._send(connection, request, decode)

    def _send(self, connection: Connection, request: Sequence[Buffer], decode: Callable[[Frame], Any]) -> None:
        self._decode = decode
        self._response = asyncio.get_running_loop().create_future()
        connection.send(request, at_once=True)

    def _decode_in_thread(self, frame: Frame) -> _Decoded:
        try:
            return _Decoded(self._decode(frame))
        except Exception as error:  # raised where the response is awaited
            return _Decoded(None, error)

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
                thread=self._thread,
            )
        except BaseException:
            sock.close()
            raise
        self._address = address
        return self._connection

    def _on_frame(self, frame: Frame | _Decoded) -> None:
        if self._response is None or self._response.done():
            raise PeerProtocolError("a response without a request")
        self._response.set_result(frame)

    def _connection_closed(self) -> None:
        if self._connection is not None and self._on_closed is not None:
            self._on_closed()
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionResetError("the other broker closed the connection"))
            self._response.exception()  # so that asyncio does not log it if no caller waits

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _as_it_is(frame: Frame) -> Frame:
    return frame
