"""The internal listener: authentication on its unix socket and over TCP, and the cost of refused peers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.messages import LeaderAndIsrRequest, LeaderAndIsrResponse
from kreplog.errors import ErrorCode, PeerProtocolError, UsageError
from kreplog.server.broker import Broker
from kreplog.server.listeners import Listener
from kreplog.server.network import internal, serving
from kreplog.server.network.internal import Address, Dialer, connect, create_key, load_key
from kreplog.server.network.peers import Peer
from kreplog.server.network.tls_listeners import TlsListener
from kreplog.server.replication.control_sender import control_header
from kreplog.server.settings import load
from kreplog.wire import control_messages
from tests.hostile.test_forged_peers import TP, Outsider, attacked
from tests.server import brokers as in_process
from tests.server.brokers import eventually
from tests.server.loop import run, until

STALE = LeaderAndIsrRequest(9, -2, 0, (), is_init=True)
"""Of a controller that every broker refuses: so it is answered, and does nothing."""

NOBODY = 65534
other_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Unauthenticated(Dialer):
    """Sends its requests where a proof is due."""

    async def connect(self, address: Address) -> socket.socket:
        return await connect(address)


async def refused_as_stale(broker: Broker, dialer: Dialer) -> ErrorCode:
    """The answer to STALE over a connection that `dialer` makes. Raises what makes no connection."""
    assert broker.registration.broker.internal is not None
    header = control_header(STALE, 1, "test")
    peer = Peer(1 << 20, connect=dialer.connect)
    try:
        frame = await peer.call(broker.registration.broker.internal, control_messages.encode_request(STALE, header), 10)
    finally:
        peer.close()
    response = control_messages.decode_response(frame, header)
    assert isinstance(response, LeaderAndIsrResponse)
    return response.error


def key_file(folder: Path, name: str = "key") -> str:
    create_key(folder / name)
    return str(folder / name)


def on_tcp(root: Path, key: str, *brokers: int) -> Any:
    names = {"inter_broker_listener": "127.0.0.1:0", "inter_broker_key_file": key}
    return in_process.serving(root, *brokers, **names)


# Unix sockets


def test_the_socket_is_private_whatever_the_umask(tmp_path: Path) -> None:
    async def work() -> None:
        async with in_process.serving(tmp_path, 1) as (broker,):
            place = tmp_path / "data-1.internal"
            assert broker.registration.broker.internal == (f"{place}/broker.sock", 0)
            assert place.stat().st_mode & 0o777 == 0o700
            assert (place / "broker.sock").stat().st_mode & 0o777 == 0o600
            assert await refused_as_stale(broker, Dialer(None)) is ErrorCode.STALE_CONTROLLER_EPOCH
        assert not (place / "broker.sock").exists()

    before = os.umask(0)
    try:
        run(work)
    finally:
        os.umask(before)


def test_a_cluster_in_a_long_directory(tmp_path: Path) -> None:
    """An address of a unix socket has room for about 107 bytes, SQLite takes about 500."""
    root = tmp_path / ("a" * 100) / ("b" * 150)
    root.mkdir(parents=True)

    async def work(outsider: Outsider, brokers: list[Broker]) -> None:
        for broker in brokers:
            endpoint = broker.registration.broker.internal
            assert endpoint is not None
            assert len(endpoint[0]) > 250
            assert await refused_as_stale(broker, Dialer(None)) is ErrorCode.STALE_CONTROLLER_EPOCH
        assert brokers[0].manager.partitions[TP].isr == (0, 1)

    attacked(root, work)


def test_what_stands_at_the_place_of_the_socket(tmp_path: Path) -> None:
    place = tmp_path / "data-1.internal"
    place.symlink_to(tmp_path)

    async def work() -> None:
        names = {
            "broker.id": 1,
            "listeners": "127.0.0.1:0",
            "log.dirs": f"{tmp_path}/data-1",
            "coordination": f"embedded:{tmp_path}/store",
        }
        with pytest.raises(UsageError, match=r"inter\.broker\.listener"):
            await Broker(load(names, None, {})).run()

    run(work)


BECOME_NOBODY = f"import os, socket, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
CONNECT = """
sock = socket.socket(socket.AF_UNIX)
try:
    sock.connect(sys.argv[1])
    print("connected", sock.recv(1))
except OSError as error:
    print(type(error).__name__)
"""

LISTEN = """
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
sock.listen()
print(flush=True)
sock.accept()[0].recv(1)
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Where every user may look for files by name."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o711)
        yield Path(name)


@other_user
def test_another_user_cannot_use_the_socket(public_folder: Path) -> None:
    """By its modes; nor by its peer credentials, when the modes were opened."""

    async def tried(path: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", BECOME_NOBODY + CONNECT, path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return said.decode().strip()

    async def work() -> None:
        async with in_process.serving(public_folder, 1) as (broker,):
            endpoint = broker.registration.broker.internal
            assert endpoint is not None
            assert await tried(endpoint[0]) == "PermissionError"
            os.chmod(Path(endpoint[0]).parent, 0o711)
            assert await tried(endpoint[0]) == "PermissionError"
            os.chmod(endpoint[0], 0o666)
            assert await tried(endpoint[0]) in ("connected b''", "ConnectionResetError")
            assert await refused_as_stale(broker, Dialer(None)) is ErrorCode.STALE_CONTROLLER_EPOCH

    run(work)


@other_user
def test_a_socket_of_another_user_is_not_taken_for_a_broker(public_folder: Path) -> None:
    place = public_folder / "theirs"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)

    async def work() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", BECOME_NOBODY + LISTEN, str(place / "broker.sock")),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        await process.stdout.readline()
        with pytest.raises(PeerProtocolError, match="user 65534"):
            await Dialer(None).connect((str(place / "broker.sock"), 0))
        await process.wait()

    run(work)


# TCP


def test_brokers_replicate_over_tcp_with_the_key_alone(tmp_path: Path) -> None:
    key = key_file(tmp_path)

    async def work() -> None:
        async with on_tcp(tmp_path, key, 0, 1) as brokers:
            outsider = Outsider()

            async def both() -> bool:
                return len(brokers[0].manager.metadata.brokers) == 2

            await eventually(both)
            await outsider.create(brokers[0], TP.topic, [0, 1])

            async def in_sync() -> bool:
                partition = brokers[0].manager.partitions.get(TP)
                return partition is not None and partition.isr == (0, 1)

            await eventually(in_sync)
            assert await refused_as_stale(brokers[0], Dialer(load_key(key))) is ErrorCode.STALE_CONTROLLER_EPOCH
            strangers = [(Dialer(None), ConnectionError), (Dialer(b"x" * 64), PeerProtocolError)]
            for dialer, error in strangers:
                with pytest.raises(error):
                    await refused_as_stale(brokers[0], dialer)
            with pytest.raises(ConnectionError):  # a frame instead of a handshake
                await refused_as_stale(brokers[0], Unauthenticated(None))

    run(work)


def test_who_does_not_finish_the_handshake_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In time and in number: pending handshakes do not keep a broker out."""
    monkeypatch.setattr(internal, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(serving, "MAX_HANDSHAKES", 8)
    key = key_file(tmp_path)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with on_tcp(tmp_path, key, 0) as (broker,):
            address = broker.registration.broker.internal
            silent = await connect(address)
            await loop.sock_recv(silent, 100)  # the greeting
            assert await loop.sock_recv(silent, 100) == b""
            silent.close()
            monkeypatch.setattr(internal, "HANDSHAKE_S", 3600)
            waiting: list[socket.socket] = [await connect(address) for _ in range(50)]
            assert await refused_as_stale(broker, Dialer(load_key(key))) is ErrorCode.STALE_CONTROLLER_EPOCH
            await until(lambda: len(broker.server._handshakes) <= 8)
            for sock in waiting:
                sock.close()
            await until(lambda: not broker.server._handshakes)

    run(work)


def test_connections_that_come_together_are_no_more_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are accepted before those that were closed for them have ended."""
    monkeypatch.setattr(serving, "MAX_HANDSHAKES", 8)
    under_way: list[int] = []

    async def work() -> None:
        server = serving.Server(serving.Limits(1 << 20, 100, 1 << 20))
        server.serve(lambda exchange, frame: None)
        accept = server._accept_broker

        def accepted(sock: socket.socket, at: Listener, key: bytes | None, tls: TlsListener | None) -> None:
            accept(sock, at, key, tls)
            under_way.append(len(server._handshakes))

        monkeypatch.setattr(server, "_accept_broker", accepted)
        address = server.listen_internally(Listener("127.0.0.1", 0), b"k" * 64)
        with ExitStack() as held:
            for _ in range(50):
                held.enter_context(socket.create_connection((address.host, address.port)))
            await until(lambda: len(under_way) == 50)
        await until(lambda: not server._handshakes)
        server.close()

    run(work)
    assert max(under_way) == 8


def test_a_flood_of_strangers_is_none_of_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = key_file(tmp_path)

    async def work() -> None:
        async with on_tcp(tmp_path, key, 0) as (broker,):
            for _ in range(20):
                with pytest.raises(PeerProtocolError):
                    await refused_as_stale(broker, Dialer(b"x" * 64))
            await until(lambda: broker.server.refused_peers == 20)

    run(work)
    lines = [
        record.getMessage() for record in caplog.records if "refused at the internal listener" in record.getMessage()
    ]
    assert len(lines) == 5 and lines[-1].endswith("since the start: 16")


# The key


def test_create_makes_a_key_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cluster = LocalCluster.create(tmp_path / "c", [0, 1], 0)
    finally:
        os.umask(before)
    assert (tmp_path / "c" / "cluster.key").stat().st_mode & 0o777 == 0o600
    keys = {load_key(cluster.settings(broker).key_file or "") for broker in cluster.brokers}
    assert len(keys) == 1
    other = LocalCluster.create(tmp_path / "d", [0], 0)
    assert load_key(other.settings(0).key_file or "") not in keys
    assert len(keys.pop()) == 64


def test_keys_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(UsageError, match="openssl rand"):
        load_key(str(path))
    create_key(path)
    key = load_key(str(path))
    for mode in (0o640, 0o604, 0o660, 0o601, 0o610):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"mode {mode:04o}"):
            load_key(str(path))
    path.chmod(0o400)
    assert load_key(str(path)) == key
    path.chmod(0o600)
    for content in (b"", b"\n" * 100, b"x" * 31, b"x" * 5000):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="characters"):
            load_key(str(path))
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(UsageError, match="not a regular file"):
        load_key(str(path))
