"""Connections of TLS: large frames, cut records, slow readers, paused reads."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from functools import partial
from types import SimpleNamespace
from typing import Any

from kreplog.server.listeners import Listener
from kreplog.server.network.connections import Frame, ListeningSocket
from kreplog.server.network.serving import Limits
from kreplog.server.network.tls_connections import connection_over
from kreplog.server.network.tls_streams import complete_handshake
from kreplog.tls import TlsSettings, TlsSocket, accept_tls, server_context
from kreplog.types import SecurityProtocol
from tests.certificates import HOSTS, Certificates
from tests.server.loop import run, until
from tests.server.network.tls_clients import Ciphertext, Client, Echo, aside, request, trusting


def test_requests_and_responses_of_every_size_pass(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates)
        client = await Client.connect(echo, trusting(certificates))
        for size in (0, 1, 16_383, 16_384, 16_385, 65_536, 1 << 20, 5_000_001):
            frame = request(random.Random(size).randbytes(size))
            client.writer.write(frame)
            assert await client.response() == frame[4:]
        assert echo.contexts[0].client.security_protocol is SecurityProtocol.SSL
        assert echo.contexts[0].client.listener == "SSL"
        assert str(echo.contexts[0].principal) == "User:ANONYMOUS"
        client.writer.close()
        await until(lambda: echo.server.connections == 0)
        echo.server.close()

    run(scenario)


def test_records_that_are_cut_anywhere_are_whole_requests(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates)
        client = Ciphertext(echo, trusting(certificates))
        await aside(client.shake_hands)
        frame = request(b"content")
        size = len(client.encrypted(frame))  # the bytes of a record that is never sent would end the connection
        client.sock.close()
        client = Ciphertext(echo, trusting(certificates))
        await aside(client.shake_hands)
        for cut in range(1, size):
            record = client.encrypted(frame)
            assert len(record) == size
            before = len(echo.contexts)
            client.sock.sendall(record[:cut])
            for _ in range(3):
                await asyncio.sleep(0)  # the server has its turn
            assert len(echo.contexts) == before
            client.sock.sendall(record[cut:])
            assert await aside(lambda: client.received(len(frame))) == frame
        client.sock.close()
        echo.server.close()

    run(scenario)


def test_requests_that_are_decrypted_while_reading_is_paused_are_handled_after_it(certificates: Certificates) -> None:
    """No event of the system's socket says that OpenSSL holds them."""

    async def scenario() -> None:
        echo = Echo(certificates, Limits(1 << 20, 2, 1 << 20))
        echo.answers = False
        client = Ciphertext(echo, trusting(certificates))
        await aside(client.shake_hands)
        frames = [request(bytes([number]) * 900) for number in range(100)]
        client.sock.sendall(client.encrypted(b"".join(frames)))  # in records of 16 KiB, the scratch buffer has 64
        handled = 0

        def has_handled(number: int) -> bool:
            return len(echo.contexts) > number

        while handled < len(frames):
            await until(partial(has_handled, handled))
            echo.contexts[handled].respond([b"\0\0\0\1."])
            handled += 1
        assert len(echo.contexts) == len(frames)
        client.sock.close()
        echo.server.close()

    run(scenario)


def test_a_slow_reader_gets_all_bytes_and_stops_its_own_requests_alone(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates, Limits(8 << 20, 1000, 4 << 20))
        slow = Ciphertext(echo, trusting(certificates), receive_bytes=4096)
        await aside(slow.shake_hands)
        frames = [request(random.Random(number).randbytes(1_000_000)) for number in range(30)]
        records = b"".join(map(slow.encrypted, frames))
        sender = asyncio.create_task(aside(partial(slow.sock.sendall, records)))
        await until(lambda: len(echo.contexts) >= 5)
        quick = await Client.connect(echo, trusting(certificates))
        quick.writer.write(request(b"x"))
        await quick.response()
        assert echo.contexts[0].client._connection.queued_bytes <= (4 << 20) + len(frames[0])
        assert echo.account.held["connections"] > 0
        for frame in frames:
            assert await aside(partial(slow.received, len(frame))) == frame
        await sender
        await until(lambda: echo.account.held["connections"] == 0)
        quick.writer.close()
        slow.sock.close()
        echo.server.close()

    run(scenario)


def test_a_read_that_has_to_write_first_goes_on_once_it_can(certificates: Certificates) -> None:
    async def scenario() -> None:
        echo = Echo(certificates)
        client = await Client.connect(echo, trusting(certificates))
        client.writer.write(request(b"first"))
        await client.response()
        sock: Any = echo.contexts[0].client._connection._sock
        original = sock._sslobj
        reads = [True]

        class Blocked:
            """What OpenSSL does where the peer wants new keys and reads nothing."""

            def read(self, *arguments: Any) -> Any:
                if reads:
                    reads.clear()
                    raise ssl.SSLWantWriteError
                return original.read(*arguments)

            def __getattr__(self, name: str) -> Any:
                return getattr(original, name)

        sock._sslobj = Blocked()
        frame = request(b"second")
        client.writer.write(frame)
        assert await client.response() == frame[4:]
        assert not reads
        client.writer.close()
        echo.server.close()

    run(scenario)


def test_a_client_that_dies_is_gone_once_what_it_has_sent_is_handled(certificates: Certificates) -> None:
    """It sends no close_notify."""

    async def scenario() -> None:
        echo = Echo(certificates)
        client = Ciphertext(echo, trusting(certificates))
        await aside(client.shake_hands)
        frame = request(b"content")
        client.sock.sendall(client.encrypted(frame))
        client.sock.shutdown(socket.SHUT_WR)
        await until(lambda: len(echo.contexts) == 1)
        await until(lambda: echo.server.connections == 0)
        client.sock.close()
        echo.server.close()

    run(scenario)


def test_a_broker_gets_a_frame_whose_records_are_cut(certificates: Certificates) -> None:
    """As long frames of brokers are received: with less in the system's socket than is missing of the frame."""

    async def scenario() -> None:
        context = server_context(TlsSettings(keystore=certificates.keystore("broker", HOSTS)))
        frames: list[Frame] = []
        listening = ListeningSocket(
            Listener("127.0.0.1", 0), lambda sock: connections.append(accept_tls(sock, context))
        )
        connections: list[TlsSocket] = []
        echo: Any = SimpleNamespace(address=(listening.address.host, listening.address.port))
        client = Ciphertext(echo, trusting(certificates))
        shaking = asyncio.create_task(aside(client.shake_hands))
        await until(lambda: bool(connections))
        connections[0].setblocking(False)
        await complete_handshake(connections[0])
        await shaking
        connection = connection_over(connections[0], 1 << 20, frames.append, lambda: None, trusting=True)
        frame = request(random.Random(1).randbytes(100_000))
        ciphertext = client.encrypted(frame)
        for start in range(0, len(ciphertext), 10_000):
            client.sock.sendall(ciphertext[start : start + 10_000])
            for _ in range(5):
                await asyncio.sleep(0)  # the server has its turn
        await until(lambda: len(frames) == 1)
        assert frames[0] == frame[4:]
        connection.close()
        client.sock.close()
        listening.close()

    run(scenario)
