"""Mutations of the allocation of producer ids."""

from __future__ import annotations

from contextlib import suppress

from kreplog.core import nodes
from kreplog.core.broker import producer_ids
from kreplog.core.effects import GetNodes, Multi, Nodes, Steps
from kreplog.errors import ConnectionLossError
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import Create, Node, SetData, StoreOperation

MUTATIONS = MutationGroup()


@MUTATIONS.add("producer-ids-allocated-unconditionally")
def _producer_ids_allocated_unconditionally() -> list[Patch]:
    """A block is allocated although another broker has allocated it since the node was read."""

    def allocation(node: Node | None, first: int) -> StoreOperation:
        content = str(first).encode()
        return Create(nodes.PRODUCER_IDS, content) if node is None else SetData(nodes.PRODUCER_IDS, content, -1)

    return [(producer_ids, "allocation", allocation)]


@MUTATIONS.add("lost-allocation-counts")
def _lost_allocation_counts() -> list[Patch]:
    """A block of producer ids is handed out when the response of the store is lost, and so perhaps the request."""

    def allocate(block: int) -> Steps[range]:
        found: Nodes = yield GetNodes((nodes.PRODUCER_IDS,))
        first = 0 if found[0] is None else nodes.decode_number(nodes.PRODUCER_IDS, found[0])
        with suppress(ConnectionLossError):
            yield Multi((producer_ids.allocation(found[0], first + block),))
        return range(first, first + block)

    return [(producer_ids, "allocate", allocate)]
