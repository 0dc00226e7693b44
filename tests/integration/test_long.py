"""The full bars: faults on three real broker processes under load, again and again; `make test-long`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import faults
from tests.integration.clusters import end, eventually, kill, pid_of, running
from tests.integration.faults import SHORT, load_on, stopped
from tests.integration.judging import judge
from tests.integration.view import View

pytestmark = pytest.mark.long

SEED = 20261122
KILLS = 200
RECORDS_PER_S = 300
Figure = Callable[[str], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(tmp_path / "cluster", SHORT) as made:
        yield made


@pytest.fixture
def view(cluster: LocalCluster) -> Iterator[View]:
    with View(cluster) as opened:
        yield opened


def test_kills_under_load(cluster: LocalCluster, view: View, figure: Figure) -> None:
    """Leaders and controllers rather than others; half of the time the next comes before all replicas are in sync."""
    chosen = random.Random(SEED)
    with load_on(cluster, "kills", records_per_s=RECORDS_PER_S) as load:
        for _ in range(KILLS):
            leader, controller = view.state(chosen.choice(load.partitions)).leader, view.controller()
            victim = chosen.choice([broker for broker in (leader, leader, controller, *cluster.brokers) if broker >= 0])
            kill(cluster, victim)
            if chosen.random() < 0.5:
                load.goes_on(5)
            cluster.start([victim])
            if chosen.random() < 0.5:
                view.await_replicated(load.topic)
                load.goes_on(5)
    begun = len(judge(cluster, load).new_epochs())
    figure(
        f"{KILLS} kills, {load.acked} records acknowledged, none lost, none twice, replicas identical, "
        f"{begun} producer epochs begun again (seed {SEED})"
    )


def test_leaders_are_killed_one_after_the_other(cluster: LocalCluster, view: View, figure: Figure) -> None:
    """The next leader as soon as there is one; the dead come back meanwhile."""
    with load_on(cluster, "leaders", 1, records_per_s=RECORDS_PER_S) as load:
        first = load.partitions[0]
        for _ in range(25):
            leader = view.await_leader(first)
            kill(cluster, leader)
            second = view.await_leader(first, leader)
            kill(cluster, second)
            cluster.start([leader, second])
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)
    figure(f"50 kills of leaders, {load.acked} records acknowledged")


def test_all_are_killed_at_once(cluster: LocalCluster, view: View, figure: Figure) -> None:
    """And some of them again while they start."""
    chosen = random.Random(SEED)
    with load_on(cluster, "blackouts", records_per_s=RECORDS_PER_S) as load:
        for _ in range(20):
            load.goes_on(5)
            kill(cluster, *cluster.brokers)
            for broker in chosen.sample(cluster.brokers, chosen.randint(0, 2)):
                starting = cluster._spawn(broker)
                time.sleep(chosen.random() * 2)  # wherever its start has got to
                starting.kill()
                starting.wait()
            cluster.start()
            if chosen.random() < 0.5:
                view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)
    figure(f"20 times all killed at once, {load.acked} records acknowledged")


def test_brokers_are_stopped_for_longer_than_their_sessions(cluster: LocalCluster, view: View, figure: Figure) -> None:
    """And for less. One, then two at once."""
    chosen = random.Random(SEED)
    session_s = cluster.settings(0).session_timeout_ms / 1000
    with load_on(cluster, "stops", records_per_s=RECORDS_PER_S) as load:
        for round_ in range(30):
            load.goes_on(5)
            victims = {view.state(load.partitions[0]).leader, view.controller(), chosen.choice(cluster.brokers)}
            first = chosen.sample(sorted(victims), min(len(victims), 1 + round_ % 2))
            with ExitStack() as stack:
                for broker in first:
                    stack.enter_context(stopped(cluster, broker))
                time.sleep(session_s * chosen.choice((0.5, 1, 2, 3)))  # how long they are away is the point
            if chosen.random() < 0.7:
                view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)
    figure(f"30 times one or two stopped and continued, {load.acked} records acknowledged")


def test_rolling_restarts(cluster: LocalCluster, view: View, figure: Figure) -> None:
    with load_on(cluster, "rolling", records_per_s=RECORDS_PER_S) as load:
        for _ in range(10):
            for broker in cluster.brokers:
                cluster.stop([broker])
                cluster.start([broker])
                view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)
    figure(f"10 rolling restarts, {load.acked} records acknowledged, none refused")


@pytest.mark.skipif(bool(faults.cannot_mount()), reason=faults.cannot_mount())
def test_a_disk_is_full_again_and_again(tmp_path: Path, figure: Figure) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", [0, 1, 2], 0, SHORT)
    try:
        with faults.loop_disk(cluster.home(2) / "data", tmp_path / "image", 64):
            cluster.start()
            with View(cluster) as view, load_on(cluster, "full", records_per_s=RECORDS_PER_S) as load:
                for _ in range(10):
                    load.goes_on()
                    process = pid_of(cluster, 2)
                    ballast = faults.fill(cluster.home(2) / "data")
                    eventually(lambda: view.serves_none(load.partitions, 2), "its replicas do not go offline")
                    load.goes_on()
                    assert pid_of(cluster, 2) == process
                    ballast.unlink()
                    kill(cluster, 2)
                    cluster.start([2])
                    view.await_replicated(load.topic)
                load.goes_on()
            judge(cluster, load)
            end(cluster)
    finally:
        end(cluster)
    figure(f"10 times a full disk, {load.acked} records acknowledged")
