"""Clusters of real broker processes for tests, and what every test asks of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka.admin import KafkaAdminClient

from kreplog.server.local_cluster import LocalCluster, read_pid_file

WITHIN_S = 20.0

_FAST = ['"log.flush.offset.checkpoint.interval.ms" = 500', '"min.insync.replicas" = 2']


def eventually(true: Callable[[], Any], what: str) -> None:
    """Wait until `true()`; fail with `what` after WITHIN_S."""
    deadline = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)  # another process brings it about, and tells nobody


@contextmanager
def admin_of(bootstrap: str) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        yield admin
    finally:
        admin.close()


def kill(cluster: LocalCluster, broker: int) -> None:
    """kill -9, and wait until it is gone."""
    pid, _, _ = read_pid_file(cluster.home(broker))
    assert pid > 1
    os.kill(pid, signal.SIGKILL)
    cluster.wait_until_gone(broker, 10)


@contextmanager
def running(directory: Path) -> Iterator[LocalCluster]:
    """Three brokers that serve, on free ports; whatever still runs at the end is killed."""
    made = LocalCluster.create(directory, [0, 1, 2], 0, _FAST)
    try:
        made.start()
        yield made
    finally:
        for broker in made.brokers:
            if read_pid_file(made.home(broker))[0]:
                kill(made, broker)
