"""MarkerSender: sends the markers of transactions to the leaders of their partitions, one request at a time to each.

What waits for a leader meanwhile goes together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kreplog.core.broker import coordinator_log
from kreplog.core.broker.request_queues import marker_queues
from kreplog.core.broker.write_markers import CoalescedMarkers
from kreplog.core.effects import SendMarkers
from kreplog.core.events import MarkersReplied, Received
from kreplog.core.messages import ProduceResponse
from kreplog.core.transactions.marker_writer import RESPONSE_TIMEOUT_MS
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.server.network.serving import LocalRequest
from kreplog.server.network.slices import in_slices
from kreplog.server.replication.queued_sender import QueuedSender
from kreplog.wire import transactions
from kreplog.wire.versions import ApiKey


class MarkerSender(QueuedSender[SendMarkers, CoalescedMarkers]):
    """Carries out SendMarkers. own: this broker's id. append: takes a request for its replication core. put: takes the
    coordinator's events. address_of: a broker's internal endpoint, None if it is not known."""

    def __init__(
        self,
        client_id: str,
        own: int,
        append: Callable[[Received], None],
        put: Callable[[MarkersReplied], None],
        address_of: Callable[[int], Address | None],
        connect: Connect,
    ) -> None:
        queues, key = marker_queues(), ApiKey.WRITE_TXN_MARKERS
        super().__init__(key, client_id, queues, RESPONSE_TIMEOUT_MS, address_of, connect)
        self._own = own
        self._append = append
        self._answer = put

    def send(self, effect: SendMarkers) -> None:
        if effect.leader == self._own:
            self._append(Received(LocalRequest(partial(self._replied, effect)), effect.request))
        else:
            self.put(effect.leader, effect)

    def _replied(self, effect: SendMarkers, response: ProduceResponse) -> None:
        self._answer(coordinator_log.markers_replied(effect, response.partitions))

    async def exchange(self, peer: Peer, broker: int, correlation: int, coalesced: CoalescedMarkers) -> None:
        encode = partial(transactions.encode_write_markers, coalesced.request)
        decode = partial(transactions.decode_write_markers_response, request=coalesced.request)
        response = await self.call(peer, broker, correlation, encode, decode)
        async for event in in_slices(coalesced.replied(response)):  # the coordinator writes a record after each
            self._answer(event)
