"""Client libraries, unmodified, with tokens of an issuer: over TLS and on a loopback address; and kreplog's own clients
and commands."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kafka
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from kreplog.client.broker_client import BrokerClient
from kreplog.client.bulk_connection import BulkConnection
from kreplog.client.cluster_connections import parse_address
from kreplog.client.security import ClientSecurity
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.wire.versions import ApiKey
from tests.certificates import HOSTS, Certificates
from tests.client_libraries.test_sasl import TOPIC, with_listeners
from tests.integration.clusters import GROUPS, WITHIN_S, admin_of, end
from tests.tokens import Issuer

aiokafka: Any = pytest.importorskip("aiokafka", reason="needs aiokafka, of the extra `dev`")
aiokafka_abc: Any = pytest.importorskip("aiokafka.abc", reason="needs aiokafka, of the extra `dev`")
confluent: Any = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka, of the extra `dev`")

PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
both_when_long = pytest.mark.parametrize("protocol", [pytest.param(PROTOCOLS[0], marks=pytest.mark.long), PROTOCOLS[1]])


class Secured(NamedTuple):
    """A cluster of one broker, with listeners of OAUTHBEARER, and the file of the CA of its certificate."""

    cluster: LocalCluster
    addresses: dict[str, str]
    truststore: str
    issuer: Issuer

    def of_librdkafka(self, protocol: str, issued: list[str], lifetime_s: float = 300) -> dict[str, Any]:
        """issued: gets the tokens that the client takes."""

        def oauth_cb(_: str) -> tuple[str, float]:
            issued.append(self.issuer.token("alice", lifetime_s=lifetime_s))
            return issued[-1], time.time() + lifetime_s / 2  # it looks for another each second, from 80% of that on

        return {
            "bootstrap.servers": self.addresses[protocol],
            "security.protocol": protocol,
            "ssl.ca.location": self.truststore,
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": oauth_cb,
        }

    def of_kafka_python(self, protocol: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.addresses[protocol],
            "security_protocol": protocol,
            "ssl_cafile": self.truststore,
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(self.issuer),
        }


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer

    def token(self) -> str:
        return self._issuer.token("alice")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    certificates, issuer = Certificates(tmp_path_factory.mktemp("ca")), Issuer(tmp_path_factory.mktemp("issuer"))
    issuer.publish()
    cluster = LocalCluster.create(tmp_path_factory.mktemp("oauth") / "c", [0], 0, GROUPS[2:])
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(PROTOCOLS, free_ports(2), strict=True)}
    file = cluster.home(0) / "broker.toml"
    first, listeners, *lines = file.read_text().splitlines()
    lines += [
        with_listeners(listeners, lambda given: [*given, *(f"{name}://{at}" for name, at in addresses.items())]),
        f'"ssl.keystore.location" = "{certificates.keystore("broker", HOSTS)}"',
        *(f'"{name.replace("_", ".")}" = "{value}"' for name, value in issuer.settings().items()),
        '"sasl.oauthbearer.clock.skew.seconds" = 0',
    ]
    file.write_text("\n".join([first, *lines, ""]))
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        yield Secured(cluster, addresses, certificates.truststore, issuer)
    finally:
        end(cluster)


@every_protocol
def test_kafka_python_produces_and_consumes(secured: Secured, protocol: str) -> None:
    client = secured.of_kafka_python(protocol)
    producer = kafka.KafkaProducer(**client)
    sent = producer.send(TOPIC, b"of kafka-python").get(WITHIN_S)
    producer.close()
    consumer = kafka.KafkaConsumer(TOPIC, group_id=f"python {protocol}", auto_offset_reset="earliest", **client)
    assert next(message for message in consumer if message.offset == sent.offset).value == b"of kafka-python"
    consumer.close()


@every_protocol
def test_aiokafka_produces(secured: Secured, protocol: str) -> None:
    class Tokens(aiokafka_abc.AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
        async def token(self) -> str:
            return secured.issuer.token("alice")

    settings = {**secured.of_kafka_python(protocol), "sasl_oauth_token_provider": Tokens()}
    cafile = settings.pop("ssl_cafile")
    if protocol == "SASL_SSL":
        settings["ssl_context"] = ssl.create_default_context(cafile=cafile)

    async def produce() -> int:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            sent = await producer.send_and_wait(TOPIC, b"of aiokafka")
            return int(sent.offset)

    assert asyncio.run(produce()) >= 0


def test_a_token_of_another_issuer_is_refused(secured: Secured, tmp_path: Path) -> None:
    forged = secured._replace(issuer=Issuer(tmp_path))
    forged.issuer.key = forged.issuer.other
    errors: list[Any] = []
    producer = confluent.Producer({**forged.of_librdkafka("SASL_SSL", []), "error_cb": errors.append})
    deadline = time.monotonic() + WITHIN_S
    while not any("invalid credentials with SASL mechanism OAUTHBEARER" in str(error) for error in errors):
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)


@both_when_long
def test_connections_go_on_when_their_tokens_expire(secured: Secured, protocol: str) -> None:
    """librdkafka's, and both kinds of kreplog's: they authenticate again with new tokens (KIP-368)."""
    lifetime_s = 10.0
    issued: list[str] = []
    of_librdkafka: list[str] = []
    errors: list[Any] = []
    failed: list[Any] = []

    def oauth_cb(_: str) -> tuple[str, float]:
        issued.append(secured.issuer.token("alice", lifetime_s=lifetime_s))
        return issued[-1], time.time() + lifetime_s

    security = ClientSecurity.of(
        {
            "security.protocol": protocol,
            "sasl.mechanism": "OAUTHBEARER",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": secured.truststore,
            "oauth_cb": oauth_cb,
        }
        if protocol == "SASL_SSL"
        else {"security.protocol": protocol, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": oauth_cb}
    )
    producer = confluent.Producer(
        {**secured.of_librdkafka(protocol, of_librdkafka, lifetime_s), "error_cb": errors.append}
    )
    address = parse_address(secured.addresses[protocol])
    bulk = BulkConnection(address, "kreplog", WITHIN_S, security)
    with asyncio.Runner() as runner:
        client = BrokerClient(address, WITHIN_S, security)
        began = time.monotonic()
        while time.monotonic() < began + lifetime_s + 1:  # more than the lifetime of a token
            bulk.call(ApiKey.METADATA, time.monotonic() + WITHIN_S, topics=[], allow_auto_topic_creation=False)
            assert runner.run(client.live_brokers()) == {0}
            producer.produce(TOPIC, b"later", on_delivery=lambda error, _: failed.append(error) if error else None)
            assert producer.flush(WITHIN_S) == 0
            time.sleep(0.05)  # the session ends by the broker's clock
        client.close()
    bulk.close()
    assert not failed and not errors
    assert len(issued) > 1 and len(of_librdkafka) > 1, "the first tokens have expired meanwhile"


def test_commands_take_tokens_by_a_command_config(secured: Secured, tmp_path: Path) -> None:
    """Those by kreplog's clients, and those by kafka-python's."""
    token = tmp_path / "token"
    token.write_text(secured.issuer.token("alice"))
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secured.truststore}\n"
        "sasl.mechanism=OAUTHBEARER\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;\n"
        f"sasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )

    def kreplog(*words: str, given: str = "") -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "kreplog", *words, "-b", secured.addresses["SASL_SSL"], "--command-config", config],
            input=given, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    assert kreplog("topic", "create", "by-token")[0] == 0
    assert "by-token" in kreplog("topic", "list")[1]
    assert kreplog("produce", "by-token", given="a line\n")[0] == 0
    assert kreplog("consume", "by-token", "--from-beginning", "--max-messages", "1")[1] == "a line\n"
    forged = Issuer(tmp_path / "forged")
    forged.key = forged.other
    token.write_text(forged.token("alice"))
    code, _, error = kreplog("topic", "list")
    assert code == 1
    assert error.startswith("kreplog: Authentication failed")
    assert f"(token of {token.as_uri()})" in error
    assert token.read_text() not in error
