"""Faults on three real brokers beneath read-process-write loops: each record that is read is visible exactly once.

A topic is fed all the time. Two groups, of the classic and of the consumer protocol, copy it by transactions
(copy_member.py); readers of committed records check the copies as they grow (copy_reader.py); a third group commits
offsets alone. Meanwhile brokers are killed, paused and cut off, and members are killed, paused, replaced, and join and
leave.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC, partition_of_transaction
from kreplog.types import TopicPartition
from tests.integration import namespaces
from tests.integration.clusters import admin_of, kill, running, wait_for_topic
from tests.integration.copying import WITHIN_S, Copying, PlainCommits
from tests.integration.faults import SHORT, load_on, stopped
from tests.integration.judging import judge
from tests.integration.view import View
from tests.integration.workload import Load

pytestmark = pytest.mark.long

SEED = 20261128
PARTS, ROUNDS = 8, 25
"""Of the long test: each part has brokers of its own, and takes some minutes."""

PARTITIONS = 3
INTERNAL = 3
"""Partitions of each internal topic."""

MEMBERS = 4
"""Slots of each loop; one to all of them are taken."""

CANNOT_CUT = namespaces.cannot_cut()
SETTINGS = (
    *SHORT,
    '"auto.create.topics.enable" = false',  # a client of the test before may still be there: the addresses are the same
    f'"offsets.topic.num.partitions" = {INTERNAL}',
    f'"transaction.state.log.num.partitions" = {INTERNAL}',
    '"group.initial.rebalance.delay.ms" = 0',
    '"group.min.session.timeout.ms" = 1000',
    '"group.consumer.min.session.timeout.ms" = 1000',
    '"group.consumer.session.timeout.ms" = 6000',
    '"group.consumer.min.heartbeat.interval.ms" = 100',
    '"group.consumer.heartbeat.interval.ms" = 500',
)
Figure = Callable[[str], None]


@pytest.fixture
def cluster_and_net(tmp_path: Path) -> Iterator[tuple[LocalCluster, namespaces.Net | None]]:
    """The brokers in network namespaces, where that can be."""
    if CANNOT_CUT:
        with running(tmp_path / "cluster", SETTINGS) as made:
            yield made, None
    else:
        with namespaces.spread(tmp_path / "cluster", SETTINGS) as spread:
            yield spread


class Faults:
    """What is done in a round, and undone again at its end; each chosen by the seed, and printed."""

    def __init__(
        self,
        cluster: LocalCluster,
        net: namespaces.Net | None,
        view: View,
        loops: Sequence[Copying],
        chosen: random.Random,
    ) -> None:
        self._cluster = cluster
        self._net = net
        self._view = view
        self._loops = loops
        self._chosen = chosen
        self._session_s = cluster.settings(0).session_timeout_ms / 1000

    def kill_broker(self) -> None:
        victim = self._victim()
        kill(self._cluster, victim)
        if self._chosen.random() < 0.5:
            self._loop().goes_on()
        self._cluster.start([victim], WITHIN_S)

    def kill_all(self) -> None:
        self._note("all are killed")
        kill(self._cluster, *self._cluster.brokers)
        self._cluster.start(None, WITHIN_S)

    def pause_broker(self) -> None:
        """For less or more than its session."""
        victim, sessions = self._victim(), self._chosen.choice((0.5, 1, 2, 3))
        self._note(f"paused for {sessions} sessions")
        with stopped(self._cluster, victim):
            time.sleep(self._session_s * sessions)  # how long it is away is the point

    def cut(self) -> None:
        """One way or both, from another broker or from all and the clients."""
        if self._net is None:
            self.pause_broker()
            return
        victim, kind = self._victim(), self._chosen.choice(("to", "from", "both", "all"))
        others = [broker for broker in self._cluster.brokers if broker != victim]
        other = self._chosen.choice(others)
        self._note(f"cut {kind} {other}")
        with self._net.healed():
            if kind in ("to", "both"):
                self._net.cut(victim, other)
            if kind in ("from", "both"):
                self._net.cut(other, victim)
            if kind == "all":
                self._net.unplug(victim)
            time.sleep(self._chosen.choice((0.5, 2, 4)))  # how long a cut lasts is what differs

    def kill_member(self) -> None:
        loop = self._loop()
        slot = self._chosen.choice(loop.slots)
        self._note(f"member {slot} of {loop.group} is killed")
        loop.kill(slot)
        if not loop.slots or self._chosen.random() < 0.7:
            loop.join(slot)

    def pause_member(self) -> None:
        """For more than its session, and maybe more than its transaction has."""
        loop = self._loop()
        slot, seconds = self._chosen.choice(loop.slots), self._chosen.choice((2, 7, 10))
        replaced = self._chosen.random() < 0.5
        self._note(f"member {slot} of {loop.group} is paused for {seconds} s, replaced: {replaced}")
        loop.pause(slot, seconds, replaced=replaced)

    def join_or_leave(self) -> None:
        loop = self._loop()
        free = [slot for slot in range(MEMBERS) if slot not in loop.slots]
        if free and (len(loop.slots) == 1 or self._chosen.random() < 0.5):
            self._note(f"member {free[0]} of {loop.group} joins")
            loop.join(free[0])
        else:
            slot = self._chosen.choice(loop.slots)
            self._note(f"member {slot} of {loop.group} leaves")
            loop.leave(slot)

    def member_beside(self, fault: Callable[[], None]) -> None:
        """A member is killed, and another takes its slot, while the fault goes on."""
        loop = self._loop()
        slot = self._chosen.choice(loop.slots)

        def replace() -> None:
            loop.kill(slot)
            loop.join(slot)

        self._note(f"member {slot} of {loop.group} is killed meanwhile")
        beside = threading.Timer(self._chosen.random(), replace)
        beside.start()
        try:
            fault()
        finally:
            beside.join()

    def run(self) -> None:
        """One fault, of brokers more often than of members, maybe with another beside it."""
        of_brokers = (self.kill_broker, self.kill_broker, self.pause_broker, self.cut, self.cut, self.kill_all)
        of_members = (self.kill_member, self.pause_member, self.join_or_leave)
        fault = self._chosen.choice((*of_brokers, *of_members))
        if fault in of_brokers and self._chosen.random() < 0.3:
            self.member_beside(fault)
        else:
            fault()

    def _loop(self) -> Copying:
        return self._chosen.choice(self._loops)

    def _victim(self) -> int:
        """A broker by what it does: a leader or coordinator of a loop, the controller, or any."""
        loop = self._loop()
        member = loop.transactional_id(self._chosen.choice(loop.slots))
        roles = {
            "leader read": TopicPartition(loop.source, self._chosen.randrange(PARTITIONS)),
            "leader written": TopicPartition(loop.target, self._chosen.randrange(PARTITIONS)),
            "group coordinator": TopicPartition(OFFSETS_TOPIC, partition_of_group(loop.group, INTERNAL)),
            "transaction coordinator": TopicPartition(TRANSACTIONS_TOPIC, partition_of_transaction(member, INTERNAL)),
        }
        role = self._chosen.choice((*roles, "controller", "any"))
        victim = self._view.state(roles[role]).leader if role in roles else -1
        victim = self._view.controller() if role == "controller" else victim
        if victim < 0:
            victim = self._chosen.choice(self._cluster.brokers)
        self._note(f"broker {victim} ({role} of {loop.group})")
        return victim

    def _note(self, text: str) -> None:
        print(text, flush=True)  # seen where a test fails, and with `pytest -s`


class Copies:
    """The load, its loops and the plain group on a cluster, from `with` to the end of it; then all is judged.

    loop: Copying, or what starts other members."""

    def __init__(
        self,
        cluster: LocalCluster,
        net: namespaces.Net | None,
        folder: Path,
        protocols: Sequence[str],
        seed: int,
        loop: Callable[[str, str, str, int, str, Path], Copying] = Copying,
    ) -> None:
        self.cluster = cluster
        targets = [f"copy-{protocol}" for protocol in protocols]
        with admin_of(cluster.bootstrap()) as admin:
            topics = {name: {"num_partitions": PARTITIONS, "replication_factor": 3} for name in targets}
            admin.create_topics(topics, wait_for_metadata=True)
        for target in targets:
            wait_for_topic(cluster, target, PARTITIONS)
        self.load: Load = load_on(cluster, "read", PARTITIONS, producers=1, consumers=1, records_per_s=50)
        bootstrap = cluster.bootstrap()
        self.loops = [
            loop(bootstrap, "read", target, PARTITIONS, protocol, folder)
            for target, protocol in zip(targets, protocols, strict=True)
        ]
        self.plain = PlainCommits.to(bootstrap, "plain", "read")
        self._net = net
        self._chosen = random.Random(seed)
        self._stack = ExitStack()
        self.view = self._stack.enter_context(View(cluster))
        self.faults = Faults(cluster, net, self.view, self.loops, random.Random(seed))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.plain)
            for loop in self.loops:
                stack.enter_context(loop)
                loop.join(0)
                loop.join(1)
            self._feeding = ExitStack()
            self._feeding.enter_context(self.load)
            self._stack.push(stack.pop_all())
        return self

    def run(self, rounds: int) -> None:
        """Rounds of faults; half of the time the next fault comes before all go on."""
        self.go_on()
        for number in range(rounds):
            print(f"round {number}", end=": ")
            self.faults.run()
            if self._chosen.random() < 0.5:
                self.go_on()
        self.go_on()

    def go_on(self) -> None:
        """Wait until all of them do."""
        self.plain.goes_on()
        for loop in self.loops:
            loop.goes_on()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._feeding.__exit__(kind, error, None)
            if error is None:
                for loop in self.loops:
                    loop.await_end(self.load.ends)
                self.plain.goes_on()
        finally:
            self._stack.close()

    def judge(self) -> None:
        """Fail if a guarantee was violated, as far as is seen at the end."""
        differences = [text for loop in self.loops for text in loop.differences()]
        assert not differences, "\n".join(differences)
        judge(self.cluster, self.load)

    def counts(self) -> str:
        """What was done, and nothing of it lost, as text."""
        copied = ", ".join(f"{loop.copied} copied by {loop.protocol} ({loop.hung} hung)" for loop in self.loops)
        return (
            f"{self.load.acked} records acknowledged, {copied}, none lost, none twice, none of an aborted transaction; "
            f"{self.plain.acknowledged} offsets of a plain group, none lost"
            + ("" if self._net is not None else "; no broker was cut off: that needs network namespaces")
        )


def test_each_record_is_copied_once(
    cluster_and_net: tuple[LocalCluster, namespaces.Net | None], tmp_path: Path
) -> None:
    """One round of each kind."""
    cluster, net = cluster_and_net
    with Copies(cluster, net, tmp_path, ["classic"], SEED) as copies:
        copies.go_on()
        faults = copies.faults
        for fault in (
            faults.kill_broker,
            faults.join_or_leave,
            lambda: faults.member_beside(faults.pause_broker),
            faults.pause_member,
            faults.cut,
            faults.kill_all,
        ):
            fault()
            copies.go_on()
    copies.judge()


@pytest.mark.parametrize("seed", range(SEED, SEED + PARTS))
def test_each_record_is_copied_once_in_many_rounds(
    cluster_and_net: tuple[LocalCluster, namespaces.Net | None], tmp_path: Path, figure: Figure, seed: int
) -> None:
    """Groups of both protocols."""
    cluster, net = cluster_and_net
    with Copies(cluster, net, tmp_path, ["classic", "consumer"], seed) as copies:
        copies.run(ROUNDS)
    copies.judge()
    figure(f"{ROUNDS} rounds of faults, {copies.counts()} (seed {seed})")
