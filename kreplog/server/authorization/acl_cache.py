"""AclCache: this broker's copy of the ACLs, which it reads again whenever their node changes.

It stays in effect while the store cannot be reached, and if the node has become unreadable. A broker that has read none
yet refuses its clients.
"""

from __future__ import annotations

import asyncio
import logging

from kreplog.core import nodes
from kreplog.core.security.acl_requests import decode
from kreplog.core.security.authorizer import AclIndex, Authorizer
from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import StoreLink
from kreplog.types import Node, WatchEvent

_log = logging.getLogger("kreplog.server")

RETRY_S = 0.5
"""Pause after a read that has failed."""

_REFUSING = "; until then this broker refuses its clients"

_LOCKED_OUT = (
    "there are no ACLs, and super.users is empty: every request of clients is denied; name a super user in the "
    "settings, or add ACLs with kreplog acl add --offline"
)


class AclCache:
    """Keeps the ACLs of an authorizer up to date."""

    def __init__(self, store: StoreLink, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()  # so that no earlier read ends after a later one
        self._failure = ""

    async def run(self) -> None:
        """Read the ACLs in every session with the store, and after every change, until cancelled."""
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
        """Read the ACLs now, such as after this broker has written them. Raises CoordinationError."""
        async with self._reading:
            (node,) = await self._store.get_nodes((nodes.ACLS,), self._on_watch)
            index = await asyncio.get_running_loop().run_in_executor(None, _index, node)  # thousands take long
            if not self._ready.is_set() or index.acls != self._authorizer.acls:
                self._authorizer.replace(index)
                if self._authorizer.denies_everything:
                    _log.warning(_LOCKED_OUT)
                else:
                    _log.info("%d ACLs are in effect", len(index.acls))
            self._ready.set()
            self._failure = ""

    def _failed(self, reason: str) -> None:
        """Log why the ACLs cannot be read, once for each reason."""
        if reason != self._failure:
            self._failure = reason
            _log.error("the ACLs cannot be read: %s%s", reason, "" if self._ready.is_set() else _REFUSING)

    def _on_watch(self, event: WatchEvent) -> None:
        self._changed.set()

    def session_started(self) -> None:
        """The broker has a new session, in which no watch is left."""
        self._changed.set()

    @property
    def is_ready(self) -> bool:
        """Whether the ACLs have been read once."""
        return self._ready.is_set()

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until the ACLs have been read once; False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True


def _index(node: Node | None) -> AclIndex:
    return AclIndex(decode(node))
