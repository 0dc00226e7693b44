"""StoredMetadata: metadata read from the coordination store, for a broker that has had no UpdateMetadata yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kreplog.config import TopicConfig
from kreplog.core.broker.metadata_waits import MetadataWaits
from kreplog.core.controller import store_reader
from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import StoreLink
from kreplog.server.runtime.store_steps import carry_out

_log = logging.getLogger("kreplog.server")

READ_WITHIN_S = 5.0
"""Maximum of one read, the wait for a session included."""


class StoredMetadata:
    """Reads metadata from the coordination store. changed: called after each successful read. static_topic_defaults: of
    this broker, as it would have them as the controller."""

    def __init__(
        self,
        store: StoreLink,
        waits: MetadataWaits,
        changed: Callable[[], None],
        static_topic_defaults: TopicConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._waits = waits
        self._changed = changed
        self._static_topic_defaults = static_topic_defaults
        self._now_ms = now_ms

    async def refresh(self) -> None:
        """Read brokers and partition states, or wait for the read under way; not if the last is fresh. A failed read is
        logged, and nothing changes."""
        ended = asyncio.Event()
        if self._waits.read_stored(ended.set, self._now_ms()):
            try:
                await self._read()
            finally:
                self._waits.read_ended()
        await ended.wait()

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                await self._store.until_connected()
                live, states = await carry_out(store_reader.metadata(self._static_topic_defaults), self._store)
        except (CoordinationError, TimeoutError) as error:
            _log.warning(
                "no controller has sent UpdateMetadata yet, and the coordination store cannot be read: %s; clients get "
                "retriable errors, and their next request reads it again",
                str(error) or "no response in time",
            )
            return
        self._waits.take(live, states, self._now_ms())
        self._changed()
