"""AddPartitionsSender: has coordinators verify or add the partitions of transactions that this broker leads (KIP-890).

What waits for the same coordinator goes into one request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied, Received
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kreplog.errors import KreplogError
from kreplog.server.network.internal import Address
from kreplog.server.network.peers import Connect, Peer
from kreplog.server.network.serving import LocalRequest
from kreplog.server.replication.request_queues import TIMEOUT_S, RequestQueues
from kreplog.wire import transactions
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey

_log = logging.getLogger("kreplog.server")


class AddPartitionsSender(RequestQueues[SendAddPartitions]):
    """Carries out SendAddPartitions. own: this broker's id. coordinate: takes a request for its coordinator of
    transactions. put: takes the events of its replication core. address_of: as for RequestQueues."""

    def __init__(
        self,
        client_id: str,
        own: int,
        coordinate: Callable[[Received], None],
        put: Callable[[AddPartitionsReplied], None],
        address_of: Callable[[int], Address | None],
        connect: Connect,
    ) -> None:
        super().__init__("kreplog-add-partitions", address_of, connect)
        self._client_id = client_id
        self._own = own
        self._coordinate = coordinate
        self._answer = put

    def send(self, effect: SendAddPartitions) -> None:
        if effect.coordinator == self._own:
            self._coordinate(Received(LocalRequest(partial(self._answered, effect)), effect.request))
        else:
            self.put(effect.coordinator, effect)

    def _answered(self, effect: SendAddPartitions, response: AddPartitionsToTxnResponse | None) -> None:
        (partition,) = effect.request.partitions
        error = None if response is None else dict(response.partitions).get(partition)
        epoch = -1 if response is None else response.coordinator_epoch
        self._answer(AddPartitionsReplied(effect.tag, error, epoch))

    async def exchange(
        self, peer: Peer, broker: int, correlation: int, effects: list[SendAddPartitions]
    ) -> list[SendAddPartitions]:
        together, requests, others = _together(effects)
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        header = RequestHeader(key, BETWEEN_BROKERS[key][1], correlation, self._client_id)
        responses: dict[str, AddPartitionsToTxnResponse] = {}
        try:
            request = transactions.encode_leaders_add_partitions(requests, header)
            frame = await peer.call(self.address(broker), request, TIMEOUT_S)
            responses = transactions.decode_leaders_add_partitions_response(frame, header)
        except (OSError, TimeoutError, KreplogError) as error:
            _log.info(
                "partitions of transactions to coordinator %d: no response: %s",
                broker,
                str(error) or type(error).__name__,
            )
            peer.close()
        for effect in together:
            self._answered(effect, responses.get(effect.request.transactional_id))
        return others


def _together(
    effects: list[SendAddPartitions],
) -> tuple[list[SendAddPartitions], list[AddPartitionsToTxnRequest], list[SendAddPartitions]]:
    """Those that one request holds, in which a transactional id stands once; what it holds; and the others."""
    requests: dict[str, AddPartitionsToTxnRequest] = {}
    together, others = [], []
    for effect in effects:
        request = effect.request
        first = requests.setdefault(request.transactional_id, request)
        if replace(first, partitions=request.partitions) != request:
            others.append(effect)
            continue
        names = dict.fromkeys((*first.partitions, *request.partitions))
        requests[request.transactional_id] = replace(first, partitions=tuple(names))
        together.append(effect)
    return together, [*requests.values()], others
