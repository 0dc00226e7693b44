"""One turn of the event loop takes a bounded time from sockets, and from requests that came together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

import pytest

from kreplog.server.network.connections import Connection
from kreplog.server.runtime.pauses import PACED_S, SOCKETS_S, MeasuredEventLoop, call_paced, has_time_to_send
from tests.server.loop import MOST_S
from tests.server.network.test_connections import framed


class Turns:
    """What was done in each turn of `loop`."""

    def __init__(self, loop: MeasuredEventLoop) -> None:
        self._pauses = loop.pauses
        self._began: list[float] = []
        self.done: list[list[object]] = []

    def note(self, thing: object, *, busy_s: float) -> None:
        if not self._began or self._began[-1] != self._pauses.began_at:
            self._began.append(self._pauses.began_at)
            self.done.append([])
        self.done[-1].append(thing)
        ends_at = monotonic() + busy_s
        while monotonic() <= ends_at:
            pass

    async def until(self, count: int) -> None:
        while sum(map(len, self.done)) < count:
            await asyncio.sleep(0)


def run(work: Callable[[Turns], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredEventLoop)
        async with asyncio.timeout(MOST_S):
            await work(Turns(loop))

    with asyncio.Runner(loop_factory=MeasuredEventLoop) as runner:
        runner.run(bounded())


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    pairs = [socket.socketpair() for _ in range(4)]
    yield pairs
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_sockets_that_are_left_in_a_long_turn_come_first_in_the_next(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def work(turns: Turns) -> None:
        for number, (ours, theirs) in enumerate(pairs):
            note = partial(turns.note, number, busy_s=SOCKETS_S)
            Connection(ours, 1 << 20, lambda frame, note=note: note(), lambda: None)  # type: ignore[misc]
            theirs.sendall(framed(b"first"))
        await turns.until(1)
        (first,) = turns.done[0]
        pairs[int(str(first))][1].sendall(framed(b"again"))
        await turns.until(5)
        assert turns.done == [[first], *([number] for number in range(4) if number != first), [first]]

    run(work)


def test_sockets_are_served_in_each_turn_whatever_else_it_does(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def work(turns: Turns) -> None:
        for ours, theirs in pairs:
            Connection(ours, 1 << 20, lambda frame: turns.note("socket", busy_s=SOCKETS_S), lambda: None)
            theirs.sendall(framed(b"one"))
        while len(turns.done) < 6:
            turns.note("other", busy_s=2 * SOCKETS_S)
            await asyncio.sleep(0)
        assert sorted(map(len, turns.done)) == [1, 1, 2, 2, 2, 2]

    run(work)


def test_a_response_that_is_sent_at_once_does_not_take_the_turn_of_a_socket(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def work(turns: Turns) -> None:
        loop = asyncio.get_running_loop()
        for ours, theirs in pairs:
            Connection(ours, 1 << 20, lambda frame: turns.note("socket", busy_s=SOCKETS_S), lambda: None)
            theirs.sendall(framed(b"one"))
        while len(turns.done) < 6:
            assert has_time_to_send(loop)
            turns.note("other", busy_s=2 * SOCKETS_S)
            assert not has_time_to_send(loop)
            await asyncio.sleep(0)  # lets the event loop begin the next iteration, whose time is its own
        assert sorted(map(len, turns.done)) == [1, 1, 2, 2, 2, 2]

    run(work)


def test_answers_that_take_long_are_sent_in_several_turns(
    pairs: list[tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(turns: Turns) -> None:
        flush = Connection._flush

        def slow(connection: Connection) -> None:
            turns.note(connection, busy_s=SOCKETS_S)
            flush(connection)

        monkeypatch.setattr(Connection, "_flush", slow)
        connections = [Connection(ours, 1 << 20, lambda frame: None, lambda: None) for ours, _ in pairs]
        for connection in connections:
            connection.send([b"one"])
            connection.send([b", two"])
        await turns.until(4)
        assert turns.done == [[connection] for connection in connections]
        assert [theirs.recv(100) for _, theirs in pairs] == [b"one, two"] * 4

    run(work)


def test_paced_callbacks_share_each_iteration() -> None:
    """In order, whatever one of them raises; one that adds itself again has its next turn after the others."""

    async def work(turns: Turns) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)

        def again() -> None:
            turns.note("again", busy_s=0)
            call_paced(loop, lambda: turns.note("last", busy_s=0))

        def broken() -> None:
            turns.note("broken", busy_s=0)
            raise RuntimeError("broken")

        call_paced(loop, again)
        call_paced(loop, lambda: turns.note("long", busy_s=PACED_S))
        call_paced(loop, lambda: turns.note("short", busy_s=0))
        call_paced(loop, broken)
        call_paced(loop, lambda: turns.note("after", busy_s=0))
        await turns.until(6)
        assert turns.done == [["again", "long"], ["short", "broken"], ["after", "last"]]

    run(work)
