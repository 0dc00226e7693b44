"""The thread of a fetcher: receives long responses and checks their batches, while the event loop goes on."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kreplog.core.effects import Send
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.managed_log import CheckedBatches, build
from kreplog.server.network.internal import Address, connect
from kreplog.server.network.tls_streams import complete_handshake
from kreplog.server.replication import fetch_client
from kreplog.server.replication.fetch_client import VERSION, ReplicaFetchClient
from kreplog.tls import TlsSettings, accept_tls, client_context, connect_tls, server_context
from kreplog.types import TopicPartition
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.certificates import HOSTS, Certificates
from tests.server.loop import run, until

LEADER = 1
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
LONG = build([os.urandom(1000) for _ in range(1000)])
NAME = f"kreplog-fetcher-{LEADER}"


def response(correlation: int, *records: bytes) -> bytes:
    header = RequestHeader(ApiKey.FETCH, VERSION, correlation, "me")
    partitions = tuple(
        FetchedPartition(TopicPartition("t", number), ErrorCode.NONE, 5, records=each, topic_id=TOPIC_ID)
        for number, each in enumerate(records)
    )
    encoded = fetch.encode_response(FetchResponse(ErrorCode.NONE, 1, partitions), header, lambda topic: TOPIC_ID)
    return b"".join(encoded)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


class Leader:
    """The other end of a follower's connections. sock: of the latest, blocking."""

    def __init__(self, certificates: Certificates | None) -> None:
        self._certificates = certificates
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._server.getsockname()
        self.sock: Any = None
        self.closed: list[int] = []
        self.put: list[FetchReplied] = []
        self.client = ReplicaFetchClient(
            "me",
            8 << 20,
            lambda broker: self.address,
            self._resolve,
            lambda: {TOPIC_ID: "t"},
            self.put.append,
            self.closed.append,
            self._connect,
        )

    async def _resolve(self, broker: int) -> Address:
        return self.address

    async def _connect(self, address: Address) -> socket.socket:
        sock = await connect(address)
        if self._certificates is None:
            return sock
        secured = connect_tls(sock, client_context(TlsSettings(truststore=self._certificates.truststore)), "localhost")
        await complete_handshake(secured)
        return secured

    async def requested(self, correlation: int, *, catches_up: bool = True) -> None:
        """Have a follower send a fetch, and receive it."""
        listed = FetchPartition(TopicPartition("t", 0), TOPIC_ID, 1, correlation)
        request = FetchRequest(2, 1, 500, 1, 1 << 20, (listed,), session_epoch=0)
        self.client.send(Send(LEADER, correlation, request, catches_up))
        await asyncio.get_running_loop().run_in_executor(None, self._receive)

    def _receive(self) -> None:
        if self.sock is None:
            self.sock, _ = self._server.accept()
            if self._certificates is not None:
                settings = TlsSettings(keystore=self._certificates.keystore("broker", HOSTS))
                self.sock = accept_tls(self.sock, server_context(settings))
                self.sock.do_handshake()
        assert self.sock.recv(10_000)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.sock.sendall, data)

    async def replied(self) -> FetchReplied:
        await until(lambda: bool(self.put))
        return self.put.pop()

    async def ended(self) -> bool:
        """Whether the follower has closed the connection, where it sends nothing."""

        def receive() -> bool:
            try:
                return not self.sock.recv(1)
            except OSError:
                return True

        return await asyncio.get_running_loop().run_in_executor(None, receive)

    def hang_up(self) -> None:
        self.sock.setblocking(False)  # with TLS the end would wait for the follower's
        self.sock.close()
        self.sock = None

    def close(self) -> None:
        self.client.close()
        self._server.close()
        if self.sock is not None:
            self.hang_up()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", "TLS"])
def work(request: pytest.FixtureRequest, certificates: Certificates) -> Callable[[Callable[[Leader], Any]], None]:
    """Runs a test with a leader; after it no thread is left."""

    @asynccontextmanager
    async def leader() -> AsyncIterator[Leader]:
        found = Leader(certificates if request.param == "TLS" else None)
        try:
            yield found
        finally:
            found.close()
        await until(lambda: not threads())

    def run_with(test: Callable[[Leader], Awaitable[None]]) -> None:
        async def scenario() -> None:
            async with leader() as found:
                await test(found)

        run(scenario)

    return run_with


Work = Callable[[Callable[[Leader], Awaitable[None]]], None]


def test_a_long_response_is_received_by_the_thread_and_short_ones_by_the_event_loop(work: Work) -> None:
    async def test(leader: Leader) -> None:
        await leader.requested(1)
        await leader.send(response(1, build([b"short"])))
        first = (await leader.replied()).response
        assert first is not None
        assert not isinstance(first.partitions[0].records, CheckedBatches)
        assert not threads()
        await leader.requested(2)
        data = response(2, LONG, LONG)
        await leader.send(data[:-1])
        await until(lambda: len(threads()) == 1)
        for _ in range(20):
            await asyncio.sleep(0)  # a turn of the event loop, which waits for no thread
        assert not leader.put
        await leader.send(data[-1:])
        second = (await leader.replied()).response
        assert second is not None
        assert [bytes(each.records) for each in second.partitions] == [LONG, LONG]
        assert all(isinstance(each.records, CheckedBatches) for each in second.partitions)
        await leader.requested(3)
        await leader.send(response(3, build([b"short"])))
        assert (await leader.replied()).response is not None
        assert leader.closed == []

    work(test)


def test_the_event_loop_receives_the_long_responses_of_a_follower_that_keeps_up(work: Work) -> None:
    async def test(leader: Leader) -> None:
        for correlation, catches_up in enumerate((False, True, False)):
            await leader.requested(correlation, catches_up=catches_up)
            await leader.send(response(correlation, LONG))
            found = (await leader.replied()).response
            assert found is not None
            assert bytes(found.partitions[0].records) == LONG
            assert isinstance(found.partitions[0].records, CheckedBatches) is catches_up
            assert len(threads()) == (correlation > 0)

    work(test)


def test_damaged_batches_are_left_to_their_append(work: Work) -> None:
    async def test(leader: Leader) -> None:
        damaged = bytearray(LONG)
        damaged[-1] ^= 1
        await leader.requested(1)
        await leader.send(response(1, bytes(damaged), LONG, b""))
        found = (await leader.replied()).response
        assert found is not None
        assert [isinstance(each.records, CheckedBatches) for each in found.partitions] == [False, True, False]
        assert bytes(found.partitions[0].records) == damaged

    work(test)


def test_a_leader_that_dies_within_a_response(work: Work) -> None:
    async def test(leader: Leader) -> None:
        await leader.requested(1)
        data = response(1, LONG)
        await leader.send(data[: len(data) // 2])
        await until(lambda: len(threads()) == 1)
        leader.hang_up()
        assert await leader.replied() == FetchReplied(LEADER, 1, None)
        assert leader.closed == [LEADER]
        await leader.requested(2)
        await leader.send(response(2, LONG))
        assert (await leader.replied()).response is not None
        assert len(threads()) == 1, "the thread of the connection before"

    work(test)


def test_a_leader_that_stops_within_a_response(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_client, "TIMEOUT_MARGIN_S", 0.0)

    async def test(leader: Leader) -> None:
        await leader.requested(1)
        await leader.send(response(1, LONG)[:-1])
        assert await leader.replied() == FetchReplied(LEADER, 1, None)
        assert await leader.ended()
        leader.hang_up()
        await leader.requested(2)
        await leader.send(response(2, LONG))
        assert (await leader.replied()).response is not None

    work(test)


def test_a_malformed_long_response_fails_the_fetch(work: Work) -> None:
    async def test(leader: Leader) -> None:
        await leader.requested(1)
        await leader.send(response(7, LONG))  # to another request
        assert await leader.replied() == FetchReplied(LEADER, 1, None)

    work(test)


def test_a_broker_that_stops_ends_the_thread_within_a_response(work: Work) -> None:
    async def test(leader: Leader) -> None:
        await leader.requested(1)
        await leader.send(response(1, LONG)[:-1])
        await until(lambda: len(threads()) == 1)
        leader.client.close()
        await until(lambda: not threads())
        assert await leader.ended()

    work(test)


def test_a_leader_that_goes_on_sending_is_disconnected(work: Work) -> None:
    """The event loop does not read beside the thread."""

    async def test(leader: Leader) -> None:
        await leader.requested(1)
        extra = response(2, LONG)
        await leader.send(response(1, build([b"short"])) + extra[:20_000])
        assert (await leader.replied()).response is not None
        await until(lambda: len(threads()) == 1)
        await leader.send(extra[20_000:])
        await until(lambda: leader.closed == [LEADER])
        assert await leader.ended()

    work(test)
