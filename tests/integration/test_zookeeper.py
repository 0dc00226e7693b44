"""Real broker processes on a real ZooKeeper: they start, they are killed, and so is ZooKeeper itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")
pytest.importorskip("kazoo", reason="needs kazoo, the extra `zookeeper`")

from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from tests.coord.servers import MISSING, ZooKeeperServer
from tests.integration.clusters import FAST, eventually, kill, running
from tests.integration.faults import SHORT, load_on, stopped
from tests.integration.judging import judge
from tests.integration.kills import kill_leaders, spread
from tests.integration.view import View
from tests.integration.workload import QUICK, Load

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Pair = tuple[LocalCluster, ZooKeeperServer]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    try:
        with running(tmp_path_factory.mktemp("cluster"), SHORT, server) as cluster:
            yield cluster, server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def patient(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Brokers whose sessions outlive them for 20 s: what happens sooner is not by a session's end."""
    _, server = pair
    settings = (*FAST, '"broker.session.timeout.ms" = 20000')
    with running(tmp_path_factory.mktemp("patient"), settings, server) as cluster:
        yield cluster, server


def lose_leader(cluster: LocalCluster, view: View, load: Load) -> None:
    """Another one leads, and the old one comes back."""
    leader = view.await_leader(load.partitions[0])
    kill(cluster, leader)
    view.await_leader(load.partitions[0], leader)
    load.goes_on()
    cluster.start([leader])
    view.await_replicated(load.topic)
    load.goes_on()


@pytest.mark.long
def test_a_leader_is_killed(pair: Pair) -> None:
    cluster, _ = pair
    with View(cluster) as view, load_on(cluster, "killed") as load:
        load.goes_on()
        lose_leader(cluster, view, load)
    judge(cluster, load)


@pytest.mark.parametrize("controls", [False, True], ids=["leader", "controller"])
def test_a_death_is_seen_before_the_session_ends(patient: Pair, controls: bool) -> None:
    """By closed and refused connections: others lead and control, and the broker is back, while that session stands."""
    cluster, server = patient
    with View(cluster) as view, load_on(cluster, f"seen-{controls}", partitions=6) as load:
        load.goes_on()
        controller = view.controller()
        victim = controller if controls else next(broker for broker in cluster.brokers if broker != controller)
        led = [partition for partition in load.partitions if view.state(partition).leader == victim]
        assert led
        session = view.session_of(victim)
        kill(cluster, victim)
        for partition in led:
            view.await_leader(partition, victim)
        eventually(lambda: view.serves_none(load.partitions, victim), "its replicas do not go offline")
        eventually(lambda: view.controller() not in (-1, *[victim] * controls), "nobody else controls")
        load.goes_on()
        cluster.start([victim])
        view.await_replicated(load.topic)
        load.goes_on()
        assert session in server.sessions()
    judge(cluster, load)


@pytest.mark.parametrize("controls", [False, True], ids=["leader", "controller"])
def test_a_quick_restart_does_not_wait_for_the_old_session(patient: Pair, controls: bool) -> None:
    """The others are stopped meanwhile, so that it is the new process that ends what the dead one left."""
    cluster, server = patient
    with View(cluster) as view, load_on(cluster, f"restarted-{controls}") as load:
        load.goes_on()
        controller = view.controller()
        victim = controller if controls else next(broker for broker in cluster.brokers if broker != controller)
        others = [broker for broker in cluster.brokers if broker != victim]
        session = view.session_of(victim)
        with stopped(cluster, others[0]), stopped(cluster, others[1]):
            kill(cluster, victim)
            with suppress(ClusterError):  # it serves once the others go on
                cluster.start([victim], timeout_s=0.1)
            eventually(lambda: view.session_of(victim) not in (0, session), "it is not registered again")
        eventually(lambda: view.is_handled(victim), "no controller takes it in")
        view.await_replicated(load.topic)
        load.goes_on()
        assert session in server.sessions()
    judge(cluster, load)


def test_zookeeper_dies_and_returns(pair: Pair) -> None:
    """Leaders lead on without it, for as long as nothing else happens; sessions that ended are begun again."""
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


@pytest.mark.long
def test_how_long_a_failover_takes(pair: Pair, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """With the session's time-out as it comes, which is 9 s."""
    with running(tmp_path / "failover", FAST, pair[1]) as cluster:
        elections, pauses = kill_leaders(cluster, "one", 20, {**QUICK, "retry.backoff.ms": 10})
    figure(f"20 kills on ZooKeeper; from the kill to the new leader in the store: {spread(elections)}")
    figure(f"a waiting producer waits: {spread(pauses)}")


@pytest.mark.long
def test_long_pauses_lose_nothing(pair: Pair, tmp_path: Path) -> None:
    """A process that is stopped refuses nothing, so its session ends as it always did; then it comes back."""
    with running(tmp_path / "pauses", FAST, pair[1]) as cluster:
        with View(cluster) as view, load_on(cluster, "paused", records_per_s=300) as load:
            for victim in ("leader", "controller", "leader"):
                load.goes_on(5)
                paused = view.controller() if victim == "controller" else view.await_leader(load.partitions[0])
                session = view.session_of(paused)
                with stopped(cluster, paused):
                    time.sleep(15)  # what is tested: others go on after its session, and it comes back
                    load.goes_on(5)
                view.await_replicated(load.topic)
                assert view.session_of(paused) != session
            load.goes_on()
        judge(cluster, load)
