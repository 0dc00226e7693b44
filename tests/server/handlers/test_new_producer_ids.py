"""Producer ids of a broker: requests wait for each other, and each gets its own id or the store's error."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.coord.memory import MemoryStore
from kreplog.core.broker.producer_ids import BLOCK
from kreplog.core.events import Received
from kreplog.core.transaction_messages import EndTxnRequest, EndTxnResponse
from kreplog.errors import ConnectionLossError, ErrorCode, InvariantError
from kreplog.server.handlers.new_producer_ids import ProducerIdHandlers
from kreplog.server.network.serving import LocalRequest
from tests.server.loop import run_in_virtual_time


class Store:
    """A slow store. calls: those under way. away: it does not respond."""

    def __init__(self) -> None:
        self.session = MemoryStore().connect(1000)
        self.calls = 0
        self.away = False

    async def get_nodes(self, paths: Any) -> Any:
        return await self._call(lambda: self.session.get_many(paths))

    async def multi(self, operations: Any) -> Any:
        return await self._call(lambda: self.session.multi(operations))

    async def _call(self, call: Any) -> Any:
        self.calls += 1
        assert self.calls == 1, "two allocations at once"
        await asyncio.sleep(1)  # of virtual time, in which other requests come
        self.calls -= 1
        if self.away:
            raise ConnectionLossError("the store is away")
        return call()


class World:
    """Handlers over a slow store, with a coordinator of transactions that responds with the new producer id."""

    def __init__(self, store: Any = None) -> None:
        self.store = cast(Any, store or Store())
        coordinator: Any = SimpleNamespace(needs_producer_id=lambda request: True)
        self.handlers = ProducerIdHandlers(self.store, coordinator, self.receive, asyncio.ensure_future)

    def receive(self, event: Received) -> None:
        request, reply_to = event.request, event.reply_to
        assert isinstance(request, EndTxnRequest) and isinstance(reply_to, LocalRequest)
        reply_to.reply(EndTxnResponse(ErrorCode.NONE, request.new_producer_id, 0))

    async def init(self) -> tuple[int, int]:
        fields = await self.handlers.init_producer_id(SimpleNamespace(transactional_id=None))
        return fields["error_code"], fields["producer_id"]


def test_requests_at_once_share_a_block_and_no_id() -> None:
    async def work() -> None:
        world = World()
        assert await asyncio.gather(*(world.init() for _ in range(3))) == [(0, 0), (0, 1), (0, 2)]
        ended = await world.handlers.end_with_new_id(EndTxnRequest("id", 7, 2, True))
        assert ended == EndTxnResponse(ErrorCode.NONE, 3, 0)
        other = World(world.store)
        assert await other.init() == (0, BLOCK)

    run_in_virtual_time(work)


def test_each_request_gets_the_error_of_its_own_allocation() -> None:
    async def work() -> None:
        world = World()
        world.store.away = True
        asyncio.get_running_loop().call_later(1.5, setattr, world.store, "away", False)
        first, second = await asyncio.gather(world.init(), world.init())
        assert (first[0] != ErrorCode.NONE, first[1]) == (True, -1)
        assert second == (ErrorCode.NONE, 0)
        world.store.away = True
        ended = await world.handlers.end_with_new_id(EndTxnRequest("id", 7, 2, True))
        assert ended.error is ErrorCode.NONE, "an id of the block is left"

    run_in_virtual_time(work)


def test_an_unexpected_error_of_an_allocation_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        world = World()
        multi, world.store.multi = world.store.multi, refuse
        with pytest.raises(InvariantError, match="no producer id could be allocated: ValueError"):
            await world.init()
        world.store.multi = multi
        assert await world.init() == (ErrorCode.NONE, 0)

    async def refuse(operations: Any) -> Any:
        raise ValueError

    run_in_virtual_time(work)
    assert "no producer id could be allocated" in caplog.text


def test_a_request_that_has_ended_takes_no_id() -> None:
    async def work() -> None:
        world = World()
        ended, later = asyncio.ensure_future(world.init()), asyncio.ensure_future(world.init())
        await asyncio.sleep(0.5)  # of virtual time: half of the first call of the store
        ended.cancel()
        assert await later == (ErrorCode.NONE, 1)

    run_in_virtual_time(work)
