"""ControlSender: a controller's connections to the brokers, which send the queues of core.broker.control_channel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kreplog.core.broker.control_channel import ControlChannel, ControlChannels
from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
)
from kreplog.errors import PeerProtocolError
from kreplog.server.monitoring.logs import log_sent
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer, log_lost
from kreplog.wire import control_messages
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS

TIMEOUT_S = 30.0

_MAX_RESPONSE_BYTES = 100 << 20


def control_header(request: ControlRequest | ControlledShutdownRequest, number: int, client_id: str) -> RequestHeader:
    """The header of a request between controllers and brokers."""
    key = control_messages.KEYS[type(request)]
    return RequestHeader(key, BETWEEN_BROKERS[key][1], number, client_id)


class ControlSender:
    """Carries out SendControl effects.

    put: takes the events for the controller. address_of: returns a broker's internal endpoint, None if it is not
    registered. connect: connects to one. own: id of the controller's own broker. apply_locally: applies a request to
    that without a connection, which would cost a sixth of the time of a large failover.
    """

    def __init__(
        self,
        channels: ControlChannels,
        client_id: str,
        address_of: Callable[[int], Address | None],
        put: Callable[[ControlReplied], None],
        own: int,
        apply_locally: Callable[[ControlRequest], Awaitable[ControlResponse]],
        connect: Connect,
    ) -> None:
        self.connect = connect
        self._channels = channels
        self._client_id = client_id
        self._address_of = address_of
        self._put = put
        self._own = own
        self._apply_locally = apply_locally
        self._connections: dict[int, _Connection] = {}
        self._progress = asyncio.Event()

    def send(self, effect: SendControl) -> None:
        """Queue a request; one for a newer registration of the broker drops the queue of the older one."""
        channel = self._channels.put(effect)
        connection = self._connections.get(effect.broker)
        if connection is None or connection.channel is not channel:
            if connection is not None:
                connection.close()
            connection = self._connections[effect.broker] = _Connection(self, channel)
        connection.wake()
        log_sent(effect.request, effect.broker)

    async def until_idle(self, timeout_s: float, rest_s: float) -> None:
        """Wait until the channels are idle, for at most `timeout_s`, and then `rest_s` more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._channels.idle:
                    self._progress.clear()
                    await self._progress.wait()
        await asyncio.sleep(rest_s)  # no event says when the brokers have served their waiting clients

    def close_channel(self, broker: int) -> None:
        """Close the connection of a channel that has ended."""
        connection = self._connections.pop(broker, None)
        if connection is not None:
            connection.close()
            self._progress.set()

    def close(self) -> None:
        for broker in list(self._connections):
            self.close_channel(broker)

    async def exchange(self, connection: _Connection, request: ControlRequest) -> ControlResponse | None:
        """Send a request once. Returns its response, None if it is lost."""
        channel = connection.channel
        try:
            address = self._address_of(channel.broker)
            if address is None:
                raise ConnectionError("it is not registered with an internal endpoint")
            if channel.broker == self._own:
                return await self._exchange_locally(request)
            return await self._call(connection, address, request)
        except Exception as error:  # without an outcome the channel would send nothing more
            log_lost(f"{type(request).__name__} to broker {channel.broker}", error)
            connection.peer.close()
            return None

    async def _exchange_locally(self, request: ControlRequest) -> ControlResponse:
        await asyncio.sleep(0)  # the event loop serves others between two requests
        async with asyncio.timeout(TIMEOUT_S):
            return await self._apply_locally(request)

    async def _call(self, connection: _Connection, address: Address, request: ControlRequest) -> ControlResponse:
        header = control_header(request, connection.next_correlation(), self._client_id)
        frame = await connection.peer.call(address, control_messages.encode_request(request, header), TIMEOUT_S)
        response = control_messages.decode_response(frame, header)
        if isinstance(response, ControlledShutdownResponse):
            raise PeerProtocolError("a response to another request")
        return response

    def next_request(self, channel: ControlChannel, now_ms: int) -> ControlRequest | None:
        return self._channels.next_request(channel, now_ms)

    def replied(self, channel: ControlChannel, response: ControlResponse | None, now_ms: int) -> None:
        event = self._channels.replied(channel, response, now_ms)
        self._progress.set()
        if event is not None:
            self._put(event)


class _Connection:
    """The connection of one channel."""

    def __init__(self, owner: ControlSender, channel: ControlChannel) -> None:
        self.channel = channel
        self.peer = Peer(_MAX_RESPONSE_BYTES, connect=owner.connect)
        self._owner = owner
        self._correlation = 0
        self._queued = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"kreplog-channel-{channel.broker}")

    def wake(self) -> None:
        """A request was queued."""
        self._queued.set()

    def next_correlation(self) -> int:
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        return self._correlation

    async def _run(self) -> None:
        channel, loop = self.channel, asyncio.get_running_loop()

        def now_ms() -> int:
            return int(loop.time() * 1000)

        while True:
            request = self._owner.next_request(channel, now_ms())
            if request is not None:
                self._owner.replied(channel, await self._owner.exchange(self, request), now_ms())
            elif channel.idle:
                self._queued.clear()
                await self._queued.wait()
            else:
                await asyncio.sleep(max(channel.retry_ms - now_ms(), 1) / 1000)  # ended by closing the channel

    def close(self) -> None:
        self._task.cancel()
        self.peer.close()
