"""MarkerSender: sends the markers of transactions to the leaders of their partitions, one request at a time to each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from kreplog.core.effects import SendMarkers
from kreplog.core.events import MarkersAnswered, Received
from kreplog.core.messages import ProduceResponse
from kreplog.errors import KreplogError
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.server.network.serving import LocalRequest
from kreplog.wire import transactions
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey

_log = logging.getLogger("kreplog.server")

TIMEOUT_S = 30.0

_MAX_RESPONSE_BYTES = 16 << 20


class MarkerSender:
    """Carries out SendMarkers. own: this broker's id. append: takes a request for its replication core. put: takes the
    coordinator's events. address_of: a broker's internal endpoint, None if it is not known."""

    def __init__(
        self,
        client_id: str,
        own: int,
        append: Callable[[Received], None],
        put: Callable[[MarkersAnswered], None],
        address_of: Callable[[int], Address | None],
        connect: Connect,
    ) -> None:
        self._client_id = client_id
        self._own = own
        self._append = append
        self._put = put
        self._address_of = address_of
        self._connect = connect
        self._queues: dict[int, asyncio.Queue[SendMarkers]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def send(self, effect: SendMarkers) -> None:
        if effect.leader == self._own:
            self._append(Received(LocalRequest(partial(self._appended, effect.tag)), effect.request))
            return
        queue = self._queues.get(effect.leader)
        if queue is None:
            queue = self._queues[effect.leader] = asyncio.Queue()
            task = asyncio.get_running_loop().create_task(
                self._run(effect.leader, queue), name=f"kreplog-markers-{effect.leader}"
            )
            self._tasks.append(task)
        queue.put_nowait(effect)

    def _appended(self, tag: int, response: ProduceResponse) -> None:
        self._put(MarkersAnswered(tag, tuple((produced.partition, produced.error) for produced in response.partitions)))

    async def _run(self, leader: int, queue: asyncio.Queue[SendMarkers]) -> None:
        peer, correlation = Peer(_MAX_RESPONSE_BYTES, connect=self._connect), 0
        try:
            while True:
                effect = await queue.get()
                correlation = (correlation + 1) & 0x7FFFFFFF
                self._put(await self._exchange(peer, leader, correlation, effect))
        finally:
            peer.close()

    async def _exchange(self, peer: Peer, leader: int, correlation: int, effect: SendMarkers) -> MarkersAnswered:
        key = ApiKey.WRITE_TXN_MARKERS
        header = RequestHeader(key, BETWEEN_BROKERS[key][1], correlation, self._client_id)
        try:
            address = self._address_of(leader)
            if address is None:
                raise ConnectionError("it is not registered with an internal endpoint")
            frame = await peer.call(address, transactions.encode_write_markers(effect.request, header), TIMEOUT_S)
            return MarkersAnswered(effect.tag, transactions.decode_write_markers_response(frame, header))
        except (OSError, TimeoutError, KreplogError) as error:
            _log.info("markers to broker %d: no response: %s", leader, str(error) or type(error).__name__)
            peer.close()
            return MarkersAnswered(effect.tag)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
