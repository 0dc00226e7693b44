"""Connections that a failure detector holds: what a live, a stopped and a dead process at the other end look like."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

import pytest

from kreplog.core.events import PeerConnected, PeerDisconnected, PeerUnreachable
from kreplog.server.network.internal import Address, Dialer, connect
from kreplog.server.replication.peer_connections import PeerConnections
from kreplog.types import BrokerRegistration
from tests.server.loop import run, until

Heard = PeerConnected | PeerDisconnected | PeerUnreachable


class World:
    """Brokers and their connections. hung_up: ids of the brokers that have closed a connection."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.hung_up: list[int] = []
        self.peers = PeerConnections(Dialer(None).connect, self.heard.append, self.hung_up.append)


def has_heard(world: World, count: int) -> bool:
    return len(world.heard) == count


def peer(address: Address | None) -> BrokerRegistration:
    return BrokerRegistration(7, 3, internal=address)


@pytest.mark.parametrize("unix", [False, True])
def test_a_death_is_a_closed_connection_and_a_refused_one(tmp_path: Path, unix: bool) -> None:
    """Nothing is accepted: the kernel alone answers, as for a process that is stopped."""

    async def work() -> None:
        world = World()
        if unix:
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(tmp_path / "socket"))
            server.listen()
            address: Address = (str(tmp_path / "socket"), 0)
        else:
            server = socket.create_server(("127.0.0.1", 0))
            address = server.getsockname()
            world.peers = PeerConnections(connect, world.heard.append, world.hung_up.append)
        world.peers.connect(peer(address))
        await until(lambda: bool(world.heard))
        assert world.heard == [PeerConnected(7, 3)]
        server.close()
        await until(lambda: len(world.heard) == 2)
        assert world.heard[1:] == [PeerDisconnected(7, 3)]
        assert world.hung_up == [7]
        world.peers.connect(peer(address))
        await until(lambda: len(world.heard) == 3)
        assert world.heard[2:] == [PeerUnreachable(7, 3, refused=True)]
        world.peers.close()

    run(work)


def test_an_unknown_outcome_is_not_a_refusal(tmp_path: Path) -> None:
    """A socket that is not there may have been removed, a TCP endpoint needs a key, and a registration may not say."""

    async def work() -> None:
        world = World()
        for count, address in enumerate([(str(tmp_path / "none"), 0), ("127.0.0.1", 1), None], 1):
            world.peers.connect(peer(address))
            await until(partial(has_heard, world, count))
        assert world.heard == [PeerUnreachable(7, 3, refused=False)] * 3
        world.peers.close()

    run(work)


def test_events_of_a_replaced_connection_are_dropped() -> None:
    async def work() -> None:
        world = World()
        world.peers = PeerConnections(connect, world.heard.append, world.hung_up.append)
        with socket.create_server(("127.0.0.1", 0)) as server:
            for count in (1, 2):
                world.peers.connect(peer(server.getsockname()))
                await until(partial(has_heard, world, count))
            world.peers.disconnect(7)
            world.peers.connect(peer(server.getsockname()))
            world.peers.disconnect(7)
            world.peers.disconnect(7)
        await asyncio.sleep(0)
        assert world.heard == [PeerConnected(7, 3)] * 2
        assert world.hung_up == []

    run(work)
