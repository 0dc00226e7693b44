"""PeerConnections: idle connections to other brokers, by whose closing the failure detector notices a dead process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kreplog.core.events import PeerConnected, PeerDisconnected, PeerUnreachable
from kreplog.errors import PeerProtocolError
from kreplog.server.network.connections import Connection, Frame
from kreplog.server.network.peers import Connect
from kreplog.server.network.tls_connections import connection_over
from kreplog.types import BrokerRegistration

CONNECT_TIMEOUT_S = 5.0
"""Time-out of a connection attempt."""

_MAX_FRAME_BYTES = 1024


class PeerConnections:
    """Carries out ConnectPeer and DisconnectPeer effects, with at most one connection to each broker.

    connect: connects to an internal endpoint. put: takes the events. on_closed: called with the id of a broker that
    has closed its connection."""

    def __init__(
        self,
        connect: Connect,
        put: Callable[[PeerConnected | PeerDisconnected | PeerUnreachable], None],
        on_closed: Callable[[int], None],
    ) -> None:
        self._connect = connect
        self._put = put
        self._on_closed = on_closed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, Connection] = {}

    def connect(self, broker: BrokerRegistration) -> None:
        """Connect to a broker; closes the connection to it that exists or is being made."""
        self.disconnect(broker.id)
        task = asyncio.get_running_loop().create_task(self._run(broker), name=f"kreplog-peer-{broker.id}")
        self._tasks[broker.id] = task

    def disconnect(self, broker_id: int) -> None:
        task = self._tasks.pop(broker_id, None)
        if task is not None:
            task.cancel()
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for broker_id in list(self._tasks):
            self.disconnect(broker_id)

    async def _run(self, broker: BrokerRegistration) -> None:
        try:
            if broker.internal is None:
                raise ConnectionError(f"broker {broker.id} is not registered with an internal endpoint")
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                sock = await self._connect(broker.internal)
        except (OSError, TimeoutError, PeerProtocolError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            self._put(PeerUnreachable(broker.id, broker.epoch, refused))
            return

        def closed() -> None:
            if self._connections.get(broker.id) is connection:
                del self._connections[broker.id]
                self._on_closed(broker.id)
                self._put(PeerDisconnected(broker.id, broker.epoch))

        connection = self._connections[broker.id] = connection_over(sock, _MAX_FRAME_BYTES, _on_frame, closed)
        self._put(PeerConnected(broker.id, broker.epoch))


def _on_frame(_: Frame) -> None:
    raise PeerProtocolError("a frame on a connection on which nothing was requested")
