"""Steps of a request: each effect has its call, and an error of the store is the steps' to handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kreplog.core.effects import Effect, Exit, GetChildren, GetNodes, Multi, Pause, StateChange, Steps
from kreplog.core.request_calls import carry_out
from kreplog.errors import BadVersionError, InvariantError
from kreplog.types import StoreOperation


class Calls:
    """Answers each call with its number; a write is refused."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def get_nodes(self, paths: Sequence[str]) -> int:
        return self._made("nodes", paths)

    def get_children(self, path: str) -> int:
        return self._made("children", path)

    def multi(self, operations: Sequence[StoreOperation]) -> int:
        self._made("multi", operations)
        raise BadVersionError("another was first")

    def pause(self, ms: int) -> int:
        return self._made("pause", ms)

    def note(self, level: str, text: str) -> int:
        return self._made("note", level, text)

    def _made(self, *call: Any) -> int:
        self.made.append(call)
        return len(self.made)


def test_each_effect_has_its_call_and_the_steps_get_its_answer() -> None:
    def steps() -> Steps[list[Any]]:
        answers = [(yield GetNodes(("/a",))), (yield GetChildren("/b")), (yield Pause(5))]
        answers.append((yield StateChange("info", "seen")))
        try:
            yield Multi(())
        except BadVersionError as error:
            answers.append(error)
        return answers

    calls = Calls()
    *answers, error = carry_out(steps(), calls)
    assert (answers, type(error)) == ([1, 2, 3, 4], BadVersionError)
    assert calls.made == [("nodes", ("/a",)), ("children", "/b"), ("pause", 5), ("note", "info", "seen"), ("multi", ())]


def test_the_steps_raise_what_they_do_not_handle() -> None:
    def steps(effect: Effect) -> Steps[None]:
        yield effect

    with pytest.raises(BadVersionError):
        carry_out(steps(Multi(())), Calls())
    with pytest.raises(InvariantError, match="neither reads nor writes the store"):
        carry_out(steps(Exit(True)), Calls())
