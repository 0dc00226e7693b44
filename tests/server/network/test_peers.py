"""Peers over real sockets: requests to another broker, their responses, and what becomes of those without."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kreplog.errors import PeerProtocolError
from kreplog.server.network.connections import Frame
from kreplog.server.network.peers import Peer, PeerReply
from tests.server.loop import run, until
from tests.server.network.test_connections import Echo, framed, receive, request


def test_a_peer_calls_and_calls_again_after_a_loss() -> None:
    async def work() -> None:
        echo = Echo()
        peer = Peer(1 << 20)
        address = (echo.address.host, echo.address.port)

        async def answer(body: bytes) -> None:
            await until(lambda: bool(echo.seen))
            echo.seen.pop().respond([framed(body)])

        called = asyncio.create_task(peer.call(address, [request(1)], 5))
        await answer(b"one")
        assert await called == b"one"
        called = asyncio.create_task(peer.call(address, [request(2)], 5))
        await until(lambda: bool(echo.seen))
        echo.seen.pop().close()
        with pytest.raises(ConnectionResetError):
            await called
        with pytest.raises(TimeoutError):
            await peer.call(address, [request(3)], 0.05)
        echo.seen.clear()
        called = asyncio.create_task(peer.call(address, [request(4)], 5))
        await answer(b"four")
        assert await called == b"four"
        peer.close()
        echo.server.close()
        with pytest.raises(OSError):
            await peer.call(address, [request(5)], 5)

    run(work)


def test_begin_sends_before_it_returns() -> None:
    """The loop may have much to do first; the other end works meanwhile. What comes of it is passed on at once."""

    async def work() -> None:
        outcomes: list[PeerReply[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            peer = Peer(1 << 20)

            def begin(number: int, *, at: tuple[str, int] = address, timeout_s: float = 5) -> bool:
                return peer.begin(at, [request(number)], timeout_s, bytes, outcomes.append)

            assert not begin(1)  # there is no connection yet
            called = asyncio.create_task(peer.call(address, [request(1)], 5))
            theirs, _ = await asyncio.get_running_loop().run_in_executor(None, server.accept)
        with theirs:
            theirs.setblocking(False)
            assert await receive(theirs, len(request(1))) == request(1)
            theirs.send(framed(b"one"))
            assert await called == b"one"
            assert not begin(2, at=("127.0.0.1", 1))  # it has moved
            assert begin(2)
            assert theirs.recv(100) == request(2)
            theirs.send(framed(b"two"))
            await until(lambda: bool(outcomes))
            assert outcomes.pop() == PeerReply(b"two")
            assert begin(3)
        await until(lambda: bool(outcomes))
        assert isinstance(outcomes.pop().error, ConnectionResetError)
        assert not begin(4)

    run(work)


def test_a_request_that_was_begun_and_has_no_response() -> None:
    async def work() -> None:
        outcomes: list[PeerReply[bytes]] = []
        echo = Echo()
        peer = Peer(1 << 20)
        address = (echo.address.host, echo.address.port)

        def refused(_: Frame) -> bytes:
            raise PeerProtocolError("not a response")

        async def connected() -> None:
            called = asyncio.create_task(peer.call(address, [request(1)], 5))
            await until(lambda: bool(echo.seen))
            echo.seen.pop().respond([framed(b"one")])
            await called

        await connected()
        assert peer.begin(address, [request(2)], 0.01, bytes, outcomes.append)
        await until(lambda: bool(outcomes))
        assert isinstance(outcomes.pop().error, TimeoutError)
        assert not peer.begin(address, [request(3)], 5, bytes, outcomes.append), "its response may still come"
        echo.seen.clear()
        await connected()
        assert peer.begin(address, [request(4)], 5, refused, outcomes.append)
        await until(lambda: bool(echo.seen))
        echo.seen.pop().respond([framed(b"four")])
        await until(lambda: bool(outcomes))
        assert isinstance(outcomes.pop().error, PeerProtocolError)
        await connected()
        assert peer.begin(address, [request(5)], 5, bytes, outcomes.append)
        peer.close()
        assert isinstance(outcomes.pop().error, ConnectionResetError)
        echo.server.close()

    run(work)
