"""StoredMetadata: brokers and topics as the coordination store has them, for a broker that no controller has told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from kreplog.core import effects
from kreplog.core.controller import reading
from kreplog.core.messages import PartitionState
from kreplog.errors import CoordinationError, InvariantError
from kreplog.server.store import StoreLink
from kreplog.types import Broker

_log = logging.getLogger("kreplog.server")

FRESH_S = 1.0
"""What was read so lately is not read again: others may ask all the time."""

READ_WITHIN_S = 5.0

T = TypeVar("T")


class StoredMetadata:
    """take: given brokers and partition states as they are read."""

    def __init__(self, store: StoreLink, take: Callable[[list[Broker], list[PartitionState]], None]) -> None:
        self._store = store
        self._take = take
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read all of it, unless that was done within FRESH_S; at once for all that wait. What cannot be read within
        READ_WITHIN_S stays as it was."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READ_WITHIN_S), self._lock:
                if loop.time() - self._read_at < FRESH_S:
                    return
                await self._store.until_connected()
                self._take(*await self._carry_out(reading.metadata()))
                self._read_at = loop.time()
        except (CoordinationError, TimeoutError) as error:
            _log.warning("no controller has told this broker, and the coordination store does not either: %s", error)

    async def _carry_out(self, steps: effects.Steps[T]) -> T:
        """What is only read here needs no watches."""
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
                raise InvariantError(f"metadata are read, not {type(effect).__name__}")
