"""Streams through a real Spark: rows, checkpoints, triggers, limits, data loss, and a log that changes meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import kreplog
from tests.spark.conftest import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

WITHIN_S = 60

Rows = list[tuple[int, int, int, bytes]]  # batch, partition, offset, value


def append(path: Path, count: int) -> None:
    """`count` more records, the value of each its offset."""
    with kreplog.Log.open(path) as log:
        log.append_many([b"%d" % offset for offset in range(log.log_end_offset, log.log_end_offset + count)])


def end_of(path: Path) -> int:
    with kreplog.Log.open(path, read_only=True) as log:
        return log.high_watermark


class Query:
    """Runs of one query over the data directory, with one checkpoint; `rows` are those of all its runs."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._path = path
        self.rows: Rows = []
        self.fails_in: int | None = None

    def start(self, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("kreplog").option("path", str(self._path))
        frame = reader.options(**({"subscribe": "t"} | options)).load()
        writer = frame.writeStream.option("checkpointLocation", str(self._path / "checkpoint"))
        return writer.foreachBatch(self._take).trigger(**trigger).start()

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = [(batch, *row) for row in frame.select("partition", "offset", "value").collect()]
        if batch == self.fails_in:
            raise RuntimeError("as planned")
        self.rows += rows

    def run(self, **options: str) -> StreamingQuery:
        """To the end that the log has at the start."""
        query = self.start({"availableNow": True}, **options)
        assert query.awaitTermination(WITHIN_S)
        return query

    def offsets(self, partition: int = 0) -> list[int]:
        return [offset for _, found, offset, _ in self.rows if found == partition]

    def batches(self) -> list[int]:
        """How many rows each batch had, empty ones left out."""
        numbers = [batch for batch, *_ in self.rows]
        return [numbers.count(number) for number in sorted(set(numbers))]

    def checkpoint(self, batch: int) -> dict[str, Any]:
        """The source's offset at the end of a batch, as Spark wrote it."""
        found: dict[str, Any] = json.loads(
            (self._path / "checkpoint" / "offsets" / str(batch)).read_text().split("\n")[2]
        )
        return found


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def test_rows_once_over_restarts(query: Query, tmp_path: Path) -> None:
    append(tmp_path / "t-0", 100)
    append(tmp_path / "t-1", 10)
    query.run(startingOffsets="earliest")
    append(tmp_path / "t-0", 50)
    query.run(startingOffsets="latest")
    query.run()
    assert query.offsets(0) == list(range(150))
    assert query.offsets(1) == list(range(10))
    assert query.batches() == [110, 50]
    assert all(value == b"%d" % offset for _, _, offset, value in query.rows)


def test_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Those of the Kafka source, headers on request, and a schema given by hand as a projection."""
    append(tmp_path / "t-0", 3)
    options = {"path": str(tmp_path), "subscribe": "t", "startingOffsets": "earliest"}
    reader = spark.readStream.format("kreplog").options(**options)
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert reader.load().columns == names
    assert reader.option("includeHeaders", "true").load().columns == [*names, "headers"]
    query = (
        reader.schema("offset bigint, topic string")
        .load()
        .writeStream.format("memory")
        .queryName("columns_of_a_stream")
    )
    assert query.trigger(availableNow=True).start().awaitTermination(WITHIN_S)
    assert sorted(map(tuple, spark.table("columns_of_a_stream").collect())) == [(0, "t"), (1, "t"), (2, "t")]


# Crashes


def test_a_batch_that_failed_is_repeated_with_the_same_rows(query: Query, tmp_path: Path) -> None:
    """Batch 0 too, whose start at "latest" is in no file of Spark's own, though the log has grown meanwhile."""
    append(tmp_path / "t-0", 40)
    query.run()
    shutil.rmtree(tmp_path / "checkpoint")

    def fail_in(batch: int, **options: str) -> None:
        query.fails_in = batch
        with pytest.raises(PySparkException, match="as planned"):
            query.run(**options)
        query.fails_in = None

    fail_in(0)
    assert query.checkpoint(0)["@kreplog"]["startedAt"] == {"t": {"0": 40}}
    append(tmp_path / "t-0", 30)
    fail_in(1, maxOffsetsPerTrigger="20")
    first = query.checkpoint(1)
    append(tmp_path / "t-0", 30)
    query.run(maxOffsetsPerTrigger="7")
    assert query.checkpoint(1) == first
    assert query.offsets() == list(range(40, 100))
    assert query.batches()[0] == 20
    assert set(query.batches()[1:-1]) == {7}


def drive(tmp_path: Path, kill_in_batch: int, *, kill_after: int | None = None, **options: str) -> int:
    """Run a driver of its own over the topic t; return its exit status.

    kill_after: it gets SIGKILL once so many files of the checkpoint and the output have been written.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "spark"), str(ROOT)])}
    arguments = [str(tmp_path), str(tmp_path / "output"), str(kill_in_batch), json.dumps({"subscribe": "t"} | options)]
    driver = [sys.executable, str(Path(__file__).with_name("stream_driver.py")), *arguments]
    before = files_written(tmp_path)
    process = subprocess.Popen(driver, env=environment, start_new_session=True)
    deadline = time.monotonic() + 5 * WITHIN_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        if kill_after is not None and files_written(tmp_path) >= before + kill_after:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.01)
    return process.returncode


def files_written(tmp_path: Path) -> int:
    output = tmp_path / "output"
    folders = (output / "rows", output / "checkpoint" / "offsets", output / "checkpoint" / "commits")
    return sum(len(os.listdir(folder)) for folder in folders if folder.exists())


def attempts(tmp_path: Path) -> dict[int, list[list[list[int]]]]:
    """The rows of each batch, one entry a driver that ran it, by batch."""
    found: dict[int, list[list[list[int]]]] = {}
    for file in sorted((tmp_path / "output" / "rows").glob("*.json")):
        found.setdefault(int(file.name.split("-")[0]), []).append(json.loads(file.read_text()))
    return found


@pytest.mark.long
def test_a_killed_driver(tmp_path: Path) -> None:
    """SIGKILL in batch 0 and in a later batch; the next driver repeats the batch with the same rows, and goes on."""
    append(tmp_path / "t-0", 40)
    append(tmp_path / "t-1", 40)
    assert drive(tmp_path, 0) == -signal.SIGKILL
    append(tmp_path / "t-0", 60)
    assert drive(tmp_path, 2, maxOffsetsPerTrigger="25") == -signal.SIGKILL
    append(tmp_path / "t-1", 60)
    append(tmp_path / "t-2", 10)
    assert drive(tmp_path, -1) == 0
    found = attempts(tmp_path)
    assert [len(rows) for rows in found.values()] == [2, 1, 2, 1]
    assert found[0] == [[], []], "batch 0 started at latest and had nothing to read"
    assert [len(rows) for rows in found[2]] == [25, 25]
    assert found[2][0] == found[2][1]
    rows = sorted(row for tries in found.values() for row in tries[-1])
    assert rows == [[0, n] for n in range(40, 100)] + [[1, n] for n in range(40, 100)] + [[2, n] for n in range(10)]


@pytest.mark.long
def test_drivers_killed_at_random(tmp_path: Path) -> None:
    """Every batch has the same rows in each attempt, and every record is in one batch."""
    rng = random.Random(7)
    append(tmp_path / "t-0", 10)
    append(tmp_path / "t-1", 10)
    kills = 0
    while kills < 20:
        append(tmp_path / f"t-{rng.randrange(3)}", rng.randrange(1, 300))
        options = {"maxOffsetsPerTrigger": "20", "startingOffsets": "earliest"}
        kills += drive(tmp_path, -1, kill_after=rng.randrange(1, 20), **options) == -signal.SIGKILL
    assert drive(tmp_path, -1) == 0
    found = attempts(tmp_path)
    assert sorted(found) == list(range(len(found)))
    for tries in found.values():
        assert all(rows == tries[0] for rows in tries)
    ends = {number: end_of(tmp_path / f"t-{number}") for number in range(3)}
    rows = sorted(row for tries in found.values() for row in tries[-1])
    assert rows == [[number, offset] for number, end in ends.items() for offset in range(end)]
    assert any(len(tries) > 1 for tries in found.values())


# Partitions and records that come and go


def recreate(path: Path, topic_id: str, count: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    append(path, count)
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")


def test_a_topic_that_was_created_again(query: Query, tmp_path: Path) -> None:
    recreate(tmp_path / "t-0", "AAAAAAAAAAAAAAAAAAAAAQ", 10)
    query.run(startingOffsets="earliest")
    recreate(tmp_path / "t-0", "AAAAAAAAAAAAAAAAAAAAAg", 50)
    with pytest.raises(PySparkException) as raised:
        query.run()
    assert "t-0: the topic was deleted and created again" in str(raised.value)
    assert "was 00000000-0000-0000-0000-000000000001 and is now 00000000-0000-0000-0000-000000000002" in str(
        raised.value
    )
    assert query.offsets() == list(range(10))


def test_retention_past_the_start(query: Query, tmp_path: Path) -> None:
    append(tmp_path / "t-0", 10)
    query.run(startingOffsets="earliest")
    append(tmp_path / "t-0", 90)
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.delete_records_before(40)
    with pytest.raises(PySparkException, match="t-0: offsets 10 to 40 were deleted before they were read; the log now"):
        query.run()
    query.run(failOnDataLoss="false")
    assert query.offsets() == [*range(10), *range(40, 100)]


def test_retention_between_plan_and_task(query: Query, tmp_path: Path) -> None:
    """The task meets the loss; the message is of a stream."""
    append(tmp_path / "t-0", 10)

    def take(frame: DataFrame, batch: int) -> None:
        with kreplog.Log.open(tmp_path / "t-0") as log:
            log.delete_records_before(5)
        frame.collect()

    query._take = take  # type: ignore[method-assign]
    with pytest.raises(PySparkException) as raised:
        query.run(startingOffsets="earliest")
    assert "t-0: offsets 0 to 5 were deleted after this read was planned" in str(raised.value)
    assert "Restart the query with the option failOnDataLoss = false" in str(raised.value)


def wait_for(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert query.exception() is None
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def test_a_running_query(query: Query, tmp_path: Path) -> None:
    """New records and a new partition while it runs, and the lag that its progress reports."""
    append(tmp_path / "t-0", 10)
    running = query.start({"processingTime": "0 seconds"}, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    try:
        wait_for(running, lambda: len(query.rows) == 10)
        append(tmp_path / "t-0", 90)
        append(tmp_path / "t-1", 10)
        wait_for(running, lambda: len(query.rows) == 110)
        lags = []
        for progress in running.recentProgress:
            source = json.loads(progress.json)["sources"][0]
            lags.append(source["latestOffset"]["@kreplog"]["offsetsBehindLatest"]["t"])
        assert {"min": 0, "max": 0, "avg": 0.0} in lags
        assert any(lag["max"] > lag["avg"] > lag["min"] for lag in lags), lags
    finally:
        running.stop()
    assert query.offsets(0) == list(range(100))
    assert query.offsets(1) == list(range(10))


# Triggers and limits


def test_available_now_beside_a_writer(query: Query, tmp_path: Path) -> None:
    """The end is that of the start of the run, though each batch finds more; the next run reads that."""
    append(tmp_path / "t-0", 100)
    take = query._take

    def append_and_take(frame: DataFrame, batch: int) -> None:
        append(tmp_path / "t-0", 50)
        append(tmp_path / "t-1", 10)
        take(frame, batch)

    query._take = append_and_take  # type: ignore[method-assign]
    query.run(startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert query.offsets(0) == list(range(100))
    assert query.batches() == [40, 40, 20]
    query._take = take  # type: ignore[method-assign]
    query.run(maxOffsetsPerTrigger="1000")
    assert query.offsets(0) == list(range(250))
    assert query.offsets(1) == list(range(30))


def test_once_reads_everything(query: Query, tmp_path: Path) -> None:
    append(tmp_path / "t-0", 100)
    running = query.start({"once": True}, startingOffsets="earliest", maxOffsetsPerTrigger="7", maxBytesPerTrigger="1")
    assert running.awaitTermination(WITHIN_S)
    assert query.batches() == [100]


def test_bytes_a_batch(query: Query, tmp_path: Path) -> None:
    with kreplog.Log.open(tmp_path / "t-0") as log:
        for _ in range(5):
            log.append_many([b"x" * 1000] * 10)
        size = log.size
    query.run(startingOffsets="earliest", maxBytesPerTrigger=str(size // 3))
    assert query.offsets() == list(range(50))
    assert query.batches() == [20, 20, 10]


def test_a_batch_waits_for_enough_records(query: Query, tmp_path: Path) -> None:
    append(tmp_path / "t-0", 10)
    limits = {"minOffsetsPerTrigger": "30", "maxTriggerDelay": "1h"}
    running = query.start({"processingTime": "0 seconds"}, startingOffsets="earliest", **limits)
    try:
        wait_for(running, lambda: len(query.rows) == 10)
        append(tmp_path / "t-0", 29)
        wait_for(running, lambda: running.status["message"].startswith("Waiting for data"))
        append(tmp_path / "t-0", 1)
        wait_for(running, lambda: len(query.rows) == 40)
    finally:
        running.stop()
    assert query.batches() == [10, 30]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"assign": '{"t": [0]}', "subscribe": "t"},
            "exactly one of the options subscribe, subscribePattern and assign",
        ),
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is of batch reads alone: a stream has no end"),
        ({"maxOffsetsPerTrigger": "none"}, "option 'maxOffsetsPerTrigger' = 'none' must be a whole number above zero"),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay' = 'soon' must be a time"),
        (
            {"startingOffsets": '{"t": {"7": 0}}'},
            "option 'startingOffsets' must name every partition that is read and no",
        ),
        (
            {"kafka.auto.offset.reset": "latest"},
            "option 'kafka.auto.offset.reset' is not supported: say where to begin",
        ),
    ],
)
def test_refusals_reach_the_user(query: Query, tmp_path: Path, options: dict[str, str], message: str) -> None:
    append(tmp_path / "t-0", 10)
    with pytest.raises(PySparkException) as raised:
        query.run(**options)
    assert message in str(raised.value)
