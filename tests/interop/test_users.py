"""SASL with a real Kafka: its tools and clients at a broker of kreplog, and kreplog's clients at its broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.consumer import Consumer
from kreplog.client.security import ClientSecurity
from kreplog.cluster import store_requests
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import AuthenticationError
from kreplog.types import TopicPartition
from tests.integration.clusters import admin_of, end
from tests.interop.jvm import CONFIGS, CONSOLE_PRODUCER, Broker, Kafka

pytestmark = pytest.mark.interop

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
BOTH = "SCRAM-SHA-256=[iterations=5000,password=pencil],SCRAM-SHA-512=[password=pencil]"
LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'


def add_alice(kafka: Kafka, bootstrap: str, credentials: str) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    kafka.run(CONFIGS, "--bootstrap-server", bootstrap, "--alter", "--add-config", credentials, *user)


def properties(path: Path, mechanism: str, password: str = "pencil") -> Path:
    lines = [
        "security.protocol=SASL_PLAINTEXT",
        f"sasl.mechanism={mechanism}",
        f"sasl.jaas.config={LOGIN.format(password)}",
    ]
    path.write_text("\n".join(lines))
    return path


def test_kafka_configs_adds_users_who_authenticate_themselves(kafka: Kafka, tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", [0], 0)
    file = cluster.home(0) / "broker.toml"
    (port,) = free_ports(1)
    first, listeners, *lines = file.read_text().splitlines()
    name, _, given = listeners.partition(" = ")
    listeners = f"{name} = {json.dumps([*json.loads(given), f'SASL_PLAINTEXT://127.0.0.1:{port}'])}"
    file.write_text("\n".join([first, listeners, *lines, ""]))
    try:
        cluster.start()
        add_alice(kafka, cluster.bootstrap(), BOTH)
        with cluster.store_session() as session:
            assert store_requests.users_in(session) == {"alice": {"SCRAM-SHA-256": 5000, "SCRAM-SHA-512": 4096}}
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({"events": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        for mechanism in MECHANISMS:
            config = properties(tmp_path / "client.properties", mechanism)
            at = ("--bootstrap-server", f"127.0.0.1:{port}", "--producer.config", config)
            kafka.run(CONSOLE_PRODUCER, *at, "--topic", "events", given=b"a line\n")
        with Consumer(cluster.bootstrap()) as consumer:
            assert list(consumer.end_offsets([TopicPartition("events", 0)]).values()) == [2]
    finally:
        end(cluster)


def test_kreplogs_client_authenticates_itself_at_kafka(kafka: Kafka, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    modules = [
        f"listener.name.sasl_plaintext.{mechanism.lower()}.sasl.jaas.config={LOGIN.partition(' username')[0]};\n"
        for mechanism in MECHANISMS
    ]
    settings = [
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n",
        f"listener.name.sasl_plaintext.sasl.enabled.mechanisms={','.join(MECHANISMS)}\n",
        "connections.max.reauth.ms=60000\n",
    ]
    broker = Broker(kafka, tmp_path, "".join((*settings, *modules)))
    file = tmp_path / "server.properties"
    file.write_text(file.read_text().replace(",CONTROLLER://", f",SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://", 1))
    try:
        broker.start()
        for mechanism in MECHANISMS:
            add_alice(kafka, broker.bootstrap, f"{mechanism}=[password=pencil]")  # Kafka refuses both at once
            for password in ("pencil", "wrong"):
                config = properties(tmp_path / "client.properties", mechanism, password)
                security = dict(line.split("=", 1) for line in config.read_text().splitlines())
                assert ClientSecurity.from_file(config) == ClientSecurity.of(security)
                with Consumer(f"127.0.0.1:{port}", security=security) as consumer:
                    if password == "pencil":
                        assert consumer.topics() == []
                    else:
                        with pytest.raises(AuthenticationError, match=f"with SASL mechanism {mechanism}"):
                            consumer.topics()
    finally:
        broker.kill()
