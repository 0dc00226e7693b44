"""VirtualMarkerSender: carries out SendMarkers, one request at a time to each leader, as brokers do."""

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
from kreplog.sim.brokers.core_runner import LocalReply
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS


class VirtualMarkerSender:
    """The sender of one process of broker `own`. alive: whether it is. append: takes a request for its replication
    core. put: takes the events of its coordinator of transactions."""

    def __init__(
        self,
        network: Network,
        own: int,
        alive: Callable[[], bool],
        append: Callable[[Received], None],
        put: Callable[[MarkersReplied], None],
    ) -> None:
        self._network = network
        self._own = own
        self._alive = alive
        self._append = append
        self._put = put
        self._queues = marker_queues()

    def send(self, effect: SendMarkers) -> None:
        """Over the network, unless this broker is the leader."""
        if effect.leader == self._own:
            self._append(Received(LocalReply(partial(self._answer, effect)), effect.request))
        else:
            self._queues.put(effect.leader, effect)
            self._send_next(effect.leader)

    def _send_next(self, leader: int) -> None:
        coalesced = self._queues.next_request(leader)
        if coalesced is not None:
            replied, timeout_us = partial(self._replied, leader, coalesced), RESPONSE_TIMEOUT_MS * MS
            self._network.call(f"b{self._own}", f"b{leader}", "markers", coalesced.request, replied, timeout_us)

    def _replied(self, leader: int, coalesced: CoalescedMarkers, response: ProduceResponse | None) -> None:
        if not self._alive():
            return
        for event in coalesced.replied(response):
            self._put(event)
        self._queues.replied(leader)
        self._send_next(leader)

    def _answer(self, effect: SendMarkers, response: ProduceResponse) -> None:
        if self._alive():
            self._put(coordinator_log.markers_replied(effect, response.partitions))
