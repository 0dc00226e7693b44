"""df.writeStream to a path: each batch is in the logs once, however often it runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from kreplog import Log
from kreplog.errors import UsageError
from pyspark_kreplog.commit import SinkDirectory
from pyspark_kreplog.shared_path import PREFIX
from pyspark_kreplog.sink_options import parse_path_sink
from pyspark_kreplog.staging import FOLDER, Staged, driver_identity, stage, stream_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
BATCH = 50


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(spark: SparkSession, tmp_path: Path, *columns: str, mode: str = "append", **options: str) -> str:
    """Stream the topic "in" below tmp_path, in batches of BATCH rows, to its end; return the query's id."""
    rows = (
        spark.readStream.format("kreplog")
        .option("path", str(tmp_path / "source"))
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(BATCH))
        .load()
        .selectExpr(*(columns or ("value",)))
    )
    if mode == "complete":
        rows = rows.groupBy("value").count().selectExpr("concat(cast(value as string), ':', count) value")
    stream = rows.writeStream.format("kreplog").outputMode(mode).option("path", str(tmp_path / "data"))
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).options(**{"topic": "out", **options})
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


def feed(tmp_path: Path, values: list[bytes]) -> None:
    with Log.open(tmp_path / "source" / "in-0") as log:
        log.append_many(values)


def written(data: Path, partitions: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    for partition in range(partitions):
        with Log.open(data / f"out-{partition}", read_only=True) as log:
            found.extend(log.values())
    return found


def forget_last_commit(tmp_path: Path) -> None:
    """As if the driver had been killed between the sink's commit and Spark's own note of it."""
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)


def left_over(data: Path) -> list[str]:
    return sorted(entry.name for entry in (data / FOLDER).iterdir() if not entry.name.startswith(PREFIX))


def test_a_batch_that_is_run_again_is_not_written_again(spark: SparkSession, tmp_path: Path, data: Path) -> None:
    expected = Counter(b"%d" % number for number in range(3 * BATCH))
    feed(tmp_path, sorted(expected))
    query_id = run(spark, tmp_path, numPartitions="3")
    assert Counter(written(data, 3)) == expected
    for _ in range(2):
        forget_last_commit(tmp_path)
        assert run(spark, tmp_path) == query_id
        assert Counter(written(data, 3)) == expected
    checksum, _, queries = (data / FOLDER / "queries").read_text().partition(" ")
    assert checksum and [entry[:2] for entry in json.loads(queries)] == [[query_id, 2]]
    forget_last_commit(tmp_path)
    (data / FOLDER / "queries").unlink()  # the logs' own ledgers know it too, where rows go to the same partitions
    run(spark, tmp_path)
    feed(tmp_path, [b"more"])
    run(spark, tmp_path)
    assert Counter(written(data, 3)) == expected + Counter([b"more"])
    assert left_over(data) == ["completed", "lock", "queries"]


def test_a_failed_batch_is_written_when_it_succeeds(spark: SparkSession, tmp_path: Path, data: Path) -> None:
    """Two tasks stage rows and the third row cannot be placed: nothing of the batch, then all of it."""
    feed(tmp_path, [b"0", b"1", b"9"])
    with pytest.raises(PySparkException, match="Invalid partition given with record: 9"):
        run(spark, tmp_path, "value", "cast(cast(value as string) as int) partition", numPartitions="2")
    assert not (data / "out-0").exists()
    run(spark, tmp_path, "value", "cast(cast(value as string) as int) % 2 partition", numPartitions="2")
    assert written(data, 2) == [b"0", b"1", b"9"]
    assert left_over(data) == ["completed", "lock", "queries"]


def test_complete_mode_appends_its_rows(spark: SparkSession, tmp_path: Path, data: Path) -> None:
    """As in Spark's Kafka sink."""
    feed(tmp_path, [b"a", b"a", b"b"])
    run(spark, tmp_path, mode="complete")
    feed(tmp_path, [b"a"])
    run(spark, tmp_path, mode="complete")
    assert Counter(written(data, 1)) == Counter([b"a:2", b"b:1", b"a:3", b"b:1"])


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (("offset",), {}, "Required attribute 'value' not found"),
        (("value",), {"topic": "no topic"}, "'no topic' is no legal topic name"),
        (("value",), {"kafka.batch.size": "many"}, "option 'kafka.batch.size' = 'many' must be a whole number"),
    ],
)
def test_refusals(
    spark: SparkSession, tmp_path: Path, columns: tuple[str, ...], options: dict[str, str], message: str
) -> None:
    feed(tmp_path, [b"a"])
    with pytest.raises(PySparkException) as refused:
        run(spark, tmp_path, *columns, **options)
    assert message in str(refused.value)


def test_another_query_has_batches_of_its_own(data: Path) -> None:
    """Without Spark: the same batch number of two queries."""
    data.mkdir()
    sink = SinkDirectory(str(data), 1048588)

    def write(query_id: str, batch_id: int, value: bytes) -> None:
        staged = Staged(stream_job(query_id, batch_id, driver_identity()), query_id, batch_id)
        rows = pa.record_batch({"value": [value]})
        sink.commit([stage(parse_path_sink({"path": str(data), "topic": "out"}), staged, 0, [rows])])

    for query_id, batch_id, value in (("q", 0, b"q0"), ("r", 0, b"r0"), ("q", 1, b"q1"), ("q", 1, b"q1 again")):
        write(query_id, batch_id, value)
    assert written(data, 1) == [b"q0", b"r0", b"q1"]


def test_a_batch_before_the_latest_is_refused(data: Path) -> None:
    """Of a checkpoint that went back, without Spark: rows planned again, neither lost in silence nor written."""
    data.mkdir()
    sink = SinkDirectory(str(data), 1048588)
    options = parse_path_sink({"path": str(data), "topic": "out"})
    staged = [
        stage(options, Staged(stream_job("q", batch_id, driver_identity()), "q", batch_id), 0, [rows])
        for batch_id, rows in ((n, pa.record_batch({"value": [b"%d" % n]})) for n in range(3))
    ]
    for message in staged[:1] + staged[2:]:
        sink.commit([message])
    with pytest.raises(UsageError, match="batch 1 of query q is not written: batches up to 2 have been committed"):
        sink.commit([staged[1]])
    assert written(data, 1) == [b"0", b"2"]
