"""The three stores under one name. Tests that take `stores` run on all of them; those that take `shared`, with several
processes, on the two that several processes can open."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kreplog.coord.base import CoordinationStore, Session
from kreplog.coord.memory import MemoryStore
from tests.coord.puppet import Puppet, open_store
from tests.coord.servers import MISSING, ZooKeeperServer

TIMEOUT_MS = 10_000

_numbers = itertools.count()


@dataclass
class Stores:
    """One store, and what a test makes of it. `address`: for puppets, empty for the store in memory."""

    kind: str
    address: str
    store: CoordinationStore
    puppets: list[Puppet] = field(default_factory=list)

    def connect(self, timeout_ms: int = TIMEOUT_MS, on_expired: Callable[[], None] | None = None) -> Session:
        return self.store.connect(timeout_ms, on_expired)

    def puppet(self, timeout_ms: int = TIMEOUT_MS) -> Puppet:
        self.puppets.append(Puppet(self.address, timeout_ms))
        return self.puppets[-1]

    def close(self) -> None:
        for puppet in self.puppets:
            puppet.kill()
        self.store.close()


@pytest.fixture(scope="package")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server that all tests share, each with a root of its own."""
    if MISSING:
        pytest.skip(MISSING)
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.kill()


@pytest.fixture(params=["memory", "embedded", "zookeeper"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    opened = _open(request.param, request, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(params=["embedded", "zookeeper"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    opened = _open(request.param, request, tmp_path)
    yield opened
    opened.close()


def _open(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if kind == "memory":
        return Stores(kind, "", MemoryStore())
    if kind == "embedded":
        address = f"embedded:{tmp_path / 'coordination'}"
    else:
        server: ZooKeeperServer = request.getfixturevalue("zookeeper")
        address = f"zookeeper:{server.hosts}/test-{next(_numbers)}"
    return Stores(kind, address, open_store(address))
