"""The bulk client against a real Kafka: the last release that knew ZooKeeper, and the newest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
import pytest
from kafka.errors import TopicAlreadyExistsError

from kreplog.client import AppendedRange, Consumer, FetchedArrow, Producer, TopicRecreatedError
from kreplog.errors import OffsetOutOfRangeError
from kreplog.types import TopicPartition
from tests.integration.clusters import admin_of, eventually
from tests.interop.clients import Message, create, messages, send, served
from tests.interop.jvm import Broker

pytestmark = pytest.mark.interop

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 20.0


def to_table(sent: Sequence[Message]) -> pa.Table:
    item = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = [[{"key": name, "value": value} for name, value in message.headers] or None for message in sent]
    return pa.table(
        {
            "value": pa.array([message.value for message in sent], pa.binary()),
            "key": pa.array([message.key for message in sent], pa.binary()),
            "timestamp": pa.array([message.timestamp_ms for message in sent], pa.timestamp("ms", "UTC")),
            "headers": pa.array(headers, pa.list_(item)),
        }
    )


def table(pieces: Sequence[FetchedArrow]) -> pa.Table:
    return pa.Table.from_batches([piece.to_arrow() for piece in pieces])


def read(consumer: Consumer, rows: int) -> pa.Table:
    pieces: list[FetchedArrow] = []
    while sum(map(len, pieces)) < rows:
        piece = consumer.fetch_arrow(TIMEOUT_S)
        assert piece is not None, f"{sum(map(len, pieces))} of {rows} rows"
        pieces.append(piece)
    return table(pieces)


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_producer_writes_kafkas_clients_read(either: Broker, codec: str) -> None:
    topic = f"written-{codec}"
    sent = messages(range(3000))
    create(either.bootstrap, topic)
    with Producer(either.bootstrap, compression=codec, batch_bytes=10_000) as producer:
        appended = producer.append_arrow(topic, to_table(sent))
        assert appended == (AppendedRange(TopicPartition(topic, 0), 0, 3000, 3000),)
    found = served(either.bootstrap, topic)
    assert [(record.timestamp_ms, record.key, record.value, record.headers) for record in found] == [
        tuple(record) for record in sent
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafkas_clients_write_a_consumer_reads(either: Broker, codec: str) -> None:
    topic = f"read-{codec}"
    sent = messages(range(3000))
    create(either.bootstrap, topic)
    settings = {} if codec == "none" else {"compression_type": codec}
    send(either.bootstrap, topic, sent, **settings)
    at = TopicPartition(topic, 0)
    with Consumer(either.bootstrap) as consumer:
        assert consumer.beginning_offsets([at]) == {at: 0} and consumer.end_offsets([at]) == {at: 3000}
        found = table(list(consumer.read_arrow({at: (100, 2900)})))
    assert found.drop(["offset"]).equals(to_table(sent[100:2900]).select(["timestamp", "key", "value", "headers"]))
    assert found["offset"].to_pylist() == list(range(100, 2900))


def test_a_session_goes_on_through_a_restart_of_the_broker(either: Broker) -> None:
    topic, at = "restarted", TopicPartition("restarted", 0)
    create(either.bootstrap, topic)
    with Consumer(either.bootstrap, max_wait_ms=50) as consumer, Producer(either.bootstrap) as producer:
        consumer.assign({at: 0})
        for turn in range(4):
            producer.append_arrow(topic, to_table(messages(range(turn * 10, turn * 10 + 10))))
            assert read(consumer, 10)["offset"].to_pylist() == list(range(turn * 10, turn * 10 + 10))
            assert consumer.fetch_arrow(0.2) is None
            if turn == 1:
                either.kill()
                either.start()
        assert consumer.positions == {at: 40}


def test_offsets_by_time_and_out_of_range(either: Broker) -> None:
    topic, at = "by-time", TopicPartition("by-time", 0)
    create(either.bootstrap, topic)
    with Producer(either.bootstrap) as producer, Consumer(either.bootstrap) as consumer:
        stamps = pa.array([1_700_000_000_000 + number * 1000 for number in range(10)], pa.timestamp("ms", "UTC"))
        producer.append_arrow(topic, pa.table({"value": [b"x"] * 10, "timestamp": stamps}))
        found = consumer.list_offsets([at], 1_700_000_004_500)[at]
        assert found is not None and (found.offset, found.timestamp_ms) == (5, 1_700_000_005_000)
        assert consumer.list_offsets([at], 1_800_000_000_000) == {at: None}
        consumer.assign({at: 11})
        with pytest.raises(OffsetOutOfRangeError, match="by-time-0: offset 11"):
            for _ in range(5):
                consumer.fetch_arrow(5)


def test_a_topic_made_again_is_an_error_with_both_ids(either: Broker) -> None:
    topic, at = "again", TopicPartition("again", 0)
    create(either.bootstrap, topic)
    with Producer(either.bootstrap) as producer, Consumer(either.bootstrap, max_wait_ms=50) as consumer:
        producer.append_arrow(topic, pa.table({"value": [b"old"] * 3}))
        old = consumer.partitions(topic)[at].topic_id
        consumer.assign({at: 0})
        read(consumer, 3)
        with admin_of(either.bootstrap) as admin:
            admin.delete_topics([topic])

        def made() -> bool:
            with suppress(TopicAlreadyExistsError):
                create(either.bootstrap, topic)
                return True
            return False

        eventually(made, "the topic is not deleted")
        with pytest.raises(TopicRecreatedError) as raised:
            for _ in range(100):
                assert consumer.fetch_arrow(5) is None
        assert raised.value.topic_id == old != raised.value.new_topic_id == consumer.partitions(topic)[at].topic_id
