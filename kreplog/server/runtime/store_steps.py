"""Steps of the cores that read and write the coordination store, for a request rather than for an event of a core."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

from kreplog.core.effects import GetChildren, GetNodes, Multi, Pause, StateChange, Steps
from kreplog.errors import CoordinationError, InvariantError
from kreplog.server.runtime.store import AnySession, StoreLink

_log = logging.getLogger("kreplog.server")

T = TypeVar("T")


async def carry_out(steps: Steps[T], store: StoreLink | AnySession) -> T:
    """Carry out the steps of one request, which need no watch, and return their result. Raises what they raise."""
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
            match effect:
                case GetNodes(paths):
                    answer = await store.get_nodes(paths)
                case GetChildren(path):
                    answer = await store.get_children(path)
                case Multi(operations):
                    answer = await store.multi(operations)
                case Pause(ms):
                    await asyncio.sleep(ms / 1000)  # these steps set no watch
                case StateChange(level, text):
                    _log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
                case _:
                    raise InvariantError(f"{effect} neither reads nor writes the store")
        except CoordinationError as failed:
            error = failed
