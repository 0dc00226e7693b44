"""Clusters of three brokers on this host, ours and a real Apache Kafka's, started, killed and weighed in the same way.

Kafka runs with its defaults for a broker that is also a controller (KRaft): its own JVM options, replication factor and
minimum in sync as here. Nothing else is tuned on either side, but for the settings that a benchmark gives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from tests.interop.jvm import BROKER, CLUSTER_ID, FORMAT, HOST, classpath, java

BROKERS = (0, 1, 2)
READY_S = 120
STOP_S = 60
POLL_S = 0.01
TICKS = os.sysconf("SC_CLK_TCK")
NO_SETTINGS: Mapping[str, int] = MappingProxyType({})
QUIET: dict[str, str | int] = {"log_level": 0}

# As bin/kafka-server-start.sh and bin/kafka-run-class.sh set them.
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

_KAFKA = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{control}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=1
"""

_LOG4J = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %m (%c)%n
"""


class Cluster(Protocol):
    """Three brokers that can be started, killed and stopped; `bootstrap` is for clients."""

    name: str
    bootstrap: str

    def spawn(self, brokers: Sequence[int] = BROKERS) -> None:
        """Start the processes; does not wait for them to serve."""

    def pid(self, broker: int) -> int: ...

    def data(self, broker: int) -> Path:
        """Its log directory."""

    def stop(self) -> None:
        """End all that runs, in order."""


class KreplogCluster:
    """Ours, as `kreplog cluster create` makes it."""

    name = "kreplog"

    def __init__(self, directory: Path, settings: Mapping[str, int] = NO_SETTINGS) -> None:
        lines = [f'"{name}" = {value}' for name, value in settings.items()]
        self._local = LocalCluster.create(directory, BROKERS, 0, ['"min.insync.replicas" = 2', *lines])
        self.bootstrap = self._local.bootstrap()

    def spawn(self, brokers: Sequence[int] = BROKERS) -> None:
        self._local.start(brokers, READY_S)

    def pid(self, broker: int) -> int:
        return read_pid_file(self._local.home(broker))[0]

    def data(self, broker: int) -> Path:
        return self._local.home(broker) / "data"

    def stop(self) -> None:
        self._local.stop()


class CheckoutCluster(KreplogCluster):
    """The same by the code of another checkout, whose extensions are built."""

    name = "the other checkout"

    def __init__(self, directory: Path, checkout: Path, settings: Mapping[str, int] = NO_SETTINGS) -> None:
        super().__init__(directory, settings)
        self._folder = directory
        self._checkout = checkout.resolve()

    def spawn(self, brokers: Sequence[int] = BROKERS) -> None:
        command = [sys.executable, "-m", "kreplog", "cluster", "start", str(self._folder.resolve())]
        subprocess.run(
            [*command, "--brokers", ",".join(map(str, brokers))],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._checkout,
            env={**os.environ, "PYTHONPATH": str(self._checkout)},
        )


class KafkaCluster:
    """Apache Kafka in KRaft mode. version: where not the one of the pom. Raises Unavailable where Java, Maven or its
    jars cannot be had."""

    name = "Apache Kafka"

    def __init__(self, directory: Path, settings: Mapping[str, int] = NO_SETTINGS, version: str | None = None) -> None:
        self._folder = directory
        directory.mkdir(parents=True)
        log4j = directory / "log4j.properties"
        log4j.write_text(_LOG4J)
        self._java = [java(), *KAFKA_JVM, f"-Dlog4j.configuration=file:{log4j}", "-cp", classpath(version=version)]
        ports = free_ports(2 * len(BROKERS))
        voters = ",".join(f"{node}@{HOST}:{ports[2 * node + 1]}" for node in BROKERS)
        for node in BROKERS:
            text = _KAFKA.format(
                node=node,
                voters=voters,
                host=HOST,
                port=ports[2 * node],
                control=ports[2 * node + 1],
                data=self.data(node),
            )
            lines = [f"{name}={value}\n" for name, value in settings.items()]
            self._settings(node).write_text("".join([text, *lines]))
            command = [*self._java, FORMAT, "format", "-t", CLUSTER_ID, "-c", str(self._settings(node))]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"Kafka's broker {node} has no storage: {FORMAT} says\n{done.stdout}{done.stderr}")
        self.bootstrap = ",".join(f"{HOST}:{ports[2 * node]}" for node in BROKERS)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def _settings(self, node: int) -> Path:
        return self._folder / f"broker-{node}.properties"

    def spawn(self, brokers: Sequence[int] = BROKERS) -> None:
        for node in brokers:
            with open(self._folder / f"broker-{node}.log", "ab") as log:
                command = [*self._java, BROKER, str(self._settings(node))]
                self._processes[node] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def pid(self, broker: int) -> int:
        return self._processes[broker].pid

    def data(self, broker: int) -> Path:
        return self._folder / f"data-{broker}"

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            finally:
                process.kill()
                process.wait()
        self._processes.clear()


def kill(cluster: Cluster, broker: int) -> None:
    """kill -9, and wait until it is gone."""
    pid = cluster.pid(broker)
    os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
    deadline = time.monotonic() + STOP_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} of broker {broker} outlives SIGKILL")
        time.sleep(POLL_S)  # it need not be a child, whose end the kernel would report


def resident_mb(cluster: Cluster) -> float:
    """Mean resident memory of its brokers, MiB, mapped files included."""
    return sum(_status_kib(cluster.pid(broker), "VmRSS") for broker in BROKERS) / len(BROKERS) / 1024


def cpu_s(cluster: Cluster, brokers: Sequence[int] = BROKERS) -> float:
    """CPU seconds that its processes have used, user and system."""
    total = 0
    for broker in brokers:
        fields = Path(f"/proc/{cluster.pid(broker)}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


def create_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    """With three replicas; once the cluster has all three brokers. Raises TimeoutError, or the client's error."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    deadline = time.monotonic() + READY_S
    while True:
        future = admin.create_topics([NewTopic(topic, partitions, len(BROKERS))], request_timeout=5)[topic]
        try:
            future.result()
            return
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:  # by a request whose answer was lost
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)  # brokers report to nobody when they have all found one another


def _in_sync(admin: AdminClient, topic: str) -> dict[int, tuple[int, list[int]]]:
    """Leader and ISR by partition, as a broker reports them."""
    found = admin.list_topics(topic, timeout=READY_S).topics[topic].partitions
    return {number: (topic.leader, sorted(topic.isrs)) for number, topic in found.items()}


def wait_in_sync(cluster: Cluster, topic: str, replicas: int = len(BROKERS)) -> dict[int, tuple[int, list[int]]]:
    """Leader and ISR by partition, once each has a leader and so many replicas in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    deadline = time.monotonic() + READY_S
    while True:
        found = _in_sync(admin, topic)  # nothing at all by a broker that has not heard of the topic yet
        if found and all(leader >= 0 and len(isr) == replicas for leader, isr in found.values()):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} on {cluster.name} is not all in sync: {found}")
        time.sleep(POLL_S)  # no broker reports it
