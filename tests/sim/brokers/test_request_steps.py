"""Steps of one request in virtual time: what becomes of them when the store fails, or their process pauses or stops."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kreplog.core.effects import Effect, Exit, GetChildren, GetNodes, Multi, Pause, StateChange, Steps
from kreplog.errors import ConnectionLossError, InvariantError
from kreplog.sim.brokers.request_steps import PAUSED_MS, carry_out
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.sim.machines.store import Outcome


class Process:
    """A process whose store answers when `answer` is called; it carries out steps that yield `effects` in turn."""

    def __init__(self, effects: Sequence[Effect]) -> None:
        self.alive, self.paused = True, False
        self.scheduler = Scheduler(1)
        self.cluster = SimpleNamespace(scheduler=self.scheduler)
        self.link = SimpleNamespace(
            get_nodes=lambda paths, watcher, outcome: self.called("nodes", paths, outcome),
            get_children=lambda path, watcher, outcome: self.called("children", path, outcome),
            multi=lambda operations, outcome: self.called("multi", operations, outcome),
        )
        self.calls: list[tuple[str, Any]] = []
        self.answer: Outcome = lambda results, error: None
        self.outcomes: list[tuple[Any, object]] = []
        process: Any = self  # a BrokerProcess, as far as carry_out uses it
        carry_out(process, self._steps(effects), lambda *outcome: self.outcomes.append(outcome))

    def called(self, verb: str, argument: Any, outcome: Outcome) -> None:
        self.calls.append((verb, argument))
        self.answer = outcome

    def _steps(self, effects: Sequence[Effect]) -> Steps[list[Any]]:
        answers = []
        for effect in effects:
            answer = yield effect
            answers.append(answer)
        return answers


def test_steps_get_the_answer_of_each_effect_and_end_with_their_result() -> None:
    process = Process((GetNodes(("/a",)), StateChange("info", "seen"), GetChildren("/b"), Multi(())))
    for number in range(3):
        assert process.outcomes == []
        process.answer(number, None)
    assert process.calls == [("nodes", ("/a",)), ("children", "/b"), ("multi", ())]
    assert process.outcomes == [([0, None, 1, 2], None)]


def test_steps_pause_in_virtual_time() -> None:
    process = Process((Pause(70), GetNodes(("/a",))))
    process.scheduler.run_until(69 * MS)
    assert process.calls == []
    process.scheduler.run_until(70 * MS)
    assert process.calls == [("nodes", ("/a",))]


def test_an_error_of_the_store_ends_steps_that_do_not_catch_it() -> None:
    process, error = Process((GetNodes(("/a",)), Multi(()))), ConnectionLossError("lost")
    process.answer(None, error)
    assert (process.outcomes, len(process.calls)) == ([(None, error)], 1)


def test_a_paused_process_takes_the_next_step_when_it_goes_on() -> None:
    process = Process((GetNodes(("/a",)),))
    process.paused = True
    process.answer("a", None)
    process.scheduler.run_until(3 * PAUSED_MS * MS)
    assert process.outcomes == []
    process.paused = False
    process.scheduler.run_until(4 * PAUSED_MS * MS)
    assert process.outcomes == [(["a"], None)]


def test_a_process_that_stops_ends_no_steps_and_leaves_nothing_to_do() -> None:
    process = Process((GetNodes(("/a",)),))
    process.paused = True
    process.answer("a", None)
    process.alive = False
    while process.scheduler.run_next():
        assert process.scheduler.now_us <= PAUSED_MS * MS, "it is looked at again for ever"
    process.paused = False
    process.answer("a", None)
    assert process.outcomes == []


def test_steps_of_a_request_only_use_the_store() -> None:
    with pytest.raises(InvariantError, match="neither reads nor writes the store"):
        Process((Exit(True),))
