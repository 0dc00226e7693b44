"""What somebody without a password, or with what was overheard, may try at a SASL listener of a broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.broker_client import BrokerClient
from kreplog.core.security.plain import plain_message
from kreplog.core.security.scram import SCRAM_MECHANISMS, ScramClient
from kreplog.server.broker import Broker
from kreplog.server.network.connections import Frame
from kreplog.server.network.serving import RequestContext
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey
from tests.server.handlers.test_sasl import SCRAM_256, authenticate, brokers, connected, framed, is_served
from tests.server.loop import run, until

RAW, OF_REQUESTS = 0, 1
"""Versions of SaslHandshake: after the first one tokens have no headers."""


def frames_of(*tokens: bytes, version: int = OF_REQUESTS, mechanism: str = SCRAM_256) -> list[bytes]:
    """The requests of an exchange, and one that needs a login behind it."""
    requests = BrokerClient(("", 0), 1)

    def encoded(api: ApiKey, of: int, **fields: Any) -> bytes:
        return b"".join(map(bytes, generic.encode_request(requests.header(api, of), **fields)))

    return [
        encoded(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism),
        *(
            framed(token) if version == RAW else encoded(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token)
            for token in tokens
        ),
        encoded(ApiKey.METADATA, 12, topics=[]),
    ]


async def answers(broker: Broker, frames: Sequence[bytes]) -> int:
    """How many responses the broker sends, until it closes the connection or all have one."""
    at = next(endpoint for endpoint in broker.endpoints if endpoint.listener == "SASL_PLAINTEXT")
    reader, writer = await asyncio.open_connection(at.host, at.port)
    count = 0
    try:
        writer.write(b"".join(frames))
        writer.write_eof()
        async with asyncio.timeout(20):
            while count < len(frames):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                count += 1
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()
    return count


@pytest.mark.parametrize("version", [RAW, OF_REQUESTS])
def test_an_exchange_that_was_overheard_opens_nothing(tmp_path: Path, version: int) -> None:
    """Its proof is for the nonce of the server, which each exchange has its own of."""

    async def work() -> None:
        async with brokers(tmp_path) as (broker,), connected(broker) as client:
            scram = ScramClient(SCRAM_MECHANISMS[SCRAM_256], "alice", "pencil", "client")
            await client.request(ApiKey.SASL_HANDSHAKE, OF_REQUESTS, mechanism=SCRAM_256)
            first = scram.first()
            response = await client.request(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first)
            final = scram.respond(response.auth_bytes)
            assert (await client.request(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=final)).error_code == 0
            assert await is_served(client)
            for tokens in ((first, final), (final,), (first, first, final), (first, final, final)):
                frames = frames_of(*tokens, version=version)
                assert await answers(broker, frames) < len(frames)
            assert broker.server.failed_logins.total == 4
            assert {each.principal.name for each in broker.server._clients if each.sasl is not None} == {"alice"}
            assert len([each for each in broker.server._clients if each.sasl is not None]) == 1

    run(work)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_any_bytes_in_an_exchange_end_their_connection_alone(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Frames are flipped, cut, doubled, replaced and sent in another order; each connection ends or waits for more, and
    none is authenticated."""
    draw = random.Random(seed)
    scram = ScramClient(SCRAM_MECHANISMS[SCRAM_256], "alice", "wrong", "client")
    proof = b"c=biws,r=client" + bytes(24) + b",p=" + b"A" * 44

    def damaged() -> list[bytes]:
        frames = frames_of(
            scram.first(), proof, plain_message("alice", "wrong"), version=draw.choice((RAW, OF_REQUESTS))
        )
        frames.insert(draw.randrange(len(frames)), frames[-1])
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(frames))
            data = bytearray(frames[at] or b"\0")
            match draw.randrange(6):
                case 0:
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                case 1:
                    del data[draw.randrange(len(data)) :]
                case 2:
                    data[4:] = draw.randbytes(max(0, len(data) - 4))
                case 3:
                    frames.insert(at, bytes(data))
                case 4:
                    draw.shuffle(frames)
                case _:
                    data[:4] = draw.randrange(1 << 20).to_bytes(4)
            frames[at] = bytes(data)
        return frames

    async def work() -> None:
        async with brokers(tmp_path, connection_failed_authentication_delay_ms=0) as (broker,):
            handled: set[int] = set()
            handle = broker.server.handle

            def recorded(context: RequestContext, frame: Frame) -> None:
                if context.client.sasl is not None:
                    handled.add(context.header.api_key)
                handle(context, frame)

            broker.server.handle = recorded
            for _ in range(60):
                await answers(broker, damaged())
                assert not any(each.sasl is not None for each in broker.server._clients)
            assert handled <= {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
            broker.server.handle = handle
            await until(lambda: not broker.server._unproved)
            async with connected(broker) as client:
                assert (await authenticate(client)).error_code == 0
                assert await is_served(client)

    run(work)
    assert not [record for record in caplog.records if record.exc_info], "a request that could not be handled"
