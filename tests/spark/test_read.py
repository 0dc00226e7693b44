"""Reads through a real Spark: rows, types, projection, data loss, and a log that changes meanwhile."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import kreplog
from tests.reference import LOG_APPEND_TIME, Batch, Rec, encode
from tests.spark.conftest import Load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY = 1_700_000_000_000
BATCHES = (
    Batch(
        (
            Rec(0, DAY, b"k", b"v", (("h", b"1"), ("h", None), ("", b""))),
            Rec(1, DAY + 1, None, b"", ()),
            Rec(2, -1, b"", None, (("\u20ac", b"\x00\xff"),)),
        )
    ),
    Batch((Rec(3, DAY + 9, None, None),), base_offset=3, attributes=LOG_APPEND_TIME, max_timestamp=DAY + 9),
)


def fill(path: Path, count: int, **config: Any) -> None:
    with kreplog.Log.open(path, kreplog.LogConfig(**config)) as log:
        log.append_many(
            [b"value %d" % i for i in range(count)],
            [b"key %d" % (i % 7) for i in range(count)],
            [DAY + i for i in range(count)],
        )


def test_rows(load: Load, tmp_path: Path) -> None:
    """Every column, nulls, headers, both timestamp types, two partitions; times are instants, to the millisecond."""
    with kreplog.Log.open(tmp_path / "t-0") as log:
        for each in BATCHES:
            log.append_as_follower(encode(each))
    fill(tmp_path / "t-1", 3, compression_type="lz4")
    rows = {(row.partition, row.offset): row for row in load(includeHeaders="true").collect()}
    assert sorted(rows) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]
    for batch in BATCHES:
        for record in batch.records:
            row = rows[0, record.offset]
            found = None if row.headers is None else tuple((name, content) for name, content in row.headers)
            assert (row.key, row.value, found or ()) == (record.key, record.value, record.headers)
            assert (row.headers is None) == (record.headers == ())
            assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(record.timestamp / 1000, UTC)
            assert (row.topic, row.timestampType) == ("t", int(batch.attributes == LOG_APPEND_TIME))
    assert [(rows[1, i].key, rows[1, i].value, rows[1, i].headers) for i in range(3)] == [
        (b"key %d" % i, b"value %d" % i, None) for i in range(3)
    ]


def test_a_topic_in_a_folder_that_is_open(load: Load, tmp_path: Path) -> None:
    """Its writer appends, and its cursors commit in the same folder."""
    with kreplog.Topic.open(tmp_path / "t", 3) as topic, topic.cursor("billing") as cursor:
        topic.append_many([b"value %d" % i for i in range(100)], [b"key %d" % (i % 7) for i in range(100)])
        list(cursor)
        cursor.commit()
        rows = {(row.partition, row.offset, bytes(row.key), bytes(row.value)) for row in load().collect()}
        assert rows == {(r.partition, r.offset, r.key, r.value) for r in topic.read()}
        assert load().count() == 100


def test_schema_is_that_of_the_kafka_source(load: Load, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 1)
    kafka = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    )
    assert load().schema.simpleString() == kafka + ">"
    assert (
        load(includeHeaders="true").schema.simpleString() == kafka + ",headers:array<struct<key:string,value:binary>>>"
    )


@pytest.mark.parametrize(
    "schema",
    ["offset bigint, value binary", "partition int", "topic string, headers array<struct<key: string, value: binary>>"],
)
def test_projection(load: Load, tmp_path: Path, schema: str) -> None:
    fill(tmp_path / "t-0", 5)
    frame = load(schema)
    whole = {"offset": range(5), "value": [b"value %d" % i for i in range(5)], "partition": [0] * 5}
    whole |= {"topic": ["t"] * 5, "headers": [None] * 5}
    assert [tuple(row) for row in frame.collect()] == list(zip(*(whole[name] for name in frame.columns), strict=True))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("value string", {}, "schema column 'value string' is not one that can be read: choose among key binary"),
        ("offset bigint not null", {}, "schema column 'offset bigint NOT NULL'"),
        ("nothing int", {}, "schema column 'nothing int'"),
        (None, {"startingOffsets": "latest"}, "option 'startingOffsets' must not be latest"),
        (None, {"endingOffsets": '{"t": {"0": 9}}'}, "t-0: offset 9 of endingOffsets does not exist: only"),
    ],
)
def test_refusals_reach_the_user(
    load: Load, tmp_path: Path, schema: str | None, options: dict[str, str], message: str
) -> None:
    fill(tmp_path / "t-0", 1)
    with pytest.raises(PySparkException) as raised:
        load(schema, **options).count()
    assert message in str(raised.value)


def test_options_without_a_plan_left(load: Load, tmp_path: Path) -> None:
    """No task at all: Spark makes one up, which must yield no row."""
    fill(tmp_path / "t-0", 1)
    assert load(startingOffsets='{"t": {"0": 1}}').collect() == []


def test_ranges_and_tasks(load: Load, tmp_path: Path) -> None:
    """A task's bounds lie inside batches; each record is read by one task only."""
    fill(tmp_path / "t-0", 1000)
    fill(tmp_path / "t-1", 100)
    fill(tmp_path / "other-0", 5)
    bounds = {"startingOffsets": '{"t": {"0": 7, "1": 3}}', "endingTimestamp": str(DAY + 777)}
    frame = load("partition int, offset bigint", **bounds, minPartitions="9", maxRecordsPerPartition="200")
    assert frame.rdd.getNumPartitions() >= 8
    assert sorted(map(tuple, frame.collect())) == [(0, i) for i in range(7, 777)] + [(1, i) for i in range(3, 100)]
    topics = load("topic string", subscribePattern="th").distinct().collect()
    assert [row.topic for row in topics] == ["other"]


def test_large_scan(load: Load, tmp_path: Path) -> None:
    """Several Arrow batches a task, segments that roll, lz4; compared by a checksum over all bytes."""
    values = [random.Random(7).randbytes(90) + b"%09d" % i for i in range(150_000)]
    for partition, codec in enumerate(("none", "lz4")):
        config = kreplog.LogConfig(segment_bytes=2 << 20, compression_type=codec)
        with kreplog.Log.open(tmp_path / f"t-{partition}", config) as log:
            log.append_many(values)
    frame = load("partition int, offset bigint, value binary")
    found = frame.groupBy("partition").agg(
        F.count("*"), F.sum("offset"), F.sum(F.crc32("value")), F.sum(F.length("value"))
    )
    expected = (len(values), sum(range(len(values))), sum(map(zlib.crc32, values)), sum(map(len, values)))
    assert sorted(map(tuple, found.collect())) == [(0, *expected), (1, *expected)]


# Records that go away


def test_deleted_between_plan_and_read(load: Load, tmp_path: Path) -> None:
    """A DataFrame keeps its first plan; what retention deletes afterwards is data loss."""
    fill(tmp_path / "t-0", 100, segment_bytes=1000, batch_bytes=200)
    strict, lenient = load(), load("value binary", failOnDataLoss="false")
    assert (strict.count(), lenient.count()) == (100, 100)
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.delete_records_before(60)
    assert lenient.count() == 40
    with pytest.raises(PySparkException) as raised:
        strict.count()
    assert "t-0: offsets 0 to 60 were deleted after this read was planned; the log now starts at 60" in str(
        raised.value
    )
    assert "failOnDataLoss" in str(raised.value)
    assert load().count() == 40


def test_truncated_below_the_plan(load: Load, tmp_path: Path) -> None:
    """As after an unclean election: committed once, and gone."""
    fill(tmp_path / "t-0", 100)
    strict, lenient = load(), load(failOnDataLoss="false")
    assert (strict.count(), lenient.count()) == (100, 100)
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.truncate_fully_and_start_at(0)
        log.append_many([b"x"] * 30)
    assert lenient.count() == 30
    with pytest.raises(PySparkException, match="t-0: offsets 30 to 100, committed when this read was planned, no"):
        strict.count()


def test_topic_recreated(load: Load, tmp_path: Path) -> None:
    def recreate(topic_id: str) -> None:
        shutil.rmtree(tmp_path / "t-0", ignore_errors=True)
        fill(tmp_path / "t-0", 10)
        (tmp_path / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")

    recreate("AAAAAAAAAAAAAAAAAAAAAQ")
    frame = load()
    assert frame.count() == 10
    recreate("AAAAAAAAAAAAAAAAAAAAAg")
    with pytest.raises(PySparkException, match="t-0: the topic was deleted and created again: its topic id was"):
        frame.count()
    assert load().count() == 10


def test_damage_names_the_place(load: Load, tmp_path: Path) -> None:
    fill(tmp_path / "t-0", 10)
    file = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(PySparkException) as raised:
        load("value binary").collect()
    assert "CRC-32C does not match" in str(raised.value)
    assert str(file) in str(raised.value)


# A log that changes meanwhile


def value_at(offset: int) -> bytes:
    return hashlib.blake2b(b"%d" % offset, digest_size=24).digest()


@contextmanager
def running(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """`work` in a thread until the block ends; what it raises is raised."""
    stop, failures = threading.Event(), []

    def body() -> None:
        try:
            work(stop)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def test_while_a_writer_appends_rolls_and_truncates(load: Load, tmp_path: Path) -> None:
    """Every read is exactly a prefix of the committed records, though wrong ones come and go above it (F42)."""
    config = kreplog.LogConfig(replicated=True, segment_bytes=16 << 10, batch_bytes=1024, index_interval_bytes=512)
    rng = random.Random(42)
    with kreplog.Log.open(tmp_path / "t-0", config) as log:

        def work(stop: threading.Event) -> None:
            while not stop.is_set():
                end = log.log_end_offset
                log.append_many([value_at(i) for i in range(end, end + rng.randrange(1, 60))])
                log.advance_high_watermark(log.log_end_offset)
                log.append_many([b"never committed" * 3] * rng.randrange(1, 60))
                time.sleep(rng.random() / 20)
                log.truncate_to(log.high_watermark)

        with running(work):
            deadline = time.monotonic() + 8
            reads = 0
            while time.monotonic() < deadline:
                before = log.high_watermark
                rows = load("offset bigint, value binary", minPartitions="3").collect()
                after = log.high_watermark
                assert before <= len(rows) <= after
                assert sorted(row.offset for row in rows) == list(range(len(rows)))
                assert all(row.value == value_at(row.offset) for row in rows)
                reads += 1
        assert reads > 2
        assert len(log.segments) > 3


def test_while_old_records_are_deleted(load: Load, tmp_path: Path) -> None:
    """With failOnDataLoss=false every read ends, with consecutive offsets from wherever the log began."""
    config = kreplog.LogConfig(segment_bytes=8 << 10, batch_bytes=1024)
    with kreplog.Log.open(tmp_path / "t-0", config) as log:
        log.append_many([value_at(i) for i in range(2000)])

        def work(stop: threading.Event) -> None:
            while not stop.is_set():
                end = log.log_end_offset
                log.append_many([value_at(i) for i in range(end, end + 100)])
                log.delete_records_before(end - 1500)
                time.sleep(0.02)

        with running(work):
            for _ in range(4):
                rows = load("offset bigint, value binary", failOnDataLoss="false").collect()
                first = rows[0].offset if rows else 0  # none are left where the whole plan was deleted meanwhile
                assert [row.offset for row in rows] == list(range(first, first + len(rows)))
                assert all(row.value == value_at(row.offset) for row in rows)


# Spark's own ways


def test_found_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """Without registration Spark looks through the pyspark_* modules on its path."""
    fill(tmp_path / "t-0", 3)
    fresh = spark.newSession()
    assert fresh.read.format("kreplog").options(path=str(tmp_path), subscribe="t").load().count() == 3


def test_sql(spark: SparkSession, tmp_path: Path) -> None:
    """A temporary view is read and written. Spark 4.3 loses the options of a table, which is refused when it is made.

    The day the last part fails Spark gives them to the reader: take CREATE TABLE then."""
    fill(tmp_path / "t-0", 3)
    options = f"OPTIONS (path '{tmp_path}', subscribe 't')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING kreplog {options}")
    assert spark.sql("SELECT sum(offset) FROM orders").collect()[0][0] == 3
    spark.sql("INSERT INTO orders SELECT key, value, 'copy', 0, offset, timestamp, timestampType FROM orders")
    with kreplog.Log.open(tmp_path / "copy-0", read_only=True) as log:
        assert list(log.values()) == [b"value %d" % number for number in range(3)]
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE lost USING kreplog {options}")
    spark.sql(f"CREATE TABLE lost (offset BIGINT) USING kreplog {options}")
    try:
        with pytest.raises(PySparkException, match="none is given"):
            spark.table("lost").count()
    finally:
        spark.sql("DROP TABLE lost")
        spark.catalog.dropTempView("orders")


def test_push_down_is_still_broken(spark: SparkSession, load: Load, tmp_path: Path) -> None:
    """One scan is right; a second one of the same load() gets the first one's filters, hence off by default.

    The day this fails Spark has mended it: from that version on take FilteringReader whenever
    spark.sql.python.filterPushdown.enabled is on, and drop the warning from it.
    """
    fill(tmp_path / "t-0", 1000)
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(pushdown="true").count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = load(pushdown="true")
        assert pushed.where("offset >= 990").count() == 10
        assert pushed.count() == 10, "1000 would be right: see above"
        assert load(pushdown="true").where("offset < 5 and partition in (0, 3) and topic = 't'").count() == 5
        plain = load()
        assert plain.where("offset >= 990").count() == 10
        assert plain.count() == 1000
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
