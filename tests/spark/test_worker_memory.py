"""Modules of Spark's Python workers are exempt from garbage collection, and nothing is in other processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import kreplog
from pyspark_kreplog.options import parse_batch
from pyspark_kreplog.read import ARROW_TYPES
from pyspark_kreplog.shipping import dumps
from pyspark_kreplog.source import KreplogDataSource, Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FrozenObjects(KreplogDataSource):
    """Its tasks give one offset each: the number of objects that are exempt in their worker."""

    @classmethod
    def name(cls) -> str:
        return "frozen-objects"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FrozenObjectsReader(parse_batch(self.options), schema.fieldNames())


class FrozenObjectsReader(Reader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"offset": pa.array([gc.get_freeze_count()], ARROW_TYPES["offset"])})


@pytest.mark.spark
def test_the_modules_of_a_worker_are_exempt(spark: SparkSession, tmp_path: Path) -> None:
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.append(b"a")
    spark.dataSource.register(FrozenObjects)
    reader = spark.read.format("frozen-objects").schema("offset bigint").options(path=str(tmp_path), subscribe="t")
    first, second = ([row.offset for row in reader.load().collect()] for _ in range(2))
    assert first[0] > 10_000, "PySpark alone loads more objects than that"
    assert second[0] > 10_000


def test_other_processes_are_left_alone() -> None:
    before = gc.get_freeze_count()
    dumps(Reader(parse_batch({"path": "/data", "subscribe": "t"}), ["offset"]))
    assert gc.get_freeze_count() == before
