"""docs/several-hosts.md, followed on network namespaces as hosts: its certificates, zoo.cfg, broker.toml and commands.

Clients are on a host of their own, which reaches the brokers by their names alone. The cluster is then backed up, lost
and restored; and one host loses its disk.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="a client here is librdkafka's")
pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from tests.coord.servers import JARS, LOGGING, MISSING
from tests.integration import namespaces
from tests.integration.clusters import eventually
from tests.integration.outside_client import GROUP, TOPIC
from tests.test_several_hosts import block

TOOLS = ("openssl", "kcat")
ABSENT = [tool for tool in TOOLS if shutil.which(tool) is None]
CANNOT = namespaces.cannot_cut() or MISSING or (f"needs {', '.join(ABSENT)}" if ABSENT else "")
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(CANNOT), reason=CANNOT)]

HOSTS = (1, 2, 3)
CLIENTS = 4
"""The host of the clients and of the administrator."""

PASSWORD = "of alice"
WITHIN_S = 180.0
COUNT = 100
BOOTSTRAP = "db1.example.com:9093,db2.example.com:9093,db3.example.com:9093"


class Hosts:
    """Three hosts and that of the clients; files of host N are below `folder`/N, at the page's paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.net = namespaces.Net([host - 1 for host in (*HOSTS, CLIENTS)])
        self.processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._names = "".join(f"{self.net.address(host - 1)} db{host}.example.com\n" for host in HOSTS)

    def make(self) -> None:
        self.net.make()
        for host in (*HOSTS, CLIENTS):
            of_space = Path("/etc/netns") / self.net.space(host - 1)
            of_space.mkdir(parents=True)
            (of_space / "hosts").write_text(f"127.0.0.1 localhost\n{self._names}")
        self.secrets.mkdir()
        subprocess.run(["bash", "-euc", block("sh", "umask")], cwd=self.secrets, check=True, capture_output=True)
        self.secrets.joinpath("admin.properties").write_text(block("properties", "security.protocol"))
        for host in HOSTS:
            self._install(host)

    def remove(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.net.remove()
        for host in (*HOSTS, CLIENTS):
            with suppress(FileNotFoundError):
                shutil.rmtree(Path("/etc/netns") / self.net.space(host - 1))

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def root(self, host: int) -> Path:
        return self.folder / str(host)

    def _install(self, host: int) -> None:
        """Put the page's files on a host."""
        root = self.root(host)
        for path in ("etc/kreplog", "etc/zookeeper/conf", "var/lib/kreplog", "var/lib/zookeeper"):
            (root / path).mkdir(parents=True)
        for conf in (root / "etc/kreplog", root / "etc/zookeeper/conf"):
            shutil.copy(self.secrets / "ca.pem", conf)
            shutil.copy(self.secrets / f"db{host}.pem", conf / "broker.pem")
        shutil.copy(self.secrets / "cluster.key", root / "etc/kreplog")
        self._write(host, "etc/kreplog/broker.toml", _of_host(block("toml", ""), host))
        self._write(host, "etc/zookeeper/conf/zoo.cfg", block("ini", "dataDir"))
        self._write(host, "etc/zookeeper/conf/log4j.properties", LOGGING)
        self._write(host, "var/lib/zookeeper/myid", f"{host}\n")

    def _write(self, host: int, path: str, text: str) -> None:
        root = self.root(host)
        (root / path).write_text(re.sub(r"/(etc|var/lib)/(kreplog|zookeeper)", rf"{root}/\1/\2", text))

    # Processes

    def _start(self, kind: str, host: int, *command: str) -> None:
        secret = {"KREPLOG_ZOOKEEPER_PASSWORD": (self.secrets / "zookeeper.password").read_text().strip()}
        with self.log(kind, host).open("ab") as log:
            self.processes[kind, host] = subprocess.Popen(
                ["ip", "netns", "exec", self.net.space(host - 1), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **secret},
            )

    def log(self, kind: str, host: int) -> Path:
        return self.folder / f"{kind}-{host}.log"

    def start_zookeeper(self, host: int) -> None:
        conf = self.root(host) / "etc/zookeeper/conf"
        java = ("java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        classes = f"{conf}:{JARS}/zookeeper.jar:{JARS}/*"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._start("zookeeper", host, *java, "-cp", classes, main, str(conf / "zoo.cfg"))

    def start_broker(self, host: int) -> None:
        config = str(self.root(host) / "etc/kreplog/broker.toml")
        self._start("broker", host, sys.executable, "-m", "kreplog", "broker", "start", "--config", config)

    def start(self) -> None:
        for host in HOSTS:
            self.start_zookeeper(host)
        for host in HOSTS:
            self.start_broker(host)

    def stop(self, kind: str, host: int) -> None:
        process = self.processes.pop((kind, host))
        process.send_signal(signal.SIGTERM)
        status = process.wait(WITHIN_S)
        assert kind == "zookeeper" or status == 0, self.log(kind, host).read_text()[-2000:]

    def stop_all(self) -> None:
        for kind in ("broker", "zookeeper"):
            for host in HOSTS:
                self.stop(kind, host)

    def archive(self, commands: str) -> None:
        """Run tar on each host, as the page's commands do."""
        (line,) = [each for each in commands.splitlines() if each.startswith("tar ")]
        for host in HOSTS:
            own = line.replace("/backup/$(hostname)", f"{self.folder}/backup-{host}").replace(
                "-C /", f"-C {self.root(host)}"
            )
            subprocess.run(own.split(), check=True, capture_output=True)

    # Clients

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on the clients' host, in the folder of the administrator's files."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["ip", "netns", "exec", self.net.space(CLIENTS - 1), *command],
            cwd=self.secrets,
            input=given,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(Path.cwd())},
        )

    def administer(self, line: str) -> str:
        """What a command of `kreplog` prints, with the page's options of administrators."""
        (options,) = re.findall(r"^admin=.*$", block("sh", "admin="), re.MULTILINE)
        ended = self.run("bash", "-euc", f"{options}\n{line} $admin")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def exchange(self, library: str, first: int, *, user: str = "alice", password: str = PASSWORD) -> list[int]:
        """The numbers that a client reads, in order: those that it has produced from `first` on at least."""
        module = ("-m", "tests.integration.outside_client", library)
        ended = self.run(sys.executable, *module, BOOTSTRAP, "ca.pem", user, password, str(first), str(COUNT))
        if ended.returncode != 0:
            raise ConnectionError(ended.stderr[-1000:])
        return sorted(map(int, ended.stdout.split()))

    def kcat(self, *arguments: str, given: str = "") -> str:
        """What kcat prints, with the administrator's certificate: an old librdkafka, it repeats its nonce in SCRAM."""
        settings = {
            "security.protocol": "SSL",
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": "admin.pem",
            "ssl.key.location": "admin.pem",
        }
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        bootstrap = BOOTSTRAP.replace(":9093", ":9092")
        ended = self.run("kcat", "-b", bootstrap, "-m", "30", *options, *arguments, given=given)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def all_values(self) -> list[int]:
        """Every record of the topic."""
        return sorted(map(int, self.kcat("-C", "-t", TOPIC, "-o", "beginning", "-e", "-q").split()))

    def serves(self) -> bool:
        command = "kreplog topic list --bootstrap db1.example.com:9092 --command-config admin.properties"
        return self.run("bash", "-euc", command).returncode == 0

    def await_in_sync(self) -> None:
        """Until every partition of the topic has all three replicas in its ISR."""

        def are_in_sync() -> bool:
            described = self.administer(f"kreplog topic describe {TOPIC} --json")
            isrs = re.findall(r'"isr": ?\[([^\]]*)\]', described)
            return bool(isrs) and all(len(isr.split(",")) == len(HOSTS) for isr in isrs)

        eventually(are_in_sync, "replicas are out of sync", WITHIN_S)


def _of_host(text: str, host: int) -> str:
    """The page's broker.toml, which is the first host's, for another one."""
    lines = []
    for line in text.splitlines():
        name = line.split(" ")[0].strip('"')
        if name == "broker.id":
            line = line.replace("1", str(host))
        elif name == "broker.rack":
            line = line.replace('"a"', f'"{"abc"[host - 1]}"')
        elif name in ("listeners", "inter.broker.listener"):
            line = line.replace("db1.", f"db{host}.")
        lines.append(line)
    return "\n".join(lines) + "\n"


@contextmanager
def hosts_in(folder: Path) -> Iterator[Hosts]:
    made = Hosts(folder)
    try:
        made.make()
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with hosts_in(tmp_path_factory.mktemp("page")) as made:
        eventually(made.serves, lambda: made.log("broker", 1).read_text()[-3000:], WITHIN_S)
        block_of_users = made.run("bash", "-euc", block("sh", "admin="), given=f"{PASSWORD}\n")
        assert block_of_users.returncode == 0, block_of_users.stderr
        yield made


def test_clients_of_another_host_log_in_produce_and_consume(hosts: Hosts) -> None:
    """Each goes on where the group stands; another password opens nothing."""
    assert hosts.exchange("confluent", 0) == list(range(COUNT))
    assert hosts.exchange("kafka-python", COUNT) == list(range(COUNT, 2 * COUNT))
    lines = "".join(f"{number}\n" for number in range(2 * COUNT, 3 * COUNT))
    hosts.kcat("-P", "-t", TOPIC, given=lines)
    assert hosts.all_values() == list(range(3 * COUNT))
    for library in ("confluent", "kafka-python"):
        with pytest.raises(ConnectionError):
            hosts.exchange(library, 0, password="another")
    assert hosts.all_values() == list(range(3 * COUNT))


def test_a_backup_of_all_files_restores_the_cluster(hosts: Hosts) -> None:
    """Records, groups, users and ACLs are there again, and the cluster goes on."""
    before = hosts.all_values()
    hosts.stop_all()
    hosts.archive(block("sh", "systemctl stop kreplog"))
    for host in HOSTS:
        shutil.rmtree(hosts.root(host))
        hosts.root(host).mkdir()
    hosts.archive(block("sh", "tar"))
    hosts.start()
    eventually(hosts.serves, "no broker serves", WITHIN_S)
    hosts.await_in_sync()
    assert hosts.all_values() == before
    first = max(before) + 1
    found = hosts.exchange("confluent", first)
    assert not set(found) & set(range(2 * COUNT)), f"{GROUP} has lost its offsets"
    assert hosts.all_values() == [*before, *range(first, first + COUNT)]


def test_a_host_that_lost_its_disk_copies_its_replicas(hosts: Hosts) -> None:
    before = hosts.all_values()
    hosts.stop("broker", 3)
    shutil.rmtree(hosts.root(3) / "var/lib/kreplog/data")
    hosts.start_broker(3)
    hosts.await_in_sync()
    assert hosts.all_values() == before
