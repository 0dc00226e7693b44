"""QueuedSender: sends the requests of core.broker.request_queues, over one connection to each broker."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from kreplog.core.broker.request_queues import RequestQueues
from kreplog.server.network.connections import Frame
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer, log_lost
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_RESPONSE_BYTES = 16 << 20

E = TypeVar("E")
R = TypeVar("R")
D = TypeVar("D")


class QueuedSender(ABC, Generic[E, R]):
    """A task and a connection for each broker. key: of the requests. timeout_ms: after which a response is lost.
    address_of: a broker's internal endpoint, None if it is not known."""

    def __init__(
        self,
        key: ApiKey,
        client_id: str,
        queues: RequestQueues[E, R],
        timeout_ms: int,
        address_of: Callable[[int], Address | None],
        connect: Connect,
    ) -> None:
        self._key = key
        self._name = "".join(word.capitalize() for word in key.name.split("_"))
        self._client_id = client_id
        self._queues = queues
        self._timeout_s = timeout_ms / 1000
        self._address_of = address_of
        self._connect = connect
        self._queued: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def put(self, broker: int, effect: E) -> None:
        self._queues.put(broker, effect)
        queued = self._queued.get(broker)
        if queued is None:
            queued = self._queued[broker] = asyncio.Event()
            work = self._run(broker, queued)
            task = asyncio.get_running_loop().create_task(work, name=f"kreplog-{self._name}-{broker}")
            self._tasks.append(task)
        queued.set()

    async def _run(self, broker: int, queued: asyncio.Event) -> None:
        peer, correlation = Peer(_MAX_RESPONSE_BYTES, connect=self._connect), 0
        try:
            while True:
                request = self._queues.next_request(broker)
                if request is None:
                    queued.clear()
                    await queued.wait()
                else:
                    correlation = (correlation + 1) & 0x7FFFFFFF
                    await self.exchange(peer, broker, correlation, request)
                    self._queues.replied(broker)
        finally:
            peer.close()

    @abstractmethod
    async def exchange(self, peer: Peer, broker: int, correlation: int, request: R) -> None:
        """Send a request, and pass its outcome on."""

    async def call(
        self,
        peer: Peer,
        broker: int,
        correlation: int,
        encode: Callable[[RequestHeader], Sequence[Buffer]],
        decode: Callable[[Frame, RequestHeader], D],
    ) -> D | None:
        """The response to a request; None if it is lost, or anything else is wrong: without an outcome, whatever waits
        for it and for the requests behind it would wait for ever."""
        header = RequestHeader(self._key, BETWEEN_BROKERS[self._key][1], correlation, self._client_id)
        try:
            return decode(await peer.call(self._address(broker), encode(header), self._timeout_s), header)
        except Exception as error:
            log_lost(f"{self._name} to broker {broker}", error)
            peer.close()
            return None

    def _address(self, broker: int) -> Address:
        """Raises ConnectionError."""
        address = self._address_of(broker)
        if address is None:
            raise ConnectionError("it is not registered with an internal endpoint")
        return address

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
