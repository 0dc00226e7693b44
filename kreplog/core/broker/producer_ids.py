"""ProducerIds: the producer ids that a broker hands out, from blocks that it allocates in the coordination store.

A node has the first id that is in no block. A broker allocates the next block by moving it on, on condition that no
other broker has meanwhile, so each id is in one block of one process. When the response of that write is lost, the
block may be allocated: nobody gets its ids, nor the rest of a block of a broker that stops. Source: Kafka,
ZkProducerIdManager.
"""

from __future__ import annotations

from kreplog.core import nodes
from kreplog.core.effects import GetNodes, Multi, Nodes, Steps
from kreplog.core.transaction_messages import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kreplog.errors import BadVersionError, CoordinationError, ErrorCode, NodeExistsError
from kreplog.types import Create, Node, SetData, StoreOperation

BLOCK = 1000
"""Ids of a block."""

ATTEMPTS = 5
"""Maximum of attempts to allocate a block: other brokers may be first each time."""

LAST_PRODUCER_ID = 2**63 - 1


class ProducerIds:
    """The producer ids of one process of a broker. block: ids that it allocates at once."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._ids = range(0)

    def next(self) -> Steps[int]:
        """The next id, unique in the cluster, from a new block if the last one is used up. Its steps are carried out
        before those of the next call begin. Raises CoordinationError: the next call tries again."""
        if not self._ids:
            self._ids = yield from allocate(self._block)
        producer_id, self._ids = self._ids[0], self._ids[1:]
        return producer_id


def allocate(block: int) -> Steps[range]:
    """Allocate the next `block` ids. Raises CoordinationError: also if the store's response is lost, then those ids may
    be allocated, but are not used."""
    for _ in range(ATTEMPTS):
        found: Nodes = yield GetNodes((nodes.PRODUCER_IDS,))
        (node,) = found
        first = 0 if node is None else nodes.decode_number(nodes.PRODUCER_IDS, node)
        if first + block > LAST_PRODUCER_ID:
            text = f"no producer ids are left: all below {first} are allocated"
            raise CoordinationError(text, path=nodes.PRODUCER_IDS)
        try:
            yield Multi((allocation(node, first + block),))
        except (NodeExistsError, BadVersionError):
            continue
        return range(first, first + block)
    raise CoordinationError("too many brokers allocate producer ids at once", path=nodes.PRODUCER_IDS)


def allocation(node: Node | None, first: int) -> StoreOperation:
    """The write that makes `first` the first id that is in no block. node: as read, which must not have changed since.
    NodeExistsError, BadVersionError: it has."""
    content = str(first).encode()
    if node is None:
        return Create(nodes.PRODUCER_IDS, content)
    return SetData(nodes.PRODUCER_IDS, content, node.stat.version)


def no_producer_id_response(
    request: InitProducerIdRequest | EndTxnRequest,
) -> InitProducerIdResponse | EndTxnResponse:
    """The response to a request that needs a new producer id when none can be allocated: its producer tries again."""
    response = EndTxnResponse if isinstance(request, EndTxnRequest) else InitProducerIdResponse
    return response(ErrorCode.COORDINATOR_NOT_AVAILABLE)
