"""QueuedSender: sends the requests of core.broker.request_queues, over one connection to each broker."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from kreplog.core.broker.request_queues import RequestQueues
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer

_MAX_RESPONSE_BYTES = 16 << 20

E = TypeVar("E")
R = TypeVar("R")


class QueuedSender(ABC, Generic[E, R]):
    """A task and a connection for each broker. name: of the tasks. address_of: a broker's internal endpoint, None if it
    is not known."""

    def __init__(
        self, name: str, queues: RequestQueues[E, R], address_of: Callable[[int], Address | None], connect: Connect
    ) -> None:
        self._name = name
        self._queues = queues
        self._address_of = address_of
        self._connect = connect
        self._queued: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def put(self, broker: int, effect: E) -> None:
        self._queues.put(broker, effect)
        queued = self._queued.get(broker)
        if queued is None:
            queued = self._queued[broker] = asyncio.Event()
            task = asyncio.get_running_loop().create_task(self._run(broker, queued), name=f"{self._name}-{broker}")
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

    def address(self, broker: int) -> Address:
        """Raises ConnectionError."""
        address = self._address_of(broker)
        if address is None:
            raise ConnectionError("it is not registered with an internal endpoint")
        return address

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
