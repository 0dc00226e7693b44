"""Exporter: serves metrics and readiness over HTTP: GET /metrics and GET /ready.

It runs on the broker's event loop. A connection serves one request, of limited size and time; beyond MAX_CONNECTIONS a
new one replaces the oldest. Concurrent scrapes share one rendering.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from kreplog.server.listeners import Listener

_log = logging.getLogger("kreplog.server")

MAX_CONNECTIONS = 8
REQUEST_S = 5.0
"""Time-out of reading the request, and of writing the response."""

_MAX_REQUEST_BYTES = 16 << 10


class Exporter:
    """An HTTP server of metrics and readiness. render: returns the metrics. readiness: whether the broker is ready, and
    a line about it. address: with the actual port, once `start` has returned."""

    def __init__(
        self, render: Callable[[], Awaitable[bytes]], content_type: str, readiness: Callable[[], tuple[bool, str]]
    ) -> None:
        self._render = render
        self._content_type = content_type
        self._readiness = readiness
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._rendering: asyncio.Task[bytes] | None = None
        self.address = Listener()

    async def start(self, address: Listener) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, address.host, address.port, limit=_MAX_REQUEST_BYTES)
        self.address = Listener(address.host, self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, content_type, body = await self._answer(head)
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            if not head.startswith(b"HEAD "):
                writer.write(body)
            writer.close()
            async with asyncio.timeout(REQUEST_S):
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # of the client
        except Exception:
            _log.exception("the metrics request failed")
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"only GET is supported\n"
        if path == b"/ready":
            ready, text = self._readiness()
            return "200 OK" if ready else "503 Service Unavailable", "text/plain", f"{text}\n".encode()
        if path != b"/metrics":
            return "404 Not Found", "text/plain", b"paths: /metrics and /ready\n"
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.ensure_future(self._render())
        return "200 OK", self._content_type, await asyncio.shield(self._rendering)

    async def close(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
            for task in list(self._connections):
                task.cancel()
            with contextlib.suppress(OSError):
                await self._server.wait_closed()
