"""A controller's channels: a queue and a connection for every broker, one message in flight, repeated until answered.

A channel belongs to one registration of its broker and ends with it, whatever is still in it (F30).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from kreplog.core.controller.requests import take_together
from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
)
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.server.internal import Address
from kreplog.server.logs import log_sent
from kreplog.server.peers import Connect, Peer
from kreplog.wire import brokers
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS

_log = logging.getLogger("kreplog.server")

RETRY_S = 0.3
TIMEOUT_S = 30.0

_MAX_ANSWER_BYTES = 100 << 20


def control_header(request: ControlRequest | ControlledShutdownRequest, number: int, client_id: str) -> RequestHeader:
    """The header of a request between controllers and brokers."""
    key = brokers.KEYS[type(request)]
    return RequestHeader(key, BETWEEN_BROKERS[key][1], number, client_id)


class Channels:
    """Carries out SendControl effects. address_of: a broker's internal endpoint, None once it is not registered any
    more. connect: to one.

    own, obey: the controller's own broker, and how that is told with no connection; it would spend a sixth of the time
    of a large failover on writing to itself.
    """

    def __init__(
        self,
        client_id: str,
        address_of: Callable[[int], Address | None],
        put: Callable[[ControlReplied], None],
        own: int,
        obey: Callable[[ControlRequest], Awaitable[ControlResponse]],
        connect: Connect,
    ) -> None:
        self.connect = connect
        self._client_id = client_id
        self._address_of = address_of
        self._put = put
        self._own = own
        self._obey = obey
        self._channels: dict[int, _Channel] = {}

    def send(self, effect: SendControl) -> None:
        """Queue a request; one for a newer registration drops the queue of the older whole."""
        channel = self._channels.get(effect.broker)
        if channel is None or channel.broker_epoch != effect.broker_epoch:
            if channel is not None:
                channel.close()
            channel = self._channels[effect.broker] = _Channel(self, effect.broker, effect.broker_epoch)
        channel.put(effect.request)
        log_sent(effect.request, effect.broker)

    async def until_idle(self, timeout_s: float, rest_s: float) -> None:
        """Wait until nothing is queued or under way, `timeout_s` at the most, and then `rest_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for channel in list(self._channels.values()):
                    await channel.idle.wait()
        await asyncio.sleep(rest_s)  # for the brokers' clients, who do not tell when they have been served

    def keep(self, live: Mapping[int, int]) -> None:
        """End the channels of registrations that are not among `live` (broker id: broker epoch)."""
        for broker, channel in list(self._channels.items()):
            if live.get(broker) != channel.broker_epoch:
                channel.close()
                del self._channels[broker]

    def close(self) -> None:
        """End all of them, as when the controller resigns."""
        self.keep({})

    async def ask(self, channel: _Channel, request: ControlRequest) -> ControlReplied:
        """Send it until it is answered; BROKER_NOT_AVAILABLE is no answer."""
        while True:
            try:
                address = self._address_of(channel.broker)
                if address is None:
                    raise ConnectionError("it is not registered with an internal endpoint")
                if channel.broker == self._own:
                    response = await self._tell_own(request)
                else:
                    response = await self._call(channel, address, request)
                if response.error is ErrorCode.BROKER_NOT_AVAILABLE:
                    raise ConnectionError("it takes none until it is registered")
            except (OSError, TimeoutError, PeerProtocolError) as error:
                _log.info(
                    "%s to broker %d, again in %g s: %s",
                    type(request).__name__,
                    channel.broker,
                    RETRY_S,
                    str(error) or type(error).__name__,
                )
                channel.peer.close()
                await asyncio.sleep(RETRY_S)  # the broker may be starting; it is not to be flooded meanwhile
            else:
                return ControlReplied(channel.broker, channel.broker_epoch, request, response)

    async def _tell_own(self, request: ControlRequest) -> ControlResponse:
        await asyncio.sleep(0)  # nothing here waits for a socket: others have their turn between any two
        async with asyncio.timeout(TIMEOUT_S):
            return await self._obey(request)

    async def _call(self, channel: _Channel, address: Address, request: ControlRequest) -> ControlResponse:
        header = control_header(request, channel.next_correlation(), self._client_id)
        frame = await channel.peer.call(address, brokers.encode_request(request, header), TIMEOUT_S)
        response = brokers.decode_response(frame, header)
        if isinstance(response, ControlledShutdownResponse):
            raise PeerProtocolError("an answer to another request")
        return response

    def answered(self, channel: _Channel, answer: ControlReplied) -> None:
        if self._channels.get(channel.broker) is channel:
            self._put(answer)


class _Channel:
    """One broker's. idle: nothing is queued or under way, or it is closed."""

    def __init__(self, owner: Channels, broker: int, broker_epoch: int) -> None:
        self.broker = broker
        self.broker_epoch = broker_epoch
        self.peer = Peer(_MAX_ANSWER_BYTES, connect=owner.connect)
        self._owner = owner
        self._correlation = 0
        self._waiting: deque[ControlRequest] = deque()
        self._more = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"kreplog-channel-{broker}")

    def put(self, request: ControlRequest) -> None:
        self._waiting.append(request)
        self.idle.clear()
        self._more.set()

    def next_correlation(self) -> int:
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        return self._correlation

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._more.clear()
                self.idle.set()
                await self._more.wait()
            answer = await self._owner.ask(self, take_together(self._waiting))
            self._owner.answered(self, answer)

    def close(self) -> None:
        self.idle.set()
        self._task.cancel()
        self.peer.close()
