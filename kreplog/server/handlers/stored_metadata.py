"""StoredMetadata: metadata read from the coordination store, for a broker that has had no UpdateMetadata yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kreplog.config import TopicConfig
from kreplog.core.controller import store_reader
from kreplog.core.messages import PartitionState
from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import StoreLink
from kreplog.server.runtime.store_steps import carry_out
from kreplog.types import BrokerRegistration

_log = logging.getLogger("kreplog.server")

READ_WITHIN_S = 5.0
"""Maximum of one read, the wait for a session included."""


class StoredMetadata:
    """Reads metadata from the coordination store. is_fresh: whether the last read need not be repeated yet. take:
    called with the live brokers and the partition states of each successful read. static_topic_defaults: of this
    broker, as it would have them as the controller."""

    def __init__(
        self,
        store: StoreLink,
        is_fresh: Callable[[], bool],
        take: Callable[[list[BrokerRegistration], list[PartitionState]], None],
        static_topic_defaults: TopicConfig,
    ) -> None:
        self._store = store
        self._is_fresh = is_fresh
        self._take = take
        self._static_topic_defaults = static_topic_defaults
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read brokers and partition states, unless the last read is fresh; concurrent callers share a read. A failed
        read is logged, and nothing changes."""
        try:
            async with asyncio.timeout(READ_WITHIN_S), self._lock:
                if self._is_fresh():
                    return
                await self._store.until_connected()
                self._take(*await carry_out(store_reader.metadata(self._static_topic_defaults), self._store))
        except (CoordinationError, TimeoutError) as error:
            _log.warning(
                "no controller has sent UpdateMetadata yet, and the coordination store cannot be read: %s; clients get "
                "retriable errors, and their next request reads it again",
                str(error) or "no response in time",
            )
