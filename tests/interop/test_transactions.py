"""Reads of a real Kafka that need its coordinators: transactions, and the committed offsets of a group."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer as TransactionalProducer
from kafka import KafkaConsumer
from kafka import TopicPartition as TheirPartition
from pyspark.sql import SparkSession

from kreplog.client import Consumer
from kreplog.types import TopicPartition
from pyspark_kreplog.options import parse_stream
from pyspark_kreplog.stream_planner import StreamPlanner
from tests.integration.clusters import eventually
from tests.interop.clients import create
from tests.interop.jvm import Broker

pytestmark = pytest.mark.interop

TIMEOUT_S = 30.0
_PATIENT = {"linger.ms": 0, "transaction.timeout.ms": 600_000}
"""A transaction stays open as long as a slow machine needs to start Spark."""


def transactional(broker: Broker, name: str) -> TransactionalProducer:
    made = TransactionalProducer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "batch.num.messages": 3, **_PATIENT}
    )
    made.init_transactions(TIMEOUT_S)
    return made


def values(consumer: Consumer, at: TopicPartition) -> list[str]:
    start, end = consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]
    return [
        value.decode()
        for piece in consumer.read_arrow({at: (start, end)})
        for value in piece.to_arrow()["value"].to_pylist()
    ]


def test_read_committed(spark: SparkSession, either: Broker) -> None:
    """Two transactions at a time, one committed and one aborted, several batches each; then one that stays open."""
    topic, at = "transactions", TopicPartition("transactions", 0)
    create(either.bootstrap, topic)
    first, second = transactional(either, "first"), transactional(either, "second")
    committed = []
    for turn in range(6):
        for producer in (first, second):
            producer.begin_transaction()
        for number in range(10):
            for name, producer in (("first", first), ("second", second)):
                producer.produce(topic, f"{turn} {name} {number}", partition=0)
            if number % 3 == 0:
                first.flush(TIMEOUT_S)
                second.flush(TIMEOUT_S)
        for name, producer in (("first", first), ("second", second)):
            if (turn % 3 == 0) == (name == "first"):
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
                committed += [f"{turn} {name} {number}" for number in range(10)]
    first.begin_transaction()
    first.produce(topic, "open", partition=0)
    first.flush(TIMEOUT_S)
    with (
        Consumer(either.bootstrap, isolation_level="read_committed", max_wait_ms=50) as consumer,
        Consumer(either.bootstrap, max_wait_ms=50) as uncommitted,
    ):
        found = values(consumer, at)
        assert sorted(found) == sorted(committed)
        everything = values(uncommitted, at)
        assert len(everything) == 6 * 20 + 1 and [value for value in everything if value in set(committed)] == found
        assert consumer.end_offsets([at])[at] < uncommitted.end_offsets([at])[at]
        options = {"kafka.bootstrap.servers": either.bootstrap, "subscribe": topic}
        reader = spark.read.format("kreplog").options(**options | {"kafka.isolation.level": "read_committed"})
        rows = reader.load().selectExpr("CAST(value AS STRING) AS value").collect()
        assert sorted(row.value for row in rows) == sorted(committed)
        consumer.assign({at: 0})
        read: list[str] = []
        while len(read) < len(committed):
            piece = consumer.fetch_arrow(TIMEOUT_S)
            assert piece is not None
            read += [value.decode() for value in piece.to_arrow()["value"].to_pylist()]
        assert consumer.fetch_arrow(0.2) is None
        first.commit_transaction(TIMEOUT_S)
        piece = consumer.fetch_arrow(TIMEOUT_S)
        assert piece is not None and piece.to_arrow()["value"].to_pylist() == [b"open"]
        assert read == found


def test_a_stream_commits_its_position_to_its_group(either: Broker) -> None:
    topic = "committed"
    create(either.bootstrap, topic)
    options = {"kafka.bootstrap.servers": either.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    producer = TransactionalProducer({"bootstrap.servers": either.bootstrap})
    planner = StreamPlanner(parse_stream(options | {"kafka.group.id": "query"}))
    position = planner.initial_offset()
    for turn in range(1, 3):
        for _ in range(5):
            producer.produce(topic, b"x", partition=0)
        producer.flush(TIMEOUT_S)
        position = planner.end_of_batch(position, unlimited=True)
        assert position[topic] == {"0": 5 * turn}
        eventually(
            # the first group makes the brokers create its topic, which takes a while
            partial(_is_committed, planner, position, either, TheirPartition(topic, 0), 5 * turn),
            "the position is not committed",
        )
    planner.close()


def _is_committed(
    planner: StreamPlanner, position: dict[str, Any], broker: Broker, at: TheirPartition, expected: int
) -> bool:
    planner.commit(position)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="query", enable_auto_commit=False)
    try:
        return bool(consumer.committed(at) == expected)
    finally:
        consumer.close()
