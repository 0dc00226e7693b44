"""One cluster of real broker processes for all clients, every test with a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters

pytest.register_assert_rewrite("tests.client_libraries.scenarios")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("clients"), clusters.GROUPS) as made:
        yield made
