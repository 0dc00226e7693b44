"""Connections, servers and peers over real sockets: order, bounds, and what a hostile peer costs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import mmap
import random
import socket
import struct
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kreplog.core.memory import MemoryAccount
from kreplog.errors import PeerProtocolError, StorageError
from kreplog.server.listeners import Listener
from kreplog.server.network import connections as network
from kreplog.server.network.connections import Connection, Frame, ListeningSocket
from kreplog.server.network.serving import AT_ONCE_BUFFERS, AT_ONCE_BYTES, Limits, RequestContext, Server
from kreplog.wire.frames import RequestHeader, encode_request_header
from kreplog.wire.versions import ApiKey
from tests.server.loop import run, until

ANYWHERE = Listener("127.0.0.1", 0)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(number: int, body: bytes = b"") -> bytes:
    return framed(encode_request_header(RequestHeader(ApiKey.METADATA, 1, number, "test")) + body)


class Echo:
    """A server that keeps every exchange and lets the test answer it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.seen: list[RequestContext] = []
        self.server = Server(limits or Limits(1 << 20, 100, 1 << 20))
        self.server.serve(self.take)
        self.address = self.server.listen(ANYWHERE)

    def take(self, exchange: RequestContext, frame: Frame) -> None:
        if bytes(frame).endswith(b"refuse"):
            raise PeerProtocolError("refused")
        if bytes(frame).endswith(b"break"):
            raise RuntimeError("broken")
        self.seen.append(exchange)

    async def has_seen(self, count: int) -> None:
        """Wait until so many requests have come."""
        await until(lambda: len(self.seen) >= count)

    def connect(self) -> socket.socket:
        sock = socket.create_connection((self.address.host, self.address.port))
        sock.setblocking(False)
        return sock


async def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not piece:
            break
        data += piece
    return data


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def work() -> None:
        echo = Echo()
        with echo.connect() as sock:
            sock.sendall(request(1) + request(2) + request(3))
            await until(lambda: len(echo.seen) == 3)
            echo.seen[2].respond([b"three"])
            echo.seen[1].respond([])  # acks=0: nothing is said
            await asyncio.sleep(0.01)
            echo.seen[0].respond([b"o", memoryview(b"ne")])
            echo.seen[0].respond([b"again"])
            assert await receive(sock, 8) == b"onethree"
        await until(lambda: echo.server.connections == 0)
        echo.server.close()

    run(work)


def test_a_response_is_sent_at_once_or_together_with_those_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once to a client that waits for nothing else; each call of the system costs as much as a small request."""

    async def work() -> None:
        echo = Echo()
        sent: list[int] = []
        flush = Connection._flush

        def noted(connection: Connection) -> None:
            sent.append(connection.queued_bytes)
            flush(connection)

        monkeypatch.setattr(Connection, "_flush", noted)
        with echo.connect() as sock:
            sock.sendall(request(1))
            await until(lambda: len(echo.seen) == 1)
            echo.seen[0].respond([b"one"])
            assert sent == [3] and await receive(sock, 3) == b"one"
            sock.sendall(request(2) + request(3) + request(4))
            await until(lambda: len(echo.seen) == 4)
            sent.clear()
            echo.seen[1].respond([b"two"])
            echo.seen[2].respond([b"three"])
            assert sent == []
            echo.seen[3].respond([b"four"])
            assert sent == [12] and await receive(sock, 12) == b"twothreefour"
            sock.sendall(request(5) + request(6))
            await until(lambda: len(echo.seen) == 6)
            echo.seen[4].respond([b"five"])
            assert await receive(sock, 4) == b"five", "the last request may take long"
            echo.seen[5].respond([b"six"])
            assert await receive(sock, 3) == b"six"
            for number, large in ((7, [bytes(AT_ONCE_BYTES + 1)]), (8, [b"8"] * (AT_ONCE_BUFFERS + 1))):
                sock.sendall(request(number))
                await echo.has_seen(number)
                assert len(echo.seen) == number
                sent.clear()
                echo.seen[-1].respond(large)
                assert sent == [], "it has an iteration of its own"
                assert len(await receive(sock, sum(map(len, large)))) == sum(map(len, large))
        echo.server.close()

    run(work)


def test_responses_to_requests_that_came_together_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        echo = Echo()
        echo.server.serve(lambda exchange, _: exchange.respond([b"%d" % exchange.header.correlation_id]))
        sent: list[int] = []
        flush = Connection._flush

        def noted(connection: Connection) -> None:
            sent.append(connection.queued_bytes)
            flush(connection)

        monkeypatch.setattr(Connection, "_flush", noted)
        with echo.connect() as sock:
            sock.sendall(b"".join(request(number) for number in range(10)))
            assert await receive(sock, 10) == b"0123456789"
            assert [size for size in sent if size] == [10]
        echo.server.close()

    run(work)


def test_a_request_before_the_server_serves_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        server = Server(Limits(1 << 20, 100, 1 << 20))
        address = server.listen(ANYWHERE)
        with socket.create_connection((address.host, address.port)) as sock:
            sock.sendall(request(1))
            sock.setblocking(False)
            assert await receive(sock, 1) == b""
        server.close()

    run(work)
    assert caplog.text == ""


def test_a_request_may_come_byte_by_byte() -> None:
    async def work() -> None:
        echo = Echo()
        with echo.connect() as sock:
            for byte in request(7):
                sock.sendall(bytes([byte]))
                await asyncio.sleep(0)
            await until(lambda: len(echo.seen) == 1)
            assert echo.seen[0].header.correlation_id == 7
        echo.server.close()

    run(work)


def test_a_connection_over_its_limit_is_not_read() -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 3, 1 << 20))
        with echo.connect() as sock:
            for number in range(10):
                sock.sendall(request(number))
                await asyncio.sleep(0.005)
            assert len(echo.seen) == 3
            for number in range(10):
                await echo.has_seen(number + 1)
                echo.seen[number].respond([b"%d" % number])
            assert await receive(sock, 10) == b"0123456789"
        echo.server.close()

    run(work)


def test_received_requests_over_the_limit_wait() -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 3, 1 << 20))
        with echo.connect() as sock:
            sock.sendall(b"".join(request(number) for number in range(10)))
            for number in range(10):
                await echo.has_seen(number + 1)
                assert len(echo.seen) <= number + 3
                echo.seen[number].respond([b"%d" % number])
            assert await receive(sock, 10) == b"0123456789"
            sock.sendall(b"".join(request(number) for number in range(9)) + request(9, b"refuse") + request(10))
            for number in range(10, 19):
                await echo.has_seen(number + 1)
                echo.seen[number].respond([b"%d" % (number - 10)])
            received = await receive(sock, 10)
            assert b"012345678".startswith(received), "refused, and closed with what was not sent yet"
            assert len(echo.seen) == 19
        echo.server.close()

    run(work)


def test_requests_that_take_long_are_handled_in_turn_with_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "DELIVERY_S", -1.0)

    async def work() -> None:
        echo = Echo()
        with echo.connect() as first, echo.connect() as second:
            for sock in (first, second):
                await is_served(sock, echo, 0)
            echo.seen.clear()
            for sock, base in ((first, 100), (second, 200)):
                sock.sendall(b"".join(request(base + number) for number in range(5)))
            await until(lambda: len(echo.seen) == 10)
            numbers = [exchange.header.correlation_id for exchange in echo.seen]
            assert numbers == [100, 200, 101, 201, 102, 202, 103, 203, 104, 204]
            for exchange in echo.seen:
                exchange.respond([b"fine"])
            assert await receive(first, 20) == await receive(second, 20) == b"fine" * 5
        echo.server.close()

    run(work)


def test_a_client_that_reads_no_responses_is_not_read() -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 1000, 1 << 20))
        answer = bytes(1 << 20)
        with echo.connect() as sock:
            for number in range(50):
                sock.sendall(request(number))
                await asyncio.sleep(0.002)
                for exchange in echo.seen:
                    exchange.respond([memoryview(answer)])
            assert len(echo.seen) < 50, "the others wait in the kernel"
            received = 0
            while received < 50 << 20:
                received += len(await asyncio.get_running_loop().sock_recv(sock, 1 << 20))
                for exchange in echo.seen:
                    exchange.respond([memoryview(answer)])
        echo.server.close()

    run(work)


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack(">i", -5),
        struct.pack(">i", 1 << 30),
        framed(b"\0"),
        framed(struct.pack(">hhih", 999, 0, 1, -1)),
        framed(struct.pack(">hhih", ApiKey.METADATA, 99, 1, -1)),
        request(1, b"refuse"),
        request(1, b"break"),
        bytes.fromhex("16030100f1010000ed0303"),  # TLS, hello
        b"GET /metrics HTTP/1.1\r\n\r\n",
        random.Random(4).randbytes(64),
    ],
)
def test_a_hostile_frame_costs_its_own_connection(hostile: bytes) -> None:
    async def work() -> None:
        echo = Echo()
        with echo.connect() as sound, echo.connect() as sock:
            sock.sendall(hostile)
            assert await receive(sock, 1) == b""
            sound.sendall(request(1))
            await until(lambda: len(echo.seen) == 1)
            echo.seen[0].respond([b"fine"])
            assert await receive(sound, 4) == b"fine"
        echo.server.close()

    run(work)


def test_a_response_to_a_closed_connection_is_dropped() -> None:
    async def work() -> None:
        echo = Echo()
        with echo.connect() as sock:
            sock.sendall(request(1))
            await until(lambda: len(echo.seen) == 1)
        await until(lambda: echo.seen[0].client.closed)
        echo.seen[0].encode = lambda response: pytest.fail("nobody wants it")
        echo.seen[0].reply(object())
        echo.server.close()

    run(work)


def test_a_closed_connection_is_freed_with_no_garbage_collection() -> None:
    """Brokers collect garbage seldom."""

    async def work() -> None:
        echo = Echo()
        gc.disable()
        try:
            with echo.connect() as sock:
                sock.sendall(request(1))
                await until(lambda: len(echo.seen) == 1)
                client = weakref.ref(echo.seen.pop().client)
            await until(lambda: echo.server.connections == 0)
            await until(lambda: client() is None)
        finally:
            gc.enable()
        echo.server.close()

    run(work)


def test_unix_sockets(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "broker.sock"
        accepted: list[socket.socket] = []
        listening = ListeningSocket(Listener(path=str(path)), accepted.append)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            await until(lambda: len(accepted) == 1)
        accepted[0].close()
        assert path.stat().st_mode & 0o077 == 0
        ListeningSocket(Listener(path=str(path)), accepted.append).close()  # as after a kill: the old one is replaced
        listening.close()
        path.write_text("something else")
        with pytest.raises(StorageError, match="is not a socket"):
            ListeningSocket(Listener(path=str(path)), accepted.append)

    run(work)


async def arrived(sock: socket.socket, size: int) -> None:
    """Wait until so many bytes are in the socket, and the event loop has seen them."""

    def waiting() -> int:
        with contextlib.suppress(BlockingIOError):
            return len(sock.recv(size, socket.MSG_PEEK))
        return 0

    await until(lambda: waiting() == size)
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_long_frame_of_a_trusted_peer_is_received_in_large_pieces() -> None:
    async def work() -> None:
        frames: list[Frame] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        connection = Connection(ours, 8 << 20, frames.append, lambda: None, trusting=True)
        reader = connection._frames
        long = random.Random(1).randbytes(2 * network.WAKE_BYTES)
        send = partial(asyncio.get_running_loop().sock_sendall, theirs)
        theirs.setblocking(False)
        with theirs:
            await send(framed(b"short") + framed(long)[:1000])
            await until(lambda: reader.missing > 0)
            missing = reader.missing
            await send(long[996 : 996 + 5000])
            await arrived(ours, 5000)
            assert reader.missing == missing, "below the low watermark"
            await send(long[5996 : network.WAKE_BYTES + 996])
            await until(lambda: reader.missing < missing)
            await send(long[network.WAKE_BYTES + 996 :])
            await until(lambda: len(frames) == 2)
            assert frames == [b"short", long]
            await send(framed(b"x"))
            await until(lambda: len(frames) == 3)
            await send(framed(long)[:1000])
            await until(lambda: reader.missing > 0)
        await until(lambda: connection.closed)

    run(work)


def test_a_response_without_request_closes_the_connection() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair()
        closed = asyncio.Event()

        def refuse(frame: Frame) -> None:
            raise PeerProtocolError("unasked")

        connection = Connection(ours, 1 << 20, refuse, closed.set)
        with theirs:
            theirs.sendall(framed(b"hello"))
            await closed.wait()
        assert connection.closed
        connection.close()

    run(work)


def resident_bytes() -> int:
    """Of this process; what it maps of files is not its own."""
    size, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(size) - int(shared)) * 4096


async def is_served(sock: socket.socket, echo: Echo, number: int) -> None:
    """One request and its answer."""
    count = len(echo.seen)
    sock.sendall(request(number))
    await until(lambda: len(echo.seen) > count)
    echo.seen[-1].respond([b"fine"])
    assert await receive(sock, 4) == b"fine"


@pytest.mark.parametrize("sent", [5, 60 << 10])
def test_a_flood_of_frames_that_never_end_is_bounded(sent: int, figure: Callable[[str], None]) -> None:
    async def work() -> None:
        limit = 16 << 20
        echo = Echo(Limits(100 << 20, 100, 1 << 20, limit))
        with echo.connect() as sound, contextlib.ExitStack() as stack:
            await is_served(sound, echo, 1)
            before = resident_bytes()
            start = struct.pack(">i", 100 << 20) + bytes(sent - 4)
            for _ in range(1000):
                stack.enter_context(contextlib.closing(echo.connect())).sendall(start)
                await asyncio.sleep(0)  # the server has its turn
            await until(lambda: echo.server.connections < 1001)
            await is_served(sound, echo, 2)
            grown = resident_bytes() - before
            figure(f"1000 frames of 100 MiB, {sent} bytes of each: {grown / 2**20:.0f} MiB resident, 16 allowed")
            assert echo.server.memory.held <= limit
            assert grown < 2 * limit
            assert 200 < echo.server.connections < 300, "64 KiB each"
        await until(lambda: echo.server.connections == 0)
        assert echo.server.memory.held == 0
        echo.server.close()

    run(work)


def test_a_flood_of_those_who_only_connect_ends_no_client() -> None:
    """One that has held memory for longest of all, and goes on with its request after the flood."""

    async def work() -> None:
        echo = Echo(Limits(100 << 20, 100, 1 << 20, 16 << 20))
        with echo.connect() as sound, contextlib.ExitStack() as stack:
            await is_served(sound, echo, 1)
            large = request(2, bytes(5 << 20))
            await asyncio.get_running_loop().sock_sendall(sound, large[:-1])
            await until(lambda: echo.server.memory.held > 0)
            start = struct.pack(">i", 100 << 20) + bytes(70_000)
            for _ in range(600):
                stack.enter_context(contextlib.closing(echo.connect())).sendall(start)
                await asyncio.sleep(0)  # the server has its turn
            await until(lambda: echo.server.connections < 300)
            sound.sendall(large[-1:])
            await until(lambda: len(echo.seen) == 2)
        echo.server.close()

    run(work)


def test_unread_responses_are_bounded(figure: Callable[[str], None]) -> None:
    async def work() -> None:
        limit = 16 << 20
        echo = Echo(Limits(1 << 20, 100, 4 << 20, limit))
        with echo.connect() as sound, contextlib.ExitStack() as stack:
            await is_served(sound, echo, 1)
            echo.seen.clear()
            before = resident_bytes()
            for number in range(100):
                sock = stack.enter_context(contextlib.closing(echo.connect()))
                sock.sendall(request(number) * 8)
                await until(lambda: len(echo.seen) == 8)
                while echo.seen:
                    echo.seen.pop(0).respond([bytes(1 << 20)])
                await asyncio.sleep(0)
            await is_served(sound, echo, 2)
            grown = resident_bytes() - before
            figure(f"100 clients that read none of 8 MiB: {grown / 2**20:.0f} MiB resident, 32 allowed")
            assert echo.server.memory.held <= limit
            assert grown < 2 * limit
        echo.server.close()

    run(work)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "its connection is closed"),
        (request(1, b"refuse"), "refused; its connection is closed"),
        (request(1, b"break"), "failed; its connection is closed"),
    ],
)
def test_a_client_that_fails_again_and_again_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, sent: bytes, text: str
) -> None:
    async def work() -> None:
        echo = Echo()
        for _ in range(40):
            with echo.connect() as sock:
                sock.sendall(sent)
                assert await receive(sock, 1) == b""
        echo.server.close()

    run(work)
    lines = [record.getMessage() for record in caplog.records if text in record.getMessage()]
    assert [line.rpartition(": ")[2] for line in lines] == ["1", "2", "4", "8", "16", "32"]


def test_other_holders_of_memory_close_no_connection() -> None:
    """Producers that are in the logs are charged whatever room there is; connections have a quarter all the same."""

    async def work() -> None:
        limit = 4 << 20
        account = MemoryAccount(limit)
        account.held["producer_ids"] = limit
        server = Server(Limits(limit, 100, limit), account)
        server.serve(lambda exchange, frame: None)
        address = server.listen(ANYWHERE)
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                sock = stack.enter_context(socket.create_connection((address.host, address.port)))
                sock.sendall(struct.pack(">i", limit) + bytes(100_000))
                await until(lambda: server.memory.held > 0)
                assert server.memory.held <= limit // 4
            await until(lambda: server.memory.held > limit // 8)
        await until(lambda: server.connections == 0)
        server.close()

    run(work)


def test_answers_behind_a_request_that_waits_are_bounded() -> None:
    """For each connection: it is not read. For all: the one that has held memory for longest is closed."""

    async def work() -> None:
        limit = 16 << 20
        echo = Echo(Limits(1 << 20, 100, 4 << 20, limit))
        with echo.connect() as sock, echo.connect() as other:
            sock.sendall(request(0))
            await until(lambda: len(echo.seen) == 1)
            for number in range(1, 5):
                sock.sendall(request(number))
                await until(lambda number=number: len(echo.seen) > number)  # type: ignore[misc]
                echo.seen[number].respond([bytes(1 << 20)])
            sock.sendall(request(5) + request(6))
            await is_served(other, echo, 1)
            assert {exchange.header.correlation_id for exchange in echo.seen} == {0, 1, 2, 3, 4, 5}
            assert 4 << 20 <= echo.server.memory.held < 5 << 20
            echo.seen[0].respond([b"first"])
            assert await receive(sock, 5 + (4 << 20)) == b"first" + bytes(4 << 20)
            await until(lambda: echo.seen[-1].header.correlation_id == 6)
            assert echo.server.memory.held == 0
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                echo.seen.clear()
                stack.enter_context(contextlib.closing(echo.connect())).sendall(request(1) + request(2))
                await until(lambda: len(echo.seen) == 2)
                echo.seen[1].respond([bytes(4 << 20)])
                assert echo.server.memory.held <= limit
            await until(lambda: echo.server.connections == 4)
        await until(lambda: echo.server.connections == 0)
        assert echo.server.memory.held == 0
        echo.server.close()

    run(work)


def test_records_of_segments_count_as_nobodys_memory(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "segment").write_bytes(bytes(8 << 20))
        echo = Echo(Limits(1 << 20, 100, 64 << 20, 1 << 20))
        with open(tmp_path / "segment", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            with echo.connect() as sock:
                sock.sendall(request(1))
                await until(lambda: len(echo.seen) == 1)
                echo.seen[0].respond([b"head", memoryview(mapped)])
                assert len(await receive(sock, 4 + (8 << 20))) == 4 + (8 << 20)
            await until(lambda: echo.server.connections == 0)
            del echo.seen[:]
        echo.server.close()

    run(work)


def test_a_flood_of_connections_closes_those_without_a_request(figure: Callable[[str], None]) -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 100, 1 << 20, max_connections=100))
        with echo.connect() as sound, contextlib.ExitStack() as stack:
            await is_served(sound, echo, 1)
            before = resident_bytes()
            for _ in range(1000):
                stack.enter_context(contextlib.closing(echo.connect()))
                await asyncio.sleep(0)
            await until(lambda: echo.server.refused >= 901)
            assert echo.server.connections == 100
            await is_served(sound, echo, 2)
            with echo.connect() as late:
                await is_served(late, echo, 3)
            figure(f"1000 connections, 100 allowed: {(resident_bytes() - before) / 2**20:.1f} MiB resident")
        echo.server.close()

    run(work)


def test_the_connection_idle_for_longest_is_closed_for_a_new_one() -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 100, 1 << 20, max_connections=3))
        with echo.connect() as waiting, echo.connect() as idle, echo.connect() as lively:
            waiting.sendall(request(1))
            await until(lambda: len(echo.seen) == 1)
            for sock in (idle, lively):
                await is_served(sock, echo, 2)
            with echo.connect() as silent, echo.connect() as late:
                assert await receive(silent, 1) == b""  # which ends no other
                assert echo.server.connections == 4
                await is_served(late, echo, 3)
            assert await receive(idle, 1) == b""
            echo.seen[0].respond([b"late"])
            assert await receive(waiting, 4) == b"late"
            await is_served(lively, echo, 4)
        echo.server.close()

    run(work)


def test_a_new_connection_is_closed_where_all_others_have_requests_in_flight() -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 100, 1 << 20, max_connections=2))
        with echo.connect() as first, echo.connect() as second:
            for number, sock in enumerate((first, second), 1):
                sock.sendall(request(number))
                await until(partial(_has_seen, echo, number))
            with echo.connect() as late:
                late.sendall(request(3))
                assert await receive(late, 1) == b""
            assert (len(echo.seen), echo.server.connections) == (2, 2)
        echo.server.close()

    run(work)


def _has_seen(echo: Echo, number: int) -> bool:
    return len(echo.seen) == number


def test_idle_connections_are_closed_but_not_those_with_a_request_in_flight() -> None:
    async def work() -> None:
        echo = Echo(Limits(1 << 20, 100, 1 << 20, max_idle_ms=50))
        with echo.connect() as silent, echo.connect() as slow, echo.connect() as waiting:
            for sock in (slow, waiting):
                sock.sendall(request(1))
            await until(lambda: len(echo.seen) == 2)
            (slow_exchange,) = (
                exchange for exchange in echo.seen if exchange.client.peer.endswith(f":{slow.getsockname()[1]}")
            )
            slow_exchange.respond([memoryview(bytes(32 << 20))])
            assert await receive(silent, 1) == b""
            await until(lambda: slow_exchange.client.closed)
            assert echo.server.connections == 1
            (waiting_exchange,) = (exchange for exchange in echo.seen if exchange is not slow_exchange)
            waiting_exchange.respond([b"fine"])
            assert await receive(waiting, 4) == b"fine"
            assert await receive(waiting, 1) == b"", "idle from now on"
        echo.server.close()

    run(work)


def test_requests_are_counted_with_their_times() -> None:
    async def work() -> None:
        echo = Echo()
        with echo.connect() as sock:
            for number in range(3):
                await is_served(sock, echo, number)
        (((key, follower), times),) = echo.server.requests.times.items()
        assert (key, follower, sum(times.buckets)) == (ApiKey.METADATA, False, 3)
        assert 0 < times.total_s < 20
        echo.server.close()

    run(work)
