"""VirtualAddPartitionsSender: carries out SendAddPartitions, one request at a time to each coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kreplog.core.broker.add_partitions import RESPONSE_TIMEOUT_MS, CoalescedAddPartitions, GatheredResponses
from kreplog.core.broker.request_queues import add_partitions_queues
from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied, Received
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kreplog.sim.brokers.core_runner import LocalReply
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS


class VirtualAddPartitionsSender:
    """The sender of one process of a broker, on `host`. alive: whether it is. put: takes the events of its replication
    core."""

    def __init__(
        self, network: Network, host: str, alive: Callable[[], bool], put: Callable[[AddPartitionsReplied], None]
    ) -> None:
        self._network = network
        self._host = host
        self._alive = alive
        self._put = put
        self._queues = add_partitions_queues()

    def send(self, effect: SendAddPartitions) -> None:
        """Send a request to another broker."""
        self._queues.put(effect.coordinator, effect)
        self._send_next(effect.coordinator)

    def _send_next(self, coordinator: int) -> None:
        coalesced = self._queues.next_request(coordinator)
        if coalesced is not None:
            to, timeout_us = f"b{coordinator}", RESPONSE_TIMEOUT_MS * MS
            replied = partial(self._replied, coordinator, coalesced)
            self._network.call(self._host, to, "add partitions", coalesced.transactions, replied, timeout_us)

    def _replied(
        self,
        coordinator: int,
        coalesced: CoalescedAddPartitions,
        responses: Mapping[str, AddPartitionsToTxnResponse] | None,
    ) -> None:
        if not self._alive():
            return
        for event in coalesced.replied(responses or {}):
            self._put(event)
        self._queues.replied(coordinator)
        self._send_next(coordinator)


def receive_add_partitions(
    requests: Sequence[AddPartitionsToTxnRequest],
    put: Callable[[Received], None],
    reply: Callable[[Mapping[str, AddPartitionsToTxnResponse]], None],
) -> None:
    """Handle a request at the coordinator. put: takes the events of its core."""
    gathered = GatheredResponses(len(requests))

    def gather(transactional_id: str, response: AddPartitionsToTxnResponse) -> None:
        if responses := gathered.add(transactional_id, response):
            reply(responses)

    for request in requests:
        put(Received(LocalReply(partial(gather, request.transactional_id)), request))
