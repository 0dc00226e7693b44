"""Steps of requests (core.request_calls) over the event loop's connection to the coordination store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, TypeVar

from kreplog.core.effects import Steps
from kreplog.core.request_calls import call
from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import AnySession, StoreLink
from kreplog.types import StoreOperation

_log = logging.getLogger("kreplog.server")

T = TypeVar("T")


async def carry_out(steps: Steps[T], store: StoreLink | AnySession, *, in_thread: bool = False) -> T:
    """Carry out the steps of one request and return their result. in_thread: between their effects they may compute for
    long. Raises what they raise."""
    calls = _StoreCalls(store)
    answer: Any = None
    error: CoordinationError | None = None
    while True:
        next_step = partial(_next_step, steps, answer, error)
        effect, end = await asyncio.to_thread(next_step) if in_thread else next_step()
        if end is not None:
            result: T = end.value
            return result
        answer = error = None
        try:
            answer = await call(effect, calls)
        except CoordinationError as failed:
            error = failed


def _next_step(steps: Steps[Any], answer: Any, error: CoordinationError | None) -> tuple[Any, StopIteration | None]:
    """(the next effect, None), or at the end (None, what has the result)."""
    try:
        return (steps.send(answer) if error is None else steps.throw(error)), None
    except StopIteration as end:
        return None, end


class _StoreCalls:
    def __init__(self, store: StoreLink | AnySession) -> None:
        self._store = store

    def get_nodes(self, paths: Sequence[str]) -> Awaitable[Any]:
        return self._store.get_nodes(paths)

    def get_children(self, path: str) -> Awaitable[Any]:
        return self._store.get_children(path)

    def multi(self, operations: Sequence[StoreOperation]) -> Awaitable[Any]:
        return self._store.multi(operations)

    def pause(self, ms: int) -> Awaitable[Any]:
        return asyncio.sleep(ms / 1000)  # no watch could end it early: these steps set none

    async def note(self, level: str, text: str) -> None:
        log_note(level, text)


def log_note(level: str, text: str) -> None:
    """Log a StateChange of the steps of a request."""
    _log.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
