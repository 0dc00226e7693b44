"""max.connections.per.ip with its overrides, and max.connection.creation.rate."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from kreplog.core.quotas.entities import DEFAULT, QuotaEntity, QuotaKey, QuotaLimits, Quotas
from kreplog.errors import UsageError
from kreplog.server.listeners import Listener
from kreplog.server.network import connection_quotas
from kreplog.server.network.connection_quotas import ConnectionQuotas, ConnectionRate
from kreplog.server.network.connections import ListeningSocket
from kreplog.server.network.serving import Limits, Server
from tests.certificates import Certificates
from tests.server.loop import run, until
from tests.server.network.tls_clients import Echo, exchange, trusting

ANYWHERE = Listener("127.0.0.1", 0)


async def is_closed(sock: socket.socket) -> bool:
    """Whether the broker closes it, which it does at once if it does."""
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(0.3):
            return await loop.sock_recv(sock, 1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_an_address_has_its_maximum_of_connections_until_one_ends() -> None:
    async def scenario() -> None:
        serving = Server(Limits(1 << 20, 100, 1 << 20, max_per_ip=2, per_ip_overrides=(("127.0.0.2", 1),)))
        address = serving.listen(ANYWHERE)

        def connect(source: str) -> socket.socket:
            return socket.create_connection((address.host, address.port), source_address=(source, 0))

        first, second, third = (connect("127.0.0.1") for _ in range(3))
        assert await is_closed(third)
        assert not await is_closed(second)
        other = connect("127.0.0.2")
        assert not await is_closed(other)
        assert await is_closed(connect("127.0.0.2"))
        assert (serving.connections, serving.quotas.refused) == (3, 2)
        first.close()
        await until(lambda: serving.connections == 2)
        assert not await is_closed(connect("127.0.0.1"))
        serving.close()

    run(scenario)


def test_handshakes_count_until_they_fail(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    async def scenario() -> None:
        echo = Echo(certificates, Limits(1 << 20, 100, 1 << 20, max_per_ip=1))
        half = socket.create_connection(echo.address)
        await until(lambda: echo.server.tls_handshakes.in_flight == 1)
        assert await is_closed(socket.create_connection(echo.address))
        half.sendall(b"neither TLS nor Kafka")
        await until(lambda: echo.server.tls_handshakes.failed == 1)
        await exchange(echo, trusting(certificates))
        await until(lambda: not echo.server.connections)
        await exchange(echo, trusting(certificates))
        echo.server.close()

    run(scenario)


def test_unix_sockets_have_no_address_and_mapped_addresses_are_those_of_ipv4() -> None:
    quotas = ConnectionQuotas(1, [("localhost", 2)])
    first, second = socket.socketpair()
    assert [quotas.take(first) for _ in range(3)] == ["", "", ""]
    quotas.release("")
    first.close()
    second.close()
    assert quotas._of.get("127.0.0.1") == 2


def test_a_client_that_resets_its_connection_has_the_address_that_it_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a reset there is no address, and what it has sent is still read."""
    looks = []

    def once(sock: socket.socket) -> object:
        looks.append(sock)
        if len(looks) == 1:
            return ("::ffff:127.0.0.2", 1234, 0, 0)
        raise OSError("not connected")

    async def scenario() -> None:
        serving = Server(Limits(1 << 20, 100, 1 << 20))
        address = serving.listen(ANYWHERE)
        monkeypatch.setattr(socket.socket, "getpeername", once)
        with socket.create_connection((address.host, address.port)):
            await until(lambda: serving.connections == 1)
            (client,) = serving._unproved
            assert client.address == "127.0.0.2"
            assert serving.quotas._open == {"127.0.0.2": 1}
        await until(lambda: not serving.connections)
        assert not serving.quotas._open
        serving.close()

    run(scenario)


def test_a_host_that_cannot_be_resolved_is_named() -> None:
    with pytest.raises(UsageError, match=r"per\.ip\.overrides: no\.such\.host\.invalid cannot be resolved"):
        ConnectionQuotas(1, [("no.such.host.invalid", 2)])


def test_a_rate_lets_as_many_pass_at_once_as_in_a_second() -> None:
    now_s = [0.0]
    rate = ConnectionRate(10, lambda: now_s[0])
    for _ in range(10):
        assert rate.delay_s() == 0
        rate.accepted()
    assert rate.delay_s() == pytest.approx(0.1)
    now_s[0] += 0.1
    assert rate.delay_s() == pytest.approx(0, abs=1e-9)
    rate.accepted()
    now_s[0] += 100
    for _ in range(10):
        assert rate.delay_s() == 0
        rate.accepted()
    assert rate.delay_s() > 0


def test_connections_above_the_rate_wait_and_are_served() -> None:
    async def scenario() -> None:
        now_s = [0.0]
        accepted: list[socket.socket] = []
        listening = ListeningSocket(ANYWHERE, accepted.append, [ConnectionRate(20, lambda: now_s[0])])
        address = listening.address.host, listening.address.port
        clients = [socket.create_connection(address) for _ in range(30)]
        await until(lambda: len(accepted) == 20)
        now_s[0] = 0.25
        await until(lambda: len(accepted) == 25)
        now_s[0] = 10.0
        await until(lambda: len(accepted) == 30)
        for sock in (*clients, *accepted):
            sock.close()
        listening.close()

    run(scenario)


def test_a_connection_that_ends_at_a_unix_socket_makes_no_room_at_an_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        serving = Server(Limits(1 << 20, 100, 1 << 20, max_per_ip=1))
        address = serving.listen(ANYWHERE)
        local = serving.listen(Listener(path=str(tmp_path / "s")))
        first = socket.create_connection((address.host, address.port))
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(local.path)
                await until(lambda: serving.connections == 2)
                assert {client.address for client in serving._unproved} == {"127.0.0.1"}
            await until(lambda: serving.connections == 1)
        assert await is_closed(socket.create_connection((address.host, address.port)))
        first.close()
        serving.close()

    run(scenario)


def limit_connections(serving: Server, **by_address: int) -> None:
    quotas: Quotas = {
        QuotaEntity(ip=address): {QuotaKey.CONNECTION_CREATION_RATE: rate} for address, rate in by_address.items()
    }
    serving.client_quotas.replace(QuotaLimits(quotas))


def test_an_address_above_its_rate_is_not_served_and_closed_once_it_is_throttled_no_longer() -> None:
    """KIP-612: another address is served, and connections that are open go on."""

    async def scenario() -> None:
        serving = Server(Limits(1 << 20, 100, 1 << 20))
        limit_connections(serving, **{"127.0.0.1": 1, DEFAULT: 100})
        address = serving.listen(ANYWHERE)

        def connect(source: str) -> socket.socket:
            return socket.create_connection((address.host, address.port), source_address=(source, 0))

        served = [connect("127.0.0.1") for _ in range(10)]
        await until(lambda: serving.connections == 10)
        throttled = connect("127.0.0.1")
        await until(lambda: len(serving.throttled) == 1)
        assert (serving.connections, serving.throttled.refused) == (10, 1)
        assert serving.quotas._open["127.0.0.1"] == 10
        other = connect("127.0.0.2")
        await until(lambda: serving.connections == 11)
        throttled.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(throttled, 1) == b""
        assert not len(serving.throttled)
        assert not await is_closed(served[0])
        serving.client_quotas.replace(QuotaLimits({}))
        assert not await is_closed(connect("127.0.0.1"))
        other.close()
        serving.close()

    run(scenario)


def test_a_flood_of_throttled_connections_takes_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "MAX_THROTTLED", 3)

    async def scenario() -> None:
        serving = Server(Limits(1 << 20, 100, 1 << 20))
        limit_connections(serving, **{"127.0.0.1": 1})
        address = serving.listen(ANYWHERE)
        flood = [socket.create_connection((address.host, address.port)) for _ in range(30)]
        await until(lambda: serving.throttled.refused == 20)
        assert (serving.connections, len(serving.throttled)) == (10, 3)
        assert await is_closed(flood[-1])
        serving.close()
        assert not len(serving.throttled)

    run(scenario)


def test_a_throttled_address_begins_no_tls_handshake(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)

    async def scenario() -> None:
        echo = Echo(certificates, Limits(1 << 20, 100, 1 << 20))
        limit_connections(echo.server, **{"127.0.0.1": 1})
        half = [socket.create_connection(echo.address) for _ in range(11)]
        await until(lambda: echo.server.throttled.refused == 1)
        assert echo.server.tls_handshakes.in_flight == len(half) - 1
        echo.server.close()

    run(scenario)


def test_unix_sockets_have_no_quota_of_an_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        serving = Server(Limits(1 << 20, 100, 1 << 20))
        limit_connections(serving, **{DEFAULT: 1})
        path = str(tmp_path / "s")
        serving.listen(Listener(path=path))
        clients = [socket.socket(socket.AF_UNIX) for _ in range(30)]
        for client in clients:
            client.connect(path)
        await until(lambda: serving.connections == 30)
        serving.close()

    run(scenario)
