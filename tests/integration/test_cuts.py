"""Networks that are cut between the brokers, one way or both, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import namespaces
from tests.integration.clusters import eventually
from tests.integration.faults import SHORT, load_on
from tests.integration.judging import judge
from tests.integration.view import View
from tests.integration.workload import Load

CANNOT_CUT = namespaces.cannot_cut()
pytestmark = pytest.mark.skipif(bool(CANNOT_CUT), reason=CANNOT_CUT)

SEED = 20261122


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, namespaces.Net]]:
    with namespaces.spread(tmp_path_factory.mktemp("cuts"), SHORT) as made:
        yield made


@pytest.mark.parametrize("ways", ["both ways", pytest.param("to the leader", marks=pytest.mark.long)])
def test_a_follower_is_cut_off_from_its_leader(spread: tuple[LocalCluster, namespaces.Net], ways: str) -> None:
    """It leaves the ISR, the others go on, and it comes back when the cut is healed."""
    cluster, net = spread
    with View(cluster) as view, load_on(cluster, f"follower-{len(ways)}") as load:
        load.goes_on()
        first = load.partitions[0]
        leader = view.await_leader(first)
        follower = (leader + 1) % 3
        with net.healed():
            net.cut(follower, leader)
            if ways == "both ways":
                net.cut(leader, follower)
            eventually(lambda: follower not in view.state(first).isr, "it stays in the ISR")
            load.goes_on()
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


@pytest.mark.long
@pytest.mark.parametrize("from_clients", [False, True])
def test_a_leader_is_cut_off(spread: tuple[LocalCluster, namespaces.Net], from_clients: bool) -> None:
    """From both others, which still see its session in the store, so it leads on: alone, it acknowledges
    nothing. When the cut is healed all is as before."""
    cluster, net = spread
    with View(cluster) as view, load_on(cluster, f"leader-{from_clients}") as load:
        for number in range(3):
            load.goes_on()
            partition = load.partitions[number]
            leader = view.await_leader(partition)
            with net.healed():
                if from_clients:
                    net.unplug(leader)
                for other in {0, 1, 2} - {leader}:
                    net.cut_both(leader, other)
                eventually(lambda broker=leader: drop(view, load, broker), "the others do not drop it")  # type: ignore[misc]
                if not from_clients:  # else nothing is appended, so that its followers lack nothing
                    eventually(lambda partition=partition: len(view.state(partition).isr) == 1, "it does not drop them")  # type: ignore[misc]
            view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


def drop(view: View, load: Load, broker: int) -> bool:
    """Whether no other leader has this broker in its ISR."""
    states = [view.state(partition) for partition in load.partitions]
    return all(broker == state.leader or broker not in state.isr for state in states)


@pytest.mark.long
def test_links_come_and_go(spread: tuple[LocalCluster, namespaces.Net], figure: Callable[[str], None]) -> None:
    """Any of the six ways, several at once, for two minutes."""
    cluster, net = spread
    chosen = random.Random(SEED)
    ways = [(broker, other) for broker in net.brokers for other in net.brokers if broker != other]
    cuts = 0
    with View(cluster) as view, load_on(cluster, "flapping", records_per_s=300) as load:
        until = time.monotonic() + 120
        with net.healed():
            while time.monotonic() < until:
                for source, target in chosen.sample(ways, chosen.randint(1, 3)):
                    net.cut(source, target)
                    cuts += 1
                time.sleep(chosen.choice((0.1, 0.5, 2, 4)))  # how long a cut lasts is what differs
                if chosen.random() < 0.6:
                    net.heal()
                    time.sleep(chosen.random())  # likewise
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)
    figure(f"{cuts} one-way cuts, {load.acked} records acknowledged (seed {SEED})")
