"""The benchmark of the bulk client works; what it finds on a loaded machine says nothing."""

from __future__ import annotations

import pytest

from kreplog.cluster.local_cluster import LocalCluster

pytest.importorskip("confluent_kafka", reason="the benchmark measures confluent-kafka as well")

from benchmarks.arrow_peers import READERS, WRITER
from benchmarks.bench_client import GOALS, Goal, measure, ratios


def test_every_row_is_measured(cluster: LocalCluster) -> None:
    absent: dict[str, str] = {}
    rates = measure(cluster.bootstrap(), records=300, size=20, repetitions=2, absent=absent)
    measured = {name for name in GOALS if name.partition(": ")[2] not in absent}
    assert measured | {goal.ours for goal in GOALS.values()} == rates.keys()
    assert absent.keys() <= {*READERS, WRITER}
    assert all(len(found) == 2 and min(found) > 0 for found in rates.values())
    assert ratios(rates).keys() == measured


def test_verdicts() -> None:
    goal = Goal("", 3, 10)
    assert [goal.verdict(ratio) for ratio in (2.9, 3, 10)] == [
        ">= 3, aim 10: short",
        ">= 3, aim 10: must",
        ">= 3, aim 10: aim",
    ]
    assert Goal("", 1).verdict(1.5) == ">= 1: must"
