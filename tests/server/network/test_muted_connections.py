"""Muted connections whose clients close them, over TLS and plainly: noticed at once where the system reports it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
from functools import partial

import pytest

from kreplog.core.memory import MemoryAccount
from kreplog.server.listeners import Listener
from kreplog.server.network.connections import Frame
from kreplog.server.network.serving import Limits, RequestContext, Server
from kreplog.tls import TlsSocket
from kreplog.wire.frames import SCRATCH_BYTES
from tests.certificates import Certificates
from tests.server.loop import run, until
from tests.server.network.tls_clients import Ciphertext, Echo, aside, request, trusting

DAY_MS = 86_400_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has epoll, which reports it")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("notified", [True, False])
def test_over_tls(certificates: Certificates, version: ssl.TLSVersion, notified: bool) -> None:
    """notified: the client sends close_notify, which nobody reads."""

    async def scenario() -> None:
        echo = Echo(certificates)
        context = trusting(certificates)
        context.minimum_version = context.maximum_version = version
        client = Ciphertext(echo, context)
        await aside(client.shake_hands)
        frame = request(b"content")
        client.sock.sendall(client.encrypted(frame))
        assert await aside(lambda: client.received(len(frame))) == frame
        echo.contexts[0].client.mute(DAY_MS)
        assert len(echo.server.muted) == 1
        if notified:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.unwrap()
            client.sock.sendall(client.outgoing.read())
        client.sock.close()
        await until(lambda: echo.server.connections == 0)
        assert len(echo.server.muted) == 0
        echo.server.close()

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_openssl_has_decrypted_before_the_client_closed_is_handled(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """Neither the system's socket nor the broker has any of it: the last record is read in part."""
    sizes: list[int] = []

    async def scenario() -> None:
        echo = Echo(certificates)

        def mute_at_first(context: RequestContext, frame: Frame) -> None:
            echo.contexts.append(context)
            sizes.append(len(frame))
            if len(sizes) == 1:
                context.client.mute(DAY_MS)

        echo.server.serve(mute_at_first)
        context = trusting(certificates)
        context.minimum_version = context.maximum_version = version
        client = Ciphertext(echo, context)
        await aside(client.shake_hands)
        frames = request(b"first") + request(b"y" * SCRATCH_BYTES)
        records = [client.encrypted(frames[at : at + 16_000]) for at in range(0, len(frames), 16_000)]
        client.sock.sendall(b"".join(records))  # before the event loop reads any of it
        await until(lambda: len(sizes) == 1)
        muted = echo.contexts[0].client
        sock = muted._connection._sock
        assert isinstance(sock, TlsSocket) and sock.pending()
        client.sock.close()
        await until(lambda: muted.peer_has_closed)
        assert not muted.closed
        muted.unmute()
        await until(lambda: muted.closed)
        assert sizes[1] > SCRATCH_BYTES
        echo.server.close()

    run(scenario)


def answering() -> tuple[Server, tuple[str, int], list[RequestContext]]:
    contexts: list[RequestContext] = []
    server = Server(Limits(1 << 20, 100, 1 << 20), MemoryAccount(1 << 30))

    def take(context: RequestContext, frame: Frame) -> None:
        contexts.append(context)
        context.respond([len(frame).to_bytes(4, "big"), frame])

    server.serve(take)
    address = server.listen(Listener("127.0.0.1", 0))
    return server, (address.host, address.port), contexts


@pytest.mark.parametrize("reset", [True, False])
def test_plainly(reset: bool) -> None:
    async def scenario() -> None:
        server, address, contexts = answering()
        client = socket.create_connection(address)
        client.sendall(request(b""))
        await until(lambda: len(contexts) == 1)
        contexts[0].client.mute(DAY_MS)
        if reset:
            client.sendall(request(b""))  # which does not keep a broken connection open
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: server.connections == 0)
        assert len(server.muted) == 0
        server.close()

    run(scenario)


def test_a_longer_mute_counts_and_a_shorter_one_does_not() -> None:
    async def scenario() -> None:
        server, address, contexts = answering()
        _, writer = await asyncio.open_connection(*address)
        writer.write(request(b""))
        await until(lambda: len(contexts) == 1)
        muted = contexts[0].client
        muted.mute(DAY_MS)
        ends = muted.idle_since
        muted.mute(1)
        assert muted.idle_since == ends
        muted.mute(2 * DAY_MS)
        assert muted.idle_since is not None and ends is not None and muted.idle_since > ends
        writer.write(request(b""))
        muted.unmute()
        await until(lambda: len(contexts) == 2)
        writer.close()
        await until(lambda: server.connections == 0)
        server.close()

    run(scenario)


def test_idle_connections_are_closed_only_after_their_mute() -> None:
    async def scenario() -> None:
        server, address, contexts = answering()
        clients = [socket.create_connection(address) for _ in range(2)]
        for client in clients:
            client.sendall(request(b""))
        await until(lambda: len(contexts) == 2)
        muted, other = (context.client for context in contexts)
        muted.mute(DAY_MS)
        server.limits = Limits(1 << 20, 100, 1 << 20, max_idle_ms=0)
        server._close_idle()
        assert (muted.closed, other.closed) == (False, True)
        muted.unmute()
        server._close_idle()
        assert muted.closed
        for client in clients:
            client.close()
        server.close()

    run(scenario)


def test_a_muted_connection_that_its_client_has_closed_is_the_first_to_be_closed_for_another() -> None:
    """Whatever it has sent that still waits; and no mute makes a connection younger than those of others."""

    async def scenario() -> None:
        server, address, contexts = answering()
        server.limits = Limits(1 << 20, 100, 1 << 20, max_connections=3)
        clients = [socket.create_connection(address) for _ in range(3)]
        for client in clients:
            client.sendall(request(b""))
            await aside(partial(client.recv, 100))  # with bytes that are not read, its end would be a reset
        muted, other, gone = (context.client for context in contexts)
        for each, client in ((muted, clients[0]), (gone, clients[2])):
            each.mute(DAY_MS)
            client.sendall(request(b"waits"))
        clients[2].close()
        await until(lambda: gone.peer_has_closed)
        assert not gone.closed
        for victim, left in ((gone, (muted, other)), (muted, (other,))):
            clients.append(socket.create_connection(address))
            clients[-1].sendall(request(b""))
            await until(partial(getattr, victim, "closed"))
            assert not any(each.closed for each in left)
        for client in clients:
            client.close()
        server.close()

    run(scenario)
