"""WholeNodeCache: this broker's copy of a node of the coordination store, which it reads again whenever that changes.

It stays in effect while the store cannot be reached, and if the node has become unreadable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import StoreLink
from kreplog.types import Node, WatchEvent

_log = logging.getLogger("kreplog.server")

RETRY_S = 0.5
"""Pause after a read that has failed."""

T = TypeVar("T")


class WholeNodeCache(Generic[T]):
    """Applies the content of a node. subject: what that is, for log lines. unread: what holds until the first read.
    decode: called in a thread, since thousands of entries take long. apply: called with the content where it has
    changed."""

    def __init__(
        self,
        store: StoreLink,
        path: str,
        subject: str,
        unread: str,
        decode: Callable[[Node | None], T],
        apply: Callable[[T], None],
    ) -> None:
        self._store = store
        self._path = path
        self._subject = subject
        self._unread = unread
        self._decode = decode
        self._apply = apply
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()  # so that no earlier read ends after a later one
        self._failure = ""
        self._data: bytes | None = None  # of what is applied

    async def run(self) -> None:
        """Read the node in every session with the store, and after every change, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self._store.until_connected()
                await self.refresh()
            except CoordinationError as error:
                self._failed(str(error))
                await asyncio.sleep(RETRY_S)  # the store may be away, or an operator at work on the node
                continue
            await self._changed.wait()

    async def refresh(self) -> None:
        """Read the node now, such as after this broker has written it. Raises CoordinationError."""
        async with self._reading:
            (node,) = await self._store.get_nodes((self._path,), self._on_watch)
            data = None if node is None else node.data
            if not self.is_ready or data != self._data:
                self._apply(await asyncio.get_running_loop().run_in_executor(None, self._decode, node))
                self._data = data
            self._ready.set()
            self._failure = ""

    def _failed(self, reason: str) -> None:
        """Log why the node cannot be read, once for each reason."""
        if reason != self._failure:
            self._failure = reason
            _log.error("the %s cannot be read: %s%s", self._subject, reason, "" if self.is_ready else self._unread)

    def _on_watch(self, event: WatchEvent) -> None:
        self._changed.set()

    def session_started(self) -> None:
        """The broker has a new session, in which no watch is left."""
        self._changed.set()

    @property
    def is_ready(self) -> bool:
        """Whether the node has been read once."""
        return self._ready.is_set()

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until the node has been read once; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True
