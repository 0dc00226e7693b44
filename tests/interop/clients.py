"""Clients of a broker, as the tests of this folder use them: what they send, and what they are served."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kreplog import Log, Record
from tests.integration.clusters import WITHIN_S, admin_of, eventually
from tests.interop.jvm import CONSOLE_CONSUMER, Kafka

SERVED_MS = 15_000

_CONSUMED = re.compile(r"CreateTime:(-?\d+)\tOffset:(\d+)\t(\S*)\t(\S+)\t(.+)", re.DOTALL)


class Message(NamedTuple):
    """What is sent; headers without values that hold a comma or a colon, for the console consumer shows them so."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def messages(numbers: Sequence[int], start_ms: int = 1_700_000_000_000) -> list[Message]:
    """Null keys, null values (not both), headers, by turns; times go up and down."""
    return [
        Message(
            start_ms + number * 10 - number % 4 * 25,
            None if number % 3 == 0 else b"key-%d" % number,
            None if number % 7 == 0 and number % 3 else b"value-%d " % number * (number % 5 + 1),
            (("a", b"1"), ("b", b""))[: number % 3],
        )
        for number in numbers
    ]


def records(sent: Sequence[Message], first: int = 0) -> list[Record]:
    return [Record(offset, *message) for offset, message in enumerate(sent, first)]


def create(bootstrap: str, topic: str, **configs: object) -> None:
    """One partition; configs: Kafka's names with underscores for dots."""
    settings = {name.replace("_", "."): str(value) for name, value in configs.items()}
    with admin_of(bootstrap) as admin:
        admin.create_topics(
            {topic: {"num_partitions": 1, "replication_factor": 1, "configs": settings}}, wait_for_metadata=True
        )


def send(bootstrap: str, topic: str, sent: Sequence[Message], **settings: Any) -> list[int]:
    """Return their offsets."""
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), **{"batch_size": 2000, **settings})
    try:
        return send_by(producer, topic, sent)
    finally:
        producer.close()


def send_by(producer: Any, topic: str, sent: Sequence[Message]) -> list[int]:
    futures = [
        producer.send(
            topic,
            message.value,
            message.key,
            list(message.headers),
            partition=0,
            timestamp_ms=message.timestamp_ms,
        )
        for message in sent
    ]
    producer.flush(WITHIN_S)
    return [future.get(WITHIN_S).offset for future in futures]


@contextmanager
def consumer_of(bootstrap: str, topic: str, **settings: Any) -> Iterator[tuple[Any, TopicPartition]]:
    """kafka-python's consumer at the beginning of the partition."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","), **settings)
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        yield consumer, partition
    finally:
        consumer.close()


def served(bootstrap: str, topic: str, **settings: Any) -> list[Record]:
    """All that the broker serves, up to its high watermark, or with read_committed its last stable offset."""
    with consumer_of(bootstrap, topic, **settings) as (consumer, partition):
        end = consumer.end_offsets([partition])[partition]
        found: list[Record] = []
        deadline = time.monotonic() + WITHIN_S
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, f"{topic}: stuck at {consumer.position(partition)} of {end}"
            for message in consumer.poll(200).get(partition, ()):
                headers = tuple((name, value) for name, value in message.headers)
                found.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
        return found


def served_to_java(kafka: Kafka, bootstrap: str, topic: str, count: int) -> list[Record]:
    """The same from Kafka's console consumer, of so many records; it knows no empty from a missing header value."""
    shown = ("timestamp", "offset", "headers", "key", "value")
    output = kafka.run(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(count), "--timeout-ms", str(SERVED_MS)),
        *(part for name in shown for part in ("--property", f"print.{name}=true")),
        *("--property", "null.literal=NULL"),
    )
    found = []
    for line in output.splitlines():
        part = _CONSUMED.fullmatch(line)
        assert part, line
        timestamp, offset, headers, key, value = part.groups()
        pairs = [] if headers == "NO_HEADERS" else [pair.split(":", 1) for pair in headers.split(",")]
        named = tuple((name, header.encode()) for name, header in pairs)
        found.append(Record(int(offset), int(timestamp), _bytes(key), _bytes(value), named))
    return found


def _bytes(shown: str) -> bytes | None:
    return None if shown == "NULL" else shown.encode()


def found_by_kreplog(path: Path, end: int) -> list[Record]:
    """All records, read from the broker's files once its high watermark has come to `end` there, or past it."""
    with Log.open(path, read_only=True) as log:
        eventually(lambda: log.high_watermark >= end, lambda: f"{path}: high watermark {log.high_watermark}, not {end}")
        return list(log.read())


def undamaged(path: Path) -> None:
    with Log.open(path, read_only=True) as log:
        report = log.verify()
    assert report.damages == ()
    assert report.end_offset >= report.start_offset >= 0
