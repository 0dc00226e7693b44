"""AddPartitionsSender: has coordinators verify or add the partitions of transactions of this leader (KIP-890)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kreplog.core.broker.add_partitions import RESPONSE_TIMEOUT_MS, CoalescedAddPartitions, outcome_of
from kreplog.core.broker.request_queues import add_partitions_queues
from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied, Received
from kreplog.core.transaction_messages import AddPartitionsToTxnResponse
from kreplog.errors import KreplogError
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.server.network.serving import LocalRequest
from kreplog.server.replication.queued_sender import QueuedSender
from kreplog.wire import transactions
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey

_log = logging.getLogger("kreplog.server")


class AddPartitionsSender(QueuedSender[SendAddPartitions, CoalescedAddPartitions]):
    """Carries out SendAddPartitions. own: this broker's id. coordinate: takes a request for its coordinator of
    transactions. put: takes the events of its replication core. address_of: as for QueuedSender."""

    def __init__(
        self,
        client_id: str,
        own: int,
        coordinate: Callable[[Received], None],
        put: Callable[[AddPartitionsReplied], None],
        address_of: Callable[[int], Address | None],
        connect: Connect,
    ) -> None:
        super().__init__("kreplog-add-partitions", add_partitions_queues(), address_of, connect)
        self._client_id = client_id
        self._own = own
        self._coordinate = coordinate
        self._answer = put

    def send(self, effect: SendAddPartitions) -> None:
        if effect.coordinator == self._own:
            self._coordinate(Received(LocalRequest(partial(self._answered, effect)), effect.request))
        else:
            self.put(effect.coordinator, effect)

    def _answered(self, effect: SendAddPartitions, response: AddPartitionsToTxnResponse) -> None:
        self._answer(outcome_of(effect, response))

    async def exchange(self, peer: Peer, broker: int, correlation: int, coalesced: CoalescedAddPartitions) -> None:
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        header = RequestHeader(key, BETWEEN_BROKERS[key][1], correlation, self._client_id)
        responses: dict[str, AddPartitionsToTxnResponse] = {}
        try:
            request = transactions.encode_leaders_add_partitions(coalesced.transactions, header)
            frame = await peer.call(self.address(broker), request, RESPONSE_TIMEOUT_MS / 1000)
            responses = transactions.decode_leaders_add_partitions_response(frame, header)
        except (OSError, TimeoutError, KreplogError) as error:
            _log.info(
                "AddPartitionsToTxn to coordinator %d: no response: %s",
                broker,
                str(error) or type(error).__name__,
            )
            peer.close()
        for event in coalesced.replied(responses):
            self._answer(event)
