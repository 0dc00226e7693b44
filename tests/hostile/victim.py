"""A broker in a thread of this process, what its event loop's pauses are, and what a unit of work takes here."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from kreplog.server.broker import Broker
from kreplog.server.runtime.pauses import MeasuredEventLoop, Pauses, pauses_of
from kreplog.server.runtime.starting import tune_interpreter
from kreplog.server.settings import load

PATIENCE_S = 120
UNITS = 100
"""The longest pause that any request of at most 1 MB may cause, in units of work: 100 ms where a unit takes 1 ms."""

WRITTEN_FOR_S = 0.001
"""A unit of work on the machine that UNITS is written for."""


def unit_s() -> float:
    """Seconds that a fixed piece of pure Python takes here: 1 ms on the machine that the limit is written for."""

    def once() -> float:
        began = perf_counter()
        total = 0
        for number in range(UNIT_ROUNDS):
            total += number & 7
        return perf_counter() - began

    return min(once() for _ in range(20))


UNIT_ROUNDS = 18_000


class Victim:
    """One broker with a listener for clients and one for metrics. `close` stops it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self._settings = load(
            {
                "broker.id": 0,
                "listeners": "127.0.0.1:0",
                "metrics.listener": "127.0.0.1:0",
                "log.dirs": f"{root}/data",
                "coordination": f"embedded:{root}/store",
                **settings,
            },
            None,
            {},
        )
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._tuned = sys.getswitchinterval(), gc.get_threshold()
        tune_interpreter()
        self._thread = threading.Thread(target=self._run, name="victim", daemon=True)
        self._thread.start()
        self._ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=MeasuredEventLoop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self.broker = Broker(self._settings)
        self.loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(self.broker.run())
        waiting = asyncio.ensure_future(self.broker.ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        self._ready.set()
        await running

    @property
    def pauses(self) -> Pauses:
        return pauses_of(self.loop)

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Run `call` on the broker's event loop and return its result."""

        async def called() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(PATIENCE_S)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.broker.address, PATIENCE_S)

    def request(self, frame: bytes) -> bytes | None:
        """The response to a request on a connection of its own; None if the broker closes the connection instead."""
        with self.connect() as sock:
            try:
                sock.sendall(frame)
                return receive(sock)
            except ConnectionError:
                return None

    def longest_pause_s(self, work: Callable[[], object]) -> float:
        """The longest pause of the event loop during `work`, up to its next turn."""
        self.on_loop(self.pauses.reset)
        work()
        self.on_loop(lambda: None)
        return float(self.on_loop(lambda: self.pauses.longest_s))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.broker.stop)
        self._thread.join(PATIENCE_S)
        switch_s, threshold = self._tuned
        sys.setswitchinterval(switch_s)
        gc.set_threshold(*threshold)
        gc.unfreeze()
        if self._failure is not None:
            raise self._failure


def receive(sock: socket.socket) -> bytes | None:
    """One frame without its size; None at the end of the connection."""
    head = _exactly(sock, 4)
    return None if head is None else _exactly(sock, struct.unpack(">i", head)[0])


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(1 << 20, size - len(data)))
        if not more:
            return None
        data += more
    return bytes(data)
