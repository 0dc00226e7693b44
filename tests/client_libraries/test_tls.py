"""Client libraries over TLS, unmodified: with mutual authentication, wrong certificates, and through a rotation."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kreplog.server.broker import Broker
from tests.certificates import HOSTS, Certificates
from tests.integration import clusters
from tests.server.brokers import eventually, serving, until_controlled

aiokafka: Any = pytest.importorskip("aiokafka", reason="needs aiokafka, of the extra `dev`")
confluent: Any = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka, of the extra `dev`")
kafka: Any = pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

WITHIN_S = 30
FAILURES = (kafka.errors.KafkaError, aiokafka.errors.KafkaError, ConnectionError)
VALUES = [b"%d" % number * 200 for number in range(300)] + [b"x" * 900_000]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def with_kafka_python(address: str, truststore: str, keystore: str | None) -> list[bytes]:
    settings = {
        "bootstrap_servers": address,
        "security_protocol": "SSL",
        "ssl_cafile": truststore,
        "ssl_certfile": keystore,
        "bootstrap_timeout_ms": 3000,
    }
    producer = kafka.KafkaProducer(**settings, acks="all", max_block_ms=5000)
    try:
        sent = [producer.send("t", value) for value in VALUES]
        for each in sent:
            each.get(WITHIN_S)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer("t", **settings, auto_offset_reset="earliest", consumer_timeout_ms=WITHIN_S * 1000)
    try:
        return [record.value for _, record in zip(VALUES, consumer, strict=False)]
    finally:
        consumer.close()


def with_confluent(address: str, truststore: str, keystore: str | None) -> list[bytes]:
    settings = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": truststore}
    if keystore is not None:
        settings |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    producer = confluent.Producer({**settings, "acks": "all", "delivery.timeout.ms": 5000})
    failed: list[Any] = []
    for value in VALUES:
        producer.produce("t", value, on_delivery=lambda error, _: failed.append(error) if error else None)
    if producer.flush(WITHIN_S) or failed:
        raise ConnectionError(str(failed[:1]))
    consumer = confluent.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["t"])
        found: list[bytes] = []
        while len(found) < len(VALUES):
            message = consumer.poll(WITHIN_S)
            assert message is not None and message.error() is None, "no message in time"
            found.append(message.value())
        return found
    finally:
        consumer.close()


def with_aiokafka(address: str, truststore: str, keystore: str | None) -> list[bytes]:
    context = ssl.create_default_context(cafile=truststore)
    if keystore is not None:
        context.load_cert_chain(keystore)
    settings = {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_context": context}

    async def exchange() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(**settings, acks="all")
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send("t", value) for value in VALUES])
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer("t", **settings, auto_offset_reset="earliest")
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in VALUES]
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(exchange(), WITHIN_S))


CLIENTS = (with_kafka_python, with_confluent, with_aiokafka)
Exchange = Callable[[str, str, str | None], list[bytes]]


def run_beside(work: Callable[[Broker, str], Any], tmp_path: Path, settings: dict[str, Any]) -> Any:
    """What `work` returns, in a thread beside a broker with one partition of topic t; it gets the broker's address."""

    async def scenario() -> Any:
        more = {"offsets_topic_replication_factor": 1, "default_replication_factor": 1}
        async with serving(tmp_path, 1, **more, **settings) as (broker,):
            await until_controlled(broker)
            return await asyncio.to_thread(work, broker, f"localhost:{broker.address[1]}")

    return asyncio.run(scenario())


@pytest.mark.parametrize("exchange", CLIENTS)
def test_records_pass_in_both_directions_with_mutual_authentication(
    exchange: Exchange, certificates: Certificates, tmp_path: Path
) -> None:
    settings = certificates.broker_settings(ssl_client_auth="required")
    principals = set()

    def work(broker: Broker, address: str) -> list[bytes]:
        original = broker.server.handle

        def handle(context: Any, frame: Any) -> None:
            if not context.client.internal:
                principals.add(str(context.principal))
            original(context, frame)

        broker.server.handle = handle
        return exchange(address, certificates.truststore, certificates.keystore("alice"))

    assert run_beside(work, tmp_path, settings) == VALUES
    assert principals == {"User:CN=alice"}


@pytest.mark.parametrize(
    ("exchange", "which"),
    [
        pytest.param(exchange, which, marks=() if exchange is CLIENTS[number] else pytest.mark.long)
        for number, which in enumerate(("no certificate", "a certificate of another CA", "another CA for the server"))
        for exchange in CLIENTS
    ],
)
def test_clients_with_wrong_certificates_exchange_nothing(
    exchange: Exchange, which: str, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path / "stranger", "another CA")
    keystore = None if which == "no certificate" else stranger.keystore("alice")
    truststore = stranger.truststore if which == "another CA for the server" else certificates.truststore
    settings = certificates.broker_settings(ssl_client_auth="required")

    def work(broker: Broker, address: str) -> int:
        with pytest.raises(FAILURES):
            exchange(address, truststore, keystore)
        clusters.eventually(lambda: broker.server.tls_handshakes.failed > 0, lambda: "no handshake has failed")
        return broker.server.tls_handshakes.failed

    assert run_beside(work, tmp_path, settings) > 0


def test_a_rotation_of_certificates_under_load_loses_no_connection(certificates: Certificates, tmp_path: Path) -> None:
    keystore = tmp_path / "rotated.pem"
    keystore.write_bytes(certificates.authority.issue("broker", HOSTS))
    settings = certificates.broker_settings(ssl_keystore_location=str(keystore))

    async def scenario() -> None:
        async with serving(tmp_path, 1, default_replication_factor=1, **settings) as (broker,):
            await until_controlled(broker)
            context = ssl.create_default_context(cafile=certificates.truststore)
            address = f"localhost:{broker.address[1]}"
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address, security_protocol="SSL", ssl_context=context, acks="all"
            )
            await producer.start()
            await producer.send_and_wait("t", b"first")
            standing = broker.server.connections
            serials = set()
            offsets = []
            rotations = 0

            async def new_serial() -> bool:
                offsets.append((await producer.send_and_wait("t", b"x" * 10_000)).offset)
                _, writer = await asyncio.open_connection("localhost", broker.address[1], ssl=context)
                serials.add(writer.get_extra_info("peercert")["serialNumber"])
                writer.close()
                return len(serials) > rotations

            while rotations < 3:
                await eventually(new_serial)
                rotations += 1
                keystore.write_bytes(certificates.authority.issue("broker", HOSTS))
            await eventually(new_serial)
            assert offsets == list(range(1, len(offsets) + 1))
            assert broker.server.connections >= standing
            await producer.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))
