"""Batch scans and micro-batches of a log whose writer appends, rolls, truncates, deletes, is killed and recovers.

Every committed record is read once, none above the high watermark, none with a wrong value.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kreplog
from tests.spark.conftest import ROOT, Load
from tests.spark.restless_writer import value_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WITHIN_S = 60


class Writer:
    """The restless writer, killed and started again at random moments until `stop`."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._rng = random.Random(seed)
        self._stopped = threading.Event()
        self.kills = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopped.is_set():
            arguments = [str(self._path), str(self._rng.randrange(1 << 30))]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("restless_writer.py")), *arguments], env=environment
            )
            self._stopped.wait(2 + 3 * self._rng.random())
            process.kill()
            process.wait()
            self.kills += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            deadline = time.monotonic() + WITHIN_S
            while not any(self._path.glob("*.log")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield
        finally:
            self._stopped.set()
            self._thread.join()


def bounds(path: Path) -> tuple[int, int]:
    """The log start offset and the high watermark."""
    with kreplog.Log.open(path, read_only=True) as log:
        return log.log_start_offset, log.high_watermark


def check(path: Path, rows: list[tuple[int, bytes]], position: int, committed: int = 0) -> int:
    """Rows of a read from `position` on, begun when all records below `committed` were; return their end.

    Records that are missing between them must have been deleted by now.
    """
    log_start, high_watermark = bounds(path)
    for offset, value in sorted(rows):
        assert offset == position or position < offset <= log_start, f"{offset} after {position}, from {log_start}"
        assert value == value_at(offset), offset
        position = offset + 1
    assert position <= high_watermark
    assert position >= committed or committed <= log_start
    return position


def read_while_writing(spark: SparkSession, load: Load, path: Path, scans: int, seed: int) -> None:
    """At least `scans` batch reads and as many micro-batches with rows."""
    print(f"seed {seed}")
    partition = path / "t-0"
    writer = Writer(partition, seed)
    positions = [0]
    errors: list[AssertionError] = []

    def take(frame: DataFrame, batch: int) -> None:
        rows = [(row.offset, bytes(row.value)) for row in frame.select("offset", "value").collect()]
        try:
            if rows:
                positions.append(check(partition, rows, positions[-1]))
        except AssertionError as error:
            errors.append(error)
            raise

    options = {"path": str(path), "subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    with writer.running():
        limit = {"maxOffsetsPerTrigger": "400"} if seed % 2 else {"maxBytesPerTrigger": "20000"}
        reader = spark.readStream.format("kreplog").options(**options, **limit, minPartitions="2")
        stream = reader.load().writeStream.option("checkpointLocation", str(path / "checkpoint")).foreachBatch(take)
        query = stream.trigger(processingTime="0 seconds").start()
        try:
            done = 0
            while done < scans or len(positions) <= scans or writer.kills < 2:
                assert not errors and query.exception() is None
                log_start, committed = bounds(partition)
                frame = load("offset bigint, value binary", **options, minPartitions="3")
                check(partition, [(row.offset, bytes(row.value)) for row in frame.collect()], log_start, committed)
                done += 1
        finally:
            query.stop()
    assert not errors
    assert len(set(positions)) > scans


@pytest.mark.slow
def test_every_row_once(spark: SparkSession, load: Load, tmp_path: Path) -> None:
    read_while_writing(spark, load, tmp_path, 6, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_every_row_once_in_a_thousand_scans(spark: SparkSession, load: Load, tmp_path: Path, seed: int) -> None:
    read_while_writing(spark, load, tmp_path, 50, seed)
