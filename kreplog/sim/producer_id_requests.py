"""Producer ids in the simulator: the brokers' part, the clients' requests, the checker.

In one of 16 seeds brokers allocate blocks of few ids in the store, several at once since some clients request nothing
but ids, and lose its responses. In the others the ids are numbers that nobody has.

producer id twice   a broker hands out an id that it or another one has handed out
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.core.broker.producer_ids import ProducerIds, no_producer_id_response
from kreplog.core.transaction_messages import NO_PRODUCER_ID, EndTxnRequest, InitProducerIdRequest
from kreplog.errors import CoordinationError
from kreplog.sim.brokers.request_steps import carry_out
from kreplog.sim.clients.workload import Call, Client, ClientContext, ClientEffect, ClientMetadata, Sleep

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

BLOCK = 2
"""Ids of a block."""

REQUESTERS = 3
"""Clients that request ids only."""

PAUSE_MS = 40
"""Maximum between two requests of such a client."""


@dataclass(frozen=True, slots=True)
class ProducerIdRequest:
    """InitProducerId of a producer without transactional id. The response is its id, NO_PRODUCER_ID for an error."""


class ProducerIdChecker:
    """Judges the ids that brokers hand out. violate: called with the kind of a violation and its text."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._owners: dict[int, int] = {}

    def given(self, broker: int, producer_id: int) -> None:
        if producer_id in self._owners:
            text = f"broker {broker} hands out producer id {producer_id}, as broker {self._owners[producer_id]} has"
            self._violate("producer id twice", text)
        self._owners[producer_id] = broker


class VirtualProducerIds:
    """Hands out the producer ids of one process, and adds them to the requests that need one."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._ids = ProducerIds(BLOCK)
        self._waiting: deque[Callable[[int], None]] = deque()

    def respond(self, reply_to: int) -> None:
        """To a ProducerIdRequest."""
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

    def _end(self, producer_id: int, error: CoordinationError | None) -> None:
        if error is None:
            self._process.cluster.given_producer_ids.given(self._process.id, producer_id)
        else:
            producer_id = NO_PRODUCER_ID
        then = self._waiting.popleft()
        if self._waiting:
            self._begin()
        then(producer_id)


def new_producer_id(ids: Iterator[int] | None, metadata: ClientMetadata) -> Generator[ClientEffect, Any, int]:
    """The id of a new producer: from any broker, or the next of `ids`."""
    if ids is not None:
        return next(ids)
    while True:
        broker = metadata.random.choice(metadata.brokers)
        (producer_id,) = yield Call(broker, (ProducerIdRequest(),), metadata.settings.request_ms)
        if producer_id is not None and producer_id != NO_PRODUCER_ID:
            return int(producer_id)
        yield Sleep(metadata.settings.backoff_ms)


def id_requester(context: ClientContext) -> Client:
    """Request producer ids until the switch is off."""
    metadata = ClientMetadata(context)
    while not context.switch.off:
        yield from new_producer_id(None, metadata)
        yield Sleep(context.random.randint(0, PAUSE_MS))
