"""A simulated broker's producer ids.

In one of 16 seeds brokers allocate blocks of few ids in the store, several at once, and lose its responses. In the
others the ids are numbers that nobody has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.core.broker.producer_ids import ProducerIds, no_producer_id_response
from kreplog.core.transaction_messages import NO_PRODUCER_ID, EndTxnRequest, InitProducerIdRequest
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
        self._waiting: deque[Callable[[int], None]] = deque()

    def respond(self, reply_to: int) -> None:
        """Respond to a ProducerIdRequest."""
        self._next(partial(self._process.cluster.network.reply, reply_to))

    def add(self, request: Any, respond: Callable[[Any], None], serve: Callable[[Any], None]) -> None:
        """Pass a request on to `serve`, with a new producer id if it needs one; or an error to `respond`."""
        if not self._is_needed(request):
            serve(request)
            return

        def has_id(producer_id: int) -> None:
            if producer_id != NO_PRODUCER_ID:
                serve(replace(request, new_producer_id=producer_id))
            else:
                respond(no_producer_id_response(request))

        self._next(has_id)

    def _is_needed(self, request: Any) -> bool:
        if isinstance(request, InitProducerIdRequest):
            return request.new_producer_id == NO_PRODUCER_ID
        return isinstance(request, EndTxnRequest) and self._process.cores.transactions.needs_producer_id(request)

    def _next(self, then: Callable[[int], None]) -> None:
        """NO_PRODUCER_ID: the store cannot be used."""
        cluster = self._process.cluster
        if not cluster.plan.allocates_producer_ids:
            then(next(cluster.producer_ids))
            return
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        """Allocate an id for the first that waits: the steps of one request at a time."""
        carry_out(self._process, self._ids.next(), self._end)

    def _end(self, producer_id: int, error: KreplogError | None) -> None:
        if error is None:
            self._process.cluster.given_producer_ids.given(self._process.id, producer_id)
        else:
            producer_id = NO_PRODUCER_ID
        then = self._waiting.popleft()
        if self._waiting:
            self._begin()
        then(producer_id)
