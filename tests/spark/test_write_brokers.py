"""df.write and df.writeStream to brokers: columns, options and errors of Spark's Kafka sink; at least once."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from kreplog import Log
from kreplog.bulk_append import partition_for
from kreplog.client.consumer import Consumer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import KreplogError, UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog import explain_write
from pyspark_kreplog.broker_sink import BrokerSink, Rows
from pyspark_kreplog.sink import Job
from pyspark_kreplog.sink_options import BrokerSinkOptions, SinkOptions, parse_sink
from tests.client.brokers import make_topic
from tests.integration.clusters import eventually, kill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
QUICK = {"kafka.max.block.ms": "1500"}
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
HEADERS = "array(named_struct('key', 'h', 'value', x'00'), named_struct('key', '', 'value', null)) headers"


def save(frame: DataFrame, cluster: LocalCluster, **options: str) -> None:
    writer = frame.write.format("kreplog").option("kafka.bootstrap.servers", cluster.bootstrap())
    writer.mode("append").options(**{**QUICK, **options}).save()


def records(cluster: LocalCluster, topic: str) -> list[tuple[int, dict[str, Any]]]:
    """(partition, row) of all that is committed, in the order of the offsets of each partition."""
    with Consumer(cluster.bootstrap(), columns=["key", "value", "headers"]) as consumer:
        partitions = list(consumer.partitions(topic))
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        ranges = {at: (starts[at], ends[at]) for at in partitions}
        return [
            (piece.partition.partition, row)
            for piece in consumer.read_arrow(ranges)
            for row in piece.to_arrow().to_pylist()
        ]


def values(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    return Counter(row["value"] for _, row in records(cluster, topic))


def test_columns_and_partitions(spark: SparkSession, cluster: LocalCluster) -> None:
    make_topic(cluster, "columns", 3)
    columns = [
        *("cast(id as string) key", "cast(cast(id as string) as binary) value", "id ignored", HEADERS),
        "case when id % 10 = 0 then 2 end partition",
    ]
    save(spark.range(1000).selectExpr(*columns), cluster, topic="columns", **{"kafka.compression.type": "lz4"})
    found = records(cluster, "columns")
    assert sorted(int(row["value"]) for _, row in found) == list(range(1000))
    for partition, row in found:
        assert row["key"] == row["value"]
        assert row["headers"] == [{"key": "h", "value": b"\0"}, {"key": "", "value": None}]
        assert partition == (2 if int(row["key"]) % 10 == 0 else partition_for(row["key"], 3))


def test_topics_of_rows(spark: SparkSession, cluster: LocalCluster) -> None:
    for topic in ("rows-a", "rows-b"):
        make_topic(cluster, topic, 1)
    frame = spark.range(100).selectExpr("if(id % 3 = 0, 'rows-a', 'rows-b') topic", "cast(id as string) value")
    save(frame.coalesce(1), cluster)
    for topic, wanted in (("rows-a", True), ("rows-b", False)):
        expected = [b"%d" % number for number in range(100) if (number % 3 == 0) is wanted]
        assert [row["value"] for _, row in records(cluster, topic)] == expected  # the order of the rows


@pytest.mark.parametrize(
    ("column", "topic", "message"),
    [
        ("'v'", "never-made", r"never-made-0: the cluster has no such topic.*for 1500 ms.*create the"),
        ("id", "columns", "value must be a string or binary"),
    ],
)
def test_refused_before_a_task_runs(
    spark: SparkSession, cluster: LocalCluster, column: str, topic: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(spark.range(2).selectExpr(f"{column} value"), cluster, topic=topic)


def test_a_leader_dies_while_a_task_writes(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """The task waits half-way until the leader of one of its partitions is dead: every row once."""
    topic = make_topic(cluster, "killed", 2)
    rows, half, dead = 40_000, 20_000, tmp_path / "dead"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("id")[0].as_py() >= half:
                while not dead.exists():
                    time.sleep(0.02)  # until the test, another process, makes the file
            yield batch

    frame = spark.range(0, rows, numPartitions=1).mapInArrow(wait, "id bigint").selectExpr("cast(id as string) value")
    killed: list[int] = []

    def kill_leader() -> None:
        try:
            with topic.consumer() as consumer:
                eventually(lambda: sum(consumer.end_offsets(topic.partitions).values()) > 0, "no row came", 60)
                leader = consumer.partitions("killed")[topic.partitions[0]].leader
            kill(cluster, leader)
            killed.append(leader)
        finally:
            dead.touch()

    killer = threading.Thread(target=kill_leader)
    killer.start()
    try:
        save(frame, cluster, topic="killed", **{"kafka.request.timeout.ms": "5000", "kafka.batch.size": "10000"})
    finally:
        killer.join(60)
        cluster.start(killed)
    assert killed
    assert values(cluster, "killed") == Counter(b"%d" % number for number in range(rows))


def test_a_stream_writes_at_least_once(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """A leader dies between two batches; the last batch runs again after a restart, and its rows are there twice."""
    topic = make_topic(cluster, "streamed", 2)
    with Log.open(tmp_path / "source" / "in-0") as log:
        log.append_many([b"%d" % number for number in range(300)])

    def run() -> None:
        stream = spark.readStream.format("kreplog").option("path", str(tmp_path / "source"))
        rows = stream.options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="100").load()
        sink = rows.select("value").writeStream.format("kreplog").options(topic="streamed", **QUICK)
        sink = sink.option("kafka.bootstrap.servers", cluster.bootstrap())
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            with topic.consumer() as consumer:
                eventually(lambda: sum(consumer.end_offsets(topic.partitions).values()) > 0, "no row came", 60)
                leader = consumer.partitions("streamed")[topic.partitions[0]].leader
            kill(cluster, leader)
            try:
                assert query.awaitTermination(120)
            finally:
                cluster.start([leader])
        finally:
            query.stop()

    run()
    expected = Counter(b"%d" % number for number in range(300))
    assert values(cluster, "streamed") == expected
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    run()
    assert values(cluster, "streamed") == expected + Counter(b"%d" % number for number in range(200, 300))


# Without Spark: a task's part


def sink(servers: str, **options: str) -> BrokerSink:
    parsed = parse_sink({"kafka.bootstrap.servers": servers, **QUICK, **options})
    assert isinstance(parsed, BrokerSinkOptions)
    return BrokerSink(parsed)


def rows(count: int, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"v" * size] * count})


def test_a_task_without_rows(cluster: LocalCluster) -> None:
    for given in ([], [rows(0)]):
        assert sink(cluster.bootstrap(), topic="any").write(Job("job"), 0, given).records == 0
        assert sink(cluster.bootstrap()).write(Job("job"), 0, given).records == 0


def test_a_partition_without_leader_is_named(cluster: LocalCluster) -> None:
    """Its only replica dies while a task writes."""
    topic = make_topic(cluster, "alone", 1, replicas=1)
    with topic.consumer() as consumer:
        leader = consumer.partitions("alone")[topic.partitions[0]].leader

    def dying() -> Iterator[pa.RecordBatch]:
        yield rows(10)
        kill(cluster, leader)
        yield from [rows(10)] * 3

    options = {"topic": "alone", "kafka.delivery.timeout.ms": "500", "kafka.request.timeout.ms": "500"}
    try:
        with pytest.raises(KreplogError, match=r"alone-0: (records are not acknowledged|no leader) for 0.5 s"):
            sink(cluster.bootstrap(), **options).write(Job("job"), 0, dying())
    finally:
        cluster.start([leader])


REFUSED: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"topic": ["none-made"]}, {}, r"none-made-0: the cluster has no such topic"),
    ({"topic": ["no name"]}, {}, "column topic: 'no name' is no legal topic name"),
    ({"topic": pa.array([None], pa.string())}, {}, "row 0: null topic present in the data"),
    (
        {"partition": pa.array([7], pa.int32())},
        {"topic": "refused"},
        r"topic refused: row 0: its partition 7 is not in the range \[0...2\): give a partition that the topic has",
    ),
    (
        {"value": [b"v" * 2000]},
        {"topic": "refused", "kafka.max.request.size": "1000"},
        r"refused-\d: row 0: a record of 2007 bytes.*raise option 'kafka.max.reque",
    ),
    (
        {"value": [b"v" * 8000]},
        {"topic": "refused"},
        r"refused-\d: the leader refuses.*MESSAGE_TOO_LARGE.*lower option 'kafka.batch.size'",
    ),
    (
        {"headers": pa.array([[{"key": None, "value": b""}]], HEADER_TYPE)},
        {"topic": "refused"},
        "topic refused, row 0: a header of the record is null, or has no key",
    ),
    ({"headers": pa.array([[None]], HEADER_TYPE), "topic": ["refused"]}, {}, "row 0: a header of the record is null"),
]


@pytest.fixture(scope="module")
def refused(cluster: LocalCluster) -> None:
    make_topic(cluster, "refused", 2, max_message_bytes="5000")


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(("columns", "options", "message"), REFUSED)
def test_refused_rows(cluster: LocalCluster, columns: dict[str, Any], options: dict[str, str], message: str) -> None:
    batch = pa.record_batch({"value": [b"v"], **columns})
    with pytest.raises(KreplogError, match=message):
        sink(cluster.bootstrap(), **options).write(Job("job"), 0, [batch])
    assert records(cluster, "refused") == []


def test_no_broker_answers() -> None:
    with pytest.raises(KreplogError, match=r"no broker answers at 127.0.0.1:1 \(connection refused\)"):
        sink("127.0.0.1:1", topic="t").prepare()


def test_rows_that_fail_before_they_are_sent_keep_their_error(cluster: LocalCluster) -> None:
    make_topic(cluster, "fails", 1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        raise EOFError("the query failed")

    with pytest.raises(EOFError, match="the query failed"):
        sink(cluster.bootstrap(), topic="fails").write(Job("job"), 0, failing())


def test_more_rows_than_are_held_in_memory(cluster: LocalCluster) -> None:
    """Batches that name their topics are sent in several steps."""
    make_topic(cluster, "large", 1)
    batch = pa.record_batch({"value": [b"v" * 1000] * 10_000, "topic": ["large"] * 10_000})
    assert sink(cluster.bootstrap()).write(Job("job"), 0, [batch] * 4).records == 40_000
    with Consumer(cluster.bootstrap()) as consumer:
        assert consumer.end_offsets([TopicPartition("large", 0)]) == {TopicPartition("large", 0): 40_000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.acks": "2"}, "option 'kafka.acks' = '2' must be all"),
        ({"kafka.enable.idempotence": "maybe"}, "must be true or false"),
        ({"kafka.security.protocol": "TLS"}, "this client offers PLAINTEXT, SSL"),
        ({"kafka.partitioner.class": "t"}, "Kafka's default partitioner"),
        ({"kafka.bootstrap.servers": "localhost"}, "must be host:port"),
        ({"kafka.bootstrap.servers": ""}, "must be host:port"),
        ({"kafka.max.block.ms": "0"}, "must be a whole number from 100 to"),
        ({"kafka.compression.type": "best"}, "must be one of none, gzip"),
    ],
)
def test_wrong_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sink({"kafka.bootstrap.servers": "127.0.0.1:1", **options})


def test_options_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.linger.ms": "5", "kafka.retries": "3", "numPartitions": "3"}
    with caplog.at_level(logging.WARNING):
        parse_sink({**given, "kafka.acks": "1", "kafka.client.id": "mine", "topic": "t"})
    of_acks, of_others = (record.getMessage() for record in caplog.records)
    assert "waits for all in-sync replicas" in of_acks
    assert of_others.endswith(": kafka.linger.ms, kafka.retries, numpartitions")


@pytest.mark.parametrize(
    ("options", "to", "times"),
    [
        ({"path": "/data"}, "logs in /data: ", "exactly once"),
        ({}, "leaders of the cluster at h:1: ", "at least once"),
        ({"kafka.transactional.id": "mine"}, "the cluster at h:1, in transactions of mine: ", "exactly once"),
    ],
)
def test_explain_says_how_often_rows_are_written(options: dict[str, str], to: str, times: str) -> None:
    assert explain_write({"kafka.bootstrap.servers": "h:1", "topic": "t", **options}).startswith(to + times)
    with pytest.raises(UsageError, match="option 'topic'"):
        explain_write({"kafka.bootstrap.servers": "h:1", "topic": "a b", **options})


def test_a_path_wins(tmp_path: Path) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "path": str(tmp_path)}
    assert isinstance(parse_sink(given), SinkOptions)


def test_a_refused_row_is_counted_from_the_first_of_its_task() -> None:
    taken = Rows([rows(3), rows(0), pa.record_batch({"value": [b"v"] * 2, "topic": ["t", None]})], None)
    assert next(taken).num_rows == 3
    with pytest.raises(UsageError, match="row 4: null topic present"):
        next(taken)
