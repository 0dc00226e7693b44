"""One cluster of real broker processes, every test with a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
pytest.importorskip("pyarrow", reason="needs pyarrow, the extra `arrow`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.client.brokers import Topic, make_topic
from tests.integration import clusters


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("bulk")) as made:
        yield made


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> Topic:
    """Three partitions, three replicas."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return make_topic(cluster, name, 3)
