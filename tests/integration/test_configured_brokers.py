"""`kreplog broker start --config` as on several hosts: each broker has a file of its own, listeners of TLS, and a
ZooKeeper with passwords and ACLs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from kreplog.cluster.files import create_cluster_key, free_ports
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.errors import CoordinationError
from tests.certificates import HOSTS, Certificates
from tests.coord.servers import MISSING, ZooKeeperServer
from tests.integration.clusters import WITHIN_S, eventually

confluent: Any = pytest.importorskip("confluent_kafka")
library: Any = pytest.importorskip("confluent_kafka.admin")
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

BROKERS = (1, 2, 3)
SECRET = "not-for-logs"
RECORDS = 200
REGISTERED = "registered with broker epoch"


class Hosts:
    """Files and processes of three brokers. bootstrap: their listeners for clients."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder = folder
        self.certificates = Certificates(folder / "tls")
        self.client = self.certificates.keystore("client")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        create_cluster_key(folder)
        ports, internal_ports = free_ports(len(BROKERS)), free_ports(len(BROKERS))
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        for broker, port, internal in zip(BROKERS, ports, internal_ports, strict=True):
            self.write(broker, self.settings(broker, port, internal, zookeeper))

    def settings(self, broker: int, port: int, internal: int, zookeeper: str) -> dict[str, Any]:
        return {
            "broker.id": broker,
            "broker.rack": f"rack-{broker}",
            "listeners": [f"SSL://127.0.0.1:{port}"],
            "log.dirs": [str(self.folder / f"data-{broker}")],
            "inter.broker.listener": f"127.0.0.1:{internal}",
            "inter.broker.security.protocol": "SSL",
            "inter.broker.key.file": str(self.folder / "cluster.key"),
            "ssl.keystore.location": self.certificates.keystore(f"broker-{broker}", HOSTS),
            "ssl.truststore.location": self.certificates.truststore,
            "ssl.client.auth": "required",
            "coordination": f"zookeeper:{zookeeper}/kreplog",
            "zookeeper.set.acl": True,
            "zookeeper.authentication": "digest",
            "zookeeper.user": "kreplog",
            "zookeeper.password": SECRET,
            "min.insync.replicas": 2,
        }

    def config(self, broker: int) -> Path:
        return self.folder / f"broker-{broker}.toml"

    def write(self, broker: int, settings: Mapping[str, Any]) -> None:
        self.config(broker).write_text("".join(f'"{name}" = {json.dumps(value)}\n' for name, value in settings.items()))

    def start(self, broker: int, **environment: str) -> None:
        with open(self.folder / f"stderr-{broker}", "ab") as stderr:
            self.processes[broker] = subprocess.Popen(
                [sys.executable, "-m", "kreplog", "broker", "start", "--config", str(self.config(broker))],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, **environment},
            )

    def stderr(self, broker: int) -> str:
        return (self.folder / f"stderr-{broker}").read_text()

    def client_settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.certificates.truststore,
            "ssl.certificate.location": self.client,
            "ssl.key.location": self.client,
        }

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.kill()


@contextmanager
def hosts_on(zookeeper: ZooKeeperServer, folder: Path) -> Iterator[Hosts]:
    hosts = Hosts(folder, zookeeper.hosts)
    try:
        yield hosts
    finally:
        hosts.end()


def test_three_brokers_of_their_own_files_form_a_cluster(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with hosts_on(zookeeper, tmp_path) as hosts:
        for broker in BROKERS:
            hosts.start(broker)
        admin = library.AdminClient(hosts.client_settings())
        eventually(lambda: set(admin.list_topics(timeout=WITHIN_S).brokers) == {*BROKERS}, "not all are there")
        admin.create_topics([library.NewTopic("events", 1, 3)])["events"].result(WITHIN_S)
        producer = confluent.Producer({**hosts.client_settings(), "acks": "all"})
        for number in range(RECORDS):
            producer.produce("events", b"%d" % number, partition=0)
        assert producer.flush(WITHIN_S) == 0
        hosts.processes[2].kill()
        hosts.processes[2].wait()
        for number in range(RECORDS, 2 * RECORDS):
            producer.produce("events", b"%d" % number, partition=0)
        assert producer.flush(WITHIN_S) == 0
        hosts.start(2)
        eventually(lambda: hosts.stderr(2).count(REGISTERED) == 2, "broker 2 does not come back")
        consumer = confluent.Consumer({**hosts.client_settings(), "group.id": "none", "enable.auto.commit": False})
        with closing(consumer):
            consumer.assign([confluent.TopicPartition("events", 0, 0)])
            found = [record.value() for record in consumer.consume(2 * RECORDS, WITHIN_S)]
        assert found == [b"%d" % number for number in range(2 * RECORDS)]
        with closing(ZooKeeperStore(f"{zookeeper.hosts}/kreplog")) as stranger, pytest.raises(CoordinationError):
            stranger.connect(5000)
        for broker in BROKERS:
            hosts.processes[broker].send_signal(signal.SIGTERM)
        assert [hosts.processes[broker].wait(3 * WITHIN_S) for broker in BROKERS] == [0, 0, 0]
        assert not any(SECRET in hosts.stderr(broker) for broker in BROKERS)


def test_a_wrong_password_is_reported_once_and_is_in_no_log(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with hosts_on(zookeeper, tmp_path) as hosts:
        hosts.start(1)
        eventually(lambda: REGISTERED in hosts.stderr(1), "it is not registered")
        wrong = f"{SECRET}-wrong"
        hosts.start(2, KREPLOG_ZOOKEEPER_PASSWORD=wrong)
        refused = "ZooKeeper refuses access by the ACL of the node: check zookeeper.user"
        eventually(lambda: refused in hosts.stderr(2), lambda: hosts.stderr(2))
        assert SECRET not in hosts.stderr(2)
        hosts.processes[2].send_signal(signal.SIGTERM)
        assert hosts.processes[2].wait(WITHIN_S) == 0
        assert hosts.stderr(2).count(refused) == 1


def test_systemd_hears_that_a_broker_listens(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    with hosts_on(zookeeper, tmp_path) as hosts, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(WITHIN_S)
        hosts.start(1, NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert systemd.recv(100) == b"READY=1"


def test_nodes_from_before_are_given_to_the_brokers_user(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    def acl(action: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kreplog", "cluster", "zookeeper-acl", action, "--config", str(config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=3 * WITHIN_S, check=False)

    with closing(ZooKeeperStore(f"{zookeeper.hosts}/before")) as store:
        session = store.connect(5000)
        session.create("/brokers")
        config = tmp_path / "broker.toml"
        settings = f"""\
"broker.id" = 1
"log.dirs" = ["{tmp_path}"]
"coordination" = "zookeeper:{zookeeper.hosts}/before"
"zookeeper.authentication" = "digest"
"zookeeper.user" = "a"
"zookeeper.password" = "{SECRET}"
"""
        config.write_text(settings)
        assert "set it there first" in acl("secure").stderr
        config.write_text(settings + '"zookeeper.set.acl" = true\n')
        secured = acl("secure")
        assert secured.stdout == "2 nodes secured\n", secured.stderr
        with pytest.raises(CoordinationError):
            session.get("/brokers")
        assert acl("unsecure").stdout == "2 nodes unsecured\n"
        session.get("/brokers")
