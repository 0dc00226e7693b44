"""Three network namespaces as hosts, each with a ZooKeeper server and a broker, as docs/several-hosts.md has them:
by TLS, cut off one way, and split, they lose no acknowledged record."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")
pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from kreplog.cluster.tls_files import client_properties
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.errors import CoordinationError
from kreplog.server.runtime.store import make_store
from tests.certificates import Certificates
from tests.coord.servers import JARS, LOGGING, MISSING
from tests.integration import namespaces
from tests.integration.clusters import end, eventually, set_line
from tests.integration.faults import SHORT, load_on
from tests.integration.judging import judge
from tests.integration.slow_links import Link
from tests.integration.test_cuts import drop
from tests.integration.view import View
from tests.integration.workload import Load
from tests.test_several_hosts import block

CANNOT = namespaces.cannot_cut() or MISSING
pytestmark = pytest.mark.skipif(bool(CANNOT), reason=CANNOT)

HOSTS = (0, 1, 2)
PORT, INTERNAL_PORT, ZOOKEEPER_PORT = 9092, 9094, 2281
FAR_S = 120.0
"""Limit for a broker to come back: TCP and kazoo have backed off while it was cut off, and segments are lost."""
QUICK_SESSIONS = "tickTime=200\nminSessionTimeout=1000\nmaxSessionTimeout=20000\nadmin.enableServer=false\n"


def at(net: namespaces.Net, text: str) -> str:
    """The text with the addresses of the namespaces in place of the page's names of hosts."""
    return re.sub(r"db(\d)\.example\.com", lambda found: net.address(int(found[1]) - 1), text)


def zookeeper_on(net: namespaces.Net, host: int, folder: Path, certificates: Certificates) -> subprocess.Popen[bytes]:
    """A server of the ensemble, by the page's zoo.cfg; its certificate is broker.pem in a folder of its own."""
    own = folder / f"zookeeper-{host}"
    (own / "data").mkdir(parents=True)
    (own / "data" / "myid").write_text(f"{host + 1}\n")
    (own / "broker.pem").write_bytes(certificates.authority.issue(f"db{host + 1}", [net.address(host)]))
    (own / "ca.pem").write_bytes(certificates.authority.pem())
    config = at(net, block("ini", "dataDir")).replace("/var/lib/zookeeper", f"{own}/data")
    config = config.replace("/etc/zookeeper/conf/", f"{own}/").replace("tickTime=2000\n", QUICK_SESSIONS)
    (own / "zoo.cfg").write_text(config)
    (own / "log4j.properties").write_text(LOGGING)
    with (own / "server.log").open("ab") as log, namespaces.inside(net.space(host)):
        return subprocess.Popen(
            [
                *("java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                *("-cp", f"{own}:{JARS}/zookeeper.jar:{JARS}/*"),
                *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(own / "zoo.cfg")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def settings_of(net: namespaces.Net, certificates: Certificates) -> Mapping[str, object]:
    """Those that all brokers share."""
    servers = ",".join(f"{net.address(host)}:{ZOOKEEPER_PORT}" for host in HOSTS)
    return {
        "coordination": f"zookeeper:{servers}/kreplog",
        "zookeeper.ssl.client.enable": True,
        "zookeeper.ssl.truststore.location": certificates.truststore,
        "zookeeper.ssl.keystore.location": certificates.keystore("brokers"),
        "zookeeper.set.acl": True,
        "zookeeper.authentication": "digest",
        "zookeeper.user": "kreplog",
        "zookeeper.password": "secret",
        "ssl.truststore.location": certificates.truststore,
        "ssl.client.auth": "required",
        "listener.security.protocol.map": ["SSL:SSL", "PLAINTEXT:PLAINTEXT"],
    }


def cluster_on(net: namespaces.Net, folder: Path, certificates: Certificates) -> namespaces.SpreadCluster:
    shared = [f'"{name}" = {json.dumps(value)}' for name, value in settings_of(net, certificates).items()]
    made = namespaces.SpreadCluster.create(folder, HOSTS, PORT, [*SHORT, *shared])
    made.net = net
    for broker in HOSTS:
        set_line(made, broker, "listeners", json.dumps([f"SSL://{net.address(broker)}:{PORT}"]))
        own = {
            "inter.broker.listener": f"{net.address(broker)}:{INTERNAL_PORT}",
            "inter.broker.security.protocol": "SSL",
            "ssl.keystore.location": certificates.keystore(f"broker-{broker}", [net.address(broker)]),
        }
        with (made.home(broker) / "broker.toml").open("a") as settings:
            settings.writelines(f'"{name}" = {json.dumps(value)}\n' for name, value in own.items())
    client_properties(folder).write_text(
        "security.protocol=SSL\n"
        f"ssl.truststore.location={certificates.truststore}\nssl.keystore.location={certificates.keystore('client')}\n"
    )
    return made


@contextmanager
def hosts_in(folder: Path, link: Link | None = None) -> Iterator[tuple[namespaces.SpreadCluster, namespaces.Net]]:
    """An ensemble and a cluster that serve; their processes end with it."""
    net = namespaces.Net(HOSTS, link)
    certificates = Certificates(folder / "cluster" / "tls")
    servers: list[subprocess.Popen[bytes]] = []
    try:
        net.make()
        servers += [zookeeper_on(net, host, folder, certificates) for host in HOSTS]
        made = cluster_on(net, folder / "cluster", certificates)
        settings = made.settings(0)

        def serves() -> bool:
            try:
                with closing(make_store(settings.coordination, settings.zookeeper)) as store:
                    store.connect(5000)
            except CoordinationError:
                return False
            return True

        eventually(serves, "the ensemble does not serve", 90)
        try:
            made.start(timeout_s=90)
            yield made, net
        finally:
            end(made)
    finally:
        for server in servers:
            server.kill()
            server.wait()
        net.remove()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[namespaces.SpreadCluster, namespaces.Net]]:
    with hosts_in(tmp_path_factory.mktemp("hosts")) as made:
        yield made


Hosts = tuple[namespaces.SpreadCluster, namespaces.Net]


def test_nobody_without_a_certificate_or_the_password_gets_in(hosts: Hosts) -> None:
    cluster, net = hosts
    servers = f"{net.address(0)}:{ZOOKEEPER_PORT}/kreplog"
    with closing(ZooKeeperStore(servers, connect_timeout_ms=2000)) as store, pytest.raises(CoordinationError):
        store.connect(5000)
    settings = cluster.settings(0)
    stranger = replace(
        settings.zookeeper,
        password="another",
        ssl_keystore_location=str(cluster.directory / "tls" / "client.pem"),  # by the same CA
    )
    with closing(make_store(settings.coordination, stranger)) as store, pytest.raises(CoordinationError, match="ACL"):
        store.connect(5000)


def test_one_way_a_leader_is_not_heard_by_its_followers(hosts: Hosts) -> None:
    """Nor by the ZooKeeper servers beside them: what it sends is lost, what they send arrives."""
    cluster, net = hosts
    with View(cluster) as view, load_on(cluster, "one-way") as load:
        load.goes_on()
        leader = view.await_leader(load.partitions[0])
        with net.healed():
            for other in {*HOSTS} - {leader}:
                net.cut(leader, other)
            eventually(lambda: drop(view, load, leader), "the others do not drop it")
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


def split_off_a_leader(net: namespaces.Net, view: View, load: Load) -> None:
    """Cut its host off from both others until another broker leads and the load goes on."""
    leader = view.await_leader(load.partitions[0])
    with net.healed():
        for other in {*HOSTS} - {leader}:
            net.cut_both(leader, other)
        eventually(lambda: view.state(load.partitions[0]).leader not in (-1, leader), "nobody else leads")
        load.goes_on()


def test_a_split_takes_a_host_away_and_heals(hosts: Hosts) -> None:
    """Its broker and its ZooKeeper server see nobody, and clients still reach it: alone, it acknowledges nothing, and
    the majority goes on."""
    cluster, net = hosts
    with View(cluster) as view, load_on(cluster, "split") as load:
        load.goes_on()
        split_off_a_leader(net, view, load)
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


@pytest.mark.long
def test_far_hosts_whose_network_loses_frames(tmp_path: Path) -> None:
    """20 to 30 ms each way, between brokers, ZooKeeper and clients alike, frames overtake each other, and one in fifty
    is lost: all replicas stay in sync, and a split, on top of it, loses nothing."""
    with hosts_in(tmp_path, Link(delay_ms=20, jitter_ms=10, loss=0.02)) as (cluster, net):
        with View(cluster) as view, load_on(cluster, "far") as load:
            for _ in range(10):
                load.goes_on()
                view.await_replicated(load.topic)
            split_off_a_leader(net, view, load)
            eventually(lambda: not view.under_replicated(load.topic), "it does not come back", FAR_S)
            load.goes_on()
        judge(cluster, load)
