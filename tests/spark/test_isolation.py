"""Reads of files with transactions: rows and ends with read_committed and without, in batches and streams (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import kreplog
from kreplog.errors import UsageError
from pyspark_kreplog.options import parse_batch
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read
from tests.reference import sent
from tests.spark.conftest import Load
from tests.spark.test_stream import Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMITTED, ABORTED, OPEN = 1, 2, 3
ALL = [0, 1, 2, 3, 6, 7]
STABLE = [0, 1, 3]
LAST_STABLE = 6


def write(log: kreplog.Log, producer: int, *values: bytes, transactional: bool = True, sequence: int = 0) -> None:
    log.append_batches(sent(producer, sequence, *values, transactional=transactional), transactional=True)


def end(log: kreplog.Log, producer: int, *, committed: bool) -> None:
    log.append_transaction_marker(producer, 0, committed=committed, coordinator_epoch=0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kreplog.Log]:
    """Offsets 0 plain, 1 and 3 committed, 2 aborted, 4 and 5 markers, 6 of a transaction that is open, 7 plain."""
    with kreplog.Log.open(tmp_path / "t-0") as log:
        write(log, 9, b"plain", transactional=False)
        write(log, COMMITTED, b"committed")
        write(log, ABORTED, b"aborted")
        write(log, COMMITTED, b"committed", sequence=1)
        end(log, ABORTED, committed=False)
        end(log, COMMITTED, committed=True)
        write(log, OPEN, b"open")
        write(log, 9, b"plain", transactional=False, sequence=1)
        assert log.last_stable_offset == LAST_STABLE
        yield log


def offsets(load: Load, **options: str) -> list[int]:
    return sorted(row.offset for row in load("offset bigint", **options).collect())


def test_batches(log: kreplog.Log, load: Load) -> None:
    assert offsets(load) == offsets(load, isolationLevel="read_uncommitted") == ALL
    assert offsets(load, isolationLevel="read_committed") == STABLE
    assert offsets(load, **{"kafka.isolation.level": "READ_COMMITTED"}) == STABLE
    values = load("value binary, topic string", isolationLevel="read_committed").collect()
    assert sorted(bytes(row.value) for row in values) == [b"committed", b"committed", b"plain"]
    assert load("topic string", isolationLevel="read_committed").count() == len(STABLE)


def test_latest_is_the_last_stable_offset(log: kreplog.Log, tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "subscribe": "t", "maxRecordsPerPartition": "1"}
    for level, stop in (("read_committed", LAST_STABLE), ("read_uncommitted", 8)):
        tasks = plan(parse_batch(given | {"isolationLevel": level}), 2)
        assert [(task.start, task.stop) for task in tasks] == [(at, at + 1) for at in range(stop)]
        found = [row["offset"] for task in tasks for piece in read(task, ["offset"]) for row in piece.to_pylist()]
        assert found == (STABLE if level == "read_committed" else ALL)
    with pytest.raises(UsageError, match="only records below 6 are committed"):
        plan(parse_batch(given | {"isolationLevel": "read_committed", "endingOffsets": '{"t": {"0": 8}}'}), 2)


def test_a_stream_waits_at_the_oldest_open_transaction(spark: SparkSession, log: kreplog.Log, tmp_path: Path) -> None:
    """Batches of one offset, some without a row: markers and aborted records are no data loss."""
    query = Query(spark, tmp_path)
    options = {"startingOffsets": "earliest", "isolationLevel": "read_committed", "maxOffsetsPerTrigger": "2"}
    query.run(**options)
    assert query.offsets() == STABLE
    query.run(**options)
    assert query.offsets() == STABLE
    end(log, OPEN, committed=False)
    query.run(**options)
    assert query.offsets() == [*STABLE, 7]
    assert log.last_stable_offset == log.high_watermark == 9
    write(log, OPEN, b"open again", sequence=1)
    query.run(**options)
    end(log, OPEN, committed=True)
    query.run(**options)
    assert query.offsets() == [*STABLE, 7, 9]


def test_a_stream_that_starts_at_latest(spark: SparkSession, log: kreplog.Log, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    query.run(isolationLevel="read_committed")
    end(log, OPEN, committed=True)
    query.run(isolationLevel="read_committed")
    assert query.offsets() == [6, 7]


def test_a_checkpoint_of_read_uncommitted_past_the_oldest_open_transaction(
    spark: SparkSession, log: kreplog.Log, tmp_path: Path
) -> None:
    """With read_committed the stream goes on where it was, once that is below the last stable offset: no data loss."""
    query = Query(spark, tmp_path)
    query.run(startingOffsets="earliest")
    assert query.offsets() == ALL
    write(log, 9, b"plain", transactional=False, sequence=2)
    query.run(isolationLevel="read_committed")
    assert query.offsets() == ALL, "the end lies before the checkpoint: nothing to read"
    end(log, OPEN, committed=True)
    query.run(isolationLevel="read_committed")
    assert query.offsets() == [*ALL, 8]


def test_a_batch_planned_without_read_committed_is_not_repeated_with_it(
    spark: SparkSession, log: kreplog.Log, tmp_path: Path
) -> None:
    """Its end is fixed, and what lies between is neither committed nor aborted: nothing is skipped."""
    query = Query(spark, tmp_path)
    query.fails_in = 0
    with pytest.raises(PySparkException, match="as planned"):
        query.run(startingOffsets="earliest")
    query.fails_in = None
    message = "the batch ends at offset 8, past the oldest open transaction, at 6"
    with pytest.raises(PySparkException, match=message):
        query.run(startingOffsets="earliest", isolationLevel="read_committed", failOnDataLoss="false")
    end(log, OPEN, committed=True)
    query.run(startingOffsets="earliest", isolationLevel="read_committed")
    assert query.offsets() == [0, 1, 3, 6, 7]
