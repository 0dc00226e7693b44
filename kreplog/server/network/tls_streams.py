"""Streams of TLS on the event loop, for the few bytes before a connection has frames. Callers bound the time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeVar

from kreplog.tls import TlsSocket

Wanted = Literal["read", "write"]
T = TypeVar("T")


async def until_ready(sock: socket.socket, wanted: Wanted) -> None:
    """Wait until a socket can be read or written."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if wanted == "read" else (loop.add_writer, loop.remove_writer)
    add(sock, _set_ready, ready)
    try:
        await ready
    finally:
        remove(sock)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def complete_handshake(sock: TlsSocket) -> None:
    """Run a handshake on the event loop, as a broker does that connects to another. Raises OSError, ValueError."""
    await _whenever_ready(sock, sock.do_handshake)


async def send_all(sock: TlsSocket, data: bytes) -> None:
    """Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[await _whenever_ready(sock, partial(sock.send, rest)) :]


async def receive(sock: TlsSocket, size: int) -> bytes:
    """Up to `size` bytes, at least one; b"" at the end of the stream. Raises OSError."""
    return await _whenever_ready(sock, lambda: sock.recv(size))


async def _whenever_ready(sock: TlsSocket, call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except ssl.SSLWantReadError:
            await until_ready(sock, "read")
        except ssl.SSLWantWriteError:
            await until_ready(sock, "write")
