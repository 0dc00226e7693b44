"""Client libraries, unmodified, at a SASL listener of a broker process; and kreplog's own clients and commands."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import kafka
import pytest
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion
from kafka.errors import KafkaError

from kreplog.client.consumer import Consumer
from kreplog.client.producer import AppendedRange, Producer
from kreplog.client.security import ClientSecurity
from kreplog.client.user_admin import new_credentials
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.store_requests import put_user
from kreplog.errors import AuthenticationError
from kreplog.types import TopicPartition
from tests.certificates import HOSTS, Certificates
from tests.integration.clusters import GROUPS, WITHIN_S, admin_of, end, eventually

confluent: Any = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka, of the extra `dev`")
confluent_admin: Any = pytest.importorskip("confluent_kafka.admin", reason="needs confluent-kafka, of the extra `dev`")
aiokafka: Any = pytest.importorskip("aiokafka", reason="needs aiokafka, of the extra `dev`")

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MAX_REAUTH_MS = 3000
TOPIC = "topic"
PASSWORD = "p\u00e4ss,w=rd"

every_way = pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [*((protocol, name) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for name in MECHANISMS), ("SASL_SSL", "PLAIN")],
)


class Secured(NamedTuple):
    """A cluster of one broker, with SASL listeners, and the file of the CA of its certificate."""

    cluster: LocalCluster
    addresses: dict[str, str]
    truststore: str

    def client(
        self,
        mechanism: str = MECHANISMS[0],
        username: str = "alice",
        password: str = PASSWORD,
        protocol: str = "SASL_PLAINTEXT",
    ) -> dict[str, str]:
        """The settings of a client, by Kafka's names."""
        names = {"sasl.mechanism": mechanism, "sasl.username": username, "sasl.password": password}
        tls = {"ssl.truststore.location": self.truststore} if protocol == "SASL_SSL" else {}
        return {"security.protocol": protocol, **names, **tls}

    def of_librdkafka(self, protocol: str = "SASL_PLAINTEXT", **changes: str) -> dict[str, Any]:
        client = self.client(**changes, protocol=protocol)
        if "ssl.truststore.location" in client:
            client["ssl.ca.location"] = client.pop("ssl.truststore.location")
        return {"bootstrap.servers": self.addresses[protocol], **client}

    def of_kafka_python(self, protocol: str = "SASL_PLAINTEXT", **changes: str) -> dict[str, Any]:
        security = ClientSecurity.of(self.client(**changes, protocol=protocol))
        return {"bootstrap_servers": self.addresses[protocol], **security.of_kafka_python()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """alice was added before the broker ran."""
    certificates = Certificates(tmp_path_factory.mktemp("ca"))
    cluster = LocalCluster.create(tmp_path_factory.mktemp("sasl") / "c", [0], 0, GROUPS[2:])
    protocols = ("SASL_PLAINTEXT", "SASL_SSL")
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(protocols, free_ports(2), strict=True)}
    file = cluster.home(0) / "broker.toml"
    first, listeners, *lines = file.read_text().splitlines()
    lines += [
        with_listeners(listeners, lambda given: [*given, *(f"{name}://{at}" for name, at in addresses.items())]),
        f'"connections.max.reauth.ms" = {MAX_REAUTH_MS}',
        f'"ssl.keystore.location" = "{certificates.keystore("broker", HOSTS)}"',
        f'"listener.name.sasl_ssl.sasl.enabled.mechanisms" = "{",".join((*MECHANISMS, "PLAIN"))}"',
    ]
    file.write_text("\n".join([first, *lines, ""]))
    with cluster.store_session() as session:
        put_user(session, new_credentials("alice", PASSWORD, MECHANISMS, 4096))
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        yield Secured(cluster, addresses, certificates.truststore)
    finally:
        end(cluster)


def with_listeners(line: str, change: Callable[[list[str]], list[str]]) -> str:
    """The line of the listeners in broker.toml, with others."""
    name, _, given = line.partition(" = ")
    assert name == '"listeners"'
    return f"{name} = {json.dumps(change(json.loads(given)))}"


@every_way
def test_kafka_python_produces_and_consumes(secured: Secured, protocol: str, mechanism: str) -> None:
    client = secured.of_kafka_python(protocol, mechanism=mechanism)
    producer = kafka.KafkaProducer(**client)
    sent = producer.send(TOPIC, b"of kafka-python").get(WITHIN_S)
    producer.close()
    group = f"python {protocol} {mechanism}"
    consumer = kafka.KafkaConsumer(TOPIC, group_id=group, auto_offset_reset="earliest", **client)
    assert next(message for message in consumer if message.offset == sent.offset).value == b"of kafka-python"
    consumer.close()


@every_way
def test_librdkafka_produces_and_consumes(secured: Secured, protocol: str, mechanism: str) -> None:
    settings = secured.of_librdkafka(protocol, mechanism=mechanism)
    failed: list[Any] = []
    producer = confluent.Producer(settings)
    producer.produce(TOPIC, b"of librdkafka", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(WITHIN_S) == 0
    assert not failed
    group = f"confluent {protocol} {mechanism}"
    consumer = confluent.Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: list[bytes] = []
    deadline = time.monotonic() + WITHIN_S
    while b"of librdkafka" not in found:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is not None:
            assert not message.error()
            found.append(message.value())
    consumer.close()


@every_way
def test_aiokafka_produces_and_consumes(secured: Secured, protocol: str, mechanism: str) -> None:
    client = secured.of_kafka_python(protocol, mechanism=mechanism)

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(**client) as producer:
            sent = await producer.send_and_wait(TOPIC, b"of aiokafka", partition=0)
        async with aiokafka.AIOKafkaConsumer(**client) as consumer:
            here = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([here])
            consumer.seek(here, sent.offset)
            assert (await consumer.getone()).value == b"of aiokafka"

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(run(), WITHIN_S))


@pytest.mark.parametrize("protocol", [pytest.param("SASL_PLAINTEXT", marks=pytest.mark.long), "SASL_SSL"])
def test_clients_go_on_after_the_end_of_a_session(secured: Secured, protocol: str) -> None:
    """librdkafka and kreplog's producer authenticate themselves again within each lifetime, on the same connection."""
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow, the extra `arrow`")
    librdkafka = confluent.Producer(secured.of_librdkafka())
    failed: list[Any] = []
    security, address = secured.client(MECHANISMS[1], protocol=protocol), secured.addresses[protocol]
    rows = pa.record_batch({"value": pa.array([b"of kreplog"])})
    ranges: list[AppendedRange] = []
    with Producer(address, security=security) as producer:
        connections = set()
        until = time.monotonic() + 2.5 * MAX_REAUTH_MS / 1000
        while time.monotonic() < until:  # over several lifetimes
            librdkafka.produce(TOPIC, b"later", on_delivery=lambda error, _: failed.append(error) if error else None)
            assert librdkafka.flush(WITHIN_S) == 0
            ranges += producer.append_arrow(TOPIC, rows)
            connections |= {id(each.connection) for each in producer._brokers.values()}
            time.sleep(0.2)  # real time, in which sessions end
        assert len(connections) == 1
    assert not failed
    with Consumer(address, security=security) as consumer:
        consumer.assign({ranges[0].partition: ranges[0].first_offset})
        fetched = consumer.fetch_arrow(WITHIN_S)
        assert fetched is not None
        assert fetched.to_arrow().column("value")[0].as_py() == b"of kreplog"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"password": "wrong"}, "invalid credentials with SASL mechanism SCRAM-SHA-256 (user alice)"),
        ({"username": "carol"}, "invalid credentials with SASL mechanism SCRAM-SHA-256 (user carol)"),
    ],
)
def test_kreplogs_client_fails_at_once_and_says_why(secured: Secured, changes: dict[str, str], reason: str) -> None:
    with (
        Consumer(secured.addresses["SASL_PLAINTEXT"], security=secured.client(**changes)) as consumer,
        pytest.raises(AuthenticationError) as refused,
    ):
        consumer.end_offsets([TopicPartition(TOPIC, 0)])
    assert reason in str(refused.value)


def test_librdkafka_reports_a_wrong_password(secured: Secured) -> None:
    errors: list[Any] = []
    settings = secured.of_librdkafka(password="wrong")
    producer = confluent.Producer({**settings, "error_cb": errors.append})

    def reported() -> bool:
        producer.poll(0.1)
        return any(error.code() == confluent.KafkaError._AUTHENTICATION for error in errors)

    eventually(reported, "no authentication error is reported")


def test_users_are_altered_by_kafka_python_and_librdkafka(secured: Secured) -> None:
    """And what they have made can be used at once, at the same broker."""
    admin = KafkaAdminClient(**secured.of_kafka_python())
    made = UserScramCredentialUpsertion("bob", ScramMechanism.SCRAM_SHA_256, "paper", iterations=5000)
    assert admin.alter_user_scram_credentials([made]) == {"bob": None}
    producer = kafka.KafkaProducer(**secured.of_kafka_python(username="bob", password="paper"))
    producer.send(TOPIC, b"of bob").get(WITHIN_S)
    producer.close()
    other = confluent_admin.AdminClient(secured.of_librdkafka())
    described = other.describe_user_scram_credentials(["bob"])["bob"].result(WITHIN_S)
    assert [(info.iterations, info.mechanism.name) for info in described.scram_credential_infos] == [
        (5000, "SCRAM_SHA_256")
    ]
    scram = confluent_admin.ScramCredentialInfo(confluent_admin.ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = confluent_admin.UserScramCredentialUpsertion("bob", scram, b"stone")
    assert other.alter_user_scram_credentials([upsertion])["bob"].result(WITHIN_S) is None
    bob = secured.of_kafka_python(mechanism=MECHANISMS[1], username="bob", password="stone")
    producer = kafka.KafkaProducer(**bob)
    producer.close()
    deletions = [UserScramCredentialDeletion("bob", mechanism) for mechanism in ScramMechanism if mechanism.value]
    assert admin.alter_user_scram_credentials(deletions) == {"bob": None}
    with pytest.raises(KafkaError):
        kafka.KafkaProducer(bootstrap_timeout_ms=500, **bob)
    admin.close()


def test_commands_take_a_command_config(secured: Secured, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "# as Kafka's tools take it\n"
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="alice" password="{PASSWORD}";\n'
    )

    def kreplog(*arguments: str, given: str | None = None) -> tuple[int, str, str]:
        at = ["-b", secured.addresses["SASL_PLAINTEXT"], "--command-config", str(config)]
        done = subprocess.run(
            [sys.executable, "-m", "kreplog", *arguments, *at],
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert TOPIC in kreplog("topic", "list")[1]
    assert kreplog("topic", "create", "by-config")[0] == 0
    assert kreplog("produce", "by-config", given="a line\n")[0] == 0
    assert kreplog("consume", "by-config", "--from-beginning", "--max-messages", "1")[1] == "a line\n"
    assert kreplog("group", "list")[0] == 0
    assert kreplog("topic", "describe", TOPIC)[0] == 0
    config.write_text(config.read_text().replace(PASSWORD, "wrong"))
    for arguments in (("topic", "describe", TOPIC), ("group", "list"), ("user", "list")):
        code, _, error = kreplog(*arguments)
        assert code == 1
        assert error.startswith("kreplog: Authentication failed")
        assert error.count("\n") == 1


def test_a_cluster_whose_only_listener_has_sasl_starts(tmp_path: Path) -> None:
    """And stops: whoever starts it has no credentials of a client, but is the user of its brokers."""
    cluster = LocalCluster.create(tmp_path / "c", [0, 1], 0, GROUPS[2:])
    for broker in cluster.brokers:
        file = cluster.home(broker) / "broker.toml"
        first, listeners, *lines = file.read_text().splitlines()
        listeners = with_listeners(listeners, lambda given: [f"SASL_PLAINTEXT://{given[0]}"])
        file.write_text("\n".join([first, listeners, *lines, ""]))
    with cluster.store_session() as session:
        put_user(session, new_credentials("alice", PASSWORD, MECHANISMS, 4096))
    try:
        cluster.start()
        assert {status.state for status in cluster.status()} == {"serving"}
        security = ClientSecurity.of(Secured(cluster, {}, "").client()).of_kafka_python()
        with closing(kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap(), **security)) as producer:
            assert producer.send("new", b"value").get(WITHIN_S).offset == 0
    finally:
        end(cluster)
