"""ProducerIdHandlers: InitProducerId, and other requests to a coordinator that need a producer id which nobody has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kreplog.core.broker.producer_ids import ProducerIds, Take, adding_producer_id, needs_producer_id
from kreplog.core.controller.admin_requests import admin_error
from kreplog.core.effects import Steps
from kreplog.core.events import Received
from kreplog.core.transaction_messages import (
    NO_PRODUCER_ID,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import CoordinationError, ErrorCode, InvariantError, KreplogError
from kreplog.server.handlers.admin import Fields
from kreplog.server.network.serving import LocalRequest
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out
from kreplog.wire.transactions import error_code
from kreplog.wire.versions import ApiKey

_log = logging.getLogger("kreplog.server")


class ProducerIdHandlers:
    """Handlers of requests for producer ids. transactions: this broker's coordinator, to which `receive` passes
    requests. start: starts a task."""

    def __init__(
        self,
        store: AnySession,
        transactions: TransactionCoordinator,
        receive: Callable[[Received], None],
        start: Callable[[Awaitable[None]], asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._transactions = transactions
        self._receive = receive
        self._start = start
        self._ids = ProducerIds()

    async def init_producer_id(self, request: Any) -> Fields:
        """Allocate a producer id, unique in the cluster; of a transactional id its coordinator decides."""
        if request.transactional_id is not None:
            return await self._init_transactional_id(request)
        try:
            producer_id = await self._new_id()
        except CoordinationError as error:
            return {"error_code": admin_error(error), "producer_id": -1, "producer_epoch": -1}
        return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}

    async def _init_transactional_id(self, request: Any) -> Fields:
        timeout_ms, known = request.transaction_timeout_ms, (request.producer_id, request.producer_epoch)
        begin = InitProducerIdRequest(request.transactional_id, timeout_ms, NO_PRODUCER_ID, *known)
        response: InitProducerIdResponse = await self._coordinate(begin)
        return {
            "error_code": error_code(response.error, ApiKey.INIT_PRODUCER_ID, request.version),
            "producer_id": response.producer_id,
            "producer_epoch": response.producer_epoch,
        }

    def needs_producer_id(self, request: object) -> bool:
        return needs_producer_id(request, self._transactions)

    async def end_with_new_id(self, request: EndTxnRequest) -> EndTxnResponse:
        """End the transaction of a producer whose epochs are used up; it continues with another producer id."""
        response: EndTxnResponse = await self._coordinate(request)
        return response

    async def _coordinate(self, request: InitProducerIdRequest | EndTxnRequest) -> Any:
        """The coordinator's response to a request, which gets a new producer id if it needs one."""
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def respond(result: Any) -> None:
            if not response.done():
                response.set_result(result)

        def serve(complete: InitProducerIdRequest | EndTxnRequest) -> None:
            self._receive(Received(LocalRequest(respond), complete))

        if self.needs_producer_id(request):
            self._request(adding_producer_id(request, serve, respond))
        else:
            serve(request)
        return await response

    async def _new_id(self) -> int:
        """Raises CoordinationError."""
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def take(producer_id: int, error: KreplogError | None) -> None:
            if taken.done():
                return
            if error is None:
                taken.set_result(producer_id)
            else:
                taken.set_exception(error)

        self._request(take)
        return await taken

    def _request(self, take: Take) -> None:
        self._ids.request(take)
        steps = self._ids.next_steps()
        if steps is not None:
            self._start(self._carry_out(steps))

    async def _carry_out(self, steps: Steps[int] | None) -> None:
        while steps is not None:
            producer_id: int = NO_PRODUCER_ID
            error: KreplogError | None = None
            try:
                producer_id = await carry_out(steps, self._store)
            except KreplogError as failed:
                error = failed
            except Exception as failed:  # else nobody would ever get an id
                _log.exception("no producer id could be allocated")
                error = InvariantError(f"no producer id could be allocated: {failed!r}")
            take = self._ids.ended()
            take(producer_id, error)
            steps = self._ids.next_steps()
