"""Clients' requests for producer ids. Some clients of the simulator request nothing but ids, so that several brokers
allocate blocks at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from kreplog.core.transaction_messages import NO_PRODUCER_ID
from kreplog.sim.clients.workload import Call, Client, ClientContext, ClientEffect, ClientMetadata, Sleep

REQUESTERS = 3
"""Clients that request ids only."""

PAUSE_MS = 40
"""Maximum between two requests of such a client."""


@dataclass(frozen=True, slots=True)
class ProducerIdRequest:
    """InitProducerId of a producer without transactional id. The response is its id, NO_PRODUCER_ID for an error."""


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
