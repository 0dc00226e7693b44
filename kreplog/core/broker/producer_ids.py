"""ProducerIds: the producer ids that a broker hands out, from blocks that it allocates in the coordination store.

A node has the first id that is in no block. A broker allocates the next block by moving it on, on condition that no
other broker has meanwhile, so each id is in one block of one process. When the response of that write is lost, the
block may be allocated: nobody gets its ids, nor the rest of a block of a broker that stops. Source: Kafka,
ZkProducerIdManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from kreplog.core import nodes
from kreplog.core.effects import GetNodes, Multi, Nodes, Steps
from kreplog.core.transaction_messages import (
    NO_PRODUCER_ID,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import BadVersionError, CoordinationError, ErrorCode, KreplogError, NodeExistsError
from kreplog.types import Create, Node, SetData, StoreOperation

BLOCK = 1000
"""Ids of a block."""

ATTEMPTS = 5
"""Maximum of attempts to allocate a block: other brokers may be first each time."""

LAST_PRODUCER_ID = 2**63 - 1


Take = Callable[[int, KreplogError | None], None]
"""Takes a producer id; NO_PRODUCER_ID with the error for which there is none."""

R = TypeVar("R", bound=InitProducerIdRequest | EndTxnRequest)


class ProducerIds:
    """The producer ids of one process of a broker, one after the other to those that request one. block: ids that it
    allocates at once."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._ids = range(0)
        self._waiting: deque[Take] = deque()
        self._is_allocating = False

    def request(self, take: Take) -> None:
        """Request an id, behind the others that wait for one."""
        self._waiting.append(take)

    def next_steps(self) -> Steps[int] | None:
        """Steps to carry out now, which return an id or raise CoordinationError, and then `ended`. None if nobody waits
        for an id, or steps are carried out: two at once would allocate two blocks."""
        if self._is_allocating or not self._waiting:
            return None
        self._is_allocating = True
        return self._next()

    def ended(self) -> Take:
        """The steps have ended. Returns what takes their outcome."""
        self._is_allocating = False
        return self._waiting.popleft()

    def _next(self) -> Steps[int]:
        """The next id, unique in the cluster, from a new block if the last one is used up."""
        if not self._ids:
            self._ids = yield from allocate(self._block)
        producer_id, self._ids = self._ids[0], self._ids[1:]
        return producer_id


def needs_producer_id(request: object, transactions: TransactionCoordinator) -> bool:
    """Whether a request to this coordinator needs a producer id that nobody has."""
    if isinstance(request, InitProducerIdRequest):
        return request.new_producer_id == NO_PRODUCER_ID
    return isinstance(request, EndTxnRequest) and transactions.needs_producer_id(request)


def adding_producer_id(
    request: R, serve: Callable[[R], None], respond: Callable[[InitProducerIdResponse | EndTxnResponse], None]
) -> Take:
    """Passes the request on to `serve` with the id, or a retriable error to `respond` if there is none."""

    def take(producer_id: int, error: KreplogError | None) -> None:
        if error is None:
            serve(replace(request, new_producer_id=producer_id))
        else:
            respond(no_producer_id_response(request))

    return take


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
