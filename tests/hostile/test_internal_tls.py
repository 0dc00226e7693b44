"""TLS between brokers: mutual, beside the cluster's key, of which neither is enough."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kreplog.errors import PeerProtocolError, UsageError
from kreplog.server.broker import Broker
from kreplog.server.network import internal
from kreplog.server.network.internal import Address, Dialer, create_key, load_key
from kreplog.server.network.peers import Peer
from kreplog.server.network.tls_connections import TlsConnection
from kreplog.server.network.tls_listeners import TlsListeners
from kreplog.server.settings import load
from kreplog.tls import ReloadedContext, TlsSettings, client_context, server_context
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.certificates import HOSTS, Certificates
from tests.server.brokers import eventually, serving, until_controlled

REFUSED = (OSError, TimeoutError, PeerProtocolError)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def settings_of(certificates: Certificates, folder: Path) -> dict[str, Any]:
    key = folder / "cluster.key"
    create_key(key)
    return {
        "inter_broker_listener": "127.0.0.1:0",
        "inter_broker_security_protocol": "SSL",
        "inter_broker_key_file": str(key),
        "ssl_keystore_location": certificates.keystore("broker", HOSTS),
        "ssl_truststore_location": certificates.truststore,
    }


def connections(broker: Broker) -> list[Any]:
    return [client._connection for client in broker.server._brokers]


def test_replicas_follow_over_tls(certificates: Certificates, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = settings_of(certificates, tmp_path)
        async with serving(tmp_path, 1, 2, default_replication_factor=2, **settings) as (first, second):
            for broker in (first, second):
                await until_controlled(broker)
            peer = Peer(1 << 20)
            header = RequestHeader(ApiKey.CREATE_TOPICS, 5, 1, "test")
            topic = {"name": "t", "num_partitions": 4, "replication_factor": 2, "assignments": [], "configs": []}
            fields = {"topics": [topic], "timeout_ms": 10_000, "validate_only": False}

            async def both_know() -> bool:
                return all(len(broker.manager.metadata.brokers) == 2 for broker in (first, second))

            await eventually(both_know)
            await peer.call(first.address, generic.encode_request(header, **fields), 20)

            async def in_sync() -> bool:
                states = [first.manager.metadata.partitions.get(TopicPartition("t", number)) for number in range(4)]
                return all(state is not None and state.state.isr == (1, 2) for state in states)

            await eventually(in_sync)
            for broker in (first, second):
                assert connections(broker)
                assert all(isinstance(each, TlsConnection) for each in connections(broker))
            peer.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def dial(key: bytes, tls: TlsSettings | None) -> Callable[[Address], Awaitable[Any]]:
    return Dialer(key, None if tls is None else ReloadedContext(client_context, tls)).connect


def test_neither_the_key_nor_a_certificate_is_enough(certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path / "stranger", "another CA")

    async def scenario() -> None:
        settings = settings_of(certificates, tmp_path)
        async with serving(tmp_path, 1, **settings) as (broker,):
            await until_controlled(broker)
            address = broker.registration.broker.internal
            assert address is not None
            key = load_key(settings["inter_broker_key_file"])
            valid = TlsSettings(keystore=certificates.keystore("other"), truststore=certificates.truststore)
            attempts = {
                "the key alone": dial(key, None),
                "no certificate": dial(key, TlsSettings(truststore=certificates.truststore)),
                "another CA": dial(
                    key, TlsSettings(keystore=stranger.keystore("x"), truststore=certificates.truststore)
                ),
                "another server": dial(key, TlsSettings(keystore=valid.keystore, truststore=stranger.truststore)),
                "another key": dial(b"k" * 64, valid),
            }
            before = len(connections(broker))
            for name, connect in attempts.items():
                with pytest.raises(REFUSED):
                    sock = await connect(address)
                    # In TLS 1.3 the client learns of a refused certificate with what it reads next.
                    raise AssertionError(f"{name} was enough: {sock}")
            assert len(connections(broker)) == before
            sock = await dial(key, valid)(address)
            await eventually(lambda: _has(broker, before + 1))
            sock.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def relayed(to: Address, server: ssl.SSLContext, client: ssl.SSLContext) -> asyncio.Server:
    """A server that passes on what it decrypts, in both directions."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beyond, onward = await asyncio.open_connection(*to, ssl=client, server_hostname=to[0])
        await asyncio.gather(copy(reader, onward), copy(beyond, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_a_stolen_certificate_does_not_let_anybody_stand_between_brokers(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Each end would prove the key to the other, through whoever can decrypt all that passes."""

    async def scenario() -> None:
        settings = settings_of(certificates, tmp_path)
        async with serving(tmp_path, 1, **settings) as (broker,):
            await until_controlled(broker)
            address = broker.registration.broker.internal
            assert address is not None
            stolen = TlsSettings(
                keystore=settings["ssl_keystore_location"], truststore=certificates.truststore, protocols=(protocol,)
            )
            contexts = [server_context(stolen), client_context(stolen)]
            for context in contexts:
                context.sslsocket_class = ssl.SSLSocket
            between = await relayed(address, *contexts)
            connect, ports = internal.connect, [each.getsockname()[1] for each in between.sockets]
            monkeypatch.setattr(internal, "connect", lambda _: connect(("127.0.0.1", ports[0])))
            before = len(connections(broker))
            valid = TlsSettings(keystore=certificates.keystore("other"), truststore=certificates.truststore)
            with pytest.raises(PeerProtocolError):
                await dial(load_key(settings["inter_broker_key_file"]), valid)(address)
            assert len(connections(broker)) == before
            between.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def _has(broker: Broker, count: int) -> bool:
    return len(connections(broker)) == count


def test_tls_between_brokers_needs_an_address_and_files(certificates: Certificates) -> None:
    needed = {"broker.id": 1, "log.dirs": "/data", "coordination": "embedded:/c", "inter.broker.key.file": "/k"}
    with pytest.raises(UsageError, match=r"needs inter\.broker\.listener to be host:port"):
        load({**needed, "inter.broker.security.protocol": "SSL"}, None, {})

    given = {"inter.broker.listener": "127.0.0.1:0", "inter.broker.security.protocol": "SSL"}
    settings = load({**needed, **given}, None, {})
    with pytest.raises(UsageError, match=r"inter\.broker\.listener = 127\.0\.0\.1:0: .*ssl\.keystore\.location"):
        TlsListeners(settings)
    keystore = {"ssl.keystore.location": certificates.keystore("broker", HOSTS)}
    with pytest.raises(UsageError, match=r"needs ssl\.truststore\.location"):
        TlsListeners(load({**needed, **given, **keystore}, None, {}))
