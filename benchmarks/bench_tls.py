"""TLS, and TLS with SCRAM, beside plaintext, at one broker of ours and one of a real Apache Kafka, in turns.

    python -m benchmarks.bench_tls [--repetitions N] [--quick] [--no-kafka] [--directory DIR]

Either broker has a listener of each protocol with the same certificates, and topics of one partition, in the page
cache. In each repetition, after one that does not count, confluent-kafka produces the same records by each protocol
with acks=all, consumes them, and connects again and again; records are checked by their digest, and the other broker
idles. Rates are medians; a ratio is that of two rates in one repetition. Certificates are of the curve P-256, the suite
is what the two ends choose; SCRAM-SHA-512 has 4,096 iterations. Needs Java 17 or newer and Maven, which gets Kafka.
"""

from __future__ import annotations

import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.clusters import KAFKA_JVM
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import counted
from tests.interop.jvm import BROKER, CLUSTER_ID, FORMAT, HOST, classpath, java

RECORD_BYTES = 1000
WITHIN_S = 120.0
USER, PASSWORD = "alice", "pencil"
PROTOCOLS = PLAINTEXT, TLS, SCRAM = "PLAINTEXT", "SSL", "SASL_SSL"

Settings = dict[str, str | int | float | bool]


class Broker(Protocol):
    """One broker. clients: settings of clients by protocol."""

    name: str
    clients: dict[str, Settings]

    def start(self) -> None: ...

    def stop(self) -> None: ...


def clients_of(tls: Path, ports: dict[str, int]) -> dict[str, Settings]:
    """Settings of a client by protocol. tls: the directory of the CA's certificate and the client's."""
    secured: Settings = {"ssl.ca.location": str(tls / "ca.pem")}
    certified: Settings = {
        "ssl.certificate.location": str(tls / "client.pem"),
        "ssl.key.location": str(tls / "client.pem"),
    }
    login: Settings = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER, "sasl.password": PASSWORD}
    more = {PLAINTEXT: {}, TLS: secured | certified, SCRAM: secured | login}
    return {
        protocol: {"bootstrap.servers": f"{HOST}:{port}", "security.protocol": protocol, **more[protocol]}
        for protocol, port in ports.items()
    }


class KreplogBroker:
    name = "kreplog"

    def __init__(self, directory: Path) -> None:
        self._cluster = LocalCluster.create(directory, [0], 0, tls=True)
        path = self._cluster.home(0) / "broker.toml"
        secured = self._cluster.settings(0).listeners[0]
        open_port, login_port = free_ports(2)
        listeners = f'"{secured}", "{HOST}:{open_port}", "{SCRAM}://{HOST}:{login_port}"'
        text = path.read_text().replace(f'"{secured}"', listeners)
        path.write_text(f'{text}\n"listener.name.sasl_ssl.ssl.client.auth" = "none"\n')
        self.clients = clients_of(directory / "tls", {PLAINTEXT: open_port, TLS: secured.port, SCRAM: login_port})

    def start(self) -> None:
        self._cluster.start()
        command = [sys.executable, "-m", "kreplog", "user", "add", USER, "--cluster", str(self._cluster.directory)]
        subprocess.run(command, check=True, input=PASSWORD, text=True, capture_output=True)

    def stop(self) -> None:
        self._cluster.stop()


_KAFKA = """\
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@{host}:{control}
listeners=PLAINTEXT://{host}:{open},SSL://{host}:{tls},SASL_SSL://{host}:{login},CONTROLLER://{host}:{control}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
ssl.keystore.type=PEM
ssl.keystore.location={keys}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
ssl.client.auth=required
listener.name.sasl_ssl.ssl.client.auth=none
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""


class KafkaBroker:
    """Apache Kafka in KRaft mode, with its own JVM options. Raises Unavailable where Java, Maven or its jars cannot be
    had. tls: the directory of certificates that a cluster of ours has."""

    name = "Apache Kafka"

    def __init__(self, directory: Path, tls: Path) -> None:
        directory.mkdir()
        self._settings, self._log = directory / "server.properties", directory / "server.log"
        self._java = [java(), *KAFKA_JVM, "-cp", classpath()]
        control, open_port, tls_port, login_port = free_ports(4)
        text = _KAFKA.format(
            host=HOST,
            control=control,
            open=open_port,
            tls=tls_port,
            login=login_port,
            data=directory / "data",
            keys=tls / "broker-0.pem",
            ca=tls / "ca.pem",
        )
        self._settings.write_text(text)
        login = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
        command = [*self._java, FORMAT, "format", "-t", CLUSTER_ID, "-c", str(self._settings), "--add-scram", login]
        subprocess.run(command, check=True, capture_output=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.clients = clients_of(tls, {PLAINTEXT: open_port, TLS: tls_port, SCRAM: login_port})

    def start(self) -> None:
        with open(self._log, "ab") as log:
            command = [*self._java, BROKER, str(self._settings)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(WITHIN_S)
        finally:
            self._process.kill()
            self._process.wait()


def produce(settings: Settings, topic: str, values: list[bytes]) -> float:
    """Records in a second."""
    producer = Producer({**settings, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 1 << 20})
    producer.list_topics(topic, WITHIN_S)
    began = time.perf_counter()
    for value in values:
        producer.produce(topic, value)
    if producer.flush(WITHIN_S):
        raise TimeoutError("not all records are acknowledged")
    return len(values) / (time.perf_counter() - began)


def consume(settings: Settings, topic: str, values: list[bytes]) -> float:
    """Records in a second, each of them checked."""
    consumer = Consumer({**settings, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    digest, count = hashlib.sha256(), 0
    began = time.perf_counter()
    while count < len(values):
        for message in consumer.consume(len(values) - count, WITHIN_S):
            if message.error():
                raise RuntimeError(message.error())
            digest.update(message.value() or b"")
            count += 1
    took = time.perf_counter() - began
    consumer.close()
    if digest.digest() != hashlib.sha256(b"".join(values)).digest():
        raise ValueError(f"{topic}: other records than were produced")
    return count / took


def connect(settings: Settings, times: int) -> float:
    """Connections in a second, each with its metadata."""
    began = time.perf_counter()
    for _ in range(times):
        AdminClient(settings).list_topics(timeout=WITHIN_S)
    return times / (time.perf_counter() - began)


def measure(broker: Broker, repetition: int, values: list[bytes], connections: int) -> dict[tuple[str, str], float]:
    """Rates by what is done and by protocol."""
    found = {}
    protocols = list(broker.clients)
    for protocol in protocols[repetition % 3 :] + protocols[: repetition % 3]:
        settings, topic = broker.clients[protocol], f"{protocol.lower()}-{repetition}"
        admin = AdminClient({**settings, "log_level": 0})
        admin.list_topics(timeout=WITHIN_S)  # once it serves
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WITHIN_S)
        work: dict[str, Callable[[], float]] = {
            "produce, records/s": partial(produce, settings, topic, values),
            "consume, records/s": partial(consume, settings, topic, values),
            "connect, connections/s": partial(connect, settings, connections),
        }
        for name, run in work.items():
            found[name, protocol] = run()
    return found


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions, of which the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: shows that it works, not how fast it is.")] = False,
    kafka: Annotated[bool, typer.Option(help="Measure a real Apache Kafka too.")] = True,
    directory: Annotated[Path | None, typer.Option(help="Where the brokers' directories are made.")] = None,
) -> None:
    values = [number.to_bytes(8, "big") * (RECORD_BYTES // 8) for number in range(2000 if quick else 100_000)]
    connections = 5 if quick else 50
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        brokers: list[Broker] = [KreplogBroker(Path(folder) / "c")]
        if kafka:
            brokers.append(KafkaBroker(Path(folder) / "kafka", Path(folder) / "c" / "tls"))
        for name, fact in report.host(Path(folder)).items():
            print(f"{name}: {fact}")
        print(f"{len(values):,} records of {RECORD_BYTES} B, {counted(repetitions, 'repetition')}")
        rates: dict[str, list[dict[tuple[str, str], float]]] = {broker.name: [] for broker in brokers}
        with ExitStack() as started:
            for broker in brokers:
                started.callback(broker.stop)
                broker.start()
            for repetition in range(repetitions + 1):
                for broker in brokers[:: -1 if repetition % 2 else 1]:
                    found = measure(broker, repetition, values, connections)
                    if repetition:
                        rates[broker.name].append(found)
    table = Table()
    for column in ("", "protocol", *(f"{broker.name}, rate, to its plaintext" for broker in brokers)):
        table.add_column(column)
    if kafka:
        table.add_column("kreplog's rate to Kafka's")
    for work, protocol in sorted(rates[brokers[0].name][0], key=lambda row: (row[0], PROTOCOLS.index(row[1]))):
        cells = []
        for lives in rates.values():
            own = [found[work, protocol] / found[work, PLAINTEXT] for found in lives]
            cells.append(f"{statistics.median(found[work, protocol] for found in lives):,.0f}, {spread(own)}")
        if kafka:
            kreplog, apache = rates.values()
            pairs = zip(kreplog, apache, strict=True)
            cells.append(spread([ours[work, protocol] / theirs[work, protocol] for ours, theirs in pairs]))
        table.add_row(work, protocol, *cells)
    Console(width=150).print(table)


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    typer.run(main)
