"""Peer: one connection to another broker, for one request at a time; made anew when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from socket import socket

from typing_extensions import Buffer

from kreplog.errors import PeerProtocolError
from kreplog.server.network.connections import Connection, Frame
from kreplog.server.network.internal import Address, connect

Connect = Callable[[Address], Awaitable[socket]]
"""Makes the connection: kreplog.server.network.internal.connect as a client, Dialer.connect as another broker."""


class Peer:
    """A client's side of a connection; for one caller at a time. on_hung_up: called when the other end closes it."""

    def __init__(
        self, max_frame_bytes: int, on_hung_up: Callable[[], None] | None = None, connect: Connect = connect
    ) -> None:
        self._connect = connect
        self._on_hung_up = on_hung_up
        self._max_frame_bytes = max_frame_bytes
        self._connection: Connection | None = None
        self._address: Address | None = None
        self._answer: asyncio.Future[Frame] | None = None

    async def call(self, address: Address, request: Sequence[Buffer], timeout_s: float) -> Frame:
        """Send a framed request, unless `begin` has sent it, and return the frame that answers it.

        Raises OSError, TimeoutError or PeerProtocolError: the connection is closed then, whatever may still be on its
        way.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self._answer is None:
                    return await self._send(await self._connected(address), request)
                return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def begin(self, address: Address, request: Sequence[Buffer]) -> None:
        """Send now what the next `call` will be given, if there is a connection to `address`; else leave it to that.

        A task that calls has its turn only when the event loop is done with what it has in hand, appends perhaps."""
        connection = self._connection_to(address)
        if connection is not None:
            self._send(connection, request)

    def _send(self, connection: Connection, request: Sequence[Buffer]) -> asyncio.Future[Frame]:
        answer = self._answer = asyncio.get_running_loop().create_future()
        connection.send(request, at_once=True)
        return answer

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
            self._connection = Connection(sock, self._max_frame_bytes, self._on_frame, self._on_closed, trusting=True)
        except BaseException:
            sock.close()
            raise
        self._address = address
        return self._connection

    def _on_frame(self, frame: Frame) -> None:
        if self._answer is None or self._answer.done():
            raise PeerProtocolError("an answer that nobody asked for")
        self._answer.set_result(frame)

    def _on_closed(self) -> None:
        if self._connection is not None and self._on_hung_up is not None:
            self._on_hung_up()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the other broker closed the connection"))
            self._answer.exception()  # at a broker's end nobody waits for it, perhaps

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
