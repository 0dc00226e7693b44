"""Real broker processes on a real ZooKeeper: they start, they are killed, and so is ZooKeeper itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")
pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from kreplog.server.local_cluster import LocalCluster
from tests.conformance.servers import MISSING, ZooKeeperServer
from tests.integration.clusters import end, eventually, kill
from tests.integration.faults import SHORT, load_on, set_line, stopped
from tests.integration.judging import judge
from tests.integration.view import View
from tests.integration.workload import Load

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Pair = tuple[LocalCluster, ZooKeeperServer]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    cluster = LocalCluster.create(tmp_path_factory.mktemp("cluster"), [0, 1, 2], 0, SHORT)
    for broker in cluster.brokers:
        set_line(cluster, broker, "coordination", json.dumps(f"zookeeper:{server.hosts}/kreplog"))
    try:
        cluster.start()
        yield cluster, server
    finally:
        end(cluster)
        server.kill()


def lose_leader(cluster: LocalCluster, view: View, load: Load) -> None:
    """Another one leads, and the old one comes back."""
    leader = view.await_leader(load.partitions[0])
    kill(cluster, leader)
    view.await_leader(load.partitions[0], leader)
    load.goes_on()
    cluster.start([leader])
    view.await_replicated(load.topic)
    load.goes_on()


def test_a_leader_is_killed(pair: Pair) -> None:
    cluster, _ = pair
    with View(cluster) as view, load_on(cluster, "killed") as load:
        load.goes_on()
        lose_leader(cluster, view, load)
    judge(cluster, load)


def test_zookeeper_dies_and_returns(pair: Pair) -> None:
    """Leaders lead on without it, for as long as nothing else happens; sessions that ended are begun anew."""
    cluster, server = pair
    with View(cluster) as view, load_on(cluster, "without") as load:
        load.goes_on()
        server.kill()
        load.goes_on()
        server.start()
    with View(cluster) as view, load_on(cluster, "again") as again:
        view.await_replicated(load.topic)
        again.goes_on()
        lose_leader(cluster, view, again)
    judge(cluster, load)
    judge(cluster, again)


@pytest.mark.long
def test_kills_and_stops(pair: Pair, figure: Callable[[str], None]) -> None:
    cluster, server = pair
    with load_on(cluster, "long", records_per_s=300) as load:
        for round_ in range(40):
            with View(cluster) as view:
                load.goes_on(5)
                leader = view.await_leader(load.partitions[round_ % 4])
                controller = view.controller()
                if round_ % 4 == 3:
                    with stopped(cluster, leader):
                        view.await_leader(load.partitions[round_ % 4], leader)
                        load.goes_on(5)
                else:
                    victim = leader if round_ % 2 or controller < 0 else controller
                    kill(cluster, victim)
                    cluster.start([victim])
                view.await_replicated(load.topic)
            if round_ % 10 == 9:
                server.kill()
                time.sleep(round_ / 10)  # how long it is away: with the sessions, and beyond them
                server.start()
                with View(cluster) as view:
                    eventually(lambda seen=view: len(seen.registered()) == 3, "not all register again", 60.0)  # type: ignore[misc]
        load.goes_on()
    judge(cluster, load)
    figure(f"30 kills, 10 stops and 4 deaths of ZooKeeper, {load.acked} records acknowledged")
