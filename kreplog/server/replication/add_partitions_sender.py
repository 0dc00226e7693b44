"""AddPartitionsSender: has coordinators verify or add the partitions of transactions of this leader (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kreplog.core.broker.add_partitions import RESPONSE_TIMEOUT_MS, CoalescedAddPartitions, outcome_of
from kreplog.core.broker.request_queues import add_partitions_queues
from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied, Received
from kreplog.core.transaction_messages import AddPartitionsToTxnResponse
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.server.network.serving import LocalRequest
from kreplog.server.replication.queued_sender import QueuedSender
from kreplog.wire import transactions
from kreplog.wire.versions import ApiKey


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
        queues, key = add_partitions_queues(), ApiKey.ADD_PARTITIONS_TO_TXN
        super().__init__(key, client_id, queues, RESPONSE_TIMEOUT_MS, address_of, connect)
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
        encode = partial(transactions.encode_leaders_add_partitions, coalesced.transactions)
        decode = transactions.decode_leaders_add_partitions_response
        responses = await self.call(peer, broker, correlation, encode, decode)
        for event in coalesced.replied(responses or {}):
            self._answer(event)
