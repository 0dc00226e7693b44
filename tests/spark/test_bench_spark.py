"""The benchmark of Spark scans runs, and both of its sides give the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.bench_spark import QUERIES, ReadyMade, measure, write
from benchmarks.data import Pool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(ReadyMade)
    write(tmp_path, "lz4", Pool(100, 1000, 1), 4000)
    for query in QUERIES:
        costs = measure(spark, tmp_path, query, 4000, 1)
        assert {name: len(found) for name, found in costs.items()} == {"kreplog": 1, "ceiling": 1}
        assert all(cost.wall_s > 0 for found in costs.values() for cost in found)
