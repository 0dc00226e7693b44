"""AutomaticTopics: creates the topics that core.controller.automatic_creation queues, one batch at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from kreplog.core.controller.automatic_creation import AutomaticCreation
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import ErrorCode
from kreplog.server.clock import monotonic_ms
from kreplog.server.handlers.admin import Mutate

_log = logging.getLogger("kreplog.server")


class AutomaticTopics:
    """Creates topics on first use. enabled: auto.create.topics.enable. partitions: of each topic. create: creates
    topics with the broker's defaults; returns the error of each. start: starts a task."""

    def __init__(
        self,
        enabled: bool,
        partitions: int,
        metadata: MetadataCache,
        create: Callable[[Sequence[str]], Awaitable[Mapping[str, ErrorCode]]],
        start: Callable[[Awaitable[None]], asyncio.Task[None]],
    ) -> None:
        self._creation = AutomaticCreation(enabled)
        self._partitions = partitions
        self._metadata = metadata
        self._create = create
        self._start = start
        self._task: asyncio.Task[None] | None = None

    def missing(self, name: str, allowed: bool, mutate: Mutate) -> ErrorCode:
        """The error for a topic that does not exist, which is created if it may be: see AutomaticCreation.requested.
        mutate: of the client that requests it."""
        known, admit = self._metadata, partial(mutate, self._partitions)
        error = self._creation.requested(name, known.topic_error(), known.has_source, allowed, monotonic_ms(), admit)
        if self._task is None and self._creation.next_names():
            self._task = self._start(self._run())
        return error

    async def _run(self) -> None:
        try:
            while names := self._creation.next_names():
                errors: Mapping[str, ErrorCode] = {}
                try:
                    errors = await self._create(names)
                except Exception:
                    _log.exception("topics cannot be created automatically: %s", ", ".join(names))
                for name in names:
                    self._creation.finished(name, errors.get(name, ErrorCode.REQUEST_TIMED_OUT), monotonic_ms())
        finally:
            self._task = None
