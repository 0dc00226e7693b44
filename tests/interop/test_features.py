"""Kafka's kafka-features at a broker of kreplog (KIP-584)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import end
from tests.interop.jvm import FEATURES, Kafka

pytestmark = pytest.mark.interop


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path_factory.mktemp("features") / "c", [0], 0)
    made.start()
    try:
        yield made
    finally:
        end(made)


def test_kafka_features_shows_and_updates_the_level(kafka: Kafka, cluster: LocalCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap())
    levels = {"group.version": (1, 1), "kreplog.version": (1, 1), "transaction.version": (1, 2)}
    assert kafka.run(FEATURES, *at, "describe").splitlines() == [
        f"Feature: {name}\tSupportedMinVersion: {least}\tSupportedMaxVersion: {greatest}"
        f"\tFinalizedVersionLevel: {greatest}\tEpoch: 0"
        for name, (least, greatest) in levels.items()
    ]
    assert "kreplog.version was upgraded to 1." in kafka.run(FEATURES, *at, "upgrade", "--feature", "kreplog.version=1")
    with pytest.raises(AssertionError, match="cannot be raised to 2: broker 0 supports 1 to 1"):
        kafka.run(FEATURES, *at, "upgrade", "--feature", "kreplog.version=2")
