"""PageConnections: how many the console keeps of those that have shown no session.

Everybody on this host can connect, and each connection takes a descriptor, of which a process has so many: pages and
brokers need some, too.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

MAX_STRANGERS = 64
"""Connections without a session that are kept, up to BACKLOG newer ones aside; the oldest is closed for another."""

BACKLOG = 32
"""Connections that are accepted at a time, before any is closed."""


class PageConnections:
    """Makes the protocol of each connection that is accepted. known: those that have sent a request with a session, to
    which others add; those that have ended are removed here."""

    def __init__(self, server: web.Server, known: set[asyncio.Protocol]) -> None:
        self._server = server
        self._known = known

    def __call__(self) -> asyncio.Protocol:
        connections = self._server.connections
        self._known.intersection_update(connections)
        strangers = [each for each in connections if each not in self._known]
        for oldest in strangers[:-MAX_STRANGERS]:
            oldest.force_close()
        return self._server()
