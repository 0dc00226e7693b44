"""How long a failover takes for clients. Printed, not asserted, since machines differ."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")


from kreplog._native import batch
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.coord.servers import MISSING, ZooKeeperServer
from tests.integration.clusters import FAST, admin_of, eventually, kill, running
from tests.integration.kills import kill_leaders, spread
from tests.integration.view import View
from tests.integration.workload import QUICK

pytestmark = pytest.mark.long

KILLS = 25
PARTITIONS = 10_000
WRITTEN_TO = 1000
FILES_EACH = 1
AT_ONCE = 1000
POLLED_AT_ONCE = 250
SETTLE_S = 5.0
_VERSION = 7
_SOUND = batch.build([b"x" * 100], timestamps_ms=[0])
_DAMAGED = _SOUND[:-1] + b"y"
"""What a leader refuses for its CRC, and everybody else because he does not lead. Nothing is written: thousands
of records at once are a load of their own, which is measured with WRITTEN_TO of them."""
Figure = Callable[[str], None]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(tmp_path / "cluster", FAST) as made:
        yield made


@pytest.mark.parametrize("clients", ["quick", "default"])
def test_of_one_partition(cluster: LocalCluster, figure: Figure, clients: str) -> None:
    """quick: librdkafka looks for a new leader every 20 ms; default: every 100 ms."""
    settings = {**QUICK, "retry.backoff.ms": 10} if clients == "quick" else {}
    elections, pauses = kill_leaders(cluster, "one", KILLS, settings)
    figure(f"{KILLS} kills; from the kill to the new leader in the store: {spread(elections)}")
    figure(f"a waiting producer waits: {spread(pauses)}")


class LeaderPoll:
    """Finds out over one connection which of many partitions a broker leads, by one Produce request for all of them.

    writes: the batch is sound and is appended by a leader; else its CRC is wrong, and nothing is written.
    """

    def __init__(self, address: tuple[str, int], topic: str, writes: bool) -> None:
        self._sock = socket.create_connection(address, timeout=60)
        self._topic = topic
        self._batch, self._taken = (_SOUND, ErrorCode.NONE) if writes else (_DAMAGED, ErrorCode.CORRUPT_MESSAGE)
        self._number = 0

    def poll(self, partitions: list[int]) -> tuple[set[int], set[ErrorCode]]:
        """The partitions that the broker leads, and the errors of the others."""
        self._number += 1
        header = RequestHeader(ApiKey.PRODUCE, _VERSION, self._number, "leader-poll")
        requested = tuple(ProducePartition(TopicPartition(self._topic, number), self._batch) for number in partitions)
        self._sock.sendall(b"".join(produce.encode_request(ProduceRequest(1, 30_000, requested), header)))
        response = produce.decode_response(self._receive(), header)
        led = {partition.partition.partition for partition in response.partitions if partition.error is self._taken}
        return led, {partition.error for partition in response.partitions} - {self._taken}

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._sock.recv(size - len(found))
            assert piece, "the broker has closed the connection"
            found += piece
        return found

    def close(self) -> None:
        self._sock.close()


def partitions_possible() -> int:
    """PARTITIONS, or as many as the brokers may open files for here, when all are written to."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return PARTITIONS if hard == resource.RLIM_INFINITY else min(PARTITIONS, (hard - 500) // FILES_EACH)


@pytest.mark.parametrize("victim", ["a broker", "the controller"])
def test_of_ten_thousand_partitions(folder: Path, figure: Figure, victim: str) -> None:
    """One broker leads all of them and is killed; the others are polled until each can write."""
    _of_many(folder, figure, victim, partitions_possible(), writes=False)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("victim", ["a broker", "the controller"])
def test_of_ten_thousand_partitions_on_zookeeper(folder: Path, figure: Figure, victim: str) -> None:
    (directory := folder / "zookeeper").mkdir()
    server = ZooKeeperServer(directory)
    try:
        _of_many(folder, figure, victim, partitions_possible(), writes=False, zookeeper=server)
    finally:
        server.kill()


@pytest.mark.parametrize("victim", ["a broker", "the controller"])
def test_of_a_thousand_partitions_that_are_written_to(folder: Path, figure: Figure, victim: str) -> None:
    """Each takes a record before and after, which begins an epoch with its leader and its follower."""
    _of_many(folder, figure, victim, WRITTEN_TO, writes=True)


def _of_many(
    folder: Path, figure: Figure, victim: str, count: int, *, writes: bool, zookeeper: ZooKeeperServer | None = None
) -> None:
    with running(folder / "cluster", FAST, zookeeper) as cluster, View(cluster) as view:
        controller = view.controller()
        dead, first, second = (controller, *sorted({0, 1, 2} - {controller}))
        if victim != "the controller":
            dead, first = first, dead
        start = time.monotonic()
        _make(cluster, view, count, ((dead, first, second), (dead, second, first)))
        addresses = {status.id: (status.host, status.port) for status in cluster.status()}
        _poll_until_led(addresses, {dead: range(count)}, writes)
        figure(f"{count} partitions made in {time.monotonic() - start:.1f} s")
        eventually(lambda: not view.under_replicated("many"), "they are not all in sync", 300)
        time.sleep(SETTLE_S)  # background work of their creation, which sends no event
        assert view.controller() == controller
        killed = time.monotonic()
        kill(cluster, dead)
        rounds = _poll_until_led(addresses, {first: range(0, count, 2), second: range(1, count, 2)}, writes)
        taken = time.monotonic() - killed
        figure(f"{count} partitions of {victim} fail over in {taken:.2f} s; {rounds} rounds of requests")
        start = time.monotonic()
        cluster.start([dead], 300)
        eventually(lambda: not view.under_replicated("many"), "they are not all in sync again", 300)
        figure(f"the dead broker is back in all ISRs after {time.monotonic() - start:.1f} s")


def _make(cluster: LocalCluster, view: View, count: int, replicas: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """The topic, in pieces: one request for all of them takes longer than kafka-python waits. replicas: of the even
    partitions and the odd ones."""
    with admin_of(cluster.bootstrap()) as admin:
        for made in range(0, count, AT_ONCE):
            new = {number: list(replicas[number % 2]) for number in range(made, min(made + AT_ONCE, count))}
            if made == 0:
                admin.create_topics({"many": {"assignments": new}})
            else:
                admin.create_partitions({"many": {"count": made + len(new), "assignments": list(new.values())}})
            last = TopicPartition("many", made + len(new) - 1)
            eventually(partial(_leads, view, replicas[0][0], last), f"{last} is not made", 120)


def _leads(view: View, broker: int, partition: TopicPartition) -> bool:
    return view.state(partition).leader == broker


def _poll_until_led(addresses: dict[int, tuple[str, int]], wanted: dict[int, range], writes: bool) -> int:
    """Poll until each partition was led by the broker that is to lead it; return how many rounds of requests it took.

    wanted: by broker. Its partitions are polled in order, the first of them alone until it is led and then
    POLLED_AT_ONCE together, so that the polls are not the load.
    """
    connections = {broker: LeaderPoll(addresses[broker], "many", writes) for broker in wanted}
    left = {broker: list(partitions) for broker, partitions in wanted.items()}
    rounds = 0
    deadline = time.monotonic() + 120
    while any(left.values()):
        rounds += 1
        moved = False
        for broker, partitions in left.items():
            if not partitions:
                continue
            taken, errors = connections[broker].poll(partitions[:1])
            if taken:
                more, errors = connections[broker].poll(partitions[1:POLLED_AT_ONCE])
                taken |= more
                partitions[:] = [partition for partition in partitions if partition not in taken]
                moved = True
            assert time.monotonic() < deadline, f"broker {broker}: {len(partitions)} left, {errors}"
        if not moved:
            time.sleep(
                0.003
            )  # no event says that a leader has taken over; the pause keeps the polls from being the load
    for connection in connections.values():
        connection.close()
    return rounds
