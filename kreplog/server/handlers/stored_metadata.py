"""StoredMetadata: metadata read from the coordination store, for a broker that has had no UpdateMetadata yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from kreplog.core import effects
from kreplog.core.controller import store_reader
from kreplog.core.messages import PartitionState
from kreplog.errors import CoordinationError, InvariantError
from kreplog.server.runtime.store import StoreLink
from kreplog.types import BrokerRegistration

_log = logging.getLogger("kreplog.server")

READ_WITHIN_S = 5.0
"""Maximum of one read, the wait for a session included."""

T = TypeVar("T")


class StoredMetadata:
    """Reads metadata from the coordination store. is_fresh: whether the last read need not be repeated yet. take:
    called with the live brokers and the partition states of each successful read."""

    def __init__(
        self,
        store: StoreLink,
        is_fresh: Callable[[], bool],
        take: Callable[[list[BrokerRegistration], list[PartitionState]], None],
    ) -> None:
        self._store = store
        self._is_fresh = is_fresh
        self._take = take
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read brokers and partition states, unless the last read is fresh; concurrent callers share a read. A failed
        read is logged, and nothing changes."""
        try:
            async with asyncio.timeout(READ_WITHIN_S), self._lock:
                if self._is_fresh():
                    return
                await self._store.until_connected()
                self._take(*await self._carry_out(store_reader.metadata()))
        except (CoordinationError, TimeoutError) as error:
            _log.warning(
                "no controller has sent UpdateMetadata yet, and the coordination store cannot be read: %s; clients get "
                "retriable errors, and their next request reads it again",
                str(error) or "no response in time",
            )

    async def _carry_out(self, steps: effects.Steps[T]) -> T:
        """Run read-only steps of the core, without watches; the result."""
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as end:
                found: T = end.value
                return found
            if isinstance(effect, effects.GetChildren):
                answer = await self._store.get_children(effect.path)
            elif isinstance(effect, effects.GetNodes):
                answer = await self._store.get_nodes(effect.paths)
            elif isinstance(effect, effects.StateChange):
                _log.warning("%s", effect.text)
                answer = None
            else:
                raise InvariantError(f"reading metadata yielded {type(effect).__name__}, which is no read")
