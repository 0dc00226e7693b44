"""Clusters of real broker processes, each test module its own, on ports and in a directory of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.server.local_cluster import LocalCluster, read_pid_file

FAST = ['"log.flush.offset.checkpoint.interval.ms" = 500', '"min.insync.replicas" = 2']


def kill(cluster: LocalCluster, broker: int) -> None:
    """kill -9, and wait until it is gone."""
    pid, _, _ = read_pid_file(cluster.home(broker))
    assert pid > 1
    os.kill(pid, signal.SIGKILL)
    cluster.wait_until_gone(broker, 10)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers that serve; whatever still runs at the end is killed."""
    directory: Path = tmp_path_factory.mktemp("cluster")
    made = LocalCluster.create(directory, [0, 1, 2], 0, FAST)
    try:
        made.start()
        yield made
    finally:
        for broker in made.brokers:
            if read_pid_file(made.home(broker))[0]:
                kill(made, broker)
