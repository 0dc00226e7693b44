"""Faults on three real broker processes under load; the simulator's checkers judge what every client saw.

These are the quick forms: one cluster for all of them. The full bars are in test_long.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.sim.history import Ok, Read, Watermark
from kreplog.types import TopicPartition
from tests.integration import faults
from tests.integration.clusters import end, eventually, kill, pid_of
from tests.integration.faults import SHORT, examined, load_on, stopped
from tests.integration.judging import judge
from tests.integration.view import View
from tests.integration.workload import UNKNOWN_OFFSET, Load

DISK_MB = 64
CANNOT_MOUNT = faults.cannot_mount()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Broker 1 has two log directories; the one of broker 2 is a file system of its own, where that can be."""
    made = LocalCluster.create(tmp_path_factory.mktemp("faults"), [0, 1, 2], 0, SHORT)
    faults.set_log_dirs(made, 1, [made.home(1) / "data", made.home(1) / "more"])
    try:
        if CANNOT_MOUNT:
            made.start()
            yield made
        else:
            with faults.small_disk(made.home(2) / "data", DISK_MB):
                made.start()
                yield made
                end(made)
    finally:
        end(made)


@pytest.fixture
def view(cluster: LocalCluster) -> Iterator[View]:
    with View(cluster) as opened:
        yield opened


def victim_of(view: View, role: str, partition: TopicPartition) -> int:
    """The broker that now is the partition's leader, the controller, or neither (follower)."""
    leader, controller = view.state(partition).leader, view.controller()
    others = [broker for broker in (0, 1, 2) if broker not in (leader, controller)]
    return {"leader": leader, "controller": controller, "follower": others[0]}[role]


def test_leader_follower_and_controller_are_killed(cluster: LocalCluster, view: View) -> None:
    with load_on(cluster, "kills") as load:
        first = load.partitions[0]
        for role in ("leader", "follower", "controller", "leader"):
            load.goes_on()
            victim = victim_of(view, role, first)
            kill(cluster, victim)
            load.goes_on()
            cluster.start([victim])
            view.await_replicated(load.topic)
        load.goes_on()
    verdict = judge(cluster, load)

    # And the checkers can fail: each guarantee, violated in what a client reports, is noticed.
    events = load.history.events
    acked = next(event for event in events if isinstance(event, Ok))
    read = next(event for event in events if isinstance(event, Read) and event.offset == 7)
    heard = next(event for event in reversed(events) if isinstance(event, Watermark))
    for bad, kind in (
        (replace(acked, sequence=10**6, base_offset=10**6, values=("0/1000000/",)), "too early"),
        (replace(acked, sequence=10**6, base_offset=UNKNOWN_OFFSET, values=("0/1000000/",)), "too early"),
        (replace(acked, base_offset=acked.base_offset + 1), "two values"),
        (replace(read, offset=9), "gap"),
        (replace(read, offset=10**6), "phantom"),
        (replace(heard, high_watermark=heard.high_watermark - 1), "watermark fell"),
    ):
        result = verdict.violations([*events, bad])
        assert any(violation.startswith(f"{kind}: ") for violation in result), (kind, result)


def test_a_leader_is_stopped_for_longer_than_its_session(cluster: LocalCluster, view: View) -> None:
    with load_on(cluster, "stopped") as load:
        load.goes_on()
        first = load.partitions[0]
        leader = view.state(first).leader
        epoch = view.broker_epoch(leader)
        with stopped(cluster, leader):
            view.await_leader(first, leader)
            eventually(lambda: leader not in view.registered(), "its session does not end")
            load.goes_on()
        eventually(lambda: view.broker_epoch(leader) > epoch, "it does not register again")
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


def come_back(cluster: LocalCluster, view: View, load: Load, broker: int) -> None:
    """Restart the broker: replicas that went offline come back with the next start only."""
    cluster.stop([broker])
    cluster.start([broker])
    view.await_replicated(load.topic)
    load.goes_on()


@pytest.mark.skipif(bool(CANNOT_MOUNT), reason=CANNOT_MOUNT)
def test_a_disk_is_full(cluster: LocalCluster, view: View) -> None:
    with load_on(cluster, "full") as load:
        load.goes_on()
        process = pid_of(cluster, 2)
        ballast = faults.fill(cluster.home(2) / "data")
        eventually(lambda: view.serves_none(load.partitions, 2), "its replicas do not go offline")
        load.goes_on()
        assert pid_of(cluster, 2) == process and 2 in view.registered()
        assert examined(cluster)[0][2]["state"] == "degraded"
        ballast.unlink()
        view.await_replicated(load.topic)
        assert pid_of(cluster, 2) == process
        load.goes_on()
        assert examined(cluster)[0][2]["state"] == "serving"
    judge(cluster, load)


def test_a_log_directory_is_removed(cluster: LocalCluster, view: View) -> None:
    with load_on(cluster, "removed") as load:
        load.goes_on()
        process, more = pid_of(cluster, 1), cluster.home(1) / "more"
        lost = [partition for partition in load.partitions if (more / str(partition)).exists()]
        unaffected = [partition for partition in load.partitions if partition not in lost]
        assert lost and unaffected
        gone = more.rename(cluster.home(1) / "gone")  # in one instant: the broker goes on making files there
        shutil.rmtree(gone)
        eventually(lambda: view.serves_none(lost, 1), "its replicas do not go offline")
        load.goes_on()
        assert pid_of(cluster, 1) == process and 1 in view.registered()
        assert all(1 in view.state(partition).isr for partition in unaffected)
        brokers, degraded = examined(cluster)
        assert {broker["id"]: broker["state"] for broker in brokers} == {0: "serving", 1: "degraded", 2: "serving"}
        assert str(more) in brokers[1]["detail"] and str(cluster.home(1) / "data") not in brokers[1]["detail"]
        assert any("under-replicated" in reason for reason in degraded)
        come_back(cluster, view, load, 1)
        brokers, degraded = examined(cluster)
        assert {broker["state"] for broker in brokers} == {"serving"} and not degraded
    judge(cluster, load)


def test_all_are_killed_at_once(cluster: LocalCluster, view: View) -> None:
    with load_on(cluster, "blackout") as load:
        load.goes_on()
        kill(cluster, *cluster.brokers)
        cluster.start()
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


@pytest.mark.long
def test_rolling_restart(cluster: LocalCluster, view: View) -> None:
    with load_on(cluster, "rolling") as load:
        for broker in cluster.brokers:
            load.goes_on()
            cluster.stop([broker])
            assert (cluster.home(broker) / "data" / ".kafka_cleanshutdown").exists()
            cluster.start([broker])
            view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)
