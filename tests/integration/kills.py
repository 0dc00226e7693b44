"""Leaders that are killed under a producer that waits: how long until others lead, and until it goes on."""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time

from confluent_kafka import Producer

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition
from tests.integration.clusters import admin_of, eventually, pid_of
from tests.integration.view import View


class Waiting(threading.Thread):
    """A producer that sends one record, waits until it is acknowledged, and sends the next. acks: when, in s."""

    def __init__(self, bootstrap: str, topic: str, settings: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
        self._topic = topic
        self._go_on = True
        self.acks = [time.monotonic()]

    def run(self) -> None:
        while self._go_on:
            self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=self._acked)
            self._producer.flush(60)

    def _acked(self, error: object, message: object) -> None:
        assert error is None, error
        self.acks.append(time.monotonic())

    def stop(self) -> None:
        self._go_on = False
        self.join()

    def goes_on(self) -> None:
        wanted = len(self.acks) + 100
        eventually(lambda: len(self.acks) > wanted, "nothing more is acknowledged", 60.0)

    def longest_pause(self, since: float) -> float:
        """Between two acknowledgements, in s; the first of the two may have come before."""
        acks = list(self.acks)
        return max(after - before for before, after in itertools.pairwise(acks) if after > since)


def kill_leaders(
    cluster: LocalCluster, topic: str, kills: int, settings: dict[str, int]
) -> tuple[list[float], list[float]]:
    """Make a topic of one partition, kill -9 its leader so many times, and start it again. In s: from each kill to the
    next leader in the store, and the longest pause between a waiting producer's acknowledgements."""
    first = TopicPartition(topic, 0)
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 3}}, wait_for_metadata=True)
    waiting = Waiting(cluster.bootstrap(), topic, settings)
    waiting.start()
    elections, pauses = [], []
    with View(cluster) as view:
        for _ in range(kills):
            view.await_replicated(topic)
            waiting.goes_on()
            leader = view.await_leader(first)
            pid, killed = pid_of(cluster, leader), time.monotonic()
            os.kill(pid, signal.SIGKILL)
            while view.state(first).leader == leader:
                time.sleep(0.001)  # polled, since a watch would be late
            elections.append(time.monotonic() - killed)
            waiting.goes_on()
            pauses.append(waiting.longest_pause(killed))
            cluster.wait_until_gone(leader)
            cluster.start([leader])
    waiting.stop()
    return elections, pauses


def spread(seconds: list[float]) -> str:
    ms = sorted(round(second * 1000) for second in seconds)
    return f"median {statistics.median(ms):.0f} ms, min {ms[0]}, max {ms[-1]}"
