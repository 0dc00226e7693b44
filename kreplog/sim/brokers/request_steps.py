"""Steps of the cores that read and write the coordination store, for a request rather than for an event of a core: in
virtual time, as server.runtime.store_steps carries them out in a broker."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.core.effects import GetChildren, GetNodes, Multi, StateChange, Steps
from kreplog.errors import CoordinationError, InvariantError, KreplogError
from kreplog.sim.machines.scheduler import MS

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

Ended = Callable[[Any, KreplogError | None], None]
"""Takes the result of a request, or its error."""

PAUSED_MS = 200
"""Delay before a paused process takes the next step."""


def carry_out(process: BrokerProcess, steps: Steps[Any], ended: Ended) -> None:
    """Carry out the steps of one request, which need no watch. ended: called with their result, or the error that they
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
    match effect:
        case GetNodes(paths):
            process.link.get_nodes(paths, None, resume)
        case GetChildren(path):
            process.link.get_children(path, None, resume)
        case Multi(operations):
            process.link.multi(operations, resume)
        case StateChange():
            resume(None, None)
        case _:
            raise InvariantError(f"{effect} neither reads nor writes the store")
