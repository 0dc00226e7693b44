"""CredentialCache: the credentials of all users, read from the coordination store and followed by watches.

While the store is unavailable the last ones count. A watch fires for each change; with a new session everything is read
again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kreplog.core import nodes
from kreplog.core.security.credentials import SECRET_BYTES, UserCredentials
from kreplog.core.security.user_requests import stored_credentials
from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import StoreLink
from kreplog.types import WatchEvent

_log = logging.getLogger("kreplog.server")

RETRY_S = 0.3
"""Pause after the store has failed, before it is read again."""

_USERS_AT_ONCE = 200
"""Users that are read and decoded before the event loop serves others."""


class CredentialCache:
    """The credentials of all users. credentials: as last read; without any before `loaded` is set."""

    def __init__(self, store: StoreLink) -> None:
        self.credentials = UserCredentials(secrets.token_bytes(SECRET_BYTES))
        self.loaded = asyncio.Event()
        self._store = store
        self._known: set[str] = set()
        self._stale: set[str] = set()  # paths to read; USERS: which users there are
        self._waiting: list[asyncio.Future[None]] = []  # for what is stale
        self._changed = asyncio.Event()

    def session_started(self) -> None:
        """A session has begun, in which nothing is watched yet."""
        self._read_again(nodes.USERS, *self._known)

    async def reread(self, users: Iterable[str], timeout_s: float) -> None:
        """Read the credentials of users again, or give up waiting for them after the time-out."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._read_again(*map(nodes.user, users))
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await done

    async def run(self) -> None:
        """Follow the store until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            stale, self._stale = self._stale, set()
            waiting, self._waiting = self._waiting, []
            try:
                await self._store.until_connected()
                await self._read(stale)
            except CoordinationError as error:
                _log.warning("credentials of users cannot be read from the store, the last ones count: %s", error)
                self._waiting += waiting
                await asyncio.sleep(RETRY_S)  # nothing notifies of a store that responds again
                self._read_again(*stale)
                continue
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def _read_again(self, *paths: str) -> None:
        self._stale.update(paths)
        self._changed.set()

    def _on_watch(self, event: WatchEvent) -> None:
        self._read_again(event.path)

    async def _read(self, stale: set[str]) -> None:
        everything = nodes.USERS in stale
        paths = stale - {nodes.USERS}
        if everything:
            names = await self._store.get_children(nodes.USERS, self._on_watch)
            (parent,) = await self._store.get_nodes((nodes.USERS,))
            if parent is not None:
                self.credentials.secret = parent.data
            present = {f"{nodes.USERS}/{name}" for name in names or ()}
            paths = paths | (present ^ self._known)
        in_order = sorted(paths)
        for start in range(0, len(in_order), _USERS_AT_ONCE):
            await self._read_users(in_order[start : start + _USERS_AT_ONCE])
        if everything and not self.loaded.is_set():
            _log.info("credentials of %d users are read", len(self.credentials.users))
            self.loaded.set()

    async def _read_users(self, paths: Sequence[str]) -> None:
        found = await self._store.get_nodes(paths, self._on_watch)
        for path, node in zip(paths, found, strict=True):
            if node is None:
                self._known.discard(path)
            else:
                self._known.add(path)
            try:
                self.credentials.put(nodes.user_name(path), stored_credentials(path, node))
            except CoordinationError as error:
                _log.error("a user cannot be authenticated: %s", error)
                with suppress(CoordinationError):
                    self.credentials.put(nodes.user_name(path), {})
