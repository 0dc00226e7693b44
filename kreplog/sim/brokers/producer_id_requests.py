"""A simulated broker's producer ids.

In one of 16 seeds brokers allocate blocks of few ids in the store, several at once, and lose its responses. In the
others the ids are numbers that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kreplog.core.broker.producer_ids import ProducerIds, Take, adding_producer_id, needs_producer_id
from kreplog.core.transaction_messages import NO_PRODUCER_ID
from kreplog.errors import KreplogError
from kreplog.sim.brokers.request_steps import carry_out

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

BLOCK = 2
"""Ids of a block."""


class VirtualProducerIds:
    """Hands out the producer ids of one process, and adds them to the requests that need one."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._ids = ProducerIds(BLOCK)

    def respond(self, reply_to: int) -> None:
        """Respond to a ProducerIdRequest."""
        self._request(lambda producer_id, error: self._process.cluster.network.reply(reply_to, producer_id))

    def add(self, request: Any, respond: Callable[[Any], None], serve: Callable[[Any], None]) -> None:
        """Pass a request on to `serve`, with a new producer id if it needs one; or an error to `respond`."""
        if needs_producer_id(request, self._process.cores.transactions):
            self._request(adding_producer_id(request, serve, respond))
        else:
            serve(request)

    def _request(self, take: Take) -> None:
        cluster = self._process.cluster
        if not cluster.plan.allocates_producer_ids:
            take(next(cluster.producer_ids), None)
            return
        self._ids.request(take)
        self._begin()

    def _begin(self) -> None:
        steps = self._ids.next_steps()
        if steps is not None:
            carry_out(self._process, steps, self._end)

    def _end(self, producer_id: int | None, error: KreplogError | None) -> None:
        if producer_id is not None:
            self._process.cluster.given_producer_ids.given(self._process.id, producer_id)
        take = self._ids.ended()
        self._begin()
        take(NO_PRODUCER_ID if producer_id is None else producer_id, error)
