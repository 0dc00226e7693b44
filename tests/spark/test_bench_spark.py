"""The benchmark of Spark runs, and all of its sides give the same answers; what it finds on a loaded machine says
nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("kafka", reason="the benchmark reads from brokers as well")

from benchmarks.bench_spark import Scale, batches, ceilings, plans
from benchmarks.connector_worker import QUERIES
from benchmarks.spark_contest import Comparison, Contestant, Cost, cpu_seconds, in_turns
from benchmarks.spark_sources import ReadyMade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_ceiling_gives_the_same_answers(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(ReadyMade)
    comparisons = list(ceilings(spark, tmp_path, Scale(4000, 1, 1), ["none"]))
    assert len(comparisons) == len(QUERIES) + 1
    for comparison in comparisons:
        assert all(cost.wall_s > 0 for costs in comparison.costs.values() for cost in costs)


def test_plans_are_timed(tmp_path: Path) -> None:
    assert min(map(min, plans(tmp_path / "batch", 3, 2))) > 0
    assert min(batches(tmp_path / "stream", 3, 2)) > 0


def test_a_wrong_answer_ends_the_contest() -> None:
    right = Contestant("right", (), lambda: lambda: 1)
    wrong = Contestant("wrong", (), lambda: lambda: None, lambda: 2)
    assert len(in_turns([right], 1, 3)["right"]) == 3
    with pytest.raises(AssertionError, match="wrong: 2, which should be 1"):
        in_turns([right, wrong], 1, 1)


def test_time_of_processes_that_ended_counts_once() -> None:
    a_second = os.sysconf("SC_CLK_TCK")
    before = {1: (0, 0), 2: (3 * a_second, a_second)}
    assert cpu_seconds(before, {1: (a_second, 0), 2: (4 * a_second, a_second)}) == 2
    assert cpu_seconds(before, {1: (a_second, 6 * a_second)}) == 3  # 2 has used two more, and was waited for
    assert cpu_seconds(before, {1: (a_second, 0)}) == 1
    assert cpu_seconds(before, before | {3: (a_second, 0)}) == 1


def test_ratios_are_those_of_the_same_repetition() -> None:
    costs = {"a": [Cost(1, 2), Cost(2, 2), Cost(4, 2)], "b": [Cost(3, 2), Cost(2, 3), Cost(4, 4)]}
    comparison = Comparison("scan", 10, "a", "b", costs, 1.5, 2)
    assert comparison.wall_ratios == [3, 1, 1]
    assert comparison.cpu_ratios == [1, 1.5, 2]
    assert comparison.verdict == "CPU >= 1.50, aim 2.00: must"
    assert Comparison("scan", 10, "a", "b", costs, 1.5, 2, "wall").verdict == "wall >= 1.50, aim 2.00: short"
