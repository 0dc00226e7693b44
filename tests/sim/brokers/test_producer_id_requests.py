"""Producer ids of simulated brokers: several allocate blocks in the store."""

from __future__ import annotations

import pytest

from kreplog.sim import simulate
from kreplog.sim.brokers.producer_id_requests import BLOCK
from kreplog.sim.checks.producer_id_checker import ProducerIdChecker
from kreplog.sim.simulate import Options, plan_of

SEED = 7
"""A seed in which brokers allocate producer ids."""


def test_several_brokers_hand_out_ids_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_of(SEED, Options()).allocates_producer_ids
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(ProducerIdChecker, "given", lambda self, *handed_out: given.append(handed_out))
    simulate.run_seed(SEED, Options())
    assert len({broker for broker, _ in given}) > 1
    assert len({producer_id // BLOCK for _, producer_id in given}) > 10
