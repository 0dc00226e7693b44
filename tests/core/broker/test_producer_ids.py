"""Producer ids: each is in one block of one process, whatever the store's responses do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kreplog.coord.memory import MemoryStore
from kreplog.core import nodes
from kreplog.core.broker.producer_ids import (
    ATTEMPTS,
    LAST_PRODUCER_ID,
    ProducerIds,
    adding_producer_id,
    needs_producer_id,
)
from kreplog.core.effects import GetNodes, Steps
from kreplog.core.transaction_messages import (
    NO_PRODUCER_ID,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kreplog.errors import BadVersionError, ConnectionLossError, CoordinationError, ErrorCode


class World:
    """A store, and the steps of brokers that use it. writes: how many writes were requested."""

    def __init__(self) -> None:
        self.session = MemoryStore().connect(1000)
        self.writes = 0

    def answer(self, steps: Steps[int], effect: Any) -> Any:
        """Carry out one effect; the next one."""
        if isinstance(effect, GetNodes):
            return steps.send(self.session.get_many(effect.paths))
        self.writes += 1
        try:
            results = self.session.multi(effect.operations)
        except CoordinationError as error:
            return steps.throw(error)
        return steps.send(tuple(results))

    def finish(self, steps: Steps[int], effect: Any = None) -> int:
        try:
            effect = steps.send(None) if effect is None else effect
            while True:
                effect = self.answer(steps, effect)
        except StopIteration as end:
            return int(end.value)

    def next(self, ids: ProducerIds) -> int:
        steps = request(ids)
        producer_id = self.finish(steps)
        ids.ended()
        return producer_id


def request(ids: ProducerIds) -> Steps[int]:
    """The steps of a request for an id that is alone."""
    ids.request(lambda producer_id, error: None)
    steps = ids.next_steps()
    assert steps is not None
    return steps


def test_blocks_follow_one_another_and_a_restart_drops_the_rest() -> None:
    world, ids, other = World(), ProducerIds(3), ProducerIds(3)
    assert [world.next(each) for each in (ids, ids, other, ids, ids)] == [0, 1, 3, 2, 6]
    assert world.writes == 3
    assert world.next(ProducerIds(3)) == 9


def test_of_two_brokers_that_read_the_same_node_one_reads_again() -> None:
    world, ids, other = World(), ProducerIds(3), ProducerIds(3)
    for first in (0, 6):  # the node is created, then set
        late = request(other)
        write = world.answer(late, late.send(None))
        assert world.next(ids) == first
        assert world.finish(late, write) == first + 3
        ids, other = ProducerIds(3), ProducerIds(3)


@pytest.mark.parametrize("applied", [True, False])
def test_a_block_whose_response_is_lost_is_not_used(applied: bool) -> None:
    world, ids = World(), ProducerIds(3)
    steps = request(ids)
    write = world.answer(steps, steps.send(None))
    if applied:
        world.session.multi(write.operations)
    with pytest.raises(ConnectionLossError):
        steps.throw(ConnectionLossError("the response is lost"))
    ids.ended()
    assert world.next(ProducerIds(3)) == (3 if applied else 0)
    assert world.next(ids) == (6 if applied else 3)


def test_requests_get_their_ids_one_after_the_other() -> None:
    """The block that the first allocates is enough for both, which two at once would not know."""
    world, ids, taken = World(), ProducerIds(3), list[tuple[str, int]]()
    assert ids.next_steps() is None, "nobody requests one"
    ids.request(lambda producer_id, error: taken.append(("first", producer_id)))
    ids.request(lambda producer_id, error: taken.append(("second", producer_id)))
    for producer_id in range(2):
        steps = ids.next_steps()
        assert steps is not None
        assert ids.next_steps() is None, "the steps for another are carried out"
        assert world.finish(steps) == producer_id
        ids.ended()(producer_id, None)
    assert taken == [("first", 0), ("second", 1)]
    assert world.writes == 1
    assert ids.next_steps() is None


def test_a_broker_that_is_never_first_gives_up() -> None:
    world, ids = World(), ProducerIds()
    steps = request(ids)
    effect = steps.send(None)
    for _ in range(ATTEMPTS - 1):
        world.answer(steps, effect)
        effect = steps.throw(BadVersionError("another broker was first"))
    world.answer(steps, effect)
    with pytest.raises(CoordinationError, match="too many brokers"):
        steps.throw(BadVersionError("another broker was first"))


def test_no_id_is_beyond_the_last() -> None:
    world = World()
    world.session.create(nodes.PRODUCER_IDS, str(LAST_PRODUCER_ID - 5).encode())
    assert world.next(ProducerIds(4)) == LAST_PRODUCER_ID - 5
    with pytest.raises(CoordinationError, match="no producer ids are left"):
        world.next(ProducerIds(4))


def test_an_unreadable_node_is_named() -> None:
    world = World()
    world.session.create(nodes.PRODUCER_IDS, b"{}")
    with pytest.raises(CoordinationError, match=nodes.PRODUCER_IDS):
        world.next(ProducerIds())


BEGIN, END = InitProducerIdRequest("id", 1000, NO_PRODUCER_ID), EndTxnRequest("id", 1, 2, True)


def test_a_request_that_gets_no_id_is_to_be_repeated() -> None:
    served, responses = list[Any](), list[Any]()
    for request in (BEGIN, END):
        take = adding_producer_id(request, served.append, responses.append)
        take(NO_PRODUCER_ID, ConnectionLossError("the store is away"))
        take(7, None)
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert responses == [InitProducerIdResponse(error), EndTxnResponse(error)]
    assert served == [replace(BEGIN, new_producer_id=7), replace(END, new_producer_id=7)]


@pytest.mark.parametrize("used_up", [True, False])
def test_a_new_transactional_id_needs_one_and_a_transaction_that_ends_if_its_epochs_are_used_up(used_up: bool) -> None:
    coordinator: Any = SimpleNamespace(needs_producer_id=lambda request: used_up)
    requests = BEGIN, replace(BEGIN, new_producer_id=7), END, object()
    assert [needs_producer_id(each, coordinator) for each in requests] == [True, False, used_up, False]
