"""The benchmark of the bulk client works; what it finds on a loaded machine says nothing."""

from __future__ import annotations

import pytest

from kreplog.cluster.local_cluster import LocalCluster

pytest.importorskip("confluent_kafka", reason="the benchmark measures confluent-kafka as well")

from benchmarks.bench_client import RATIOS, measure, ratios


def test_every_row_is_measured(cluster: LocalCluster) -> None:
    rates = measure(cluster.bootstrap(), records=300, size=20, repetitions=2)
    assert {*RATIOS, *RATIOS.values()} <= rates.keys()
    assert all(len(found) == 2 and min(found) > 0 for found in rates.values())
    assert ratios(rates).keys() == RATIOS.keys()
