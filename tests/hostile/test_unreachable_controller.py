"""A broker that no controller reaches denies no topic: clients wait, and lose nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
from kafka.admin import NewTopic

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters

confluent_kafka: Any = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")

SETTINGS = (*clusters.FAST, '"broker.session.timeout.ms" = 60000')


@contextmanager
def paused(cluster: LocalCluster, *brokers: int) -> Iterator[None]:
    pids = [clusters.pid_of(cluster, broker) for broker in brokers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.long
def test_a_producer_loses_nothing_at_a_broker_that_no_controller_reaches(tmp_path: Path) -> None:
    """The controller and another broker are paused, so that only the third, which restarts, responds."""
    outcomes: list[Any] = []
    with clusters.running(tmp_path / "c", SETTINGS) as cluster:
        controller = next(status.id for status in cluster.status() if status.controller)
        restarted, other = (broker for broker in cluster.brokers if broker != controller)
        with clusters.admin_of(cluster.bootstrap()) as admin:
            admin.create_topics([NewTopic("events", 3, 3)])
        clusters.wait_for_topic(cluster, "events", 3)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap(),
                "acks": "all",
                "delivery.timeout.ms": 120_000,
                "socket.timeout.ms": 8000,
                "topic.metadata.refresh.interval.ms": 1000,
                "topic.metadata.propagation.max.ms": 0,  # as 30 s after its first use of the topic
                "reconnect.backoff.max.ms": 200,
            }
        )

        def produce(count: int) -> None:
            for number in range(count):
                producer.produce("events", b"%d" % number, on_delivery=lambda error, _: outcomes.append(error))

        produce(30)
        assert producer.flush(60) == 0
        clusters.kill(cluster, restarted)
        with paused(cluster, controller, other):
            cluster._spawn(restarted)
            answers = 0
            deadline = time.monotonic() + 60
            while answers < 3:  # of the restarted broker, since the others are paused
                assert time.monotonic() < deadline
                try:
                    topics = producer.list_topics("events", timeout=20).topics
                except confluent_kafka.KafkaException:
                    continue
                answers += 1
                produce(30)
                error = topics["events"].error
                assert error is None or error.code() == confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE
        assert producer.flush(120) == 0
    assert outcomes == [None] * 120
