"""ShutdownSender: sends ControlledShutdown to the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kreplog.core.effects import SendShutdown
from kreplog.core.events import ControlledShutdownReplied
from kreplog.core.messages import ControlledShutdownResponse
from kreplog.errors import CoordinationError, PeerProtocolError
from kreplog.server.network.peers import Connect, Peer
from kreplog.server.replication.control_sender import control_header
from kreplog.server.replication.fetch_client import Resolve
from kreplog.wire import control_messages

_log = logging.getLogger("kreplog.server")

TIMEOUT_S = 5.0
"""Time-out of one request."""


class ShutdownSender:
    """Carries out SendShutdown effects: each ends with a ControlledShutdownReplied event, without a response if
    anything went wrong. on_end: the done callback of the tasks that send."""

    def __init__(
        self,
        client_id: str,
        max_frame_bytes: int,
        resolve: Resolve,
        put: Callable[[ControlledShutdownReplied], None],
        on_end: Callable[[asyncio.Task[None]], None],
        connect: Connect,
    ) -> None:
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._resolve = resolve
        self._put = put
        self._on_end = on_end
        self._connect = connect
        self._task: asyncio.Task[None] | None = None

    def send(self, effect: SendShutdown) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send(effect), name="kreplog-shutdown")
        self._task.add_done_callback(self._on_end)

    async def _send(self, effect: SendShutdown) -> None:
        response: ControlledShutdownResponse | None = None
        peer = Peer(self._max_frame_bytes, connect=self._connect)
        try:
            response = await self._exchange(peer, effect)
        except (OSError, TimeoutError, CoordinationError, PeerProtocolError) as error:
            _log.info("controlled shutdown: no response from the controller: %s", str(error) or type(error).__name__)
        finally:
            peer.close()
        self._put(ControlledShutdownReplied(effect.attempt, response))

    async def _exchange(self, peer: Peer, effect: SendShutdown) -> ControlledShutdownResponse:
        address = await self._resolve(effect.controller)
        if address is None:
            raise ConnectionError(f"the controller, broker {effect.controller}, is not registered")
        header = control_header(effect.request, 1, self._client_id)
        frame = await peer.call(address, control_messages.encode_request(effect.request, header), TIMEOUT_S)
        response = control_messages.decode_response(frame, header)
        if not isinstance(response, ControlledShutdownResponse):
            raise PeerProtocolError(f"the response to a ControlledShutdown is a {type(response).__name__}")
        return response

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
