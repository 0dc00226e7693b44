"""A simulated broker carries out each effect of the cores, or says that it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from kreplog.core import effects
from kreplog.sim import simulate
from kreplog.sim.brokers.broker import BrokerProcess
from kreplog.sim.simulate import Options

Handlers = dict[type, Callable[..., Any]]


def test_an_effect_without_a_handler_fails_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AdvanceHighWatermark here; the simulator has the others, but for Pause, which is none of a core."""
    right, lacking = BrokerProcess._effect_handlers, set[type]()

    def handlers(self: BrokerProcess) -> Handlers:
        found: Handlers = right(self)
        lacking.update(set(get_args(effects.Effect)) - set(found))
        del found[effects.AdvanceHighWatermark]
        return found

    monkeypatch.setattr(BrokerProcess, "_effect_handlers", handlers)
    found = simulate.run_seed(0, Options()).violations
    assert lacking == {effects.Pause}
    assert any("cannot carry out AdvanceHighWatermark" in violation.text for violation in found)
