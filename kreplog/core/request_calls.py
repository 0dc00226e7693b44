"""Steps that read and write the coordination store for a request, rather than for an event of a core.

Nothing else waits for them, so they may pause; they set no watch. Each process carries out their effects by a
`RequestCalls` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from kreplog.core.effects import Effect, GetChildren, GetNodes, Multi, Pause, StateChange, Steps
from kreplog.errors import CoordinationError, InvariantError
from kreplog.types import StoreOperation

T = TypeVar("T")
A_co = TypeVar("A_co", covariant=True)


class RequestCalls(Protocol[A_co]):
    """The calls by which one process carries out the effects of such steps. Each returns the answer to its effect, or
    what that comes by."""

    def get_nodes(self, paths: Sequence[str]) -> A_co: ...

    def get_children(self, path: str) -> A_co: ...

    def multi(self, operations: Sequence[StoreOperation]) -> A_co: ...

    def pause(self, ms: int) -> A_co: ...

    def note(self, level: str, text: str) -> A_co:
        """Log a StateChange."""
        ...


def call(effect: Effect, calls: RequestCalls[A_co]) -> A_co:
    """Carry out one effect. Raises InvariantError for one that only cores have, and what the call raises."""
    match effect:
        case GetNodes(paths):
            return calls.get_nodes(paths)
        case GetChildren(path):
            return calls.get_children(path)
        case Multi(operations):
            return calls.multi(operations)
        case Pause(ms):
            return calls.pause(ms)
        case StateChange(level, text):
            return calls.note(level, text)
    raise InvariantError(f"{effect} neither reads nor writes the store")


def carry_out(steps: Steps[T], calls: RequestCalls[Any]) -> T:
    """Carry out steps with calls that block, and return their result. Raises what they raise."""
    answer: Any = None
    error: CoordinationError | None = None
    while True:
        try:
            effect = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = error = None
        try:
            answer = call(effect, calls)
        except CoordinationError as failed:
            error = failed
