"""A client of another host: python -m tests.integration.outside_client LIBRARY BOOTSTRAP CA USER PASSWORD FIRST COUNT.

Logs in by SASL_SSL, produces records to the topic orders, and reads on as the group billing until it has found them;
prints all values that it has read. What fails ends it with status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

TOPIC, GROUP = "orders", "billing"
WITHIN_S = 60
PATIENCE_S = 20
"""For clients that are to be refused."""

Read = tuple[int, ...]


def with_confluent(settings: dict[str, Any], values: Sequence[bytes]) -> Read:
    import confluent_kafka as confluent

    common = {
        "bootstrap.servers": settings["bootstrap"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": settings["ca"],
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": settings["user"],
        "sasl.password": settings["password"],
    }
    failed: list[Any] = []
    producer = confluent.Producer({**common, "acks": "all", "delivery.timeout.ms": PATIENCE_S * 1000})
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    if producer.flush(WITHIN_S) or failed:
        raise ConnectionError(f"not all are acknowledged: {failed[:1]}")
    consumer = confluent.Consumer({**common, "group.id": GROUP, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])

        def polled() -> list[bytes]:
            message = consumer.poll(WITHIN_S)
            if message is None or message.error() is not None:
                raise ConnectionError(f"no message: {message and message.error()}")
            return [message.value() or b""]

        found = _until_read(values, polled)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def with_kafka_python(settings: dict[str, Any], values: Sequence[bytes]) -> Read:
    import kafka

    common = {
        "bootstrap_servers": settings["bootstrap"].split(","),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": settings["ca"],
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": settings["user"],
        "sasl_plain_password": settings["password"],
        "bootstrap_timeout_ms": PATIENCE_S * 1000,
    }
    producer = kafka.KafkaProducer(**common, acks="all", max_block_ms=WITHIN_S * 1000)
    for sent in [producer.send(TOPIC, value) for value in values]:
        sent.get(WITHIN_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        TOPIC, **common, group_id=GROUP, auto_offset_reset="earliest", consumer_timeout_ms=WITHIN_S * 1000
    )
    try:
        found = _until_read(values, lambda: [next(consumer).value])
        consumer.commit()
    finally:
        consumer.close()
    return found


def _until_read(values: Sequence[bytes], polled: Callable[[], Sequence[bytes]]) -> Read:
    missing, found = set(values), []
    while missing:
        for value in polled():
            found.append(int(value))
            missing.discard(value)
    return tuple(found)


CLIENTS: dict[str, Callable[[dict[str, Any], Sequence[bytes]], Read]] = {
    "confluent": with_confluent,
    "kafka-python": with_kafka_python,
}


def main(arguments: Sequence[str]) -> None:
    library, bootstrap, ca, user, password, first, count = arguments
    settings = {"bootstrap": bootstrap, "ca": ca, "user": user, "password": password}
    values = [b"%d" % number for number in range(int(first), int(first) + int(count))]
    print(*CLIENTS[library](settings, values))


if __name__ == "__main__":
    main(sys.argv[1:])
