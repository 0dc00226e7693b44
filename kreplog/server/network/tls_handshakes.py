"""TlsHandshakes: TLS handshakes of accepted connections, outside the event loop and a bounded number at a time.

A handshake begins when the client's first bytes have arrived, so that a connection without any costs nothing of TLS.
Each of its steps, in which signatures are made and verified, runs in a thread and returns where the client has to send
something; the event loop waits for that. A handshake that takes too long is ended.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from kreplog.core.security.principal import Principal
from kreplog.server.monitoring.repeated_failures import is_power_of_two
from kreplog.server.network.connections import peer_of
from kreplog.server.network.tls_listeners import TlsListener
from kreplog.server.network.tls_streams import Wanted, until_ready
from kreplog.tls import TlsSocket, accept_tls

_log = logging.getLogger("kreplog.server")

MAX_TLS_HANDSHAKES = 256
"""Maximum of TLS handshakes at a time, and a quarter of max.connections where that is less. For another one, the oldest
that waits for its client's first bytes is ended, or else the oldest that waits for its client."""

THREADS = 2

_NOT_TLS = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons for bytes that are none of TLS."""


class TlsHandshakes:
    """Runs handshakes. timeout_s: for each, from the accepted connection to its end. failed: how many have failed."""

    def __init__(self, timeout_s: float, most: int = MAX_TLS_HANDSHAKES) -> None:
        self.failed = 0
        self._timeout_s = timeout_s
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, "kreplog-handshakes")
        self._handshakes: dict[asyncio.Task[tuple[TlsSocket, Principal]], _Handshake] = {}  # the oldest first

    @property
    def in_flight(self) -> int:
        return len(self._handshakes)

    def begin(
        self,
        sock: socket.socket,
        tls: TlsListener,
        then: Callable[[TlsSocket, Principal], None],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Run the handshake of an accepted socket, which is closed if it fails. then: takes the socket after it.
        failed: called if there will be no connection."""
        handshake = _Handshake(sock, failed)
        if len(self._handshakes) >= self._most and not self._end_oldest():
            self._fail(handshake, f"{self._most} handshakes are worked on")
            return
        sock.setblocking(False)
        task = self._loop.create_task(self._run(handshake, tls), name="kreplog-handshake")
        self._handshakes[task] = handshake
        task.add_done_callback(lambda done: self._done(done, handshake, then))

    def close(self) -> None:
        for task in self._handshakes:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _end_oldest(self) -> bool:
        """End the oldest handshake that waits for its client, of those whose client has sent nothing yet if there are
        any; False if all are worked on."""
        waiting = (task for task, handshake in self._handshakes.items() if not handshake.is_worked_on)
        victim = min(waiting, key=lambda task: self._handshakes[task].has_begun, default=None)
        if victim is None:
            return False
        del self._handshakes[victim]  # now, since the task ends in a later iteration
        victim.cancel()
        return True

    def _done(
        self,
        task: asyncio.Task[tuple[TlsSocket, Principal]],
        handshake: _Handshake,
        then: Callable[[TlsSocket, Principal], None],
    ) -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            self._fail(handshake, "it was the oldest, and others began")
        elif (error := task.exception()) is not None:
            self._fail(handshake, self._reason(error))
        else:
            then(*task.result())

    async def _run(self, handshake: _Handshake, tls: TlsListener) -> tuple[TlsSocket, Principal]:
        async with asyncio.timeout(self._timeout_s):
            await until_ready(handshake.sock, "read")
            sock = handshake.sock = accept_tls(handshake.sock, tls.context.current)
            await self._complete(handshake, sock)
        return sock, tls.principal_of(sock)

    async def _complete(self, handshake: _Handshake, sock: TlsSocket) -> None:
        while True:
            handshake.step = step = self._pool.submit(_next_step, sock)
            wanted = await asyncio.shield(asyncio.wrap_future(step))
            handshake.step = None
            if wanted is None:
                return
            await until_ready(sock, wanted)

    def _fail(self, handshake: _Handshake, reason: str) -> None:
        peer = peer_of(handshake.sock)
        handshake.close()
        self.failed += 1
        if is_power_of_two(self.failed):
            text = "%s: the TLS handshake failed: %s; failed since the start: %d"
            _log.warning(text, peer, reason, self.failed)

    def _reason(self, error: BaseException) -> str:
        """The reason of a failure, with advice where the client has no TLS."""
        if isinstance(error, TimeoutError):
            return f"it took longer than ssl.handshake.timeout.ms = {self._timeout_s * 1000:g}"
        if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
            return f"{error}: does the client use security.protocol = PLAINTEXT?"
        return str(error) or type(error).__name__


class _Handshake:
    """A handshake in flight. sock: what it has come to. step: what a thread does with the socket; None: nothing."""

    def __init__(self, sock: socket.socket, failed: Callable[[], None]) -> None:
        self.sock = sock
        self.step: Future[Wanted | None] | None = None
        self._failed = failed

    @property
    def has_begun(self) -> bool:
        """Whether the client has sent something."""
        return isinstance(self.sock, TlsSocket)

    @property
    def is_worked_on(self) -> bool:
        return self.step is not None

    def close(self) -> None:
        """Close the socket, after the thread that may use it."""
        sock = self.sock
        if self.step is None or self.step.cancel():
            sock.close()
        else:
            self.step.add_done_callback(lambda _: sock.close())
        self._failed()


def _next_step(sock: TlsSocket) -> Wanted | None:
    """Do of a handshake what can be done now; returns what the socket must be ready for next, None at the end."""
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return "read"
    except ssl.SSLWantWriteError:
        return "write"
    return None
