"""Steps of requests (core.request_calls) in virtual time, in one process of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.core.effects import Steps
from kreplog.core.request_calls import call
from kreplog.errors import CoordinationError, KreplogError
from kreplog.sim.machines.scheduler import MS
from kreplog.sim.machines.store import Outcome
from kreplog.types import StoreOperation

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

Ended = Callable[[Any, KreplogError | None], None]
"""Takes the result of a request, or its error."""

PAUSED_MS = 200
"""Delay before a paused process takes the next step."""


def carry_out(process: BrokerProcess, steps: Steps[Any], ended: Ended) -> None:
    """Carry out the steps of one request. ended: called with their result, or the error that they
    raise; not if the process stops before."""
    _step(process, steps, ended, None, None)


def _step(
    process: BrokerProcess, steps: Steps[Any], ended: Ended, answer: Any, error: CoordinationError | None
) -> None:
    resume = partial(_step, process, steps, ended)
    if not process.alive:
        return
    if process.paused:
        process.cluster.scheduler.after(PAUSED_MS * MS, resume, answer, error)
        return
    try:
        effect = steps.send(answer) if error is None else steps.throw(error)
    except StopIteration as end:
        ended(end.value, None)
        return
    except KreplogError as failed:
        ended(None, failed)
        return
    call(effect, _ProcessCalls(process, resume))


class _ProcessCalls:
    """The calls of one step, which `resume` takes the outcome of."""

    def __init__(self, process: BrokerProcess, resume: Outcome) -> None:
        self._process = process
        self._resume = resume

    def get_nodes(self, paths: Sequence[str]) -> None:
        self._process.link.get_nodes(paths, None, self._resume)

    def get_children(self, path: str) -> None:
        self._process.link.get_children(path, None, self._resume)

    def multi(self, operations: Sequence[StoreOperation]) -> None:
        self._process.link.multi(operations, self._resume)

    def pause(self, ms: int) -> None:
        self._process.cluster.scheduler.after(ms * MS, self._resume, None, None)

    def note(self, level: str, text: str) -> None:
        self._resume(None, None)
