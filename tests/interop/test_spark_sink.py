"""The sink to brokers against a real Kafka, as Kafka's clients are served what it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from pyspark_kreplog.sink import Job
from pyspark_kreplog.sink_options import BrokerSinkOptions, parse_sink
from pyspark_kreplog.transactional_sink import TransactionalSink
from tests.interop.clients import create, served
from tests.interop.jvm import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark]


HEADERS = "array(named_struct('key', 'h', 'value', x'0102')) headers"


@pytest.fixture(autouse=True)
def _serves(either: Broker) -> None:
    """Other modules leave it stopped."""
    either.start()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafkas_clients_read_what_the_sink_writes(spark: SparkSession, either: Broker, codec: str) -> None:
    topic = f"sink-{codec}"
    create(either.bootstrap, topic)
    frame = spark.range(3000).selectExpr(
        "cast(id as string) key", "nullif(concat('value ', id), 'value 7') value", HEADERS
    )
    options = {"kafka.bootstrap.servers": either.bootstrap, "topic": topic, "kafka.compression.type": codec}
    frame.write.format("kreplog").mode("append").options(**options).save()
    found = served(either.bootstrap, topic)
    assert sorted(int(record.key or b"") for record in found) == list(range(3000))
    for record in found:
        assert record.key is not None and record.headers == (("h", b"\x01\x02"),)
        assert record.value == (None if record.key == b"7" else b"value " + record.key)


def test_what_kafka_refuses_is_named(spark: SparkSession, either: Broker) -> None:
    create(either.bootstrap, "sink-small", max_message_bytes=2000)
    large = spark.range(1).selectExpr("repeat('v', 10000) value").write.format("kreplog").mode("append")
    large.option("kafka.bootstrap.servers", either.bootstrap)
    with pytest.raises(PySparkException, match=r"sink-small-0: the leader refuses.*MESSAGE_TOO_LARGE"):
        large.option("topic", "sink-small").save()
    with pytest.raises(PySparkException, match=r"sink-unmade-0: the cluster has no such topic"):
        large.option("topic", "sink-unmade").option("kafka.max.block.ms", "1000").save()
    assert served(either.bootstrap, "sink-small") == []


def test_a_replayed_batch_of_a_stream_is_written_once(either: Broker) -> None:
    """By Kafka's coordinators of transactions and of groups; its own reader sees what is committed."""
    create(either.bootstrap, "sink-once")
    given = {"kafka.bootstrap.servers": either.bootstrap, "kafka.transactional.id": "once", "topic": "sink-once"}
    options = parse_sink(given)
    assert isinstance(options, BrokerSinkOptions)
    sink = TransactionalSink(options)
    sink.prepare()
    for batch in (0, 0, 1, 1):
        rows = pa.record_batch({"value": [b"%d" % batch] * 100})
        sink.commit([sink.write(Job("job", "once", batch), 0, [rows])])
    found = served(either.bootstrap, "sink-once")
    assert sorted(record.value or b"" for record in found) == [b"0"] * 100 + [b"1"] * 100
