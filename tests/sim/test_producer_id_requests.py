"""Producer ids in the simulator: several brokers allocate blocks in the store; the checker finds a repetition."""

from __future__ import annotations

from random import Random

import pytest

from kreplog.core.transaction_messages import NO_PRODUCER_ID
from kreplog.sim import simulate
from kreplog.sim.clients.workload import Call, ClientContext, ClientMetadata, Settings, Sleep, Switch
from kreplog.sim.history import History
from kreplog.sim.machines.records import ModelCodec
from kreplog.sim.producer_id_requests import BLOCK, ProducerIdChecker, new_producer_id
from kreplog.sim.simulate import Options, plan_of

SEED = 7
"""A seed in which brokers allocate producer ids."""


def test_an_id_that_is_given_twice_is_found() -> None:
    found: list[str] = []
    checker = ProducerIdChecker(lambda kind, text: found.append(text))
    for broker, producer_id in ((1, 0), (2, 2), (1, 1)):
        checker.given(broker, producer_id)
    assert found == []
    checker.given(2, 1)
    assert found == ["broker 2 hands out producer id 1, as broker 1 has"]


def test_a_client_requests_an_id_until_it_has_one() -> None:
    context = ClientContext("c", Settings(), History(lambda: 0), ModelCodec(), Random(1), (1, 2), Switch())
    steps = new_producer_id(None, ClientMetadata(context))
    effect = next(steps)
    for response in (None, NO_PRODUCER_ID):
        assert isinstance(effect, Call)
        assert isinstance(steps.send([response]), Sleep)
        effect = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([0])
    assert end.value.value == 0


def test_several_brokers_hand_out_ids_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_of(SEED, Options()).allocates_producer_ids
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(ProducerIdChecker, "given", lambda self, *handed_out: given.append(handed_out))
    simulate.run_seed(SEED, Options())
    assert len({broker for broker, _ in given}) > 1
    assert len({producer_id // BLOCK for _, producer_id in given}) > 10
