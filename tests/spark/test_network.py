"""Batch reads from brokers: the rows of a read of their files, through failovers, deletions and topics made again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import TopicAlreadyExistsError
from pyspark.sql import DataFrame, SparkSession

from kreplog.client.bulk_errors import FetchTimeoutError
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import OffsetOutOfRangeError, UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog import network
from pyspark_kreplog.options import parse_batch, parse_stream
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read
from pyspark_kreplog.stream_planner import StreamPlanner
from tests.integration.clusters import admin_of, eventually, kill, pid_of, running, wait_for_topic
from tests.integration.view import View

pytestmark = pytest.mark.spark

COUNT = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        create(made, "t", 2)
        produce(made, "t", COUNT)
        yield made


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 3}}, wait_for_metadata=True)
    wait_for_topic(cluster, topic, partitions)


def create_again(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Once the topic that was deleted is gone."""

    def created() -> bool:
        try:
            create(cluster, topic, partitions)
        except TopicAlreadyExistsError:
            return False
        return True

    eventually(created, f"{topic} has not been deleted")


def produce(cluster: LocalCluster, topic: str, count: int, **settings: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all", **settings)
    for number in range(count):
        producer.send(
            topic,
            None if number % 11 == 0 and number % 3 else b"value %d" % number,
            key=None if number % 3 == 0 else b"key %d" % (number % 7),
            headers=[("n", b"%d" % number)] if number % 2 else [],
            partition=number % 2,
            timestamp_ms=1_700_000_000_000 + number,
        )
    producer.flush(30)
    producer.close()


def from_brokers(spark: SparkSession, cluster: LocalCluster, topic: str = "t", **options: str) -> DataFrame:
    reader = spark.read.format("kreplog").option("kafka.bootstrap.servers", cluster.bootstrap())
    return reader.options(subscribe=topic, includeHeaders="true", **options).load()


def rows(frame: DataFrame) -> list[Any]:
    return sorted(map(tuple, frame.collect()), key=lambda row: (row[2], row[3], row[4]))


def test_rows_are_those_of_the_files(spark: SparkSession, cluster: LocalCluster) -> None:
    found = rows(from_brokers(spark, cluster))
    assert len(found) == COUNT
    path = cluster.home(0) / "data"
    files = spark.read.format("kreplog").options(path=str(path), subscribe="t", includeHeaders="true")
    eventually(lambda: files.load().count() == COUNT, "broker 0 has not heard of the high watermark")
    assert found == rows(files.load())


def test_offsets_times_columns_and_tasks(spark: SparkSession, cluster: LocalCluster) -> None:
    part = from_brokers(
        spark,
        cluster,
        startingOffsets='{"t": {"0": 10, "1": -2}}',
        endingOffsets='{"t": {"0": 20, "1": 5}}',
        maxRecordsPerPartition="4",
    )
    assert part.rdd.getNumPartitions() == 5
    assert [(row[3], row[4]) for row in rows(part)] == [*((0, n) for n in range(10, 20)), *((1, n) for n in range(5))]
    later = from_brokers(spark, cluster, startingTimestamp=str(1_700_000_000_000 + COUNT - 4))
    assert {row.offset for row in later.select("offset").collect()} == {COUNT // 2 - 2, COUNT // 2 - 1}
    reader = spark.read.format("kreplog").schema("partition int, topic string")
    narrow = reader.options(**{"kafka.bootstrap.servers": cluster.bootstrap(), "subscribePattern": "^t$"}).load()
    assert narrow.distinct().count() == 2


def test_a_task_outlives_the_death_of_a_leader(cluster: LocalCluster) -> None:
    create(cluster, "moving", 2)
    produce(cluster, "moving", 1000)
    options = parse_batch({"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "moving"})
    tasks = plan(options, 2)
    with network.connect(cluster.bootstrap()) as consumer:
        leader = consumer.partitions("moving")[TopicPartition("moving", 0)].leader
    kill(cluster, leader)
    try:
        offsets = [row for task in tasks for batch in read(task, ["offset"]) for row in batch["offset"].to_pylist()]
    finally:
        cluster.start()
    assert sorted(offsets) == sorted([*range(500), *range(500)])


def test_a_leader_that_is_silent_for_longer_than_a_fetch_waits(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader has all records: no data loss, after which failOnDataLoss=false would go on without them."""
    create(cluster, "silent", 2)
    produce(cluster, "silent", 1000)
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "silent", "failOnDataLoss": "false"}
    options["kafka.request.timeout.ms"] = "1000"
    task = next(task for task in plan(parse_batch(options), 2) if task.partition == 0)
    fetch, timeouts_s = network.fetch, iter([0.1])

    def impatient_at_first(*args: Any) -> Any:
        monkeypatch.setattr(network, "FETCH_TIMEOUT_S", next(timeouts_s, 60.0))
        return fetch(*args)

    monkeypatch.setattr(network, "fetch", impatient_at_first)
    with network.connect(cluster.bootstrap()) as consumer:
        leader = consumer.partitions("silent")[TopicPartition("silent", 0)].leader
    os.kill(pid_of(cluster, leader), signal.SIGSTOP)
    try:
        offsets = [row for batch in read(task, ["offset"]) for row in batch["offset"].to_pylist()]
    finally:
        os.kill(pid_of(cluster, leader), signal.SIGCONT)
    with View(cluster) as view:
        eventually(lambda: view.registered() == set(cluster.brokers), "the leader is not registered again")
    assert offsets == list(range(500))


def test_a_fetch_that_stays_without_records_is_an_error(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a client that is throttled for long: the leader has them, so failOnDataLoss says nothing about them."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "t", "failOnDataLoss": "false"}
    task = next(task for task in plan(parse_batch(options), 2) if task.partition == 0)
    monkeypatch.setattr(network, "FETCH_TIMEOUT_S", 0.0)
    with pytest.raises(FetchTimeoutError, match=r"t-0: no record at offset 0 .*reaches 1500.*throttled"):
        list(read(task, ["offset"]))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_deleted_after_the_plan(cluster: LocalCluster, fail: str) -> None:
    topic = f"deleted-{fail}"
    create(cluster, topic, 2)
    produce(cluster, topic, 1000)
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": topic, "failOnDataLoss": fail}
    task = next(task for task in plan(parse_batch(options), 2) if task.partition == 0)
    with admin_of(cluster.bootstrap()) as admin:
        from kafka import TopicPartition as KafkaPartition

        admin.delete_records({KafkaPartition(topic, 0): 100})
    if fail == "true":
        with pytest.raises(Exception, match="offsets 0 to 100 were deleted"):
            list(read(task, ["value"]))
    else:
        found = [row for batch in read(task, ["offset"]) for row in batch["offset"].to_pylist()]
        assert found == list(range(100, 500))


def test_a_topic_that_is_created_again_is_not_read(cluster: LocalCluster) -> None:
    create(cluster, "again", 1)
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "again"}
    produce(cluster, "again", 1)
    (task,) = plan(parse_batch(options), 2)
    with admin_of(cluster.bootstrap()) as admin:
        admin.delete_topics(["again"])
    create_again(cluster, "again", 1)
    produce(cluster, "again", 1)
    with pytest.raises(Exception, match="was deleted, the topic that has its name now has id"):
        list(read(task, ["value"]))


def stream(spark: SparkSession, cluster: LocalCluster, topic: str, folder: Path) -> list[tuple[int, int]]:
    """(partition, offset) of what a stream reads with AvailableNow from where its checkpoint stands, in order."""
    reader = spark.readStream.format("kreplog").option("kafka.bootstrap.servers", cluster.bootstrap())
    reader = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="400")
    rows = reader.option("kafka.group.id", f"lag-{topic}").load()
    found: list[tuple[int, int]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.extend((row.partition, row.offset) for row in batch.select("partition", "offset").collect())

    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    try:
        assert running.awaitTermination(60)
    finally:
        running.stop()
    return sorted(found)


def committed(cluster: LocalCluster, group: str) -> int:
    """The sum of the positions that tools for lag see, of all partitions."""
    with admin_of(cluster.bootstrap()) as admin:
        return sum(position.offset for position in admin.list_group_offsets({group: None})[group].values())


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "streamed", 2)
    produce(cluster, "streamed", 1000)
    assert stream(spark, cluster, "streamed", tmp_path) == [(part, n) for part in (0, 1) for n in range(500)]
    assert committed(cluster, "lag-streamed") == 800, "two of its three batches: the last is at the next start"
    with network.connect(cluster.bootstrap()) as consumer:
        leader = consumer.partitions("streamed")[TopicPartition("streamed", 0)].leader
    kill(cluster, leader)
    try:
        produce(cluster, "streamed", 100)
        assert stream(spark, cluster, "streamed", tmp_path) == [(part, n) for part in (0, 1) for n in range(500, 550)]
    finally:
        cluster.start()
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_partitions({"streamed": 3})
    wait_for_topic(cluster, "streamed", 3)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all")
    producer.send("streamed", b"new", partition=2).get(20)
    producer.close()
    assert stream(spark, cluster, "streamed", tmp_path) == [(2, 0)]
    assert committed(cluster, "lag-streamed") == 1100
    with admin_of(cluster.bootstrap()) as admin:
        admin.delete_topics(["streamed"])
    create_again(cluster, "streamed", 3)
    with pytest.raises(Exception, match=r"created again: its topic id was .* and is now"):
        stream(spark, cluster, "streamed", tmp_path)


def test_what_is_wrong_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "t"}
    with pytest.raises(UsageError, match=r"there is no topic nothing in the cluster at .*; it holds .*\bt\b"):
        plan(parse_batch(options | {"subscribe": "nothing"}), 2)
    with pytest.raises(UsageError, match=r"from brokers kafka\.bootstrap\.servers"):
        parse_batch({"subscribe": "t"})
    assert parse_batch(options | {"path": str(tmp_path)}).bootstrap is None


def test_records_that_were_truncated_after_a_stream_read_them(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create(cluster, "elected", 1)
    at = TopicPartition("elected", 0)
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "elected", "startingOffsets": "earliest"}
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all")
    producer.send("elected", b"old").get(20)
    planner = StreamPlanner(parse_stream(options | {"kafka.group.id": "lag"}))
    first = planner.end_of_batch(planner.initial_offset(), unlimited=True)
    planner.commit(first)
    planner.commit(first)
    assert caplog.messages == []
    with admin_of(cluster.bootstrap()) as admin:
        (shown,) = admin.list_group_offsets({"lag": None})["lag"].values()
    assert shown.offset == 1
    epoch = first["@kreplog"]["leaderEpochs"]["elected"]
    with network.connect(cluster.bootstrap()) as consumer:
        leader = consumer.partitions("elected")[at].leader
        kill(cluster, leader)
        eventually(lambda: consumer.partitions("elected")[at].leader not in (-1, leader), "no other leader")
    cluster.start()
    producer.send("elected", b"new").get(20)
    producer.close()
    second = planner.end_of_batch(first, unlimited=True)
    assert second["elected"] == {"0": 2} and second["@kreplog"]["leaderEpochs"]["elected"] > epoch
    lost = {**second, "@kreplog": {**second["@kreplog"], "leaderEpochs": {"elected": epoch}}}
    with pytest.raises(OffsetOutOfRangeError, match="offsets 1 to 2, which were read, have been truncated"):
        planner.end_of_batch(lost, unlimited=True)
    monkeypatch.setattr(network.ClusterReader, "_leader_epochs", lambda *_: {})
    unknown = planner.end_of_batch(first, unlimited=True)
    assert unknown["elected"] == {"0": 2} and unknown["@kreplog"]["leaderEpochs"] == {}
    planner.close()
