"""Clients' requests for producer ids."""

from __future__ import annotations

from random import Random

import pytest

from kreplog.core.transaction_messages import NO_PRODUCER_ID
from kreplog.sim.clients.producer_id_client import new_producer_id
from kreplog.sim.clients.workload import Call, ClientContext, ClientMetadata, Settings, Sleep, Switch
from kreplog.sim.history import History
from kreplog.sim.machines.records import ModelCodec


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
