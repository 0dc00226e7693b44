"""How a follower's client are carried out: when they go out, over which connection."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import pytest

from kreplog.core.effects import Send
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.server.network.internal import Address, connect
from kreplog.server.replication.fetch_client import VERSION, ReplicaFetchClient
from kreplog.types import TopicPartition
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.server.loop import run, until
from tests.server.network.test_connections import receive

LEADER = 1
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def fetch_effect(correlation: int) -> Send:
    requested = FetchPartition(TopicPartition("t", 0), TOPIC_ID, 1, correlation)
    return Send(LEADER, correlation, FetchRequest(2, 1, 500, 1, 1 << 20, (requested,), session_epoch=0))


def encoded(correlation: int) -> bytes:
    header = RequestHeader(ApiKey.FETCH, VERSION, correlation, "me")
    return b"".join(fetch.encode_request(fetch_effect(correlation).request, header, lambda topic: TOPIC_ID))


def answer(correlation: int) -> bytes:
    header = RequestHeader(ApiKey.FETCH, VERSION, correlation, "me")
    return b"".join(fetch.encode_response(FetchResponse(ErrorCode.NONE, correlation), header))


def test_a_fetch_on_an_open_connection_is_sent_before_send_returns() -> None:
    async def work() -> None:
        put: list[FetchReplied] = []
        known: dict[int, Address] = {}
        with socket.create_server(("127.0.0.1", 0)) as server:
            address: Address = server.getsockname()

            async def resolve(broker: int) -> Address:
                assert broker not in known, "the store is read, although the address is known"
                return address

            client = ReplicaFetchClient(
                "me", 1 << 20, known.get, resolve, lambda: {TOPIC_ID: "t"}, put.append, lambda broker: None, connect
            )
            client.send(fetch_effect(7))  # to one that is not known yet
            theirs, _ = await asyncio.get_running_loop().run_in_executor(None, server.accept)

            async def answered(correlation: int, sent: Any) -> None:
                assert sent == encoded(correlation)
                theirs.send(answer(correlation))
                await until(lambda: bool(put))
                assert put.pop() == FetchReplied(LEADER, correlation, FetchResponse(ErrorCode.NONE, correlation))

            with theirs:
                theirs.setblocking(False)
                await answered(7, await receive(theirs, len(encoded(7))))
                known[LEADER] = address
                client.send(fetch_effect(8))
                await answered(8, theirs.recv(1000))
                client.send(fetch_effect(9))
                assert theirs.recv(1000) == encoded(9)
            await until(lambda: bool(put))
            assert put == [FetchReplied(LEADER, 9, None)]
            client.close()

    run(work)


def test_a_fault_of_this_broker_ends_the_fetch_too(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        put: list[FetchReplied] = []

        async def resolve(broker: int) -> Address:
            raise ZeroDivisionError("a fault")

        client = ReplicaFetchClient(
            "me", 1 << 20, lambda broker: None, resolve, dict, put.append, lambda broker: None, connect
        )
        client.send(fetch_effect(7))
        await until(lambda: bool(put))
        assert put == [FetchReplied(LEADER, 7, None)]
        client.close()

    run(work)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "Fetch to broker 1: no response: a fault")
    assert record.exc_info is not None


def test_closing_ends_a_fetch_that_has_only_begun() -> None:
    async def work() -> None:
        put: list[FetchReplied] = []
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, complaint: complaints.append(complaint))
        with socket.create_server(("127.0.0.1", 0)) as server:
            where: Address = server.getsockname()[:2]

            async def resolve(broker: int) -> Address:
                return where

            client = ReplicaFetchClient(
                "me",
                1 << 20,
                lambda broker: where,
                resolve,
                lambda: {TOPIC_ID: "t"},
                put.append,
                lambda broker: None,
                connect,
            )
            client.send(fetch_effect(7))
            theirs, _ = await asyncio.get_running_loop().run_in_executor(None, server.accept)
            with theirs:
                theirs.setblocking(False)
                await receive(theirs, len(encoded(7)))
                theirs.send(answer(7))
                await until(lambda: bool(put))
                client.send(fetch_effect(8))
                client.close()
                await receive(theirs, len(encoded(8)))
                assert await receive(theirs, 1) == b"", "its connection is closed"
        del client
        gc.collect()
        assert not complaints

    run(work)
