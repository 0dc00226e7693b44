"""RequestQueues: requests of this broker's cores to other brokers, one at a time to each."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer

_MAX_RESPONSE_BYTES = 16 << 20

E = TypeVar("E")


class RequestQueues(ABC, Generic[E]):
    """Effects that are requests, queued by broker. name: of the tasks. address_of: a broker's internal endpoint, None
    if it is not known."""

    def __init__(self, name: str, address_of: Callable[[int], Address | None], connect: Connect) -> None:
        self._name = name
        self._address_of = address_of
        self._connect = connect
        self._queues: dict[int, asyncio.Queue[E]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def put(self, broker: int, effect: E) -> None:
        queue = self._queues.get(broker)
        if queue is None:
            queue = self._queues[broker] = asyncio.Queue()
            task = asyncio.get_running_loop().create_task(self._run(broker, queue), name=f"{self._name}-{broker}")
            self._tasks.append(task)
        queue.put_nowait(effect)

    async def _run(self, broker: int, queue: asyncio.Queue[E]) -> None:
        peer, correlation = Peer(_MAX_RESPONSE_BYTES, connect=self._connect), 0
        try:
            while True:
                waiting = [await queue.get()]
                while not queue.empty():
                    waiting.append(queue.get_nowait())
                effects: Sequence[E] = waiting
                while effects:
                    correlation = (correlation + 1) & 0x7FFFFFFF
                    effects = await self.exchange(peer, broker, correlation, effects)
        finally:
            peer.close()

    @abstractmethod
    async def exchange(self, peer: Peer, broker: int, correlation: int, effects: Sequence[E]) -> Sequence[E]:
        """Send one request for some of the effects, and pass its outcome on; returns the other effects."""

    def address(self, broker: int) -> Address:
        """Raises ConnectionError."""
        address = self._address_of(broker)
        if address is None:
            raise ConnectionError("it is not registered with an internal endpoint")
        return address

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
