"""Many nodes in one request to ZooKeeper, some of which may not be read."""

from __future__ import annotations

import pytest

pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.errors import CoordinationError
from kreplog.types import Create
from tests.coord.servers import ZooKeeperServer


def test_a_node_that_belongs_to_others_is_named(zookeeper: ZooKeeperServer) -> None:
    root = "/multi-read"
    client = KazooClient(zookeeper.hosts)
    store = ZooKeeperStore(zookeeper.hosts + root)
    try:
        client.start()
        session = store.connect(5000)
        session.create("/readable", b"x")
        client.create(f"{root}/foreign", b"y", acl=[make_digest_acl("another", "secret", all=True)])
        with pytest.raises(CoordinationError, match=r"^/foreign: .*ACL"):
            session.get_many(["/readable", "/none", "/foreign", "/readable"])
        found = session.get_many(["/readable", "/none", "/readable"])
        assert [None if node is None else node.data for node in found] == [b"x", None, b"x"]
    finally:
        store.close()
        client.stop()
        client.close()


def test_more_nodes_than_are_requested_at_once(zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplog.coord.ensemble._READ_AT_ONCE", 3)
    monkeypatch.setattr("kreplog.coord.ensemble._READS_IN_FLIGHT", 2)
    store = ZooKeeperStore(zookeeper.hosts + "/more-nodes")
    try:
        session = store.connect(5000)
        paths = [f"/{number}" for number in range(20)]
        session.multi([Create(path, path.encode()) for path in paths])
        assert [node and node.data for node in session.get_many(paths)] == [path.encode() for path in paths]
    finally:
        store.close()
