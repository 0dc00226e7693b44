"""Clusters of real broker processes, each test module its own, on ports and in a directory of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("cluster")) as made:
        yield made
