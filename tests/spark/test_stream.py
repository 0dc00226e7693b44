"""Streams through a real Spark: rows, checkpoints, triggers, limits, data loss, and a log that changes meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kreplog

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


class Query:
    """Runs of one query over the data directory, with one checkpoint; `rows` are those of all its runs."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._path = path
        self.rows: Rows = []
        self.fails_in: int | None = None

    def start(self, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("kreplog").option("path", str(self._path))
        if not {"subscribePattern", "assign"} & options.keys():
            reader.option("subscribe", "t")
        frame = reader.options(**options).load()
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
